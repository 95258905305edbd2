"""Fabric time: the one place for how much slower the emulation runs than the fabric.

With dilation D one nanosecond of the fabric lasts D nanoseconds on this machine.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime


class Dilation(float):
    """Host time per fabric time: at 1000 one fabric ns lasts 1000 ns of this machine.

    Rates are the other way round: what a port sends at 400 Gb/s leaves at 400 Mb/s then.
    """

    __slots__ = ()

    def host_ns(self, fabric_ns: float) -> float:
        """Return how long ``fabric_ns`` of fabric time last on this machine (ns)."""
        return fabric_ns * self

    def fabric_ns(self, host_ns: float) -> float:
        """Return the fabric time (ns) that passes in ``host_ns`` of this machine's time."""
        return host_ns / self

    def host_bps(self, fabric_bps: float) -> float:
        """Return the rate (bit/s) at which this machine sends for ``fabric_bps`` of the fabric."""
        return fabric_bps / self

    def fabric_bps(self, host_bps: float) -> float:
        """Return the rate of the fabric (bit/s) for ``host_bps`` of this machine."""
        return host_bps * self


@dataclass(frozen=True, slots=True)
class Clock:
    """Fabric time in integer nanoseconds since ``epoch_ns`` (a ``CLOCK_MONOTONIC`` reading).

    ``dilation`` is at least 1 for a fabric that is slowed down; anything above 0 works.
    """

    dilation: float
    epoch_ns: int
    _rate: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.dilation > 0:
            raise ValueError(f"the dilation is {self.dilation}; it must be above 0")
        object.__setattr__(self, "_rate", 1.0 / self.dilation)

    @classmethod
    def start(cls, dilation: float) -> Clock:
        """A clock whose fabric time is 0 now."""
        return cls(dilation, time.monotonic_ns())

    @property
    def began(self) -> str:
        """The wall-clock time of fabric time 0, in UTC (RFC 3339)."""
        ago = (time.monotonic_ns() - self.epoch_ns) * 1e-9
        return datetime.fromtimestamp(time.time() - ago, UTC).isoformat(timespec="microseconds")

    def now(self) -> int:
        """Fabric time in ns."""
        return int((time.monotonic_ns() - self.epoch_ns) * self._rate)

    def from_host(self, monotonic_ns: int) -> int:
        """The fabric time at which ``CLOCK_MONOTONIC`` read ``monotonic_ns``."""
        return int((monotonic_ns - self.epoch_ns) * self._rate)

    def host_seconds(self, fabric_duration_ns: int) -> float:
        """Return how long a span of fabric time lasts on this machine, in seconds."""
        return Dilation(self.dilation).host_ns(fabric_duration_ns) * 1e-9

    def fabric_duration(self, host_duration_ns: int) -> int:
        """Return the fabric time (ns) that passes in ``host_duration_ns``, this machine's time."""
        return int(host_duration_ns * self._rate)
