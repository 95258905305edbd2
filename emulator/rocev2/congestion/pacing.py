"""Pacing: when a queue pair may send next at the rate that congestion control allows."""

from __future__ import annotations

from typing import Final, Protocol

from topologies.ethernet import FRAMING_OCTETS

_BITS_TIMES_NS: Final = 8 * 10**9


class RateLimiter(Protocol):
    """Congestion control of one queue pair, at its sender."""

    @property
    def rate_bps(self) -> float:
        """Return what it may send now, in bit/s of the wire."""

    @property
    def limited(self) -> bool:
        """Return whether that is less than the port's rate, or about to change."""

    def on_cnp(self, now: int) -> None:
        """The receiver has seen marked packets."""

    def on_sent(self, octets: int, now: int) -> None:
        """Account for frames of so many octets that have left."""

    def next_deadline(self) -> int | None:
        """Return when :meth:`advance` must be called (ns), or ``None``."""

    def advance(self, now: int) -> None:
        """Run the timers that are due."""


class Notifier(Protocol):
    """Congestion control of one queue pair, at its receiver."""

    def on_marked(self, now: int) -> bool:
        """A marked packet has arrived; whether a CNP shall leave now."""


class Pacer:
    """Spaces frames so that they leave at a limiter's rate.

    A process cannot let every frame leave at its instant: after a pause it may catch up, by
    ``burst`` octets at most.  When the rate changes, so does the time of the frame that waits.
    Nothing is spaced while nothing limits: the port sends no faster than it can.
    """

    __slots__ = ("_bits", "_burst", "_due", "_limited", "_limiter", "_start", "next")

    def __init__(self, limiter: RateLimiter, burst: int) -> None:
        self._limiter = limiter
        # kept from call to call, since only calls change a limiter, and these come from here
        self._limited = limiter.limited
        self._due = limiter.next_deadline()
        self._burst = burst * _BITS_TIMES_NS
        #: the earliest moment for the next frame (ns)
        self.next = 0
        self._start = 0
        self._bits = 0  # of the last frame, times 10^9

    @property
    def rate_bps(self) -> float:
        """Return what may leave now."""
        return self._limiter.rate_bps

    def sent(self, octets: int, now: int) -> None:
        """A frame of ``octets`` leaves now."""
        octets += FRAMING_OCTETS
        self._bits = octets * _BITS_TIMES_NS
        if not self._limited:
            self._start = now
            return
        limiter = self._limiter
        earliest = now - int(self._burst / limiter.rate_bps)
        self._start = self.next if self.next > earliest else earliest
        limiter.on_sent(octets, now)
        self._again()

    def _again(self) -> None:
        limiter = self._limiter
        self.next = self._start + int(self._bits / limiter.rate_bps)
        self._limited = limiter.limited
        self._due = limiter.next_deadline()

    def on_cnp(self, now: int) -> None:
        """The receiver has seen marked packets."""
        self._limiter.on_cnp(now)
        self._again()

    def next_deadline(self) -> int | None:
        """Return when the rate changes by itself (ns), or ``None``."""
        return self._due

    def advance(self, now: int) -> None:
        """Let the rate change that was to."""
        self._limiter.advance(now)
        self._again()
