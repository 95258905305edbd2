"""When a queue pair may send next, given the rate that congestion control allows it."""

from __future__ import annotations

from typing import Protocol

#: What a link spends on a frame beside it: preamble 8, FCS 4, gap 12 (IEEE 802.3).
FRAMING = 24
_BITS_TIMES_NS = 8 * 10**9


class RateLimiter(Protocol):
    """Congestion control of one queue pair, at its sender."""

    @property
    def rate_bps(self) -> float:
        """What it may send now, in bit/s of the wire."""

    def on_cnp(self, now: int) -> None:
        """The receiver has seen marked packets."""

    def on_sent(self, octets: int, now: int) -> None:
        """So many octets of frames have left."""

    def next_deadline(self) -> int | None:
        """When :meth:`advance` must be called (ns), or ``None``."""

    def advance(self, now: int) -> None:
        """Run the timers that are due."""


class NotificationPoint(Protocol):
    """Congestion control of one queue pair, at its receiver."""

    def on_marked(self, now: int) -> bool:
        """A marked packet has arrived; whether a CNP shall leave now."""


class Pacer:
    """Spaces frames so that they leave at a limiter's rate.

    A process cannot leave every frame at its instant: after a pause it may catch up, by ``burst``
    octets at most.
    """

    __slots__ = ("_burst", "limiter", "next")

    def __init__(self, limiter: RateLimiter, burst: int) -> None:
        self.limiter = limiter
        self._burst = burst
        #: the earliest moment for the next frame (ns)
        self.next = 0

    def sent(self, octets: int, now: int) -> None:
        """A frame of ``octets`` leaves now."""
        limiter = self.limiter
        rate = limiter.rate_bps
        earliest = now - int(self._burst * _BITS_TIMES_NS / rate)
        start = self.next if self.next > earliest else earliest
        self.next = start + int((octets + FRAMING) * _BITS_TIMES_NS / rate)
        limiter.on_sent(octets + FRAMING, now)
