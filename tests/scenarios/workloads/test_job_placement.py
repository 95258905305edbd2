"""Jobs get GPUs by their placement."""

from __future__ import annotations

import pytest

from emulator.errors import UserError
from scenarios.workloads.job_placement import PLACEMENTS, placed
from topologies.catalogue import load

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
