"""The source half of a PDC: requests leave, acknowledgements come back.

In order: what is kept, what a new message does, what may be sent, what an ACK does, what a new
first PSN does, the end (UES 3.5.12, 3.5.20, 3.5.21).  Loss is repaired by
:mod:`uet.pds.recovery.repair`.
"""

from __future__ import annotations

from collections import deque
from typing import cast

from uet.congestion.context import PdcFlow
from uet.congestion.signals import NO_SAMPLE, rtt_sample
from uet.congestion.spraying.paths import TIMEOUT
from uet.pds.pds_packets import PacketWriter
from uet.pds.psn import HALF, MASK
from uet.pds.recovery.inference import LossInference
from uet.pds.recovery.repair import RING, LossRecovery, Messages
from uet.pds.recovery.rto import RetransmissionQueue
from uet.pds.semantics import Numbered, Outbound
from uet.transport import Frame
from uet.wire.codes import MPR_UNIT, ControlType, NextHeader

_SLOT = RING - 1
#: Requests below this have no message id: return data names them by their PSN.
_WITH_ID = int(NextHeader.REQUEST_STD)

#: Why sending has ended: nothing more can leave before something happens to this PDC, the window
#: or the credit of its context is used up, or its turn is over.
FINISHED, HELD, USED_UP = range(3)
#: More octets than any window has: a turn without end.
EVERYTHING = 1 << 62

#: With Limit_PSN_Range a PDC uses no more PSNs than this (UES Table 3-28), and takes no message
#: that might need them: the largest one has fewer packets than the margin.
PSN_LIMIT = 1 << 31
PSN_LIMIT_MARGIN = 1 << 23


