"""Runs of scenarios: on a modelled fabric, which the sweep holds to the kernel's frame by frame."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.runs.modelled_run import ModelledRuns
from tests.harness.runs.whole_run import held


@pytest.fixture
def uetemu_run(tmp_path: Path) -> Iterator[ModelledRuns]:
    """``uetemu_run(scenario, *options, params=...)`` runs it to its end."""
    runs = ModelledRuns(tmp_path, checks=[held])
    yield runs
    runs.end()
