"""The source half of a PDC: requests leave, acknowledgements come back.

In order: what is kept, what a new message does, what may be sent, what an ACK does, what a NACK
does, what the timer does (UES 3.5.12, 3.5.15, 3.5.20).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from uet.congestion.base import CongestionControl
from uet.congestion.spraying import ObliviousSpraying
from uet.pds.psn import HALF, MASK
from uet.pds.recovery import (
    UNLIMITED_NACK,
    UNLIMITED_RTO,
    RetransmissionQueue,
    RetransmissionTimer,
)
from uet.pds.window import SendWindow
from uet.ses.messages import OutboundMessage
from uet.transport import Frame
from uet.wire.codes import ReturnCode

#: Requests in flight that this implementation can remember: records live in rings of this size.
RING = 1_024
_SLOT = RING - 1

_OK, _NULL = int(ReturnCode.OK), int(ReturnCode.NULL)


class Wire(Protocol):
    """How the source half gets its packets built; the PDC implements it.

    ``nominal_overhead`` is what a request's nominal packet size has beyond its payload.
    """

    nominal_overhead: int

    def request(
        self, psn: int, message: OutboundMessage, index: int, *, again: bool, ar: bool, ev: int
    ) -> Frame: ...

    def close(self, psn: int, *, again: bool) -> Frame:
        """CLOSE of an initiator, CLOSE_REQ of a target."""
        ...

    def ask_again(self, psn: int, message_id: int) -> Frame:
        """ACK_REQ: the response to ``psn`` is missing."""
        ...


class RequestSource:
    """Sends the requests of one direction of a PDC and repairs their loss."""

    def __init__(
        self,
        *,
        wire: Wire,
        start_psn: int,
        congestion: CongestionControl,
        spraying: ObliviousSpraying,
        default_range: int,
        rto_init_time: int,
        max_rto_retx_cnt: int,
        nack_retx_time: int,
        max_nack_retx_cnt: int,
        ack_gen_trigger: int,
        on_message_end: Callable[[OutboundMessage], None],
        counters: dict[str, int],
    ) -> None:
        self.start_psn = start_psn
        self.window = SendWindow(start_psn)
        self.max_cack = (start_psn - 1) & MASK
        self.peer_range = min(default_range, RING)
        self.clear_sent = (start_psn - 1) & MASK
        self.close_psn: int | None = None
        self.gave_up: str | None = None
        self.queue: deque[OutboundMessage] = deque()
        self.open: dict[int, OutboundMessage] = {}
        self.retransmit = RetransmissionQueue(start_psn)
        self.timer = RetransmissionTimer(self.window, RING, rto_init_time)
        self._wire = wire
        self._congestion = congestion
        self._spraying = spraying
        self._max_timeouts = max_rto_retx_cnt
        self._nack_retx_time = nack_retx_time
        self._max_nacks = max_nack_retx_cnt
        self._trigger = ack_gen_trigger
        self._end = on_message_end
        self._counters = counters
        self._current: OutboundMessage | None = None
        self._mpr_cack = (start_psn - 1) & MASK
        # One record per open PSN: which packet of which message, and its nominal size in flight
        # (0 once the network no longer holds it).
        self._message: list[OutboundMessage | None] = [None] * RING
        self._index = [0] * RING
        self._size = [0] * RING
        self._nacks = [0] * RING

    # -- new messages ------------------------------------------------------------------------

    def post(self, message: OutboundMessage) -> None:
        """Packets of two messages are never interleaved on a PDC (UES 3.5.6): first come, first."""
        self.queue.append(message)

    @property
    def idle(self) -> bool:
        """Nothing queued and every request answered."""
        return self._current is None and not self.queue and self.window.base == self.window.next

    @property
    def has_unsent(self) -> bool:
        """Whether requests wait that will carry CLEAR_PSN when they leave."""
        return self._current is not None or bool(self.queue) or bool(self.retransmit)

    def stalled(self, now: int) -> bool:
        """Whether only the peer's range holds back what waits, and no timer runs to change that.

        So it is when the responses of a whole range are known, but the peer still keeps a
        guaranteed-delivery one among the first, because the CLEAR that frees it waits too.
        """
        if self.next_deadline() is not None:
            return False
        while (waiting := self.retransmit.head(now)) is not None:
            if self.window.is_open(waiting):
                break
            self.retransmit.pop()
        if waiting is None:
            if self._current is None and not self.queue:
                return False
            waiting = self.window.next
        return waiting != self.close_psn and self._beyond_range(waiting)

    def _beyond_range(self, psn: int) -> bool:
        """Whether the peer does not track ``psn`` yet."""
        return ((psn - self.max_cack) & MASK) > self.peer_range

    # -- what may be sent --------------------------------------------------------------------

    def transmit(self, out: list[Frame], now: int, limit: int) -> None:
        """Append what may leave now: what the network lost first, then new packets."""
        if self.retransmit:
            self._resend(out, now, limit)
        message = self._current
        if message is None and not self.queue:
            return
        window, congestion, wire = self.window, self._congestion, self._wire
        timer, pick = self.timer, self._spraying.pick
        overhead = wire.nominal_overhead
        frames = 0
        # How many PSNs the peer tracks beyond its CACK, and how many we can remember.
        room = min(
            self.peer_range - ((window.next - 1 - self.max_cack) & MASK),
            RING - ((window.next - window.base) & MASK),
        )
        credit = congestion.room()
        hungry = congestion.want_ack(self._trigger)
        limit -= len(out)
        while room > 0 and credit > 0 and frames < limit:
            if message is None:
                if not self.queue:
                    break
                message = self.queue.popleft()
                self.open[message.id] = message
            psn = window.next
            slot = psn & _SLOT
            index = message.sent
            window.next = (psn + 1) & MASK
            last = index + 1 == message.packets
            room -= 1
            frame = wire.request(
                psn,
                message,
                index,
                again=False,
                ar=last or hungry or not room,
                ev=pick(),
            )
            size = len(frame[1]) + overhead
            self._message[slot] = message
            self._index[slot] = index
            self._size[slot] = size
            self._nacks[slot] = 0
            timer.sent(psn, now)
            congestion.on_send(size, now)
            credit -= size
            message.sent = index + 1
            frames += 1
            out.append(frame)
            if last:
                message = None
        self._current = message
        if frames:
            self.clear_sent = (window.base - 1) & MASK
            self._counters["tx_data_packets"] += frames

    def _resend(self, out: list[Frame], now: int, limit: int) -> None:
        window, congestion = self.window, self._congestion
        while len(out) < limit and (psn := self.retransmit.head(now)) is not None:
            if not window.is_open(psn):
                self.retransmit.pop()
                continue
            if psn != self.close_psn and self._beyond_range(psn):
                return  # the peer has shrunk its range; what follows lies beyond it as well
            slot = psn & _SLOT
            message = self._message[slot]
            if psn == self.close_psn:
                out.append(self._wire.close(psn, again=True))
            elif window.is_delivered(psn):
                # The data arrived; only its response is missing (UES 3.5.16, ACK_REQ).
                message_id = message.id if message is not None else 0
                out.append(self._wire.ask_again(psn, message_id))
            elif message is not None:
                if congestion.room() <= 0:
                    return
                frame = self._wire.request(
                    psn, message, self._index[slot], again=True, ar=True, ev=self._spraying.pick()
                )
                size = len(frame[1]) + self._wire.nominal_overhead
                self._size[slot] = size
                congestion.on_send(size, now)
                out.append(frame)
                self.clear_sent = (window.base - 1) & MASK
                self._counters["tx_retransmitted_packets"] += 1
            self.retransmit.pop()
            self.timer.sent_again(psn, now)

    def send_close(self, now: int) -> Frame:
        """It takes the next PSN and is tracked like a request (UES 3.5.16.4.1)."""
        psn = self.window.next
        self.clear_sent = (psn - 1) & MASK  # which a CLOSE implies
        self.window.next = (psn + 1) & MASK
        self.close_psn = psn
        self._message[psn & _SLOT] = None
        self._size[psn & _SLOT] = 0
        self._nacks[psn & _SLOT] = 0
        self.timer.sent(psn, now)
        return self._wire.close(psn, again=False)

    # -- what an ACK does --------------------------------------------------------------------

    def acknowledges_the_future(self, cack: int) -> bool:
        """An ACK of something never sent is no ACK of ours (C: UES 3.5.12)."""
        return 0 < ((cack - self.window.next + 1) & MASK) < HALF

    def on_ack(self, *, ack_psn: int, cack: int, code: int, now: int) -> None:
        """``code`` is the return code of the SES response carried, which belongs to ``ack_psn``."""
        window = self.window
        if window.is_open(ack_psn):
            self._finish(ack_psn, code, now)
        progress = (cack - self.max_cack) & MASK
        if 0 < progress < HALF:
            self.max_cack = cack
        ahead = ((cack - window.base) & MASK) + 1
        if ahead <= window.outstanding:
            psn = window.base
            done = window.done
            for _ in range(ahead):
                if not done & 1:
                    self._settle(psn, _OK, now)
                done >>= 1
                psn = (psn + 1) & MASK
            window.finish_through(cack)

    def on_range(self, mpr: int, cack: int, unit: int) -> None:
        """Maximum PSN range, from the newest ACK that carries one; 0 says nothing (UES 3.5.11)."""
        newer = (cack - self._mpr_cack) & MASK
        if mpr and (newer == 0 or newer < HALF):
            self._mpr_cack = cack
            self.peer_range = min(mpr * unit, RING)

    def on_sack(self, base: int, bitmap: int, now: int) -> None:
        """A set bit says received; a clear one says nothing (UES 3.5.12)."""
        news = self.window.sacked(base, bitmap)
        first = self.window.base
        while news:
            low = news & -news
            slot = (first + low.bit_length() - 1) & _SLOT
            self._congestion.on_delivered(self._size[slot], now)
            self._size[slot] = 0
            news ^= low

    def _finish(self, psn: int, code: int, now: int) -> None:
        self._settle(psn, code, now)
        self.window.finish(psn)

    def _settle(self, psn: int, code: int, now: int) -> None:
        """The response of ``psn`` is known."""
        slot = psn & _SLOT
        size = self._size[slot]
        if size:
            self._congestion.on_delivered(size, now)
            self._size[slot] = 0
        message = self._message[slot]
        if message is None:
            return
        self._message[slot] = None
        message.acknowledged += 1
        if code != _OK and code != _NULL and message.error is None:
            self._fail(message, code)
        if message.acknowledged == message.packets:
            del self.open[message.id]
            self._end(message)

    def _fail(self, message: OutboundMessage, code: int) -> None:
        """The target refused the message: send no more of it (UES 3.4.1, error responses)."""
        try:
            message.error = ReturnCode(code).name
        except ValueError:
            message.error = f"RETURN_CODE_{code:#04x}"
        message.cancel()

    # -- what a NACK does --------------------------------------------------------------------

    def on_nack(self, psn: int, now: int, *, wait: bool) -> None:
        """Send ``psn`` again, after NACK_Retx_Time if ``wait`` (UES 3.5.20.3)."""
        if self.window.is_delivered(psn):
            return
        slot = psn & _SLOT
        self._nacks[slot] += 1
        if self._nacks[slot] > self._max_nacks and self._max_nacks != UNLIMITED_NACK:
            self.gave_up = "NACK_RETRIES_EXHAUSTED"
            return
        self._lost(psn, now)
        self.retransmit.add(psn, now + self._nack_retx_time if wait else now, now)

    def _lost(self, psn: int, now: int) -> None:
        slot = psn & _SLOT
        size = self._size[slot]
        if size:
            self._congestion.on_lost(size, now)
            self._size[slot] = 0

    # -- what the timer does -----------------------------------------------------------------

    def on_timer(self, now: int) -> None:
        """Queue for retransmission whatever has waited too long."""
        for psn in self.timer.expired(now):
            timeouts = self.timer.timeouts[psn & _SLOT]
            if timeouts > self._max_timeouts and self._max_timeouts != UNLIMITED_RTO:
                self.gave_up = "RTO_RETRIES_EXHAUSTED"
                return
            self._counters["rto_expirations"] += 1
            self._lost(psn, now)
            self.retransmit.add(psn, now, now)

    def next_deadline(self) -> int | None:
        timeout, resend = self.timer.next_deadline(), self.retransmit.next_deadline()
        if timeout is None or resend is None:
            return resend if timeout is None else timeout
        return min(timeout, resend)

    # -- the end -----------------------------------------------------------------------------

    def abandon(self, error: str, now: int) -> None:
        """Every unfinished message fails with ``error``; nothing is in flight any more."""
        for slot, size in enumerate(self._size):
            if size:
                self._congestion.on_lost(size, now)
                self._size[slot] = 0
        unfinished = [*self.open.values(), *self.queue]
        self.open.clear()
        self.queue.clear()
        self._current = None
        self._message = [None] * RING
        self.window.base = self.window.next
        self.window.done = self.window.delivered = 0
        self.gave_up = None
        for message in unfinished:
            message.error = message.error or error
            self._end(message)
