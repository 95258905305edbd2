"""The schedules that a scenario compiled last, which are kept, and whose of them are wanted."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from emulator.sim.endpoint.operations.schedule import ALL_SCHEDULES, Schedule, WantedSchedules


class LatestSchedules:
    """Keeps what was compiled last: a large program takes longer to compile than to read."""

    def __init__(self) -> None:
        self._kept: tuple[object, WantedSchedules, Sequence[Schedule]] | None = None

    def of(
        self, compile_one: Callable[..., Sequence[Schedule]], *, asks: bool, source: object
    ) -> Callable[..., Sequence[Schedule]]:
        """``compile_one``, which is not called if the last one called was of the same ``source``.

        ``asks``: it takes the schedules that are ``wanted``.  Where these are not all, others have
        no operations.
        """

        def compiled(wanted: WantedSchedules = ALL_SCHEDULES) -> Sequence[Schedule]:
            kept = self._kept
            if kept is None or kept[0] is not source or kept[1] != wanted:
                self._kept = kept = None  # there is no room for two
                made = compile_one(wanted=wanted) if asks else compile_one()
                self._kept = kept = source, wanted, wanted.of(made)
            return kept[2]

        return compiled


def takes_wanted(compile_one: Callable[..., Sequence[Schedule]]) -> bool:
    """Return whether ``compile_one`` has a parameter ``wanted``."""
    try:
        return "wanted" in inspect.signature(compile_one).parameters
    except ValueError:  # a callable of C has none that can be read
        return False
