"""The source half of a PDC: requests leave, again if they were lost, and ACKs settle them.

In order: the messages; of requests: what may be sent, control packets, what an ACK does, credit, a
new first PSN, the end (UES 3.5.11, 3.5.12, 3.5.16, 3.5.20, 3.5.21).  The records of what is sent
are
:mod:`uet.pds.open_requests`, and :mod:`uet.pds.repair` repairs losses.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from uet.congestion.context import PdcFlow
from uet.congestion.signals import NO_SAMPLE, rtt_sample
from uet.pds.open_requests import RING, OpenRequests
from uet.pds.packets import feature_request
from uet.pds.repair import LossRecovery, TailLoss
from uet.pds.semantics import Outbound
from uet.pds.window import HALF, MASK, NO_PSNS, after
from uet.transport import Frame
from uet.wire.codes import MPR_UNIT, ControlType, NextHeader

if TYPE_CHECKING:
    from uet.pds.pdc import Pdc

#: Requests below this have no message id: return data names them by their PSN.
_WITH_ID: Final = int(NextHeader.REQUEST_STD)
#: Why sending has ended: nothing more can leave before something happens to this PDC, the window
#: or the credit of its context is used up, or it
#: has sent what it may.
FINISHED: Final = 0
HELD: Final = 1
USED_UP: Final = 2
#: More octets than any window has: no limit.
EVERYTHING: Final = 1 << 62
#: With Limit_PSN_Range a PDC uses no more PSNs than this (UES Table 3-28), and takes no message
#: that might need them: the largest one has fewer packets than the margin.
PSN_LIMIT: Final = 1 << 31
PSN_LIMIT_MARGIN: Final = 1 << 23
#: So far behind the newest PSN an ACK may lie that others have overtaken: as far as the 16 bits of
#: its ack_psn_offset reach, and much further than packets are in flight.
_REACH: Final = 1 << 16


#: The queue of a source to which nothing was posted: that of most targets, for life.
_UNUSED: Final[deque[Outbound]] = deque()


class OutboundMessages:
    """Keeps the messages of one source in order; one of over ``most_short`` packets is long.

    Packets of two messages are never interleaved on a PDC (UES 3.5.6): first come, first.
    """

    __slots__ = ("_long", "_most_short", "_pdc", "_queued", "current", "open", "queue")

    def __init__(self, pdc: Pdc, most_short: int) -> None:
        #: those of which nothing was sent
        self.queue = _UNUSED
        #: those of which some packet was sent and some is not answered, by ``id()``
        self.open: dict[int, Outbound] = {}
        #: the one whose packets leave
        self.current: Outbound | None = None
        self._pdc = pdc
        self._most_short = most_short
        self._queued = 0  # packets of what is in the queue
        self._long = 0  # long messages in the queue

    def post(self, message: Outbound) -> None:
        """Queue a message."""
        if self.queue is _UNUSED:
            self.queue = deque()
        self.queue.append(message)
        self._queued += message.packets
        self._long += message.packets > self._most_short

    def begin(self) -> Outbound:
        """Take the first message of the queue, of which a packet leaves now."""
        message = self.queue.popleft()
        self._queued -= message.packets
        self._long -= message.packets > self._most_short
        self.open[id(message)] = message
        return message

    def take_back(self) -> list[Outbound]:
        """Return the messages of which nothing was sent; they are not sent here any more."""
        unsent = list(self.queue)
        self.queue.clear()
        self._queued = self._long = 0
        return unsent

    @property
    def long_unsent(self) -> bool:
        """Return whether a message that is not short has still to leave, in part or as a whole."""
        current = self.current
        return self._long > 0 or (current is not None and current.packets > self._most_short)

    @property
    def unsent_packets(self) -> int:
        """The number of packets that have not been sent for the first time."""
        current = self.current
        return self._queued + (0 if current is None else current.packets - current.sent)

    def finish(self, message: Outbound, now: int) -> None:
        """End a message all of whose packets are answered."""
        del self.open[id(message)]
        if message is self.current:
            self.current = None  # cancelled before its last packet was due
        self._pdc.message_end(message, now)

    def abandon(self, error: str, now: int, untouched: frozenset[int]) -> None:
        """End every message with ``error``, but those that may go elsewhere.

        These are messages of which nothing was sent, or nothing carried out (``untouched``, by
        ``id()``).
        """
        unfinished, unsent = list(self.open.values()), self.take_back()
        self.open.clear()
        self.current = None
        for message in unsent:
            self._pdc.message_unsent(message)
        for message in unfinished:
            message.error = message.error or error
            if id(message) in untouched:
                self._pdc.message_unsent(message)
            else:
                self._pdc.message_end(message, now)


class RequestSource:
    """Sends the requests of one direction of a PDC, and again what was lost."""

    __slots__ = (
        "_ack_per_packet",
        "_context",
        "_copies",
        "_counters",
        "_ev",
        "_full_size",
        "_index",
        "_inference",
        "_keep_syn",
        "_message",
        "_nacks",
        "_negotiation",
        "_ordered",
        "_renumbered",
        "_settled",
        "_size",
        "_syn_end",
        "_trigger",
        "_writer",
        "adaptive",
        "close_psn",
        "credited",
        "flow",
        "messages",
        "open",
        "queue",
        "recovery",
        "requests",
        "retransmit",
        "syn_resent",
        "tail",
        "timer",
        "window",
    )

    def __init__(self, pdc: Pdc, flow: PdcFlow) -> None:
        config, writer, counters = pdc.config, pdc.writer, pdc.counts
        start_psn = pdc.identity.start_psn
        # The range that a peer has reported on another PDC holds here until it reports anew.
        peer_range = min(config.mpr, pdc.peer.mpr or config.mpr) * MPR_UNIT
        self.requests = requests = OpenRequests(
            start_psn,
            flow,
            ordered=pdc.ordered,
            peer_range=min(peer_range, RING),
            rto=config.rto_init_time,
            constant_rto=config.compatibility.constant_rto,
        )
        self.window = requests.window
        self.timer = requests.timer
        self.retransmit = requests.retransmit
        self.flow = flow
        self.recovery = LossRecovery(
            requests, config, writer=writer, event=pdc.event, counters=counters
        )
        self.tail = TailLoss(requests, config, writer=writer, counters=counters)
        self.messages = OutboundMessages(pdc, config.short_message_packets)
        self.queue = self.messages.queue
        self.open = self.messages.open
        #: the PSN of the newest CLOSE or CLOSE_REQ
        self.close_psn: int | None = None
        #: a packet with SYN left more than once: a late copy may outlive the PDC
        self.syn_resent = False
        #: it needs credit (RCCC), and states in every request how much
        self.credited = flow.context.credit is not None
        #: its window may shrink below what is in flight
        self.adaptive = flow.context.adaptive
        self._writer = writer
        self._counters = counters
        self._ordered = pdc.ordered
        self._context = flow.context
        self._trigger = config.ack_gen_trigger
        self._ack_per_packet = config.ack_per_packet
        self._keep_syn = config.compatibility.keep_syn_on_retransmission
        self._full_size = pdc.endpoint.full_size
        self._syn_end = start_psn  # first PSN whose packet never had SYN
        self._negotiation = feature_request(config.compatibility)
        self._settled = 0  # octets that the present ACK has settled
        self._renumbered = NO_PSNS  # those that have not been on the wire under this number
        # Bound once, for the data path.
        self._inference = self.recovery.inference
        self._message = requests.message
        self._index = requests.index
        self._size = requests.size
        self._nacks = requests.nacks
        self._ev = requests.ev
        self._copies = requests.copies

    # -- new messages ------------------------------------------------------------------------

    def post(self, message: Outbound) -> None:
        """Queue a message; its packets leave behind those of all that were posted before."""
        self.requests.make_rings()
        self.messages.post(message)
        self.queue = self.messages.queue

    @property
    def idle(self) -> bool:
        """Return whether nothing is queued and every request is answered."""
        return (
            self.messages.current is None
            and not self.queue
            and self.window.base == self.window.next
        )

    @property
    def is_full(self) -> bool:
        """Return whether no more PSNs can be remembered."""
        return self.window.outstanding >= RING

    @property
    def has_unsent(self) -> bool:
        """Return whether requests wait that will carry CLEAR_PSN when they leave."""
        return (
            self.messages.current is not None or bool(self.queue) or bool(self.retransmit.members)
        )

    @property
    def worn_out(self) -> bool:
        """Return whether the PSN range is nearly used up (UES Table 3-28, Limit_PSN_Range)."""
        return ((self.window.next - self.requests.start_psn) & MASK) >= PSN_LIMIT - PSN_LIMIT_MARGIN

    def stalled(self, now: int) -> bool:
        """Return whether only the peer's range holds packets back, and no timer runs.

        This happens when the responses of a whole range are known, but the peer keeps a
        guaranteed-delivery one among the first. The CLEAR that frees it waits, too.
        """
        if self.recovery.next_deadline() is not None:
            return False
        waiting = self.retransmit.head(now)
        if waiting is None:
            if self.messages.current is None and not self.queue:
                return False
            waiting = self.window.next
        requests = self.requests
        return waiting not in requests.controls and requests.is_beyond_range(waiting)

    def _waiting(self) -> int:
        """Return how many packets wait to be sent, again or for the first time."""
        return self.messages.unsent_packets + len(self.retransmit)

    # -- what may be sent --------------------------------------------------------------------

    @property
    def may_send(self) -> bool:
        """Return whether a new packet could leave, given a window and credit."""
        message = self.messages.current or (self.queue[0] if self.queue else None)
        return (
            message is not None
            and message.sent < message.ready
            and not (self._ordered and self.retransmit.members)
            and not self.requests.is_beyond_range(self.window.next)
            and not self.is_full
        )

    def report_backlog(self) -> None:
        """Report the octets that wait for credit."""
        self.flow.waits(0 if self.idle else self._waiting() * self._full_size)

    def transmit(self, out: list[Frame], now: int, limit: int, octets: int = EVERYTHING) -> int:  # noqa: C901  the way of a packet, without calls
        """Append what may leave now: what the network lost first, then new packets.

        That is about as many ``octets`` of nominal size, a packet more at most.  Returned is why
        no more leave: ``FINISHED``, ``HELD`` or ``USED_UP``.
        """
        if self.credited:
            self.report_backlog()
        if self.retransmit.members:
            before = self.flow.unsettled
            stop = self.resend(out, now, limit, octets)
            if self.credited:
                self.report_backlog()
            if stop != FINISHED:
                return stop
            if self._ordered and self.retransmit.members:
                return FINISHED  # the destination would refuse what comes before its turn
            octets -= self.flow.unsettled - before
            if octets <= 0:
                return USED_UP
        messages = self.messages
        message = messages.current
        if message is None and not self.queue:
            return FINISHED
        requests, window, flow, context = self.requests, self.window, self.flow, self._context
        first = window.next
        outstanding = (first - window.base) & MASK
        # How many PSNs the peer tracks beyond its CACK, and how many we can remember.
        room = requests.peer_range - ((first - 1 - requests.max_cack) & MASK)
        if room > RING - outstanding:
            room = RING - outstanding
        credit = before = context.room()
        if credit <= 0:
            if not self._asks(first, now):
                return FINISHED if room <= 0 else HELD
            credit = before = 1
        timer, paths, writer = self.timer, flow.paths, self._writer
        syn = not writer.peer_id
        psn, clear_offset, slot_mask = first, -outstanding, requests.slot_mask
        state = context.credit_word() if self.credited else None
        request_ack = self._ack_per_packet or context.wants_ack(self._trigger)
        # Where the window is shared or shrinks, the packet that uses it up requests the ACK that
        # opens it again (UES 3.6.13).
        ask_below = -1
        if self.adaptive or context.inflight > flow.inflight:
            ask_below = requests.largest
            if self.credited:  # the window may be larger than what credit leaves
                ask_below -= context.window_room() - before
        end = credit - octets if credit > octets else 0
        stop = USED_UP
        while room > 0 and credit > end and len(out) < limit:
            if message is None:
                if not self.queue:
                    stop = FINISHED
                    break
                message = messages.begin()
            index = message.sent
            if index >= message.ready:
                stop = FINISHED
                break
            if message.next_header < _WITH_ID:
                message.psn = psn
            if clear_offset <= ~slot_mask:
                slot_mask = requests.grow()
            window.next = (psn + 1) & MASK
            last = index + 1 == message.packets
            room -= 1
            clear_offset -= 1
            ev = paths.pick()
            # At the end of the range one ACK that is still to come moves it on.
            asks = (
                last or request_ack or credit <= ask_below or not (room or requests.awaits_answer)
            )
            if asks:
                requests.asked = psn
            frame, size = writer.request(
                psn, message, index, clear_offset, syn, False, asks, ev, state
            )
            slot = psn & slot_mask
            self._message[slot] = message
            self._index[slot] = index
            self._size[slot] = size
            self._nacks[slot] = 0
            self._ev[slot] = ev
            self._copies[slot] = 1
            timer.sent(psn, now)
            psn = window.next
            message.sent = index + 1
            credit -= size
            out.append(frame)
            if last:
                message = None
        messages.current = message
        if psn != first:
            if window.base == first:
                self.tail.heard_at = now  # nothing was expected before
            flow.on_send(before - credit)
            if self.credited:
                context.credit_asked(now)
                flow.waits(self._waiting() * self._full_size)
            if syn:
                self._syn_end = window.next
            if size > requests.largest:
                requests.largest = size
            requests.clear_sent = (window.base - 1) & MASK
            self._counters["tx_data_packets"] += (psn - first) & MASK
        if stop == FINISHED or room <= 0 or (message is None and not self.queue):
            return FINISHED
        return HELD if credit <= 0 else USED_UP

    def resend(self, out: list[Frame], now: int, limit: int, octets: int) -> int:
        """Append what leaves again, as :meth:`transmit` does.

        With no ``octets`` that is what need not be scheduled: what no congestion control applies
        to, and the oldest open request where nothing else of this PDC is in flight.
        """
        requests, window, context, flow = self.requests, self.window, self._context, self.flow
        end = flow.unsettled + octets
        while len(out) < limit and (psn := self.retransmit.head(now)) is not None:
            control = requests.controls.get(psn)
            if control is None and requests.is_beyond_range(psn):
                return FINISHED  # the peer's range has shrunk; what follows lies beyond as well
            slot = psn & requests.slot_mask
            message = self._message[slot]
            if control is not None:
                out.append(self._control(control, psn, again=True))
            elif window.is_delivered(psn):
                # The data arrived; only its response is missing (UES 3.5.16, ACK_REQ).
                message_id = message.id if message is not None else 0
                out.append(self.ask_again(psn, message_id))
            elif message is not None:
                if not self._stands_alone(psn) and not self._asks(psn, now):
                    if context.room() <= 0:
                        return HELD
                    if flow.unsettled >= end:
                        return USED_UP
                again = psn not in self._renumbered
                asks = again or self._index[slot] + 1 == message.packets
                if asks:
                    requests.asked = psn
                frame, size = self._writer.request(
                    psn,
                    message,
                    self._index[slot],
                    -((psn - window.base + 1) & MASK),
                    self._with_syn(psn),
                    again,
                    asks,
                    ev := flow.paths.pick(),
                    context.credit_word() if self.credited else None,
                )
                self._ev[slot] = ev
                self._copies[slot] += 1
                self._renumbered.discard(psn)
                self.recovery.behind.discard(psn)
                if self._inference is not None:
                    self._inference.sent_again(psn)
                if again and not self._writer.peer_id:
                    self.syn_resent = True
                self._size[slot] = size
                if self.flow.unsettled <= 0:
                    self.tail.heard_at = now  # nothing was expected before
                self.flow.on_send(size)
                if self.credited:
                    context.credit_asked(now)
                out.append(frame)
                requests.clear_sent = (window.base - 1) & MASK
                self._counters["tx_retransmitted_packets"] += 1
                self._counters["tx_retransmitted_octets"] += sum(map(len, frame))
            self.retransmit.pop()
            self.timer.sent_again(psn, now)
        return FINISHED if len(out) < limit else USED_UP

    def ask_about_tail(self, now: int) -> Frame | None:
        """Return an ACK_REQ if only responses are missing, else ``None``: then a PROBE is due.

        Call it when the time for that has come.
        """
        self.tail.probed(now)
        base = self.window.base
        if self.flow.unsettled > 0 or base in self.requests.controls:
            return None
        message = self._message[base & self.requests.slot_mask]
        return self.ask_again(base, 0 if message is None else message.id)

    # -- control packets -----------------------------------------------------------------------

    def send_control(self, kind: ControlType, now: int) -> Frame:
        """Return a control packet that takes the next PSN (UES 3.5.16).

        NOOP, NEGOTIATION, CLOSE and CLOSE_REQ are acknowledged and sent again as requests are.
        """
        requests, window = self.requests, self.window
        if window.next == window.base:
            self.tail.heard_at = now  # nothing was expected before
        requests.make_rings()
        if window.outstanding > requests.slot_mask:
            requests.grow()
        psn = window.next
        window.next = (psn + 1) & MASK
        requests.controls[psn] = kind
        if kind in (ControlType.CLOSE_CMD, ControlType.CLOSE_REQ):
            requests.clear_sent = (psn - 1) & MASK  # which a CLOSE implies
            self.close_psn = psn
        slot = psn & requests.slot_mask
        self._message[slot] = None
        self._size[slot] = self._nacks[slot] = self._copies[slot] = 0
        self.timer.sent(psn, now)
        return self._control(kind, psn, again=False)

    def _control(self, kind: ControlType, psn: int, *, again: bool) -> Frame:
        """Return a control packet that has taken ``psn``, for the first time or ``again``."""
        more = self._negotiation if kind is ControlType.NEGOTIATION else b""
        return self._writer.control(
            kind,
            psn=psn,
            ar=True,
            retx=again,
            payload=int.from_bytes(more[:4], "big"),
            more=more[4:],
        )

    def ask_again(self, psn: int, message_id: int = 0) -> Frame:
        """Return an ACK_REQ: the response to ``psn`` is missing (UES 3.5.16)."""
        self._counters["tx_ack_requests"] += 1
        return self._writer.control(ControlType.ACK_REQ, psn=psn, ar=True, payload=message_id)

    def clear(self) -> Frame:
        """Return a CLEAR: all responses before the first open PSN are known."""
        psn = (self.window.base - 1) & MASK
        self.requests.clear_sent = psn
        return self._writer.control(ControlType.CLEAR_CMD, psn=0, payload=psn)

    # -- what an ACK does ----------------------------------------------------------------------
    # For each packet with an ACK the PDC calls, in this order: sample, on_ack, on_sack and
    # acknowledged.

    def is_invalid(self, psn: int) -> bool:
        """Return whether an ACK names a PSN that was not sent, or long ago (UES 3.5.12).

        What passes lies close to the PSNs in flight, wherever they are in the number space.
        """
        return ((self.window.next - 1 - psn) & MASK) >= _REACH

    def on_range(self, mpr: int, cack: int) -> None:
        """Take the maximum PSN range of an ACK that none has overtaken; 0 is none (UES 3.5.11)."""
        requests = self.requests
        if mpr and not after(requests.max_cack, cack):
            requests.peer_range = min(mpr * MPR_UNIT, RING)

    def sample(self, psn: int, cack: int, resent: int, service_time: int, now: int) -> int:
        """Return the RTT that the ACK caused by ``psn`` shows (ns), before it is settled.

        Where ``cack`` passes the first open PSN, that packet was missing until now: none that has
        arrived took longer, whoever caused the ACK.
        """
        window, sent_at = self.window, self.timer.sent_at
        base = window.base
        slot = base & self.requests.slot_mask
        is_passed = ((cack - base) & MASK) < ((window.next - base) & MASK)
        if base != psn and is_passed and not window.is_delivered(base):
            copies = self._copies[slot]
            self.recovery.timed(rtt_sample(now, sent_at[slot], copies, 0, service_time), now)
        if psn in self.requests.controls or not window.is_open(psn):
            return NO_SAMPLE
        slot = psn & self.requests.slot_mask
        rtt = rtt_sample(now, sent_at[slot], self._copies[slot], resent, service_time)
        self.recovery.timed(rtt, now)
        return rtt

    def on_ack(
        self, ack_psn: int, cack: int, next_header: int, response: memoryview | None, now: int
    ) -> None:
        """Settle ``ack_psn`` and everything up to ``cack``.

        ``response`` is the SES response to ``ack_psn`` where it is more than the default.
        """
        window, requests = self.window, self.requests
        first = window.base
        if window.is_open(ack_psn):
            self._settle(ack_psn, next_header, response, now)
            window.finish(ack_psn)
            if self._inference is not None:
                self._inference.arrived(ack_psn)
        if after(cack, requests.max_cack):
            requests.max_cack = cack
        psn = window.base
        ahead = ((cack - psn) & MASK) + 1
        if ahead <= (window.next - psn) & MASK:
            done = window.done
            for _ in range(ahead):
                if not done & 1:
                    self._settle(psn, 0, None, now)
                done >>= 1
                psn = (psn + 1) & MASK
            window.finish_through(cack)
        if self.recovery.behind and window.base != first:
            self.recovery.follow(now)

    def on_sack(self, base: int, bitmap: int) -> None:
        """Take a SACK: a set bit means received; a clear bit means nothing (UES 3.5.12)."""
        news = self.window.sacked(base, bitmap)
        first, slot_mask = self.window.base, self.requests.slot_mask
        if news and self._inference is not None:
            self._inference.arrived((first + news.bit_length() - 1) & MASK)
        while news:
            low = news & -news
            slot = (first + low.bit_length() - 1) & slot_mask
            self._settled += self._size[slot]
            self._size[slot] = 0
            news ^= low

    def acknowledged(
        self,
        counter: int | None,
        entropy: int,
        marked: bool,
        rtt: int,
        now: int,
        penalty: int,
        restore: bool,
    ) -> None:
        """Pass an ACK to congestion control, after all that it reports about PSNs."""
        self.tail.heard(now)
        settled, self._settled = self._settled, 0
        self.flow.on_ack(counter, settled, entropy, marked, rtt, now, penalty, restore)
        if self.window.base == self.window.next:
            self._drained()

    def reported(self, counter: int | None, now: int) -> None:
        """Pass the answer to a PROBE to congestion control."""
        self.tail.heard(now)
        settled, self._settled = self._settled, 0
        self.flow.on_report(counter, settled)
        if self.window.base == self.window.next:
            self._drained()

    def _settle(self, psn: int, next_header: int, response: memoryview | None, now: int) -> None:
        """Record that the response of ``psn`` is known."""
        slot = psn & self.requests.slot_mask
        size = self._size[slot]
        if size:
            self._settled += size
            self._size[slot] = 0
        message = self._message[slot]
        if message is None:
            self.requests.controls.pop(psn, None)
            return
        self._message[slot] = None
        message.acknowledged += 1
        if response is not None:
            message.answered(self._index[slot], next_header, response)
        if message.acknowledged == message.packets:
            self.messages.finish(message, now)

    def _drained(self) -> None:
        """Note that all is answered: nothing is in flight, and nothing waits to be sent again."""
        self.flow.drained()
        if self.retransmit.members:
            self.retransmit.restart(self.requests.start_psn)
        if self.credited:
            self.flow.waits(self._waiting() * self._full_size)

    # -- credit ------------------------------------------------------------------------------

    def _stands_alone(self, psn: int) -> bool:
        """Return whether ``psn`` is the oldest open request, and nothing of this PDC is in flight.

        It may leave although others have used up the window of the context: no timer and no
        answer would bring it on.
        """
        return (
            psn == self.window.base and self.flow.unsettled <= 0 and self._context.credit_room() > 0
        )

    def _asks(self, psn: int, now: int) -> bool:
        """Return whether ``psn`` may leave without credit, to request some (UES 3.6.14).

        A CREDIT_REQ needs a PDC at the peer.  Before that only the oldest packet requests credit,
        once in a round trip: all that is sent without credit fills the queue that trims it.
        """
        if psn != self.window.base:
            return False
        due = self.asks_at()
        return due is not None and due <= now

    def asks_at(self) -> int | None:
        """Return when the oldest packet may leave to request credit (ns), if it waits for that."""
        window = self.window
        if not self.credited or self._writer.peer_id or not self._context.lacks_credit:
            return None
        if window.base == window.next:
            return 0 if self.messages.current is not None or self.queue else None
        if self.retransmit.head(0) != window.base:
            return None
        return self.timer.sent_at[window.base & self.requests.slot_mask] + self._context.base_rtt

    def _with_syn(self, psn: int) -> bool:
        """Return whether a resend goes out with SYN.

        The target is not known, or as it was built.
        """
        return not self._writer.peer_id or (
            self._keep_syn and ((self._syn_end - 1 - psn) & MASK) < HALF
        )

    # -- a new first PSN ---------------------------------------------------------------------

    def renumber(self, start_psn: int, now: int) -> None:
        """Send all again from ``start_psn``, as the target of a secured PDC requires (UES 3.5.8).

        Only before anything has been acknowledged.
        """
        requests, window = self.requests, self.window
        if self.close_psn is not None:
            self.close_psn = (self.close_psn + start_psn - requests.start_psn) & MASK
        requests.renumber(start_psn)
        self.recovery.renumber(start_psn)
        self._syn_end = window.next
        self._renumbered = set(self._renumbered)
        psn = window.base
        while psn != window.next:
            if window.is_open(psn):
                slot = psn & requests.slot_mask
                message = self._message[slot]
                if message is not None and message.next_header < _WITH_ID:
                    message.psn = psn
                self._nacks[slot] = 0
                requests.discard(psn)
                self._copies[slot] = 0
                self.timer.sent(psn, now)
                self.retransmit.add(psn, now, now)
                self._renumbered.add(psn)
            psn = (psn + 1) & MASK

    # -- the end -----------------------------------------------------------------------------

    def abandon(self, error: str, now: int, untouched: frozenset[int] = frozenset()) -> None:
        """Fail every unfinished message with ``error``; nothing is in flight any more.

        A message of which nothing was sent, or nothing carried out (``untouched``, by ``id()``),
        may go elsewhere.
        """
        self.flow.ended()
        self.requests.forget()
        self.recovery.behind.clear()
        self.recovery.gave_up = None
        self.messages.abandon(error, now, untouched)
