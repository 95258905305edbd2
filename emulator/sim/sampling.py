"""Samples of the switches at fixed times of the virtual clock.

They are no events: a run ends when nothing else is left to do.  There is one at each multiple of
the interval while frames move, and one at the end of each execution. There is none while nothing
happens, as it would show nothing new.
"""

from __future__ import annotations

from emulator.dataplane.switch.telemetry import Telemetry
from emulator.sim.event_queue import PS
from emulator.sim.line_telemetry import LineTelemetry


class Sampling:
    """Samples of ``telemetry``, and of ``lines`` if given; ``due`` is the time (ps) of the next."""

    def __init__(self, telemetry: Telemetry, lines: LineTelemetry | None = None) -> None:
        self._telemetry = telemetry
        self._lines = lines
        self._interval = telemetry.interval_ns * PS
        self.begin_row(0)

    def begin_row(self, now: int) -> None:
        """Count intervals from ``now`` (ps) on."""
        self._quiet = False
        self._origin = now
        self.due = now + self._interval

    def resume(self, now: int) -> None:
        """Go on at ``now`` after a time without events."""
        if self.due <= now:
            self.due = self._after(now)

    def take(self, now: int, following: int) -> None:
        """Sample at ``now``, a time that was due; ``following`` is that of the next event.

        The first sample after the last event still shows that queues are no deeper than they were.
        After it, time may pass to the next event.
        """
        self.sample(now)
        self.due = now + self._interval
        if following <= self.due:
            self._quiet = False
        elif self._quiet:
            self.due = self._after(following)
        else:
            self._quiet = True

    def sample(self, now: int) -> None:
        """Sample at ``now``, whatever is due."""
        self._telemetry.sample(now // PS)
        if self._lines is not None:
            self._lines.sample(now // PS)

    def _after(self, when: int) -> int:
        return self._origin + ((when - self._origin) // self._interval + 1) * self._interval
