"""Several jobs on one fabric: their rows, and what each loses to the others."""

import pytest

from emulator import scenario
from emulator.errors import UserError
from emulator.scenario import Outcome, Trial
from scenarios.training_jobs.jobs import PLACEMENTS, placed
from tests.harness.runs.observed_messages import iteration_of, observed_in
from topologies.catalogue import load
from topologies.model import Topology

SMALL = {"dp": "4", "batch": "4", "scale": "65536"}


def loaded(**given: str) -> tuple[object, Topology, list[Trial]]:
    module = scenario.load("jobs")
    parameters = module.parameters({**SMALL, **given})
    topology = load(str(module.topology(parameters)))
    return parameters, topology, module.schedules(parameters, topology, 1)


def test_each_job_runs_alone_and_then_all_at_once() -> None:
    _, topology, rows = loaded(jobs="3")
    assert len(topology.gpus) == 12
    assert [row.facts["running"] for row in rows] == 3 * ["1", "2", "3", "1+2+3"]
    assert [row.facts["placement"] for row in rows[::4]] == ["packed", "spread", "random"]
    for first in range(0, 12, 4):
        alone, together = rows[first : first + 3], rows[first + 3]
        assert together.facts["gpus"] == sum(row.facts["gpus"] for row in alone) == 12
        octets = sum(row.facts["fabric_bytes_derived"] for row in alone)
        assert together.facts["fabric_bytes_derived"] == octets


def test_aligned_jobs_stay_off_the_spine() -> None:
    _, _, rows = loaded(dp="8", batch="8")
    shares = {
        (row.facts["placement"], row.facts["running"]): row.facts["spine_share"] for row in rows
    }
    assert shares["packed", "1+2"] < 0.1  # the norm goes to partners on other rails
    assert shares["random", "1+2"] > 0.5


def _outcome(trial: Trial, slow: int) -> Outcome:
    """Every message arrives ``slow`` ns after it could be sent at first."""
    compiled = trial.compile()
    iteration = iteration_of(compiled, 0, slow)
    return Outcome(
        times_ns=(slow,),
        ideal_ns=1,
        wrong=0,
        counters={"rx_message_octets": 17},
        iterations=[iteration],
        observed=[observed_in(trial, compiled, iteration)],
    )


def test_a_slow_down_is_the_time_of_a_job_over_its_own_alone() -> None:
    module = scenario.load("jobs")
    parameters, topology, (one, two, both) = loaded(placement="packed")
    far = 10**9
    for trial, slow in ((one, far), (two, 2 * far)):
        row = module.measures(parameters, topology, trial, _outcome(trial, slow))
        assert row["slowdown"] == 1
        assert row["slowdowns"] == "-"
        assert row["fabric_bytes"] == 17
    row = module.measures(parameters, topology, both, _outcome(both, 3 * far))
    assert row["slowdown_by_job"] == pytest.approx([3, 1.5], rel=1e-3)
    assert row["slowdowns"] == "3.00 1.50"
    assert row["slowdown"] == pytest.approx(3, rel=1e-3)
    assert 0 < row["exposed"] <= 1


def test_too_many_jobs_are_refused() -> None:
    module = scenario.load("jobs")
    parameters = module.parameters({**SMALL, "jobs": "3"})
    with pytest.raises(UserError, match="3 jobs of 4 GPUs need 12 units of 1"):
        module.schedules(parameters, load("rail_clos:hosts=2,gpus_per_host=4"), 1)


FABRIC = load("rail_clos:hosts=4,gpus_per_host=4")


def test_packed_fills_hosts_and_spread_takes_a_part_of_each() -> None:
    assert placed(FABRIC, "packed", 2, 8, 2, 1) == [tuple(range(8)), tuple(range(8, 16))]
    first, second = placed(FABRIC, "spread", 2, 8, 2, 1)
    assert first == (0, 1, 4, 5, 8, 9, 12, 13)
    assert second == (2, 3, 6, 7, 10, 11, 14, 15)


@pytest.mark.parametrize("unit", [1, 2, 4])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_unit_stays_in_a_host_and_no_gpu_has_two_jobs(placement: str, unit: int) -> None:
    jobs = placed(FABRIC, placement, 3, 4, unit, 7)
    taken = [rank for job in jobs for rank in job]
    assert len(taken) == len(set(taken)) == 12
    for job in jobs:
        for at in range(0, 4, unit):
            assert len({rank // 4 for rank in job[at : at + unit]}) == 1


def test_the_seed_decides_at_random() -> None:
    chosen = {tuple(placed(FABRIC, "random", 2, 8, 1, seed)) for seed in range(5)}
    assert len(chosen) == 5
    assert placed(FABRIC, "random", 2, 8, 1, 3) == placed(FABRIC, "random", 2, 8, 1, 3)


@pytest.mark.parametrize(("jobs", "gpus", "unit"), [(3, 8, 2), (1, 8, 8), (2, 9, 3)])
def test_too_few_gpus_are_refused(jobs: int, gpus: int, unit: int) -> None:
    with pytest.raises(UserError, match="more hosts"):
        placed(FABRIC, "packed", jobs, gpus, unit, 1)
