"""The asking side of a reliable connection: what its peer's answers and its timers do (IBA 9.7).

What is sent, and when, is the :class:`~emulator.rocev2.connection.send_queue.SendQueue`'s.
"""

from __future__ import annotations

from emulator.rocev2.connection.connection_end import ConnectionEnd
from emulator.rocev2.connection.send_queue import SendQueue
from emulator.rocev2.connection.work import WorkRequest
from emulator.rocev2.wire import rocev2_headers as headers
from emulator.rocev2.wire.psn24 import unwrap
from emulator.rocev2.wire.rocev2_codes import (
    RNR_MICROSECONDS,
    RNR_RETRY_FOREVER,
    SYNDROME_KIND,
    SYNDROME_VALUE,
    BthOperation,
    Syndrome,
)
from uet.transport import Completion

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


class Requester(SendQueue):
    """Sends the requests of one queue pair and makes sure that they are carried out."""

    def __init__(self, qp: ConnectionEnd, first_psn: int) -> None:
        super().__init__(qp, first_psn)
        config = qp.host.config
        self._selective = config.recovery == "selective_repeat"
        self._tolerant = config.reorder_tolerance > 0
        self._recover = first_psn  # what had been sent at the last timeout ends here
        self._went_back_at = -1  # where a gap in responses was seen last
        self._retries = config.retry_cnt
        self._rnr_retries = config.rnr_retry
        self._rnr_until: int | None = None

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
            self._fail(_FATAL[Syndrome(syndrome)], psn)
        else:
            self._counts["rx_drop_reserved_syndrome"] += 1

    def _missing(self, psn: int, now: int) -> None:
        """NAK of a sequence error: the responder has everything before ``psn``, and not that one.

        With selective repeat it says the same of one PSN, and nothing of those before it.
        """
        self._counts["rx_naks_sequence"] += 1
        if self._selective:
            self._repeat_one(psn, now)
            return
        self._acknowledge(psn, now)
        if psn >= self.una:
            self._go_back(psn)
            self._restart_timer(now)

    def _repeat_one(self, psn: int, now: int) -> None:
        """One packet is lost: send it again when there is room."""
        work = self._find(psn)
        if work is not None and work.fetch:
            # The responder misses every PSN of a READ, which are one packet.
            psn = work.next
            work = None if psn in self._repeated else work
        if work is not None:
            self._lost[psn] = None
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
        self._held = True
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
        for psn in range(self.una, upto) if self._lost or self._repeated else ():
            self._lost.pop(psn, None)
            self._repeated.pop(psn, None)
        self.una = upto
        if self.next < upto:
            self.next = upto
        self._retries = config.retry_cnt
        self._rnr_retries = config.rnr_retry
        self._restart_timer(now)
        if upto < self._recover:
            # After a timeout nothing is late any more: where the acknowledgement stops, a packet
            # is lost that the responder would still wait for (as RFC 6582 has it of TCP).
            self._repeat_one(upto, now)

    def _complete(self, work: WorkRequest, error: str | None) -> None:
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

    # -- timers --------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """The retry timer, or the end of an RNR NAK's delay."""
        return self._deadline if self._rnr_until is None else self._rnr_until

    def on_timer(self, now: int) -> None:
        """Run the timer that is due."""
        if self._rnr_until is not None:
            if now >= self._rnr_until:
                self._rnr_until = None
                self._held = False
            return
        if self._deadline is None or now < self._deadline:
            return
        self._counts["rto_expirations"] += 1
        if self._retries == 0:
            self._fail(RETRY_EXCEEDED)
            return
        self._retries -= 1
        self._went_back_at = -1
        if self._selective:
            # The oldest one, what was asked for and repeated in vain, and the newest, which shows
            # the responder what else is missing.
            for psn in (self.una, *self._repeated, self.next - 1):
                self._lost[psn] = None
            if self._tolerant:
                self._recover = self.next
        else:
            self._go_back(self.una)
        self._restart_timer(now)

    def _fail(self, error: str, psn: int | None = None) -> None:
        """The request of ``psn``, else the oldest, ends with ``error``; so does the queue pair.

        Those before it that lack an answer, READs whose data got lost, end as flushed.
        """
        self._qp.host.counts["qp_errors"] += 1
        while queue := self._sent or self._todo:
            work = queue.popleft()
            if psn is None or psn < work.end:
                self._complete(work, error)
                break
            self._complete(work, FLUSHED)
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
