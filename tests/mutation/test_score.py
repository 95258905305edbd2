"""Small changes to ``uet/`` are noticed by its tests."""

import subprocess
import sys

import pytest

from tests import CHECKOUT

TRIAL = ("--sample", "400", "--seconds", "150", "--limit", "60")


@pytest.mark.nightly
def test_most_mutants_are_noticed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutation", *TRIAL],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
