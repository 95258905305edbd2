"""Trainings with checkpoints: the same bits whoever is lost, from whichever checkpoint."""

import random
from functools import partial

import numpy as np
import pytest

from emulator.errors import UserError
from emulator.sim.endpoint.interruption import Interruption, JobExecution
from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.sim.endpoint.operations.schedule import Write, only_operations_of
from scenarios.workloads.checkpointed_training import (
    STATES,
    CheckpointedTraining,
    JobPart,
    JobPlaces,
)
from scenarios.workloads.network.layers import RecurrentModel
from scenarios.workloads.network.replica_training import ReplicaLearning
from scenarios.workloads.network.tensors import octets_of
from tests.harness.runs.schedule_executor import Executor, hazards
from tests.harness.runs.wanted_parts import assert_parts
from topologies.catalogue import load

FABRIC = load("rail_clos:hosts=4,gpus_per_host=2,spines=1")
PLACES = JobPlaces.of(FABRIC, spares=2, stores=2)


def training(every: int = 2, epochs: int = 5) -> CheckpointedTraining:
    return CheckpointedTraining(
        learning=ReplicaLearning(
            model=RecurrentModel(2, 4, 2, 2),
            replicas=4,
            samples=3,
            epochs=epochs,
            rate=0.02,
            seed=7,
        ),
        topology=FABRIC,
        places=PLACES,
        every=every,
        gradient_ns=1000,
    )


def executed(job: CheckpointedTraining, part: JobPart, before: Executor | None = None) -> Executor:
    """Run ``part`` over the stores' states of ``before``, and compare with what is expected."""
    executor = Executor(job.compile(part), random.Random(3))
    for rank in range(len(FABRIC.gpus)):
        for name, content in job.inputs(rank, part).items():
            executor.memory[rank][name][:] = content.view(np.uint8)
        if before is not None and STATES in executor.memory[rank]:
            executor.memory[rank][STATES][:] = before.memory[rank][STATES]
    executor.run()
    for rank in range(len(FABRIC.gpus)):
        for name, content in job.expected(rank, part).items():
            assert executor.memory[rank][name].tobytes() == content.tobytes()
    return executor


def interrupted(job: CheckpointedTraining, part: JobPart, stored: int, *lost: int) -> JobExecution:
    """An execution of ``part`` in which the checkpoints up to ``stored`` were finished."""
    schedules = job.compile(part)
    ends = [np.full(len(one.operations), -1) for one in schedules]
    for number in range(part.checkpoint + 1, stored + 1):
        for rank, index in part.stored[number]:
            ends[rank][index] = 1000 * number
    results = [
        RankResult(
            rank=rank,
            node=FABRIC.gpus[rank].name,
            execution=1,
            start_ns=0,
            end_ns=5000,
            operation_start=times,
            operation_end=times,
            error="dead" if rank in lost else "transport",
        )
        for rank, times in enumerate(ends)
    ]
    loss = Interruption(lost=dict.fromkeys(lost, 4000), results=results, start_ns=0)
    return JobExecution(schedules, results, loss)


