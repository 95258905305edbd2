"""Runs of their own for tests of whole runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.scenarios.processes import Run, uetemu


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def begin(*arguments: str, scenario: str = "allreduce") -> Run:
        runs.append(Run(tmp_path, *arguments, scenario=scenario))
        return runs[-1]

    yield begin
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
        run.process.communicate()
        if run.leftovers():
            uetemu("clean", run.lab).communicate()
