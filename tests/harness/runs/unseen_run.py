"""A run that nobody looks at."""

from collections.abc import Mapping

from emulator.run.plan.run_plan import RunPlan
from emulator.run.results import Result
from emulator.run.runner import execute


class _Nobody:
    """An observer who does not look."""

    def began(self, plan: RunPlan, result: Result) -> None: ...

    def progress(self, what: str, share: float | None) -> None: ...

    def row(self, row: Mapping[str, object]) -> None: ...


def result_of(plan: RunPlan) -> Result:
    """Execute ``plan`` and return its result."""
    result, _ = execute(plan, _Nobody())
    return result
