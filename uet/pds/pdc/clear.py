"""CLEAR: a source reports the responses that it has to its target (UES 3.5.11, 3.5.16.3).

CLEAR_PSN rides in every request.  A control packet carries it in one case only. The target keeps a
guaranteed-delivery response and has requested a CLEAR, and no request leaves in time.
"""

from __future__ import annotations

from uet.pds.psn import HALF, MASK
from uet.pds.recovery.rto import UNLIMITED_RTO
from uet.pds.source.source import RequestSource
from uet.transport import Frame


class ClearDuty:
    """Decides when a source sends a CLEAR control packet."""

    __slots__ = (
        "_asked",
        "_forced",
        "_half_way",
        "_max_stalls",
        "_source",
        "_stalls",
        "_time",
        "due",
    )

    def __init__(self, *, source: RequestSource, clear_time: int, max_stalls: int) -> None:
        #: when :meth:`transmit` has something to do (ns), or ``None``
        self.due: int | None = None
        self._source = source
        self._time = clear_time
        self._asked = source.requests.clear_sent  # the newest PSN in the target's requests
        self._forced = False
        self._half_way = False  # in a stall, between CLEAR and ACK_REQ
        self._stalls = 0  # attempts to end a stall, since there was progress
        self._max_stalls = max_stalls

    def ask(self, psn: int) -> None:
        """Take an ACK with REQ_CLEAR: the target keeps the response to ``psn``."""
        if 0 < ((psn - self._asked) & MASK) < HALF:
            self._asked = psn

    def renumbered(self) -> None:
        """Take the new first PSN of the PDC, which no CLEAR_REQ has named."""
        self._asked = self._source.requests.clear_sent

    def force(self, now: int) -> None:
        """Send a CLEAR now, as the target's CLEAR_REQ requests, and again if need be."""
        self._forced = True
        self.due = now

    @property
    def _is_asked(self) -> bool:
        """Return whether the target requests a later CLEAR than the last one sent."""
        return 0 < ((self._asked - self._source.requests.clear_sent) & MASK) < HALF

    def consider(self, now: int) -> None:
        """Start the timer once everything up to the PSN of the target's request is settled."""
        source = self._source
        settled = (source.window.base - 1) & MASK
        if settled == source.requests.max_cack:
            self._stalls = 0
            return  # the target has freed all of it
        if self.due is None and (
            (self._is_asked and ((settled - self._asked) & MASK) < HALF) or source.stalled(now)
        ):
            self.due = now + self._time

    def transmit(self, out: list[Frame], now: int) -> bool:
        """Append at most one packet; return whether the target still answers."""
        source = self._source
        self.due = None
        settled = (source.window.base - 1) & MASK
        if source.stalled(now):
            return self._break_stall(out, settled, now)
        self._half_way = False
        if not (self._is_asked or self._forced):
            return True  # a request has carried it
        if source.has_unsent:
            # A request will carry it; look again, but not at this moment.
            self.due = now + (self._time or source.timer.interval(0))
            return True
        self._send(out, settled)
        return True

    def _break_stall(self, out: list[Frame], settled: int, now: int) -> bool:
        """Send a CLEAR, which moves the target's CACK, then an ACK_REQ, as CLEAR draws no ACK."""
        if not self._half_way:
            self._send(out, settled)
            self._half_way = True
            self.due = now
            return True
        self._half_way = False
        if self._stalls > self._max_stalls != UNLIMITED_RTO:
            return False
        out.append(self._source.controls.ask_again(settled))
        self.due = now + self._source.timer.interval(self._stalls)
        self._stalls += 1
        return True

    def _send(self, out: list[Frame], settled: int) -> None:
        self._forced = False
        self._source.requests.clear_sent = settled
        out.append(self._source.controls.clear(settled))
