"""The time of one endpoint, and when the earliest of its timers may run out.

Timers stand in the parts that have started them, each in its own order.  An endpoint that polled
all of them at every packet would do little else. So a part reports each timer that it starts, and
the parts are polled again when that time has come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: Later than any time.
NEVER: Final = 1 << 62


class Timekeeper:
    """``now`` is the time that the endpoint was given last (ns)."""

    __slots__ = ("_parts", "earliest", "is_stale", "now")

    def __init__(self) -> None:
        self.now = 0
        #: the earliest timer (ns); when ``is_stale``, that may be one which was stopped
        self.earliest = NEVER
        self.is_stale = False
        self._parts: list[Callable[[], int | None]] = []

    def watch(self, part: Callable[[], int | None]) -> None:
        """Poll ``part`` for its earliest timer (ns); it calls :meth:`started` for each."""
        self._parts.append(part)

    def started(self, due: int) -> None:
        """A timer runs that will be due then (ns)."""
        if due < self.earliest:
            self.earliest = due

    def stopped(self) -> None:
        """A timer that was started does not run any more."""
        self.is_stale = True

    def review(self) -> int:
        """Poll all parts anew; return the earliest timer (ns), or :data:`NEVER`."""
        self.is_stale = False
        self.earliest = min(
            (due for part in self._parts if (due := part()) is not None), default=NEVER
        )
        return self.earliest
