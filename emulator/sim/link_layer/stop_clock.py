"""A clock of the time in which something stops a port."""

from __future__ import annotations

from emulator.sim.event_queue import PS


class StopClock:
    """How often something has stopped a port, and for how long (ns); times are given in ps."""

    __slots__ = ("_since", "duration_ns", "stops")

    def __init__(self) -> None:
        self.stops = self.duration_ns = 0
        self._since: int | None = None

    def begin(self, now: int) -> None:
        """Count a stop from ``now`` on, unless one is counted already."""
        if self._since is None:
            self._since = now
            self.stops += 1

    def end(self, now: int) -> None:
        """Let the port go on at ``now``, if it is stopped."""
        if self._since is not None:
            self.duration_ns += (now - self._since) // PS
            self._since = None

    def settle(self, now: int) -> None:
        """Count what has passed of a stop that goes on."""
        if self._since is not None:
            self.duration_ns += (now - self._since) // PS
            self._since = now
