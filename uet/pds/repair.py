"""What a source does about packets that were lost, refused or left unanswered (UES 3.5.15).

In order: what a NACK does, what much newer packets tell, what the timer does.  The requests
themselves are :mod:`uet.pds.source`.
"""

from __future__ import annotations

from typing import Protocol

from uet.congestion.base import CongestionControl
from uet.pds.inference import LossInference
from uet.pds.packets import PacketWriter
from uet.pds.psn import MASK
from uet.pds.recovery import (
    UNLIMITED_NACK,
    UNLIMITED_RTO,
    RetransmissionQueue,
    RetransmissionTimer,
)
from uet.pds.semantics import Outbound
from uet.pds.window import SendWindow

#: Requests in flight that this implementation can remember: records live in rings of this size.
RING = 1_024
_SLOT = RING - 1


class Messages(Protocol):
    """Who is told of a message's end; the PDC implements it."""

    def message_end(self, message: Outbound, now: int) -> None:
        """Every packet of it is answered, or it has failed."""
        ...

    def message_unsent(self, message: Outbound) -> None:
        """None of it was sent, and none of it will be here."""
        ...

    def event(self, name: str, **data: object) -> None:
        """Something rare that a trace may show."""
        ...


class LossRecovery:
    """Decides which open packets are sent again, and when.

    ``ordered``: the destination takes requests in the order of their PSNs only, so that a lost
    one takes those behind it along (go-back-N).
    """

    def __init__(
        self,
        *,
        writer: PacketWriter,
        messages: Messages,
        start_psn: int,
        ordered: bool,
        congestion: CongestionControl,
        rto_init_time: int,
        constant_rto: bool,
        max_rto_retx_cnt: int,
        nack_retx_time: int,
        max_nack_retx_cnt: int,
        infer_loss: bool,
        counters: dict[str, int],
    ) -> None:
        self.start_psn = start_psn
        self.window = SendWindow(start_psn)
        self.max_cack = (start_psn - 1) & MASK
        #: why the PDC must end, or ``None``
        self.gave_up: str | None = None
        self.retransmit = RetransmissionQueue(start_psn)
        self.timer = RetransmissionTimer(self.window, RING, rto_init_time, constant=constant_rto)
        self._writer = writer
        self._messages = messages
        self._ordered = ordered
        self._congestion = congestion
        self._counters = counters
        self._max_timeouts = max_rto_retx_cnt
        self._nack_retx_time = nack_retx_time
        self._max_nacks = max_nack_retx_cnt
        self._largest = 1  # nominal size of the largest request so far
        self._inference: LossInference | None = None
        if infer_loss:
            self._inference = LossInference(self.window, start_psn, one_path=ordered)
        self._gone_back_at: int | None = None  # CACK at the last go-back-N pass
        # By slot: nominal size in flight (0 once the network no longer holds it), and refusals.
        self._size: list[int] = []
        self._nacks: list[int] = []

    # -- what a NACK does --------------------------------------------------------------------

    def on_nack(self, psn: int, now: int, *, wait: bool, counted: bool = True) -> None:
        """Send ``psn`` again, after NACK_Retx_Time if ``wait`` (UES 3.5.20.3).

        ``counted`` ones are limited by Max_NACK_Retx_Cnt; trimming may go on for longer.
        """
        if self.window.is_delivered(psn):
            return
        if counted:
            slot = psn & _SLOT
            self._nacks[slot] += 1
            if self._nacks[slot] > self._max_nacks and self._max_nacks != UNLIMITED_NACK:
                self.gave_up = "NACK_RETRIES_EXHAUSTED"
                return
        self._lost(psn, now)
        self.retransmit.add(psn, now + self._nack_retx_time if wait else now, now)

    def go_back(self, expected: int, now: int) -> None:
        """The destination waits for ``expected``: send it and all that follows again.

        One pass answers one loss, however many requests behind it are refused (UES 3.5.21).
        """
        if self._gone_back_at == self.max_cack:
            return
        self._gone_back_at = self.max_cack
        self._counters["rod_go_back"] += 1
        self._messages.event("go_back", expected=expected)
        window = self.window
        ahead = (expected - window.base) & MASK
        psn = expected if ahead < window.outstanding else window.base
        while psn != window.next:
            if window.is_open(psn) and not window.is_delivered(psn):
                self._lost(psn, now)
                self.retransmit.add(psn, now, now)
            psn = (psn + 1) & MASK

    def _lost(self, psn: int, now: int) -> None:
        slot = psn & _SLOT
        size = self._size[slot]
        if size:
            self._congestion.on_lost(size, now)
            self._size[slot] = 0

    # -- what newer packets tell ---------------------------------------------------------------

    def infer_loss(self, now: int) -> None:
        """Send again what is missing while much newer packets have arrived."""
        window = self.window
        if self._inference is None or not window.delivered:
            return
        packets = self._congestion.window_octets / self._largest
        for psn in self._inference.lost(packets):
            self._counters["losses_inferred"] += 1
            self._messages.event("loss_inferred", psn=psn)
            self._lost(psn, now)
            self.retransmit.add(psn, now, now)

    # -- what the timer does -----------------------------------------------------------------

    def on_timer(self, now: int) -> None:
        """Queue for retransmission whatever has waited too long."""
        expired = self.timer.expired(now)
        if self._ordered and expired:
            expired = self._first_of(expired, now)
        for psn in expired:
            timeouts = self.timer.timeouts[psn & _SLOT]
            if timeouts > self._max_timeouts and self._max_timeouts != UNLIMITED_RTO:
                self.gave_up = "RTO_RETRIES_EXHAUSTED"
                return
            self._counters["rto_expirations"] += 1
            self._messages.event("rto", psn=psn, timeouts=timeouts)
            self._lost(psn, now)
            self.retransmit.add(psn, now, now)
        if expired and self._ordered:
            # Whatever was behind the lost one has been refused, or will be.  As nothing is in
            # flight any more, this is when another path may be taken.
            self._writer.take_another_path()
            self._gone_back_at = None
            self.go_back(self.window.base, now)

    def _first_of(self, expired: list[int], now: int) -> list[int]:
        """On an ordered PDC: the first open PSN, if its timer is among those that ran out.

        The others wait for it, and nothing says that they were lost: their timers run with its,
        and count nothing.
        """
        base, timer = self.window.base, self.timer
        for psn in expired:
            if psn != base:
                timer.timeouts[psn & _SLOT] = timer.timeouts[base & _SLOT]
                timer.sent_again(psn, now)
                timer.timeouts[psn & _SLOT] = 0
        return [base] if base in expired else []

    def next_deadline(self) -> int | None:
        timeout, resend = self.timer.next_deadline(), self.retransmit.next_deadline()
        if timeout is None or resend is None:
            return resend if timeout is None else timeout
        return min(timeout, resend)
