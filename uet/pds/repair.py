"""Repair of packets that were lost, refused or left unanswered (UES 3.5.15).

In order: which packets newer ones show as lost; what is sent again, after a NACK, after newer
packets, when overdue, by the timer; when a PROBE asks for the last packets of a message.  The
records are :mod:`uet.pds.open_requests`; :mod:`uet.pds.source` retransmits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from uet.config import FepConfig
from uet.congestion.signals import rtt_sample
from uet.congestion.spraying.paths import LOST, TIMEOUT
from uet.pds.open_requests import OpenRequests
from uet.pds.packets import PacketWriter
from uet.pds.rto import UNLIMITED_NACK, UNLIMITED_RTO, nack_delay
from uet.pds.window import HALF, MASK, NO_PSNS, SACK_BITS, SendWindow

LEAST_PACKETS: Final = 5
_ALWAYS: Final = 1 << 62
#: For so many base RTTs the slowest round trip is remembered, once or twice: longer than path-aware
#: spraying keeps off a slow path, whose packets would count as lost when it is taken again.
_REMEMBERED: Final = 64
#: Transmissions of one packet after which a switch that trims it once more ends the PDC.  What
#: congestion does to one packet is far less: with a thousand senders of a window of one packet
#: each, all but one in 3,000 packets are through by then.
MOST_COPIES: Final = 4_096


#: The record of a window of which nothing has been sent again; nobody puts anything in.
_NEVER_SENT_AGAIN: Final[OrderedDict[int, int]] = OrderedDict()


class LossInference:
    """Infers lost packets before their timers expire (UES 3.5.15, out-of-order count).

    A packet counts as lost once the destination has so many newer ones that it cannot just have
    been overtaken. Where all packets take the same path a handful is enough.  Where they are
    sprayed over paths, the slowest of these decides: the packet must also be older than any path
    has taken of late.  A retransmission is judged by what was sent after it; every transmission is
    judged once.
    """

    __slots__ = ("_again", "_judged", "_newest", "_one_path", "_window")

    def __init__(self, window: SendWindow, start_psn: int, *, one_path: bool) -> None:
        self._window = window
        self._one_path = one_path
        self._newest = (start_psn - 1) & MASK  # of the PSNs known to have arrived
        self._judged = start_psn  # first transmissions of those before it are settled
        # PSN -> first one sent after its last retransmission, in the order of sending
        self._again: OrderedDict[int, int] = _NEVER_SENT_AGAIN

    def restart(self, start_psn: int) -> None:
        """Begin anew at ``start_psn``, with nothing sent and nothing arrived."""
        self._newest = (start_psn - 1) & MASK
        self._judged = start_psn
        self._again.clear()

    def arrived(self, psn: int) -> None:
        """Record that the destination has ``psn``."""
        if 0 < ((psn - self._newest) & MASK) < HALF:
            self._newest = psn

    def sent_again(self, psn: int) -> None:
        """Record that ``psn`` was sent once more."""
        if self._again is _NEVER_SENT_AGAIN:
            self._again = OrderedDict()
        self._again.pop(psn, None)
        self._again[psn] = self._window.next

    def lost(self, newer: int, sent_at: Sequence[int] = (0,), latest: int = _ALWAYS) -> list[int]:
        """Return the PSNs whose last transmission is lost, as is known by now.

        So many ``newer`` ones have arrived, and on several paths it left at ``latest`` or before
        (ns).  ``sent_at`` is a ring of as many slots as a power of two.
        """
        window, judged, mask = self._window, self._judged, len(sent_at) - 1
        if self._one_path or newer < LEAST_PACKETS:
            newer = LEAST_PACKETS
        if self._one_path:
            latest = _ALWAYS
        end = (self._newest - newer) & MASK
        psns = []
        if ((judged - window.base) & MASK) >= HALF:
            judged = window.base
        while ((end - judged) & MASK) < HALF:
            if self._is_missing(judged):
                if sent_at[judged & mask] > latest:
                    break
                psns.append(judged)
            judged = (judged + 1) & MASK
        self._judged = judged
        while self._again:
            psn, following = next(iter(self._again.items()))
            if ((end - following) & MASK) >= HALF or sent_at[psn & mask] > latest:
                break
            del self._again[psn]
            if self._is_missing(psn):
                psns.append(psn)
        return psns

    def _is_missing(self, psn: int) -> bool:
        return self._window.is_open(psn) and not self._window.is_delivered(psn)


class LossRecovery:
    """Decides which open packets are sent again, and when.

    Where the destination takes requests in the order of their PSNs only, a lost one takes those
    behind it along (go-back-N).
    """

    __slots__ = (
        "_context",
        "_copies",
        "_counters",
        "_event",
        "_flow",
        "_gone_back_at",
        "_look_at",
        "_max_nacks",
        "_max_timeouts",
        "_nack_retx_time",
        "_nacks",
        "_ordered",
        "_requests",
        "_retransmit",
        "_size",
        "_slow",
        "_slow_before",
        "_slow_until",
        "_tail_loss_time",
        "_timer",
        "_window",
        "_writer",
        "behind",
        "gave_up",
        "inference",
    )

    def __init__(
        self,
        requests: OpenRequests,
        config: FepConfig,
        *,
        writer: PacketWriter,
        event: Callable[..., None],
        counters: dict[str, int],
    ) -> None:
        #: why the PDC must end, or ``None``
        self.gave_up: str | None = None
        #: refused since the last go-back-N pass, for they came before their turn
        self.behind: set[int] = set() if requests.ordered else NO_PSNS
        #: the packets that much newer ones have overtaken, if that is to be noticed
        self.inference: LossInference | None = None
        if config.infer_loss:
            self.inference = LossInference(
                requests.window, requests.start_psn, one_path=requests.ordered
            )
        self._requests = requests
        self._max_timeouts = config.max_rto_retx_cnt
        self._nack_retx_time = config.nack_retx_time
        self._max_nacks = config.max_nack_retx_cnt
        self._tail_loss_time = 0 if requests.ordered else config.tail_loss_time
        self._writer = writer
        self._event = event
        self._counters = counters
        self._ordered = requests.ordered
        self._window = requests.window
        self._timer = requests.timer
        self._retransmit = requests.retransmit
        self._flow = requests.flow
        self._context = requests.flow.context
        self._size = requests.size
        self._copies = requests.copies
        self._nacks = requests.nacks
        self._look_at = 0  # when to look for overdue packets next
        # The slowest round trips of the present and the last span of time.
        self._slow = self._slow_before = self._slow_until = 0
        self._gone_back_at: int | None = None  # CACK at the last go-back-N pass

    def renumber(self, start_psn: int) -> None:
        """Begin anew at ``start_psn``: nothing has arrived, and nothing was refused."""
        if self.inference is not None:
            self.inference.restart(start_psn)
        self.behind.clear()

    def _slot(self, psn: int) -> int:
        return psn & self._requests.slot_mask

    # -- what a NACK does --------------------------------------------------------------------

    def on_nack(self, psn: int, now: int, *, wait: bool, counted: bool = True) -> None:
        """Send ``psn`` again, after NACK_Retx_Time if ``wait`` (UES 3.5.20.3), doubled each time.

        ``counted`` ones are limited by Max_NACK_Retx_Cnt; trimming may go on for longer.
        """
        if self._window.is_delivered(psn):
            return
        slot = self._slot(psn)
        if counted:
            self._nacks[slot] += 1
            if self._nacks[slot] > self._max_nacks != UNLIMITED_NACK:
                self.gave_up = "NACK_RETRIES_EXHAUSTED"
                return
        elif self._copies[slot] > MOST_COPIES:
            self.gave_up = "TRIMMED"
            return
        delay = nack_delay(self._nack_retx_time, self._nacks[slot]) if wait else 0
        self._retransmit.add(psn, now + delay, now)
        if self.behind and psn == self._window.base:
            self.follow(now)

    def out_of_order(self, psn: int, expected: int, resent: int, now: int) -> None:
        """Take ROD_OOO: the destination has refused ``psn``, as it waits for ``expected``.

        One pass answers one loss, however many requests behind it are refused (UES 3.5.21).
        What the pass has ``resent`` in vain is not in flight, and leaves behind the oldest.
        """
        if self._window.is_delivered(psn):
            return
        if self._gone_back_at != self._requests.max_cack:
            self.go_back(expected, now)
        elif psn not in self._retransmit and (resent or self._copies[self._slot(psn)] == 1):
            self._requests.discard(psn)
            self.behind.add(psn)
            base = self._window.base
            if psn == base or base in self._retransmit:  # or what it had to wait for has arrived
                self.follow(now)

    def follow(self, now: int) -> None:
        """Retransmit packets refused as out of order, behind the oldest open request."""
        behind = list(self.behind)
        self.behind.clear()
        for psn in behind:
            if self._window.is_open(psn) and not self._size[self._slot(psn)]:
                self._retransmit.add(psn, now, now)

    def go_back(self, expected: int, now: int) -> None:
        """Send ``expected``, or the oldest open request, and all that follows again."""
        self._gone_back_at = self._requests.max_cack
        self.behind.clear()
        self._counters["rod_go_back"] += 1
        self._event("go_back", expected=expected)
        window = self._window
        ahead = (expected - window.base) & MASK
        psn = expected if ahead < window.outstanding else window.base
        while psn != window.next:
            if window.is_open(psn) and not window.is_delivered(psn):
                self._requests.discard(psn)
                self._retransmit.add(psn, now, now)
            psn = (psn + 1) & MASK

    def refused(
        self, psn: int, code: int, entropy: int, marked: bool, resent: int, now: int
    ) -> None:
        """Pass a NACK to congestion control."""
        slot = self._slot(psn)
        if self._window.is_delivered(psn) or not self._copies[slot]:
            return
        rtt = rtt_sample(now, self._timer.sent_at[slot], self._copies[slot], resent)
        self._flow.on_nack(self._size[slot], code, entropy, marked, now, rtt)
        credit = self._context.credit
        if credit is not None and not self._writer.peer_id:
            credit.on_refusal(self._size[slot])
        self._size[slot] = 0

    # -- what newer packets show ---------------------------------------------------------------

    def infer_loss(self, now: int, held: int | None = None) -> None:
        """Send again what is missing while many newer packets have arrived.

        ``held`` is how many the destination reports to hold above its CACK (ooo_count).
        """
        window = self._window
        if self.inference is None or not window.delivered:
            return
        context = self._context
        newer = max(context.window_octets, context.max_wnd) // self._requests.largest
        if not self._ordered and held is not None and held < newer:
            return
        for psn in self.inference.lost(newer, self._timer.sent_at, self._late(now)):
            self._counters["losses_inferred"] += 1
            self._event("loss_inferred", psn=psn)
            self._requests.lose(psn, now, LOST)
            self._retransmit.add(psn, now, now)

    def _late(self, now: int) -> int:
        """Return the latest departure that must have arrived by ``now`` on any path (ns)."""
        slowest = self._slow if self._slow > self._slow_before else self._slow_before
        return now - slowest * 5 // 4 - self._context.base_rtt // 2

    def timed(self, rtt: int, now: int) -> None:
        """Record that a packet's round trip took ``rtt`` (ns); some base RTTs are remembered."""
        if now >= self._slow_until:
            self._slow_before, self._slow = self._slow, 0
            self._slow_until = now + _REMEMBERED * self._context.base_rtt
        if rtt > self._slow:
            self._slow = rtt

    # -- what is overdue -----------------------------------------------------------------------

    def infer_overdue(self, base: int, bitmap: int, now: int) -> None:
        """Infer the loss of overdue packets that an ACK shows as missing from ``base`` on.

        Queues that trim delay a packet by a few round trips at most; a path that swallows packets
        is found so even if nothing newer is sent.
        """
        limit, window = self._tail_loss_time, self._window
        if not limit or now < self._look_at or self._flow.unsettled <= 0:
            return
        self._look_at = now + limit // 4  # not at every ACK
        sent_at = self._timer.sent_at
        overdue = min(now - limit, self._late(now))
        missing = ~bitmap & (1 << min(SACK_BITS, (window.next - base) & MASK)) - 1
        while missing:
            low = missing & -missing
            missing ^= low
            psn = (base + low.bit_length() - 1) & MASK
            slot = self._slot(psn)
            if self._size[slot] and sent_at[slot] <= overdue and window.is_open(psn):
                self._counters["losses_inferred"] += 1
                self._event("loss_inferred", psn=psn)
                self._requests.lose(psn, now)
                self._retransmit.add(psn, now, now)

    # -- what the timer does -----------------------------------------------------------------

    def on_timer(self, now: int) -> None:
        """Queue for retransmission whatever has waited too long."""
        expired = self._timer.expired(now)
        if self._ordered and expired:
            expired = self._first_of(expired, now)
        lost = False
        for psn in expired:
            if psn in self._retransmit:
                # It waits for its turn, refused or lost long since: nothing of it is overdue.
                self._timer.timeouts[self._slot(psn)] -= 1
                continue
            timeouts = self._timer.timeouts[self._slot(psn)]
            if timeouts > self._max_timeouts != UNLIMITED_RTO:
                self.gave_up = "RTO_RETRIES_EXHAUSTED"
                return
            self._counters["rto_expirations"] += 1
            self._event("rto", psn=psn, timeouts=timeouts)
            self._requests.lose(psn, now)
            self._retransmit.add(psn, now, now)
            lost = True
        if lost and self._ordered:
            # Whatever was behind the lost one has been refused, or will be.  As nothing is in
            # flight any more, this is when another path may be taken.
            self._writer.repath()
            self.go_back(self._window.base, now)

    def _first_of(self, expired: list[int], now: int) -> list[int]:
        """Return the first open PSN of an ordered PDC, if its timer is among those that ran out.

        The others wait for it, and nothing reports them as lost. Their timers run with its timer,
        and count nothing.  Where it waits to be sent again itself, no timer of its own runs: the
        others are overdue, and leave behind it.
        """
        base, timer = self._window.base, self._timer
        waits = base in self._retransmit
        for psn in expired:
            if psn == base:
                continue
            if waits:
                timer.timeouts[self._slot(psn)] = 0
                self._requests.discard(psn)
                self._retransmit.add(psn, now, now)
            else:
                timer.timeouts[self._slot(psn)] = timer.timeouts[self._slot(base)]
                timer.sent_again(psn, now)
                timer.timeouts[self._slot(psn)] = 0
        return [base] if base in expired else []

    def next_deadline(self) -> int | None:
        timeout = self._timer.next_deadline()
        if not self._retransmit.members:
            return timeout
        resend = self._retransmit.next_deadline()
        if timeout is None or resend is None:
            return resend if timeout is None else timeout
        return min(timeout, resend)


