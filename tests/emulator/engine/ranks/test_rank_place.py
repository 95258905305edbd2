"""The place among ranks that launchers give by the environment."""

from __future__ import annotations

import pytest

from emulator.engine.ranks.rank_place import RankPlace, place


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}, RankPlace(1, 4)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, RankPlace(0, 2)),
        ({"PMIX_RANK": "3", "SLURM_STEP_NUM_TASKS": "4"}, RankPlace(3, 4)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, None),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, None),  # a batch script, without srun
        ({"PMI_RANK": "2", "PMI_SIZE": "2"}, None),
        ({"PMI_RANK": "one", "PMI_SIZE": "2"}, None),
        ({}, None),
    ],
)
def test_place(environment: dict[str, str], found: RankPlace | None) -> None:
    assert place(environment) == found
