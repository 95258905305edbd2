"""Repair of packets that were lost, refused or left unanswered (UES 3.5.15).

In order: what a NACK does, what much newer packets tell, what silence tells, what the timer does.
The requests themselves are :mod:`uet.pds.pdc.source`.
"""

from __future__ import annotations

from typing import Protocol

from uet.congestion.context import PdcFlow
from uet.congestion.signals import rtt_sample
from uet.congestion.spraying.paths import LOST, TIMEOUT
from uet.pds.pds_packets import PacketWriter
from uet.pds.psn import MASK
from uet.pds.recovery.inference import LossInference
from uet.pds.recovery.rto import (
    UNLIMITED_NACK,
    UNLIMITED_RTO,
    RetransmissionQueue,
    RetransmissionTimer,
    nack_delay,
)
from uet.pds.semantics import Outbound
from uet.pds.window import SACK_BITS, SendWindow

#: Requests in flight that this implementation can remember: records live in rings of this size.
RING = 1_024
_SLOT = RING - 1
#: For so many base RTTs the slowest round trip is remembered, once or twice.
_REMEMBERED = 8
#: Transmissions of one packet after which a switch that trims it once more ends the PDC.  What
#: congestion does to one packet is far less: with a thousand senders of a window of one packet
#: each, all but one in 3,000 packets are through by then.
MOST_COPIES = 4_096


