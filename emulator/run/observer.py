"""The interface of whoever watches a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from emulator.run.plan.run_plan import RunPlan
from emulator.run.results import Result


class Observer(Protocol):
    """An observer of a run: a terminal, or nobody."""

    def began(self, plan: RunPlan, result: Result) -> None:
        """The fabric is about to be built; the dilation is known."""

    def progress(self, what: str, share: float | None) -> None:
        """Report progress: ``share`` (0..1) of the whole run is done, None if unknown."""

    def row(self, row: Mapping[str, object]) -> None:
        """A trial is done."""
