"""A time series of what no switch counts: octets that NICs send, and pauses of all ports.

A CSV file beside ``telemetry.csv``, sampled at the same times of the virtual clock.  Each port has
a line at the start, and from then on whenever a sample finds it changed.

Samples are no events: a run ends when nothing else is left to do.  There is one at each multiple of
the interval while frames move, and one at the end of each execution. There is none while nothing
happens, as it would show nothing new.

=============  =====================================================================
``t_us``       fabric time of the clock, in us
``port``       ``node:port``
``sent_bytes`` octets on the wire that a NIC has sent, PAUSE frames left out; 0 at switches, whose
               octets ``telemetry.csv`` has
``paused_ns``  how long the port has been stopped by pauses (IEEE 802.1Q 36), a present one included
=============  =====================================================================
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from emulator.dataplane.switch.telemetry import LINES_AT_ONCE, SampleFile, Telemetry
from emulator.sim.event_queue import PS
from emulator.sim.line_record import LineRecord

FILE = "line_telemetry.csv"
COLUMNS = ("t_us", "port", "sent_bytes", "paused_ns")


class LineTelemetry(SampleFile):
    """Samples of ``record`` in the file ``path``."""

    def __init__(self, record: LineRecord, path: Path) -> None:
        super().__init__(path, COLUMNS)
        self._record = record
        self._reported: npt.NDArray[np.int64] | None = None
        self.start()

    def sample(self, now_ns: int) -> None:
        """Note what has changed up to ``now_ns``, a time of the virtual clock."""
        values = self._record.values(now_ns * PS)
        if self._reported is None:
            rows = np.arange(len(values))
        else:
            rows = np.flatnonzero((values != self._reported).any(axis=1))
        self._reported = values
        names, t_us = self._record.names, now_ns / 1000
        self._unwritten += [
            f"{t_us:.3f},{names[row]},{sent},{paused}\n"
            for row, (sent, paused) in zip(rows.tolist(), values[rows].tolist(), strict=True)
        ]
        if len(self._unwritten) >= LINES_AT_ONCE:
            self.flush()


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
