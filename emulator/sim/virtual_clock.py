"""Virtual time: it moves with events."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from emulator.sim.event_queue import PS, EventQueue

#: What virtual time 0 is in captures and event logs: every run has the same.
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class VirtualClock:
    """The time of ``events`` in ns; a nanosecond of the fabric is one of this clock."""

    events: EventQueue

    @property
    def began(self) -> str:
        """The time that stands for 0, in UTC (RFC 3339)."""
        return EPOCH.isoformat(timespec="microseconds")

    def now(self) -> int:
        """Fabric time in ns."""
        return self.events.now // PS