class Messages(Protocol):
    """The receiver of a message's end; the PDC implements it."""

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
        flow: PdcFlow,
        rto_init_time: int,
        constant_rto: bool,
        max_rto_retx_cnt: int,
        nack_retx_time: int,
        max_nack_retx_cnt: int,
        infer_loss: bool,
        tail_loss_time: int,
        max_tail_loss_retx: int,
        counters: dict[str, int],
    ) -> None:
        self.start_psn = start_psn
        self.window = SendWindow(start_psn)
        self.max_cack = (start_psn - 1) & MASK
        #: why the PDC must end, or ``None``
        self.gave_up: str | None = None
        self.retransmit = RetransmissionQueue(self.window, start_psn, in_order=ordered)
        self.timer = RetransmissionTimer(self.window, RING, rto_init_time, constant=constant_rto)
        self._writer = writer
        self._messages = messages
        self._ordered = ordered
        self.flow = flow
        self._context = flow.context
        #: octets that the present ACK has settled
        self.settled = 0
        self._counters = counters
        self._max_timeouts = max_rto_retx_cnt
        self._nack_retx_time = nack_retx_time
        self._max_nacks = max_nack_retx_cnt
        self._largest = 1  # nominal size of the largest request so far
        self._inference: LossInference | None = None
        if infer_loss:
            self._inference = LossInference(self.window, start_psn, one_path=ordered)
        self._tail_loss_time = tail_loss_time
        self._max_tail_probes = max_tail_loss_retx
        self._tail_probes = 0  # since something was heard
        self._heard_at = 0
        self._reported = True  # something was heard since the last question
        self._look_at = 0  # when to look for overdue packets next
        # The slowest round trips of the present and the last span of time.
        self._slow = self._slow_before = self._slow_until = 0
        self._gone_back_at: int | None = None  # CACK at the last go-back-N pass
        self._behind: set[int] = set()  # refused since, for they came before their turn
        # By slot: nominal size in flight (0 once the network no longer holds it), and refusals.
        self._size: list[int] = []
        self._ev: list[int] = []  # of the last transmission
        self._copies: list[int] = []  # transmissions
        self._nacks: list[int] = []

    # -- what a NACK does --------------------------------------------------------------------

    def on_nack(self, psn: int, now: int, *, wait: bool, counted: bool = True) -> None:
        """Send ``psn`` again, after NACK_Retx_Time if ``wait`` (UES 3.5.20.3), doubled each time.

        ``counted`` ones are limited by Max_NACK_Retx_Cnt; trimming may go on for longer.
        """
        if self.window.is_delivered(psn):
            return
        slot = psn & _SLOT
        if counted:
            self._nacks[slot] += 1
            if self._nacks[slot] > self._max_nacks and self._max_nacks != UNLIMITED_NACK:
                self.gave_up = "NACK_RETRIES_EXHAUSTED"
                return
        elif self._copies[slot] > MOST_COPIES:
            self.gave_up = "TRIMMED"
            return
        delay = nack_delay(self._nack_retx_time, self._nacks[slot]) if wait else 0
        self.retransmit.add(psn, now + delay, now)
        if self._behind and psn == self.window.base:
            self._follow(now)

    def out_of_order(self, psn: int, expected: int, resent: int, now: int) -> None:
        """ROD_OOO: the destination has refused ``psn``, as it waits for ``expected``.

        One pass answers one loss, however many requests behind it are refused (UES 3.5.21).
        What the pass has ``resent`` in vain is not in flight, and leaves behind the oldest.
        """
        if self.window.is_delivered(psn):
            return
        if self._gone_back_at != self.max_cack:
            self.go_back(expected, now)
        elif psn not in self.retransmit and (resent or self._copies[psn & _SLOT] == 1):
            self._discard(psn)
            self._behind.add(psn)
            base = self.window.base
            if psn == base or base in self.retransmit:  # or what it had to wait for has arrived
                self._follow(now)

    def _follow(self, now: int) -> None:
        """Send again what was refused for want of its turn, behind the oldest open request."""
        behind, self._behind = self._behind, set()
        for psn in behind:
            if self.window.is_open(psn) and not self._size[psn & _SLOT]:
                self.retransmit.add(psn, now, now)

    def go_back(self, expected: int, now: int) -> None:
        """Send ``expected``, or the oldest open request, and all that follows again."""
        self._gone_back_at = self.max_cack
        self._behind.clear()
        self._counters["rod_go_back"] += 1
        self._messages.event("go_back", expected=expected)
        window = self.window
        ahead = (expected - window.base) & MASK
        psn = expected if ahead < window.outstanding else window.base
        while psn != window.next:
            if window.is_open(psn) and not window.is_delivered(psn):
                self._discard(psn)
                self.retransmit.add(psn, now, now)
            psn = (psn + 1) & MASK

    def refused(
        self, psn: int, code: int, entropy: int, marked: bool, resent: int, now: int
    ) -> None:
        """Pass a NACK to congestion control."""
        slot = psn & _SLOT
        if self.window.is_delivered(psn) or not self._copies[slot]:
            return
        rtt = rtt_sample(now, self.timer.sent_at[slot], self._copies[slot], resent)
        self.flow.on_nack(self._size[slot], code, entropy, marked, now, rtt)
        credit = self._context.credit
        if credit is not None and not self._writer.peer_id:
            credit.on_refusal(self._size[slot])
        self._size[slot] = 0

    def _discard(self, psn: int) -> None:
        """A packet is not in flight, and the network has nothing to do with it."""
        slot = psn & _SLOT
        if self._size[slot]:
            self.flow.on_discard(self._size[slot])
            self._size[slot] = 0

    def _lost(self, psn: int, now: int, how: int = TIMEOUT) -> None:
        slot = psn & _SLOT
        if self._size[slot]:
            self.flow.on_loss(self._size[slot], self._ev[slot], now, how)
            self._size[slot] = 0

    # -- what newer packets tell ---------------------------------------------------------------

    def infer_loss(self, now: int, held: int | None = None) -> None:
        """Send again what is missing while many newer packets have arrived.

        ``held``: so many the destination says that it holds above its CACK (ooo_count).
        """
        window = self.window
        if self._inference is None or not window.delivered:
            return
        context = self._context
        newer = max(context.window_octets, context.max_wnd) // self._largest
        if not self._ordered and held is not None and held < newer:
            return
        for psn in self._inference.lost(newer, self.timer.sent_at, self._late(now)):
            self._counters["losses_inferred"] += 1
            self._messages.event("loss_inferred", psn=psn)
            self._lost(psn, now, LOST)
            self.retransmit.add(psn, now, now)

    def _late(self, now: int) -> int:
        """Return the latest departure that must have arrived by ``now`` on any path (ns)."""
        slowest = self._slow if self._slow > self._slow_before else self._slow_before
        return now - slowest * 5 // 4 - self._context.base_rtt // 2

    def timed(self, rtt: int, now: int) -> None:
        """A packet's round trip took so long; those of some base RTTs are remembered (ns)."""
        if now >= self._slow_until:
            self._slow_before, self._slow = self._slow, 0
            self._slow_until = now + _REMEMBERED * self._context.base_rtt
        if rtt > self._slow:
            self._slow = rtt

    # -- what silence tells --------------------------------------------------------------------

    def tail_deadline(self) -> int | None:
        """Return when a PROBE asks for what is in flight, should nothing be heard before (ns)."""
        window = self.window
        if (
            not self._tail_loss_time
            or window.base == window.next
            or self._tail_probes >= self._max_tail_probes
            or (self.flow.unsettled <= 0 and window.base in self.retransmit)
        ):
            return None  # who waits to send has nothing to hear
        return self._heard_at + self._tail_loss_time

    def _heard(self, now: int) -> None:
        self._reported = True
        self._tail_probes = 0
        self._heard_at = now

    def infer_overdue(self, base: int, bitmap: int, now: int) -> None:
        """Infer the loss of overdue packets that an ACK shows as missing from ``base`` on.

        Queues that trim delay a packet by a few round trips at most; a path that swallows packets
        is found so even if nothing newer is sent.
        """
        limit, window = self._tail_loss_time, self.window
        if not limit or now < self._look_at or self.flow.unsettled <= 0:
            return
        self._look_at = now + limit // 4  # not at every ACK
        sent_at = self.timer.sent_at
        overdue = min(now - limit, self._late(now))
        missing = ~bitmap & (1 << min(SACK_BITS, (window.next - base) & MASK)) - 1
        while missing:
            low = missing & -missing
            missing ^= low
            psn = (base + low.bit_length() - 1) & MASK
            slot = psn & _SLOT
            if self._size[slot] and sent_at[slot] <= overdue and window.is_open(psn):
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
        lost = False
        for psn in expired:
            if psn in self.retransmit:
                # It waits for its turn, refused or lost long since: nothing of it is overdue.
                self.timer.timeouts[psn & _SLOT] -= 1
                continue
            timeouts = self.timer.timeouts[psn & _SLOT]
            if timeouts > self._max_timeouts and self._max_timeouts != UNLIMITED_RTO:
                self.gave_up = "RTO_RETRIES_EXHAUSTED"
                return
            self._counters["rto_expirations"] += 1
            self._messages.event("rto", psn=psn, timeouts=timeouts)
            self._lost(psn, now)
            self.retransmit.add(psn, now, now)
            lost = True
        if lost and self._ordered:
            # Whatever was behind the lost one has been refused, or will be.  As nothing is in
            # flight any more, this is when another path may be taken.
            self._writer.repath()
            self.go_back(self.window.base, now)

    def _first_of(self, expired: list[int], now: int) -> list[int]:
        """Return the first open PSN of an ordered PDC, if its timer is among those that ran out.

        The others wait for it, and nothing says that they were lost: their timers run with its,
        and count nothing.  Where it waits to be sent again itself, no timer of its own runs: the
        others are overdue, and leave behind it.
        """
        base, timer = self.window.base, self.timer
        waits = base in self.retransmit
        for psn in expired:
            if psn == base:
                continue
            if waits:
                timer.timeouts[psn & _SLOT] = 0
                self._discard(psn)
                self.retransmit.add(psn, now, now)
            else:
                timer.timeouts[psn & _SLOT] = timer.timeouts[base & _SLOT]
                timer.sent_again(psn, now)
                timer.timeouts[psn & _SLOT] = 0
        return [base] if base in expired else []

    def next_deadline(self) -> int | None:
        timeout = self.timer.next_deadline()
        if not self.retransmit.members:
            return timeout
        resend = self.retransmit.next_deadline()
        if timeout is None or resend is None:
            return resend if timeout is None else timeout
        return min(timeout, resend)