class TailLoss:
    """Decides when a PROBE is due because nothing has arrived; never on an ordered PDC.

    Nothing newer follows the last packets of a message, so that no ACK shows their loss. Without a
    PROBE only the RTO would (compare TCP's tail loss probe, RFC 8985 section 7).
    """

    __slots__ = (
        "_context",
        "_counters",
        "_flow",
        "_most",
        "_probes",
        "_reported",
        "_requests",
        "_retransmit",
        "_time",
        "_window",
        "_writer",
        "heard_at",
    )

    def __init__(
        self,
        requests: OpenRequests,
        config: FepConfig,
        *,
        writer: PacketWriter,
        counters: dict[str, int],
    ) -> None:
        #: when something last arrived, or began to be expected (ns)
        self.heard_at = 0
        self._probes = 0  # since something arrived
        self._reported = True  # something arrived since the last PROBE
        self._time = 0 if requests.ordered else config.tail_loss_time
        self._most = config.max_tail_loss_retx
        self._requests = requests
        self._window = requests.window
        self._retransmit = requests.retransmit
        self._flow = requests.flow
        self._context = requests.flow.context
        self._writer = writer
        self._counters = counters

    def heard(self, now: int) -> None:
        """Note that the peer has answered something."""
        self._reported = True
        self._probes = 0
        self.heard_at = now

    def deadline(self) -> int | None:
        """Return when a PROBE queries what is in flight, if nothing arrives before (ns)."""
        window = self._window
        if (
            not self._time
            or window.base == window.next
            or self._probes >= self._most
            or (self._flow.unsettled <= 0 and window.base in self._retransmit)
        ):
            return None  # who waits to send has nothing to expect
        return self.heard_at + self._time

    def probed(self, now: int) -> None:
        """Note that the deadline has come, and that the peer is probed.

        If it is not the first time, the question before was lost, and so is the next on the same
        path.
        """
        if self._probes:
            self._flow.paths.on_feedback(self._writer.asked_on, TIMEOUT, now)
        self._probes += 1
        self.heard_at = now
        self._reported = False
        self._counters["tx_tail_loss_probes"] += 1

    def window_is_stuck(self) -> bool:
        """Return whether packets wait for a window that no request opens.

        Packets that requested an ACK were refused or lost. The window has shrunk below what else is
        in flight, and that is too little to be acknowledged by itself.
        """
        if not self._reported or self._flow.unsettled <= 0 or self._context.room() > 0:
            return False
        requests = self._requests
        asked = requests.asked
        if asked is None or not self._window.is_open(asked):
            return True
        return not requests.size[asked & requests.slot_mask]

    def asked(self) -> None:
        """Note that a PROBE leaves: one is enough until something arrives."""
        self._reported = False
