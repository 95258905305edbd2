"""A command that no launcher has started loads nothing of MPI."""

import subprocess
import sys

import pytest

from tests.harness.runs.processes import user_environment


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("emulator.cli.main", ("mpi4py", "emulator.workers.ranks.exchange", "numpy")),
        ("emulator.cli.run_verb", ("mpi4py", "emulator.workers.ranks.mpi_channel")),
    ],
)
def test_nothing_of_mpi_is_loaded(module: str, unwanted: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print([one for one in {unwanted} if one in sys.modules])"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=user_environment(),
        check=True,
    )
    assert ended.stdout == "[]\n"
