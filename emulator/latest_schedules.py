"""The schedules that a scenario compiled last, which are kept, and whose of them are wanted."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from emulator.endpoint.operations.schedule import ALL_SCHEDULES, Schedule, WantedSchedules


class LatestSchedules:
    """Keeps what was compiled last: a large program takes longer to compile than to read."""

    def __init__(self) -> None:
        self._kept: tuple[object, Sequence[Schedule]] | None = None

    def of(
        self, compile_one: Callable[..., Sequence[Schedule]], *, asks: bool
    ) -> Callable[..., Sequence[Schedule]]:
        """``compile_one``, which is not called again if it was the last to be called.

        ``asks``: it takes the schedules that are ``wanted``.  Where these are not all, others have
        no operations, and nothing is kept.
        """

        def compiled(wanted: WantedSchedules = ALL_SCHEDULES) -> Sequence[Schedule]:
            if wanted.ranks is not None:
                self._kept = None
                return wanted.of(compile_one(wanted=wanted) if asks else compile_one())
            if self._kept is None or self._kept[0] is not compile_one:
                self._kept = None  # there is no room for two
                self._kept = compile_one, compile_one()
            return self._kept[1]

        return compiled


def takes_wanted(compile_one: Callable[..., Sequence[Schedule]]) -> bool:
    """Return whether ``compile_one`` has a parameter ``wanted``."""
    try:
        return "wanted" in inspect.signature(compile_one).parameters
    except ValueError:  # a callable of C has none that can be read
        return False
