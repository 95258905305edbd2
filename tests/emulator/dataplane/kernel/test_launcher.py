"""A launcher is known by its variables, and hidden from the commands that a rank starts."""

import pytest

from emulator.dataplane.kernel.launcher import RankPlace, place, without_launcher

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        (OPEN_MPI, RankPlace(2, 4)),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_RANK": "0"}, RankPlace(2, 4, first_here=True)),
        (OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "1"}, None),
        (OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "many"}, None),
        ({"OMPI_COMM_WORLD_RANK": "0"}, None),
        ({"PMI_RANK": "0", "PMI_SIZE": "8"}, RankPlace(0, 8, first_here=True)),
        ({"PMIX_RANK": "1", "SLURM_STEP_NUM_TASKS": "2"}, RankPlace(1, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),  # a batch script has these, too
    ],
)
def test_a_place_by_its_variables(environment: dict[str, str], expected: RankPlace | None) -> None:
    assert place(environment) == expected


def test_what_a_rank_starts_is_no_rank() -> None:
    left = without_launcher(OPEN_MPI | {"PMIX_RANK": "2", "PATH": "/bin", "PMI_SIZE": "4"})
    assert left == {"PATH": "/bin"}
    assert place(left) is None