class RequestSource(LossRecovery):
    """Sends the requests of one direction of a PDC, and again what was lost."""

    def __init__(
        self,
        *,
        writer: PacketWriter,
        messages: Messages,
        start_psn: int,
        ordered: bool,
        flow: PdcFlow,
        full_size: int,
        default_range: int,
        rto_init_time: int,
        constant_rto: bool,
        max_rto_retx_cnt: int,
        nack_retx_time: int,
        max_nack_retx_cnt: int,
        ack_gen_trigger: int,
        ack_per_packet: bool,
        infer_loss: bool,
        tail_loss_time: int,
        max_tail_loss_retx: int,
        keep_syn: bool,
        negotiation: bytes,
        short_message_packets: int,
        counters: dict[str, int],
    ) -> None:
        super().__init__(
            writer=writer,
            messages=messages,
            start_psn=start_psn,
            ordered=ordered,
            flow=flow,
            rto_init_time=rto_init_time,
            constant_rto=constant_rto,
            max_rto_retx_cnt=max_rto_retx_cnt,
            nack_retx_time=nack_retx_time,
            max_nack_retx_cnt=max_nack_retx_cnt,
            infer_loss=infer_loss,
            tail_loss_time=tail_loss_time,
            max_tail_loss_retx=max_tail_loss_retx,
            counters=counters,
        )
        self.peer_range = min(default_range, RING)
        self.clear_sent = (start_psn - 1) & MASK
        self.close_psn: int | None = None
        #: a packet with SYN left more than once: a late copy may outlive the PDC
        self.syn_resent = False
        #: it needs credit (RCCC), and says in every request how much
        self.credited = flow.context.credit is not None
        #: its window may shrink below what is in flight
        self.adaptive = flow.context.adaptive
        self.queue: deque[Outbound] = deque()
        #: messages of which some packet was sent and some is not answered
        self.open: dict[int, Outbound] = {}
        self._trigger = ack_gen_trigger
        self._ack_per_packet = ack_per_packet
        self._keep_syn = keep_syn
        self._negotiation = negotiation
        self._syn_end = start_psn  # first PSN whose packet never had SYN
        self._renumbered: set[int] = set()  # PSNs that have not been on the wire under this number
        self._current: Outbound | None = None
        self._queued = 0  # packets of what is in the queue
        self._most_short = short_message_packets
        self._longer = 0  # messages in the queue that have more packets
        self._full_size = full_size
        self._asked: int | None = None  # PSN of the newest packet that asked for an ACK
        self._mpr_cack = (start_psn - 1) & MASK
        self._controls: dict[int, ControlType] = {}  # control packets that took a PSN
        # By slot, beside what loss recovery keeps: which packet of which message.  The rings are
        # made when the first packet leaves: most targets never send any.
        self._message: list[Outbound | None] = []
        self._index: list[int] = []

    def _open_rings(self) -> None:
        if not self._message:
            self._message = [None] * RING
            self._index = [0] * RING
            self._size = [0] * RING
            self._nacks = [0] * RING
            self._ev = [0] * RING
            self._copies = [0] * RING
            self.timer.open()

    # -- new messages ------------------------------------------------------------------------

    def post(self, message: Outbound) -> None:
        """Packets of two messages are never interleaved on a PDC (UES 3.5.6): first come, first."""
        self._open_rings()
        self.queue.append(message)
        self._queued += message.packets
        self._longer += message.packets > self._most_short

    def take_back(self) -> list[Outbound]:
        """The messages of which nothing was sent; they are not sent here any more."""
        unsent = list(self.queue)
        self.queue.clear()
        self._queued = self._longer = 0
        return unsent

    @property
    def longer_unsent(self) -> bool:
        """Return whether a message that is not short has still to leave, in part or as a whole."""
        current = self._current
        return self._longer > 0 or (current is not None and current.packets > self._most_short)

    @property
    def idle(self) -> bool:
        """Nothing queued and every request answered."""
        return self._current is None and not self.queue and self.window.base == self.window.next

    @property
    def is_full(self) -> bool:
        """Return whether no more PSNs can be remembered."""
        return self.window.outstanding >= RING

    @property
    def has_unsent(self) -> bool:
        """Return whether requests wait that will carry CLEAR_PSN when they leave."""
        return self._current is not None or bool(self.queue) or bool(self.retransmit.members)

    @property
    def worn_out(self) -> bool:
        """Return whether the PSN range is nearly used up (UES Table 3-28, Limit_PSN_Range)."""
        return ((self.window.next - self.start_psn) & MASK) >= PSN_LIMIT - PSN_LIMIT_MARGIN

    def stalled(self, now: int) -> bool:
        """Return whether only the peer's range holds packets back, and no timer runs.

        So it is when the responses of a whole range are known, but the peer still keeps a
        guaranteed-delivery one among the first, because the CLEAR that frees it waits too.
        """
        if self.next_deadline() is not None:
            return False
        waiting = self.retransmit.head(now)
        if waiting is None:
            if self._current is None and not self.queue:
                return False
            waiting = self.window.next
        return waiting not in self._controls and self._beyond_range(waiting)

    def _waiting(self) -> int:
        """Return how many packets wait to be sent, again or for the first time."""
        current = self._current
        unsent = 0 if current is None else current.packets - current.sent
        return unsent + self._queued + len(self.retransmit)

    @property
    def _awaits_answer(self) -> bool:
        """Return whether a packet that asked for an ACK has not been covered by CACK."""
        return self._asked is not None and 0 < ((self._asked - self.max_cack) & MASK) < HALF

    def _beyond_range(self, psn: int) -> bool:
        """Return whether the peer does not track ``psn`` yet."""
        return ((psn - self.max_cack) & MASK) > self.peer_range

    # -- what may be sent --------------------------------------------------------------------

    @property
    def may_send(self) -> bool:
        """Return whether a new packet could leave, given a turn, a window and credit."""
        message = self._current or (self.queue[0] if self.queue else None)
        return (
            message is not None
            and message.sent < message.ready
            and not (self._ordered and self.retransmit.members)
            and not self._beyond_range(self.window.next)
            and not self.is_full
        )

    def report_backlog(self) -> None:
        """Report the octets that wait for credit."""
        self.flow.waits(0 if self.idle else self._waiting() * self._full_size)

    def transmit(self, out: list[Frame], now: int, limit: int, octets: int = EVERYTHING) -> int:
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
        message = self._current
        if message is None and not self.queue:
            return FINISHED
        window, flow, context = self.window, self.flow, self._context
        first = window.next
        outstanding = (first - window.base) & MASK
        # How many PSNs the peer tracks beyond its CACK, and how many we can remember.
        room = self.peer_range - ((first - 1 - self.max_cack) & MASK)
        if room > RING - outstanding:
            room = RING - outstanding
        credit = before = context.room()
        if credit <= 0:
            if not self._asks(first, now):
                return FINISHED if room <= 0 else HELD
            credit = before = 1
        timer, pick = self.timer, flow.paths.pick
        request, syn = self._writer.request, not self._writer.peer_id
        psn, clear_offset = first, -outstanding
        state = context.credit_word() if self.credited else None
        request_ack = self._ack_per_packet or context.wants_ack(self._trigger)
        # Where the window is shared or shrinks, the last packet of a turn asks for the ACK that
        # opens it again.
        asks_at_end = self.adaptive or context.inflight > flow.inflight
        end = credit - octets if credit > octets else 0
        stop = USED_UP
        while room > 0 and credit > end and len(out) < limit:
            if message is None:
                if not self.queue:
                    stop = FINISHED
                    break
                message = self.queue.popleft()
                self._queued -= message.packets
                self._longer -= message.packets > self._most_short
                self.open[id(message)] = message
            index = message.sent
            if index >= message.ready:
                stop = FINISHED
                break
            if message.next_header < _WITH_ID:
                cast(Numbered, message).psn = psn
            window.next = (psn + 1) & MASK
            last = index + 1 == message.packets
            room -= 1
            clear_offset -= 1
            ev = pick()
            # At the end of the range one ACK that is still to come moves it on.
            asks = (
                last
                or request_ack
                or (asks_at_end and credit - end <= self._largest)
                or not (room or self._awaits_answer)
            )
            if asks:
                self._asked = psn
            frame, size = request(psn, message, index, clear_offset, syn, False, asks, ev, state)
            slot = psn & _SLOT
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
        self._current = message
        if psn != first:
            if window.base == first:
                self._heard_at = now  # nothing was expected before
            flow.on_send(before - credit)
            if self.credited:
                context.credit_asked(now)
                flow.waits(self._waiting() * self._full_size)
            if syn:
                self._syn_end = window.next
            if size > self._largest:
                self._largest = size
            self.clear_sent = (window.base - 1) & MASK
            self._counters["tx_data_packets"] += (psn - first) & MASK
        if stop == FINISHED or room <= 0 or (message is None and not self.queue):
            return FINISHED
        return HELD if credit <= 0 else USED_UP

    def resend(self, out: list[Frame], now: int, limit: int, octets: int) -> int:
        """Append what leaves again, as :meth:`transmit` does.

        With no ``octets`` that is what needs no turn: what no congestion control applies to, and
        the oldest open request where nothing else of this PDC is in flight.
        """
        window, context, flow = self.window, self._context, self.flow
        end = flow.unsettled + octets
        while len(out) < limit and (psn := self.retransmit.head(now)) is not None:
            control = self._controls.get(psn)
            if control is None and self._beyond_range(psn):
                return FINISHED  # the peer's range has shrunk; what follows lies beyond as well
            slot = psn & _SLOT
            message = self._message[slot]
            if control is not None:
                out.append(self._tracked(control, psn, again=True))
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
                    self._asked = psn
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
                if self._behind:
                    self._behind.discard(psn)
                if self._inference is not None:
                    self._inference.sent_again(psn)
                if again and not self._writer.peer_id:
                    self.syn_resent = True
                self._size[slot] = size
                if self.flow.unsettled <= 0:
                    self._heard_at = now  # nothing was expected before
                self.flow.on_send(size)
                if self.credited:
                    context.credit_asked(now)
                out.append(frame)
                self.clear_sent = (window.base - 1) & MASK
                self._counters["tx_retransmitted_packets"] += 1
                self._counters["tx_retransmitted_octets"] += sum(map(len, frame))
            self.retransmit.pop()
            self.timer.sent_again(psn, now)
        return FINISHED if len(out) < limit else USED_UP

    def _stands_alone(self, psn: int) -> bool:
        """Return whether ``psn`` is the oldest open request, and nothing of this PDC is in flight.

        It may leave although others have used up the window of the context: no timer and no
        answer would bring it on.
        """
        return (
            psn == self.window.base and self.flow.unsettled <= 0 and self._context.credit_room() > 0
        )

    def _asks(self, psn: int, now: int) -> bool:
        """Return whether ``psn`` may leave without credit, to ask for some (UES 3.6.14).

        A CREDIT_REQ needs a PDC at the peer.  Before that only the oldest packet asks, once in a
        round trip: all that is sent without credit fills the queue that trims it.
        """
        if psn != self.window.base:
            return False
        due = self.asks_at()
        return due is not None and due <= now

    def asks_at(self) -> int | None:
        """Return when the oldest packet may leave to ask for credit (ns), if it waits for that."""
        window = self.window
        if not self.credited or self._writer.peer_id or not self._context.lacks_credit:
            return None
        if window.base == window.next:
            return 0 if self._current is not None or self.queue else None
        if self.retransmit.head(0) != window.base:
            return None
        return self.timer.sent_at[window.base & _SLOT] + self._context.base_rtt

    def _with_syn(self, psn: int) -> bool:
        """Return whether a resend goes out with SYN.

        The target is not known, or as it was built.
        """
        return not self._writer.peer_id or (
            self._keep_syn and ((self._syn_end - 1 - psn) & MASK) < HALF
        )

    def _tracked(self, kind: ControlType, psn: int, *, again: bool) -> Frame:
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
        """ACK_REQ: the response to ``psn`` is missing (UES 3.5.16)."""
        self._counters["tx_ack_requests"] += 1
        return self._writer.control(ControlType.ACK_REQ, psn=psn, ar=True, payload=message_id)

    def clear(self, psn: int) -> Frame:
        """CLEAR: all responses up to ``psn`` are known."""
        return self._writer.control(ControlType.CLEAR_CMD, psn=0, payload=psn)

    def send_control(self, kind: ControlType, now: int) -> Frame:
        """A control packet that takes the next PSN and is tracked like a request (UES 3.5.16)."""
        self._open_rings()
        psn = self.window.next
        if psn == self.window.base:
            self._heard_at = now  # nothing was expected before
        self.window.next = (psn + 1) & MASK
        self._controls[psn] = kind
        if kind in (ControlType.CLOSE_CMD, ControlType.CLOSE_REQ):
            self.clear_sent = (psn - 1) & MASK  # which a CLOSE implies
            self.close_psn = psn
        self._message[psn & _SLOT] = None
        self._size[psn & _SLOT] = 0
        self._nacks[psn & _SLOT] = 0
        self._copies[psn & _SLOT] = 0
        self.timer.sent(psn, now)
        return self._tracked(kind, psn, again=False)

    # -- what an ACK does --------------------------------------------------------------------

    def acknowledges_the_future(self, cack: int) -> bool:
        """An ACK of something never sent is no ACK of ours (UES 3.5.12)."""
        return 0 < ((cack - self.window.next + 1) & MASK) < HALF

    def on_ack(
        self, ack_psn: int, cack: int, next_header: int, response: memoryview | None, now: int
    ) -> None:
        """``response`` is the SES response to ``ack_psn`` where it is more than the default."""
        window = self.window
        first = window.base
        if window.is_open(ack_psn):
            self._settle(ack_psn, next_header, response, now)
            window.finish(ack_psn)
            if self._inference is not None:
                self._inference.arrived(ack_psn)
        progress = (cack - self.max_cack) & MASK
        if 0 < progress < HALF:
            self.max_cack = cack
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
        if self._behind and window.base != first:
            self._follow(now)

    def on_range(self, mpr: int, cack: int) -> None:
        """Take the maximum PSN range of the newest ACK with one; 0 means none (UES 3.5.11)."""
        newer = (cack - self._mpr_cack) & MASK
        if mpr and (newer == 0 or newer < HALF):
            self._mpr_cack = cack
            self.peer_range = min(mpr * MPR_UNIT, RING)

    def on_sack(self, base: int, bitmap: int) -> None:
        """Take a SACK: a set bit means received; a clear bit means nothing (UES 3.5.12)."""
        news = self.window.sacked(base, bitmap)
        first = self.window.base
        if news and self._inference is not None:
            self._inference.arrived((first + news.bit_length() - 1) & MASK)
        while news:
            low = news & -news
            slot = (first + low.bit_length() - 1) & _SLOT
            self.settled += self._size[slot]
            self._size[slot] = 0
            news ^= low

    def sample(self, psn: int, cack: int, resent: int, service_time: int, now: int) -> int:
        """The RTT that an ACK which ``psn`` caused shows; before it is settled.

        Where ``cack`` passes the first open PSN, that packet was missing until now: none that has
        arrived took longer, whoever caused the ACK.
        """
        window, sent_at = self.window, self.timer.sent_at
        base = window.base
        slot = base & _SLOT
        if base != psn and ((cack - base) & MASK) < HALF and not window.is_delivered(base):
            copies = self._copies[slot]
            self.timed(rtt_sample(now, sent_at[slot], copies, 0, service_time), now)
        if psn in self._controls or not window.is_open(psn):
            return NO_SAMPLE
        slot = psn & _SLOT
        rtt = rtt_sample(now, sent_at[slot], self._copies[slot], resent, service_time)
        self.timed(rtt, now)
        return rtt

    def unheard(self) -> bool:
        """Return whether packets wait for a window that nobody has been asked to open.

        Those that asked for an ACK were refused or lost, the window has shrunk below what else is
        in flight, and that is too little to be acknowledged by itself.
        """
        if not self._reported or self.flow.unsettled <= 0 or self._context.room() > 0:
            return False
        asked = self._asked
        if asked is not None and self.window.is_open(asked) and self._size[asked & _SLOT]:
            return False
        return self.has_unsent

    def ask_about_tail(self, now: int) -> Frame | None:
        """Return an ACK_REQ if only responses are missing, else ``None``: then a PROBE is due.

        Call it when the time for that has come.

        If it is not the first, the one before was lost, and so is the next on the same path.
        """
        if self._tail_probes:
            self.flow.paths.on_feedback(self._writer.asked_on, TIMEOUT, now)
        self._tail_probes += 1
        self._heard_at = now
        self._reported = False
        self._counters["tx_tail_loss_probes"] += 1
        base = self.window.base
        if self.flow.unsettled > 0 or base in self._controls:
            return None
        message = self._message[base & _SLOT]
        return self.ask_again(base, 0 if message is None else message.id)

    def asked(self) -> None:
        """A PROBE leaves: one is enough until something is heard."""
        self._reported = False

    def reported(self, counter: int | None, now: int) -> None:
        """Pass the answer to a PROBE to congestion control."""
        self._heard(now)
        settled, self.settled = self.settled, 0
        self.flow.on_report(counter, settled)
        if self.window.base == self.window.next:
            self._drained()

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
        self._heard(now)
        settled, self.settled = self.settled, 0
        self.flow.on_ack(counter, settled, entropy, marked, rtt, now, penalty, restore)
        if self.window.base == self.window.next:
            self._drained()

    def _drained(self) -> None:
        """Everything sent is answered: nothing is in flight, and nothing waits to be sent again."""
        self.flow.drained()
        if self.retransmit.members:
            self.retransmit = RetransmissionQueue(
                self.window, self.start_psn, in_order=self._ordered
            )
        if self.credited:
            self.flow.waits(self._waiting() * self._full_size)

    def _settle(self, psn: int, next_header: int, response: memoryview | None, now: int) -> None:
        """The response of ``psn`` is known."""
        slot = psn & _SLOT
        size = self._size[slot]
        if size:
            self.settled += size
            self._size[slot] = 0
        message = self._message[slot]
        if message is None:
            self._controls.pop(psn, None)
            return
        self._message[slot] = None
        message.acknowledged += 1
        if response is not None:
            message.answered(self._index[slot], next_header, response)
        if message.acknowledged == message.packets:
            del self.open[id(message)]
            if message is self._current:
                self._current = None  # cancelled before its last packet was due
            self._messages.message_end(message, now)

    # -- a new first PSN ---------------------------------------------------------------------

    def renumber(self, start_psn: int, now: int) -> None:
        """Send all again from ``start_psn``, as the target of a secured PDC requires (UES 3.5.8).

        Only before anything has been acknowledged.
        """
        shift = (start_psn - self.start_psn) & MASK
        window = self.window
        turn = shift & _SLOT
        if turn:
            self._message = self._message[-turn:] + self._message[:-turn]
            self._index = self._index[-turn:] + self._index[:-turn]
            self._size = self._size[-turn:] + self._size[:-turn]
            self._ev = self._ev[-turn:] + self._ev[:-turn]
            self._copies = self._copies[-turn:] + self._copies[:-turn]
            self._nacks = self._nacks[-turn:] + self._nacks[:-turn]
        self.start_psn = start_psn
        window.base = (window.base + shift) & MASK
        window.next = (window.next + shift) & MASK
        self.max_cack = (self.max_cack + shift) & MASK
        self.clear_sent = (self.clear_sent + shift) & MASK
        if self._inference is not None:
            self._inference = LossInference(window, start_psn, one_path=self._ordered)
        self._mpr_cack = self.max_cack
        self._syn_end = window.next
        self._controls = {(psn + shift) & MASK: kind for psn, kind in self._controls.items()}
        if self.close_psn is not None:
            self.close_psn = (self.close_psn + shift) & MASK
        self.timer.restart()
        self.retransmit = RetransmissionQueue(window, start_psn, in_order=self._ordered)
        self._behind.clear()
        psn = window.base
        while psn != window.next:
            if window.is_open(psn):
                message = self._message[psn & _SLOT]
                if message is not None and message.next_header < _WITH_ID:
                    cast(Numbered, message).psn = psn
                self._nacks[psn & _SLOT] = 0
                self._discard(psn)
                self._copies[psn & _SLOT] = 0
                self.timer.sent(psn, now)
                self.retransmit.add(psn, now, now)
                self._renumbered.add(psn)
            psn = (psn + 1) & MASK

    # -- the end -----------------------------------------------------------------------------

    def closed(self) -> None:
        """End the flow of a PDC that closes in order, all of whose requests are answered."""
        self.flow.ended()

    def give_up_window(self) -> None:
        """Nothing more leaves here: what is in flight takes no room from other PDCs."""
        psn = self.window.base
        while psn != self.window.next:
            self._discard(psn)
            psn = (psn + 1) & MASK

    def was_sent_once(self, psn: int) -> bool:
        """Return whether an open request has left once, and no report of its arrival has come."""
        return self._copies[psn & _SLOT] == 1 and not self.window.is_delivered(psn)

    def message_of(self, psn: int) -> Outbound | None:
        """The message of an open request; ``None`` for a control packet."""
        return self._message[psn & _SLOT]

    def abandon(self, error: str, now: int, untouched: frozenset[int] = frozenset()) -> None:
        """Every unfinished message fails with ``error``; nothing is in flight any more.

        A message of which nothing was sent, or nothing carried out (``untouched``, by ``id()``),
        may go elsewhere.
        """
        self.flow.ended()
        if self._size:
            self._size = [0] * RING
        unfinished, unsent = list(self.open.values()), self.take_back()
        self.open.clear()
        self._controls.clear()
        self._behind.clear()
        self._current = None
        if self._message:
            self._message = [None] * RING
        self.window.base = self.window.next
        self.window.done = self.window.delivered = 0
        self.gave_up = None
        for message in unsent:
            self._messages.message_unsent(message)
        for message in unfinished:
            message.error = message.error or error
            if id(message) in untouched:
                self._messages.message_unsent(message)
            else:
                self._messages.message_end(message, now)