@pytest.mark.parametrize("every", [1, 2, 5, 6])
def test_without_a_loss_states_and_checkpoints_are_those_of_one_gpu(every: int) -> None:
    job = training(every)
    executed(job, job.first)
    assert hazards(job.compile(job.first)) == []
    assert sorted(job.first.stored) == list(range(1, 5 // every + 1))


@pytest.mark.parametrize("stored", [0, 1, 2])
@pytest.mark.parametrize("lost", [(2,), (0, 3)])
def test_the_job_goes_on_from_the_last_whole_checkpoint(stored: int, lost: tuple[int, ...]) -> None:
    job = training()
    states = executed(job, job.first)
    executions = [interrupted(job, job.first, stored, *lost)]
    part = job.part_after(executions)
    assert part.checkpoint == stored
    assert [rank for rank in part.placed if rank in PLACES.workers] == [
        rank for rank in PLACES.workers if rank not in lost
    ]
    assert set(part.placed) - set(PLACES.workers) == set(PLACES.spares[: len(lost)])
    busy = [rank for rank, one in enumerate(job.compile(part)) if len(one.operations)]
    assert not set(lost) & set(busy)
    assert hazards(job.compile(part)) == []
    executed(job, part, states)
    following = job.recover(executions)
    assert following.kept == (STATES,)
    assert following.compile() == job.compile(part)
    assert all(not following.expected(rank) for rank in lost)


def test_a_checkpoint_of_which_a_state_is_missing_does_not_count() -> None:
    job = training()
    one = interrupted(job, job.first, 2, 1)
    rank, index = job.first.stored[2][-1]
    one.results[rank].operation_end[index] = -1
    assert job.part_after([one]).checkpoint == 1


@pytest.mark.parametrize("wanted", [{0}, {3, 5}, {6, 7}, {1, 2, 4}])
def test_all_parts_are_compiled_for_some_of_the_gpus(wanted: set[int]) -> None:
    job = training()
    interruption = interrupted(job, job.first, 1, 2)
    for part, compile_part in (
        (job.first, partial(job.compile, job.first)),
        (job.part_after([interruption]), job.recover([interruption]).compile),
    ):
        with only_operations_of(wanted):
            some = compile_part()
        assert_parts(some, job.compile(part), frozenset(wanted))


def test_octets_that_were_sent_are_those_of_writes_that_are_done() -> None:
    job = training()
    for part in (job.first, job.part_after([interrupted(job, job.first, 1, 2)])):
        execution = interrupted(job, part, 2)
        for result in execution.results:
            result.operation_end[::3] = 7
        writes = [
            (one.rank, index, send.local.length)
            for one in execution.schedules
            for index, send in enumerate(one.operations)
            if isinstance(send, Write)
        ]
        assert sorted(part.writes) == writes
        assert part.sent_octets(execution.results) == sum(
            octets
            for rank, index, octets in writes
            if execution.results[rank].operation_end[index] >= 0
        )
        assert 0 < part.sent_octets(execution.results) < octets_of(part.exchanges, nvlink=False)


def test_a_second_loss_takes_the_next_spare_and_the_latest_checkpoint() -> None:
    job = training()
    first = interrupted(job, job.first, 1, 2)
    then = job.part_after([first])
    second = interrupted(job, then, 2, 2, 0)
    part = job.part_after([first, second])
    assert part.checkpoint == 2
    assert part.placed == (5, 1, 4, 3)


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ((0, 1, 2), "has lost ranks 0, 1, 2 and 2 spares are left"),
        ((0, 1, 4), "has lost ranks 0, 1 and one spare is left"),
        ((3, 4, 5), "has lost rank 3 and no spare is left"),
        ((0, 7), "rank 7, which stores states, is lost with them"),
    ],
)
def test_a_job_that_cannot_go_on_says_why(lost: tuple[int, ...], words: str) -> None:
    job = training()
    with pytest.raises(UserError, match=words):
        job.recover([interrupted(job, job.first, 1, *lost)])


def test_a_job_needs_two_gpus_that_train() -> None:
    with pytest.raises(UserError, match=r"leave 1 of the 8 GPUs .* to train"):
        JobPlaces.of(FABRIC, spares=5, stores=2)


def test_who_reported_whose_part_was_aborted_and_when() -> None:
    results = [
        RankResult(
            rank=rank,
            node=f"h{rank}g0",
            execution=1,
            start_ns=100,
            end_ns=end,
            operation_start=np.zeros(1, np.int64),
            operation_end=np.zeros(1, np.int64),
            error=error,
        )
        for rank, (end, error) in enumerate(
            [(900, "transport"), (1000, "dead"), (700, "scale-up"), (1000, "aborted"), (0, None)]
        )
    ]
    loss = Interruption(lost={1: 250, 4: 600}, results=results, start_ns=100)
    assert [one.rank for one in loss.reported] == [2, 0]
    assert loss.aborted == [3]
    assert loss.known_ns == 800
    assert loss.fault_ns == 250  # rank 4 had nothing left to do
