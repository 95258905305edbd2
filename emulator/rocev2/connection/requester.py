"""The requester of a reliable connection (IBA 9.7): send queue, answers of its peer, timers."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from emulator.rocev2.connection.work import FLUSHED, WorkRequest, packet_extension, read_extension
from emulator.rocev2.wire import headers
from emulator.rocev2.wire.codes import (
    MAX_OUTSTANDING,
    PSN_MASK,
    RNR_MICROSECONDS,
    RNR_RETRY_FOREVER,
    SYNDROME_KIND,
    SYNDROME_VALUE,
    BthOperation,
    Syndrome,
    timeout_ns,
    unwrap,
)
from emulator.rocev2.wire.packets import ACK_REQUEST
from uet.transport import Frame

if TYPE_CHECKING:
    from emulator.rocev2.connection.queue_pair import QueuePair


class SendQueue:
    """Holds work in PSN order, and sends it as far as window, rate and outstanding READs allow.

    IBA 9.7.2, 9.7.3.  Work has its PSNs from the moment it is posted.  ``una`` is the oldest PSN
    that is not acknowledged, ``next`` the one to send now, ``high`` one behind the newest ever
    sent; going back means no more than lowering ``next``.  Work that has been sent completely waits
    in one queue for its acknowledgement, all other in a second one.  The :class:`Requester` decides
    what an answer or a timer means.

    PSNs here are integers that do not wrap; 24 bits of them are on the wire.

    ``deadline`` is when the retry timer expires (ns), None while it is stopped.  While the queue is
    ``held`` nothing leaves.  ``fetches`` are the READs and atomics whose responses are awaited.
    """

    def __init__(self, qp: QueuePair, first_psn: int) -> None:
        config = qp.host.config
        self._qp = qp
        self._frames = qp.frames
        self._counts = qp.host.counts
        self._complete = qp.host.complete
        self._mtu = config.mtu
        self._class = qp.data_class
        self._window = config.window
        self._ack_interval = config.ack_interval
        self._timeout = timeout_ns(config.timeout)
        self._max_fetches = config.max_rd_atomic
        self.una = self.next = self.high = self._end = first_psn
        self._todo: deque[WorkRequest] = deque()
        self._sent: deque[WorkRequest] = deque()
        self.fetches: deque[WorkRequest] = deque()
        self._ask_at = first_psn + config.ack_interval  # from this PSN on AckReq is due
        self._asked = first_psn - 1  # the newest PSN whose answer was requested
        self._lost: dict[int, None] = {}  # to retransmit by themselves, in this order
        self._repeated: dict[int, None] = {}  # PSNs that were
        self.held = False
        self.deadline: int | None = None

    def post(self, work: WorkRequest) -> None:
        """Queue work behind all other."""
        work.first = work.next = self._end
        self._end = work.end = work.first + work.packets(self._mtu)
        self._todo.append(work)

    @property
    def idle(self) -> bool:
        """Return whether everything posted has been carried out."""
        return not self._todo and not self._sent

    def transmit(self, out: list[Frame], now: int, limit: int) -> None:
        """Send what may leave now, until ``out`` has ``limit`` frames."""
        if self.held:
            return
        if self._lost:
            self._retransmit(out, now, limit)
        todo, pacer = self._todo, self._qp.pacer
        horizon = self.una + self._window
        while todo and len(out) < limit and self.next < horizon:
            if pacer is not None and now < pacer.next:
                return
            work = todo[0]
            start, already = self.next, len(out)
            if not work.fetch:
                stop = min(work.end, horizon, start + limit - len(out))
                end = self._send_data(work, start, stop, horizon, out, now)
            elif len(self.fetches) < self._max_fetches and (
                work.end - self.una <= MAX_OUTSTANDING or start == self.una
            ):
                self._send_fetch(work, out, now)
                self.fetches.append(work)
                end = work.end
            else:
                return
            self.next = end
            sent = end - start if not work.fetch else 1
            if end > self.high:
                again = max(0, self.high - start)
                self.high = end
            else:
                again = sent
            if again:
                self._count_again(out[already : already + again])
            self._counts["tx_data_packets"] += sent - again
            if end == work.end:
                self._sent.append(todo.popleft())

    def _send_data(
        self, work: WorkRequest, psn: int, stop: int, horizon: int, out: list[Frame], now: int
    ) -> int:
        """Send packets of a SEND or WRITE from ``psn`` up to ``stop``; return the next PSN."""
        mtu, pacer, make = self._mtu, self._qp.pacer, self._frames.frame
        traffic_class = self._class
        last = work.end - 1
        at = (psn - work.first) * mtu
        payload = work.payload
        _, _, middle, _ = work.words
        direct = work.direct
        while psn < stop:
            asks = psn == last or psn >= self._ask_at or psn == horizon - 1
            if asks:
                self._ask(psn, now)
            number = psn & PSN_MASK | (ACK_REQUEST if asks else 0)
            if work.first < psn < last:
                data = payload[at : at + mtu]
                extension = packet_extension(work, at, len(data), b"") if direct else b""
                frame = make(traffic_class, middle, number, extension, data)
            else:
                place = 0 if work.first == last else 1 if psn == work.first else 3
                data, extension = payload[at : at + mtu], work.extensions[place]
                if direct:
                    extension = packet_extension(work, at, len(data), extension)
                frame = make(traffic_class, work.words[place], number, extension, data)
            out.append(frame)
            psn += 1
            at += mtu
            if pacer is not None:
                pacer.sent(len(frame[0]) + len(frame[1]), now)
                if now < pacer.next:
                    break
        return psn

    def _send_fetch(self, work: WorkRequest, out: list[Frame], now: int) -> None:
        """Send the request of an atomic, or of a READ for what has not come yet."""
        extension = read_extension(work, self._mtu) if work.kind == "read" else work.extensions[0]
        frame = self._frames.frame(self._class, work.words[0], work.next & PSN_MASK, extension)
        out.append(frame)
        self._ask(work.end - 1, now)
        if self._qp.pacer is not None:
            self._qp.pacer.sent(len(frame[0]) + len(frame[1]), now)

    def _ask(self, psn: int, now: int) -> None:
        """Note that packet ``psn``, which the peer must answer, leaves."""
        self._ask_at = psn + self._ack_interval
        if psn > self._asked:
            self._asked = psn
        if self.deadline is None and self._timeout:
            self.deadline = now + self._timeout

    def acknowledge(self, upto: int, now: int) -> bool:
        """Complete everything before ``upto``, except READs and atomics that lack a response.

        Return whether a response is missing: an answer to what is behind it came first
        (IBA 9.7.5.1.2).
        """
        missing = False
        while works := self._sent or self._todo:
            work = works[0]
            if work.fetch and work.next < work.end:
                if upto > work.next:
                    upto = work.next
                    missing = True
                break
            if work.end > upto:
                break
            works.popleft()
            self._complete(work.completion(None))
        if upto > self.una:
            for psn in range(self.una, upto) if self._lost or self._repeated else ():
                self._lost.pop(psn, None)
                self._repeated.pop(psn, None)
            self.una = upto
            if self.next < upto:
                self.next = upto
            self.restart_timer(now)
        return missing

    def retransmit(self, psn: int, now: int) -> None:
        """Retransmit the single packet ``psn``, which is lost, when there is room."""
        work = self._find(psn)
        if work is not None and work.fetch:
            # The responder misses every PSN of a READ, which are one packet.
            psn = work.next
            work = None if psn in self._repeated else work
        if work is not None:
            self._lost[psn] = None
            self.restart_timer(now)

    def retransmit_unanswered(self) -> None:
        """Retransmit the oldest packet, all that were retransmitted in vain, and the newest.

        The newest one shows the responder what else is missing.
        """
        for psn in (self.una, *self._repeated, self.next - 1):
            self._lost[psn] = None

    def restart_timer(self, now: int) -> None:
        """Restart the retry timer if something that has left must be answered, else stop it.

        What is to be retransmitted and has not left yet, because the rate does not allow it, awaits
        no answer.
        """
        waits = self.una <= self._asked and self.una < self.high and not self._lost
        self.deadline = now + self._timeout if waits and self._timeout else None

    def _retransmit(self, out: list[Frame], now: int, limit: int) -> None:
        """Retransmit single packets."""
        pacer = self._qp.pacer
        while self._lost and len(out) < limit and (pacer is None or now >= pacer.next):
            psn = next(iter(self._lost))
            del self._lost[psn]
            work = self._find(psn)
            if work is None or psn < self.una:
                continue
            self._repeated[psn] = None
            already = len(out)
            if work.fetch:
                self._send_fetch(work, out, now)
            else:
                self._ask_at = psn
                self._send_data(work, psn, psn + 1, psn + 1, out, now)
                self._ask_at = self.next
            self._count_again(out[already:])
        self.restart_timer(now)

    def _count_again(self, frames: list[Frame]) -> None:
        self._counts["tx_retransmitted_packets"] += len(frames)
        self._counts["tx_retransmitted_octets"] += sum(len(a) + len(b) for a, b in frames)

    def _find(self, psn: int) -> WorkRequest | None:
        """Return the work that packet ``psn`` belongs to, None if it has not been sent."""
        for work in self._sent:
            if psn < work.end:
                return work
        return self._todo[0] if self._todo and psn < self.next else None

    def go_back(self, psn: int) -> None:
        """Continue sending with ``psn``, which is not acknowledged (go-back-N)."""
        if psn >= self.next:
            return
        while self._sent and self._sent[-1].end > psn:
            self._todo.appendleft(self._sent.pop())
        while self.fetches and self.fetches[-1].end > psn:
            self.fetches.pop()
        self.next = self._ask_at = psn
        self._lost.clear()
        if self._todo and self._todo[0].fetch:
            self.next = self._todo[0].next
        self._asked = min(self._asked, self.next - 1)

    def fail(self, error: str, psn: int | None) -> None:
        """End the work of ``psn``, else the oldest, with ``error``.

        Those before it that lack an answer, READs whose data got lost, end as flushed.
        """
        while works := self._sent or self._todo:
            work = works.popleft()
            if psn is None or psn < work.end:
                self._complete(work.completion(error))
                break
            self._complete(work.completion(FLUSHED))

    def flush(self) -> None:
        """End all work that is still to be done as flushed, and stop the retry timer."""
        for works in (self._sent, self._todo):
            while works:
                self._complete(works.popleft().completion(FLUSHED))
        self.fetches.clear()
        self._lost.clear()
        self._repeated.clear()
        self.deadline = None


#: Completion errors, as verbs name them.
RETRY_EXCEEDED: Final = "RETRY_EXC_ERR"
RNR_RETRY_EXCEEDED: Final = "RNR_RETRY_EXC_ERR"
BAD_RESPONSE: Final = "BAD_RESP_ERR"
_FATAL: Final = {
    Syndrome.NAK_INVALID_REQUEST: "REM_INV_REQ_ERR",
    Syndrome.NAK_REMOTE_ACCESS_ERROR: "REM_ACCESS_ERR",
    Syndrome.NAK_REMOTE_OPERATIONAL_ERROR: "REM_OP_ERR",
}
_ACK: Final = int(Syndrome.ACK)
_AETH: Final = headers.AETH.unpack_from
_MICROSECOND: Final = 1_000
_MSN_BITS: Final = 24


class Requester:
    """A requester sends the work of one queue pair and makes sure that it is carried out."""

    def __init__(self, qp: QueuePair, first_psn: int) -> None:
        config = qp.host.config
        self._qp = qp
        self._queue = SendQueue(qp, first_psn)
        self._counts = qp.host.counts
        self._mtu = config.mtu
        self._timeout = timeout_ns(config.timeout)
        self._selective = config.recovery == "selective_repeat"
        self._tolerant = config.reorder_tolerance > 0
        self._recover = first_psn  # what had been sent at the last timeout ends here
        self._went_back_at = -1  # where a gap in responses was seen last
        self._retry_cnt = self._retries = config.retry_cnt
        self._rnr_retry = self._rnr_retries = config.rnr_retry
        self._rnr_until: int | None = None

    def post(self, work: WorkRequest) -> None:
        """Queue work behind all other."""
        self._queue.post(work)

    def transmit(self, out: list[Frame], now: int, limit: int) -> None:
        """Send what may leave now, until ``out`` has ``limit`` frames."""
        self._queue.transmit(out, now, limit)

    @property
    def idle(self) -> bool:
        """Return whether everything posted has been carried out."""
        return self._queue.idle

    # -- acknowledgement -----------------------------------------------------------------------

    def on_ack(self, psn24: int, frame: memoryview, at: int, now: int) -> None:
        """Handle an ACK or NAK whose AETH is at ``at``."""
        queue = self._queue
        word: int = _AETH(frame, at)[0]
        syndrome = word >> _MSN_BITS
        psn = unwrap(psn24, queue.una)
        kind = syndrome & SYNDROME_KIND
        # The newest acknowledged one may come again: the responder answers duplicates with it.
        if not queue.una - 1 <= psn < queue.high:
            self._counts["rx_drop_ack_outside_window"] += 1
        elif kind == _ACK:
            self._counts["rx_acks"] += 1
            self._acknowledge(psn + 1, now)
        elif psn < queue.una:
            self._counts["rx_drop_ack_outside_window"] += 1
        elif kind == Syndrome.RNR_NAK:
            self._not_ready(psn, syndrome & SYNDROME_VALUE, now)
        elif syndrome == Syndrome.NAK_SEQUENCE_ERROR:
            self._missing(psn, now)
        elif syndrome in _FATAL:
            self._counts["rx_naks_fatal"] += 1
            self._acknowledge(psn, now)
            self._fail(_FATAL[Syndrome(syndrome)], psn)
        else:
            self._counts["rx_drop_reserved_syndrome"] += 1

    def _missing(self, psn: int, now: int) -> None:
        """Handle a sequence error's NAK: the responder has everything before ``psn``, not that one.

        With selective repeat the NAK is about one PSN, and acknowledges nothing before it.
        """
        self._counts["rx_naks_sequence"] += 1
        if self._selective:
            self._queue.retransmit(psn, now)
            return
        self._acknowledge(psn, now)
        if psn >= self._queue.una:
            self._queue.go_back(psn)
            self._queue.restart_timer(now)

    def _not_ready(self, psn: int, code: int, now: int) -> None:
        """Handle an RNR NAK: send all again from ``psn``, but not before the time it names."""
        self._counts["rx_naks_rnr"] += 1
        if self._rnr_until is not None:
            return  # of packets that left before the first one
        self._acknowledge(psn, now)
        queue = self._queue
        if psn < queue.una:
            return
        if self._rnr_retries == 0:
            self._fail(RNR_RETRY_EXCEEDED)
            return
        if self._rnr_retries != RNR_RETRY_FOREVER:
            self._rnr_retries -= 1
        queue.go_back(psn)
        queue.held = True
        queue.deadline = None
        self._rnr_until = now + RNR_MICROSECONDS[code] * _MICROSECOND

    def _acknowledge(self, upto: int, now: int) -> None:
        """Complete what is before ``upto``; progress restores the numbers of retries."""
        queue = self._queue
        una = queue.una
        missing = queue.acknowledge(upto, now)
        if queue.una > una:
            self._retries = self._retry_cnt
            self._rnr_retries = self._rnr_retry
            if queue.una < self._recover:
                # After a timeout nothing is late any more: where the acknowledgement stops, a
                # packet is lost that the responder would still wait for (as RFC 6582 has it of
                # TCP).
                queue.retransmit(queue.una, now)
        if missing:
            self._gap_in_responses(now)

    # -- responses -----------------------------------------------------------------------------

    def on_response(
        self, operation: int, psn24: int, frame: memoryview, at: int, end: int, now: int
    ) -> None:
        """Handle data of a READ, or the answer to an atomic, whose headers end at ``at``."""
        queue = self._queue
        psn = unwrap(psn24, queue.una)
        work = queue.fetches[0] if queue.fetches else None
        if work is None or not queue.una <= psn < queue.high or psn < work.next:
            self._counts["rx_drop_unexpected_response"] += 1
            return
        if psn > work.next:
            self._counts["rx_out_of_order"] += 1
            self._acknowledge(work.first, now)
            self._gap_in_responses(now)
            return
        atomic = operation == BthOperation.ATOMIC_ACKNOWLEDGE
        done = (psn - work.first) * self._mtu
        expected = 8 if atomic else min(self._mtu, work.length - done)
        octets = frame[at - 8 : at] if atomic else frame[at:end]
        if atomic != (work.kind == "atomic") or len(octets) != expected:
            self._counts["rx_bad_responses"] += 1
            self._fail(BAD_RESPONSE)
            return
        self._counts["rx_responses"] += 1
        if atomic:
            if work.payload:
                value = int.from_bytes(octets, "big")
                work.payload[:] = value.to_bytes(8, "little")  # type: ignore[index]
        else:
            work.payload[done : done + expected] = octets  # type: ignore[index]
        work.next = psn + 1
        if work.next == work.end:
            queue.fetches.popleft()
        self._acknowledge(work.next, now)

    def _gap_in_responses(self, now: int) -> None:
        """Request missing responses again, once for each gap."""
        queue = self._queue
        if self._went_back_at == queue.una:
            return
        self._went_back_at = queue.una
        self._counts["implied_naks"] += 1
        queue.go_back(queue.una)
        queue.restart_timer(now)

    # -- timers --------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Return when the retry timer expires, or an RNR NAK's delay ends (ns)."""
        return self._queue.deadline if self._rnr_until is None else self._rnr_until

    def on_timer(self, now: int) -> None:
        """Run the timer that is due."""
        queue = self._queue
        if self._rnr_until is not None:
            if now >= self._rnr_until:
                self._rnr_until = None
                queue.held = False
            return
        if queue.deadline is None or now < queue.deadline:
            return
        self._counts["rto_expirations"] += 1
        self._qp.host.waited(queue.deadline - self._timeout, now)
        if self._retries == 0:
            self._fail(RETRY_EXCEEDED)
            return
        self._retries -= 1
        self._went_back_at = -1
        if self._selective:
            queue.retransmit_unanswered()
            if self._tolerant:
                self._recover = queue.next
        else:
            queue.go_back(queue.una)
        queue.restart_timer(now)

    def _fail(self, error: str, psn: int | None = None) -> None:
        """End the work of ``psn``, else the oldest, with ``error``, and the queue pair with it."""
        self._counts["qp_errors"] += 1
        self._queue.fail(error, psn)
        self._qp.fail()

    def flush(self) -> None:
        """End everything that is still to be done as flushed, and stop the timers."""
        self._queue.flush()
        self._rnr_until = None
