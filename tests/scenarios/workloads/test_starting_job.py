"""The start of a job: every rank has the id and the weights, nobody ahead of the check-in."""

import random

import numpy as np
import pytest

from scenarios.workloads.network.layers import RecurrentModel
from scenarios.workloads.network.replica_training import ReplicaLearning
from scenarios.workloads.starting_job import CHECK_IN, StartedJob, StartingJob
from tests.harness.runs.schedule_executor import Executor, happens_before, hazards
from topologies.catalogue import load


@pytest.mark.parametrize("hosts", [1, 2, 3])
@pytest.mark.parametrize("algorithm", ["ring", "binomial"])
def test_a_start_ends_with_the_first_step_of_one_gpu(algorithm: str, hosts: int) -> None:
    topology = load(f"rail_clos:hosts={hosts},gpus_per_host=2,spines=1")
    job = StartingJob(
        learning=ReplicaLearning(
            model=RecurrentModel(2, 5, 2, 2),
            replicas=2 * hosts,
            samples=3,
            epochs=1,
            rate=0.02,
            seed=hosts,
        ),
        topology=topology,
        algorithm=algorithm,
        slice_bytes=64,
        gradient_ns=1000,
    )
    started = job.started()
    executor = Executor(started.schedules, random.Random(hosts))
    ranks = range(2 * hosts)
    for rank in ranks:
        for name, content in job.inputs(rank).items():
            executor.memory[rank][name][:] = content.view(np.uint8)
    executor.run()
    for rank in ranks:
        for name, content in job.expected(rank).items():
            assert executor.memory[rank][name].tobytes() == content.tobytes(), (rank, name)
    assert hazards(started.schedules) == []
    assert {one.what for one in started.exchanges} >= {CHECK_IN}
    _no_weight_before_the_check_in(started)


def _no_weight_before_the_check_in(started: StartedJob) -> None:
    before = happens_before(started.schedules)
    number: dict[tuple[int, int], int] = {}
    for schedule in started.schedules:
        for index in range(len(schedule.operations)):
            number[schedule.rank, index] = len(number)
    for place in started.weights:
        assert all(before[place] >> number[one] & 1 for one in started.check_in)
