"""The sending side of a reliable connection (IBA 9.7).

Work has its PSNs from the moment it is posted.  ``una`` is the oldest PSN that is not
acknowledged, ``next`` the one to send now, ``high`` one behind the newest ever sent; going back
means no more than lowering ``next``.  Work that has been sent completely waits in one queue for
its acknowledgement, all other in a second one.

PSNs here are integers that do not wrap; 24 bits of them are on the wire.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from emulator.rocev2 import headers
from emulator.rocev2.codes import (
    PSN_MASK,
    RNR_MICROSECONDS,
    RNR_RETRY_FOREVER,
    SYNDROME_KIND,
    SYNDROME_VALUE,
    Operation,
    Syndrome,
    timeout_ns,
)
from emulator.rocev2.frames import ACK_REQUEST
from emulator.rocev2.psn import unwrap
from emulator.rocev2.work import Work, read_extension
from uet.transport import Completion, Frame

if TYPE_CHECKING:
    from emulator.rocev2.queue_pair import QueuePair

#: Completion errors, as verbs call them.
RETRY_EXCEEDED, RNR_RETRY_EXCEEDED = "RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR"
FLUSHED, BAD_RESPONSE = "WR_FLUSH_ERR", "BAD_RESP_ERR"
_FATAL = {
    Syndrome.NAK_INVALID_REQUEST: "REM_INV_REQ_ERR",
    Syndrome.NAK_REMOTE_ACCESS_ERROR: "REM_ACCESS_ERR",
    Syndrome.NAK_REMOTE_OPERATIONAL_ERROR: "REM_OP_ERR",
}
_MICROSECOND = 1_000
_MSN_BITS = 24


class Requester:
    """Sends the requests of one queue pair and makes sure that they are carried out."""

    def __init__(self, qp: QueuePair, first_psn: int) -> None:
        config = qp.host.config
        self._qp = qp
        self._frames = qp.frames
        self._counts = qp.host.counts
        self._mtu = config.mtu
        self._class = qp.data_class
        self._window = config.window
        self._ack_interval = config.ack_interval
        self._timeout = timeout_ns(config.timeout)
        self._max_fetches = config.max_rd_atomic
        self._selective = config.recovery == "selective_repeat"
        self.una = self.next = self.high = self._end = first_psn
        self._todo: deque[Work] = deque()
        self._sent: deque[Work] = deque()
        self._fetches: deque[Work] = deque()  # requests whose responses are awaited
        self._ask_at = first_psn + config.ack_interval  # from this PSN on AckReq is due
        self._asked = first_psn - 1  # the newest PSN whose answer was asked for
        self._lost: dict[int, None] = {}  # to send again by themselves, in this order
        self._repeated: dict[int, None] = {}  # PSNs that were
        self._went_back_at = -1  # where a gap in responses was seen last
        self._retries = config.retry_cnt
        self._rnr_retries = config.rnr_retry
        self._rnr_until: int | None = None
        self._deadline: int | None = None

    # -- posting -------------------------------------------------------------------------------

    def post(self, work: Work) -> None:
        """Queue work behind all other."""
        work.first = work.next = self._end
        self._end = work.end = work.first + work.packets(self._mtu)
        self._todo.append(work)

    @property
    def idle(self) -> bool:
        """Everything posted has been carried out."""
        return not self._todo and not self._sent

    # -- sending -------------------------------------------------------------------------------

    def transmit(self, out: list[Frame], now: int, limit: int) -> None:
        """Send what may leave now, until ``out`` has ``limit`` frames."""
        if self._rnr_until is not None:
            return
        if self._lost:
            self._repeat(out, now, limit)
        todo, pacer = self._todo, self._qp.pacer
        horizon = self.una + self._window
        while todo and len(out) < limit and self.next < horizon:
            if pacer is not None and now < pacer.next:
                return
            work = todo[0]
            start = self.next
            if not work.fetch:
                stop = min(work.end, horizon, start + limit - len(out))
                end = self._send_data(work, start, stop, horizon, out, now)
            elif len(self._fetches) < self._max_fetches:
                self._send_fetch(work, out, now)
                self._fetches.append(work)
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
                self._counts["tx_retransmitted_packets"] += again
            self._counts["tx_data_packets"] += sent - again
            if end == work.end:
                self._sent.append(todo.popleft())

    def _send_data(
        self, work: Work, psn: int, stop: int, horizon: int, out: list[Frame], now: int
    ) -> int:
        """Packets of a SEND or WRITE from ``psn`` up to ``stop``; returns where it stopped."""
        mtu, pacer, make = self._mtu, self._qp.pacer, self._frames.frame
        traffic_class = self._class
        last = work.end - 1
        # Nobody waits for the end of work whose request goes on in the next one.
        asks_last = last if work.rest is None else -1
        at = (psn - work.first) * mtu
        payload = work.payload
        _, _, middle, _ = work.words
        while psn < stop:
            asks = psn == asks_last or psn >= self._ask_at or psn == horizon - 1
            if asks:
                self._ask(psn, now)
            number = psn & PSN_MASK | (ACK_REQUEST if asks else 0)
            if work.first < psn < last:
                frame = make(traffic_class, middle, number, b"", payload[at : at + mtu])
            else:
                place = 0 if work.first == last else 1 if psn == work.first else 3
                frame = make(
                    traffic_class,
                    work.words[place],
                    number,
                    work.extensions[place],
                    payload[at : at + mtu],
                )
            out.append(frame)
            psn += 1
            at += mtu
            if pacer is not None:
                pacer.sent(len(frame[0]) + len(frame[1]), now)
                if now < pacer.next:
                    break
        return psn

    def _send_fetch(self, work: Work, out: list[Frame], now: int) -> None:
        """The request of a READ, for what has not come yet, or of an atomic."""
        extension = read_extension(work, self._mtu) if work.kind == "read" else work.extensions[0]
        frame = self._frames.frame(self._class, work.words[0], work.next & PSN_MASK, extension)
        out.append(frame)
        self._ask(work.next, now)
        if self._qp.pacer is not None:
            self._qp.pacer.sent(len(frame[0]) + len(frame[1]), now)

    def _ask(self, psn: int, now: int) -> None:
        """A packet leaves that the peer must answer."""
        self._ask_at = psn + self._ack_interval
        if psn > self._asked:
            self._asked = psn
        if self._deadline is None and self._timeout:
            self._deadline = now + self._timeout

    def _repeat(self, out: list[Frame], now: int, limit: int) -> None:
        """Send single packets again."""
        pacer = self._qp.pacer
        while self._lost and len(out) < limit and (pacer is None or now >= pacer.next):
            psn = next(iter(self._lost))
            del self._lost[psn]
            work = self._find(psn)
            if work is None or psn < self.una:
                continue
            self._repeated[psn] = None
            self._counts["tx_retransmitted_packets"] += 1
            if work.fetch:
                self._send_fetch(work, out, now)
                continue
            self._ask_at = psn
            self._send_data(work, psn, psn + 1, psn + 1, out, now)
            self._ask_at = self.next

    def _find(self, psn: int) -> Work | None:
        """The work that a PSN belongs to, if it has been sent."""
        for work in self._sent:
            if psn < work.end:
                return work
        return self._todo[0] if self._todo and psn < self.next else None

    # -- acknowledgement -----------------------------------------------------------------------

    def on_ack(self, psn24: int, frame: memoryview, at: int, now: int) -> None:
        """An ACK or NAK; its AETH is at ``at``."""
        (word,) = headers.AETH.unpack_from(frame, at)
        syndrome = word >> _MSN_BITS
        psn = unwrap(psn24, self.una)
        kind = syndrome & SYNDROME_KIND
        # The newest acknowledged one may come again: the responder answers duplicates with it.
        if not self.una - 1 <= psn < self.high:
            self._counts["rx_drop_ack_outside_window"] += 1
        elif kind == Syndrome.ACK:
            self._counts["rx_acks"] += 1
            self._acknowledge(psn + 1, now)
        elif psn < self.una:
            self._counts["rx_drop_ack_outside_window"] += 1
        elif kind == Syndrome.RNR_NAK:
            self._not_ready(psn, syndrome & SYNDROME_VALUE, now)
        elif syndrome == Syndrome.NAK_SEQUENCE_ERROR:
            self._missing(psn, now)
        elif syndrome in _FATAL:
            self._counts["rx_naks_fatal"] += 1
            self._acknowledge(psn, now)
            self._fail(_FATAL[Syndrome(syndrome)])
        else:
            self._counts["rx_drop_reserved_syndrome"] += 1

    def _missing(self, psn: int, now: int) -> None:
        """NAK of a sequence error: the responder has everything before ``psn``, and not that one.

        With selective repeat it says the same of one PSN, and nothing of those before it.
        """
        self._counts["rx_naks_sequence"] += 1
        if self._selective:
            if psn < self.next:
                self._lost[psn] = None
            return
        self._acknowledge(psn, now)
        if psn >= self.una:
            self._go_back(psn)
            self._restart_timer(now)

    def _not_ready(self, psn: int, code: int, now: int) -> None:
        """RNR NAK: all again from ``psn``, but not before the time that it names."""
        self._counts["rx_naks_rnr"] += 1
        if self._rnr_until is not None:
            return  # of packets that left before the first one
        self._acknowledge(psn, now)
        if psn < self.una:
            return
        if self._rnr_retries == 0:
            self._fail(RNR_RETRY_EXCEEDED)
            return
        if self._rnr_retries != RNR_RETRY_FOREVER:
            self._rnr_retries -= 1
        self._go_back(psn)
        self._rnr_until = now + RNR_MICROSECONDS[code] * _MICROSECOND
        self._deadline = None

    def _acknowledge(self, upto: int, now: int) -> None:
        """Everything before ``upto`` has been carried out, except what must bring something."""
        missing = False
        while queue := self._sent or self._todo:
            work = queue[0]
            if work.fetch and work.next < work.end:
                if upto > work.next:  # its responses were lost: an answer to what is behind it
                    upto = work.next  # came first (IBA 9.7.5.1.2)
                    missing = True
                break
            if work.end > upto:
                break
            queue.popleft()
            self._complete(work, None)
        if upto > self.una:
            self._progress(upto, now)
        if missing:
            self._gap_in_responses(now)

    def _progress(self, upto: int, now: int) -> None:
        config = self._qp.host.config
        self.una = upto
        if self.next < upto:
            self.next = upto
        self._retries = config.retry_cnt
        self._rnr_retries = config.rnr_retry
        if self._lost or self._repeated:
            self._lost = {psn: None for psn in self._lost if psn >= upto}
            self._repeated = {psn: None for psn in self._repeated if psn >= upto}
        self._restart_timer(now)

    def _restart_timer(self, now: int) -> None:
        waits = self.una <= self._asked and self.una < self.high
        self._deadline = now + self._timeout if waits and self._timeout else None

    def _complete(self, work: Work, error: str | None) -> None:
        if work.silent:
            return
        if work.rest is not None:
            if error is None:
                return
            work.rest.silent = True
        request = work.request
        length = len(getattr(request, "payload", b"")) or work.length
        self._qp.host.complete(
            Completion(
                kind=work.kind,
                peer=request.peer,
                length=length if error is None else 0,
                context=request.context,
                error=error,
            )
        )

    # -- responses -----------------------------------------------------------------------------

    def on_response(
        self, operation: int, psn24: int, frame: memoryview, at: int, end: int, now: int
    ) -> None:
        """Data of a READ, or the answer to an atomic (whose headers end at ``at``)."""
        psn = unwrap(psn24, self.una)
        work = self._fetches[0] if self._fetches else None
        if work is None or not self.una <= psn < self.high or psn < work.next:
            self._counts["rx_drop_unexpected_response"] += 1
            return
        if psn > work.next:
            self._counts["rx_out_of_order"] += 1
            self._acknowledge(work.first, now)
            self._gap_in_responses(now)
            return
        atomic = operation == Operation.ATOMIC_ACKNOWLEDGE
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
            self._fetches.popleft()
        self._acknowledge(work.next, now)

    def _gap_in_responses(self, now: int) -> None:
        """Ask again for the responses that are missing, once for each gap."""
        if self._went_back_at == self.una:
            return
        self._went_back_at = self.una
        self._counts["implied_naks"] += 1
        self._go_back(self.una)
        self._restart_timer(now)

    # -- recovery ------------------------------------------------------------------------------

    def _go_back(self, psn: int) -> None:
        """Continue with ``psn``, which is not acknowledged."""
        if psn >= self.next:
            return
        while self._sent and self._sent[-1].end > psn:
            self._todo.appendleft(self._sent.pop())
        while self._fetches and self._fetches[-1].end > psn:
            self._fetches.pop()
        self.next = self._ask_at = psn
        self._lost.clear()
        if self._todo and self._todo[0].fetch:
            self.next = self._todo[0].next

    def next_deadline(self) -> int | None:
        """The retry timer, or the end of an RNR NAK's delay."""
        return self._deadline if self._rnr_until is None else self._rnr_until

    def on_timer(self, now: int) -> None:
        """Run the timer that is due."""
        if self._rnr_until is not None:
            if now >= self._rnr_until:
                self._rnr_until = None
            return
        if self._deadline is None or now < self._deadline:
            return
        self._counts["rto_expirations"] += 1
        if self._retries == 0:
            self._fail(RETRY_EXCEEDED)
            return
        self._retries -= 1
        self._went_back_at = -1
        self._deadline = now + self._timeout
        if self._selective:
            # The oldest one, what was asked for and repeated in vain, and the newest: its arrival
            # shows the responder what else is missing.
            for psn in (self.una, *self._repeated, self.next - 1):
                self._lost[psn] = None
        else:
            self._go_back(self.una)

    def _fail(self, error: str) -> None:
        """The oldest request ends with ``error``, and the queue pair with it."""
        self._qp.host.counts["qp_errors"] += 1
        queue = self._sent or self._todo
        if queue:
            self._complete(queue.popleft(), error)
        self._qp.fail()

    def flush(self) -> None:
        """Everything that is still to be done ends as flushed."""
        for queue in (self._sent, self._todo):
            while queue:
                self._complete(queue.popleft(), FLUSHED)
        self._fetches.clear()
        self._lost.clear()
        self._repeated.clear()
        self._deadline = self._rnr_until = None
