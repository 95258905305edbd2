"""Runs of scenarios: on a modelled fabric, which the sweep holds to the kernel's frame by frame."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.runs.modelled_run import ModelledRun, ModelledRuns


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., ModelledRun]:
    """``start(*options, scenario=...)`` begins ``uetemu run --fabric model``."""

    def begin(*options: str, scenario: str = "allreduce") -> ModelledRun:
        return ModelledRun(tmp_path, scenario, *options)

    return begin


@pytest.fixture
def uetemu_run(tmp_path: Path) -> ModelledRuns:
    """``uetemu_run(scenario, *options, params=...)`` runs it to its end."""
    return ModelledRuns(tmp_path)
