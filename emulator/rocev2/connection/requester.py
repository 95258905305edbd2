"""The requester of a reliable connection handles its peer's answers and its timers (IBA 9.7).

The :class:`~emulator.rocev2.connection.send_queue.SendQueue` that it has holds and sends the work.
"""

from __future__ import annotations

from emulator.rocev2.connection.connection_end import ConnectionEnd
from emulator.rocev2.connection.send_queue import SendQueue
from emulator.rocev2.wire import rocev2_headers as headers
from emulator.rocev2.wire.psn24 import unwrap
from emulator.rocev2.wire.rocev2_codes import (
    RNR_MICROSECONDS,
    RNR_RETRY_FOREVER,
    SYNDROME_KIND,
    SYNDROME_VALUE,
    BthOperation,
    Syndrome,
    timeout_ns,
)

#: Completion errors, as verbs name them.
RETRY_EXCEEDED, RNR_RETRY_EXCEEDED = "RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR"
BAD_RESPONSE = "BAD_RESP_ERR"
_FATAL = {
    Syndrome.NAK_INVALID_REQUEST: "REM_INV_REQ_ERR",
    Syndrome.NAK_REMOTE_ACCESS_ERROR: "REM_ACCESS_ERR",
    Syndrome.NAK_REMOTE_OPERATIONAL_ERROR: "REM_OP_ERR",
}
_MICROSECOND = 1_000
_MSN_BITS = 24


class Requester:
    """A requester sends the work of one queue pair and makes sure that it is carried out."""

    def __init__(self, qp: ConnectionEnd, first_psn: int) -> None:
        config = qp.host.config
        self._qp = qp
        self._queue = queue = SendQueue(qp, first_psn)
        # Callers reach the queue without a frame of the interpreter between: every turn sends.
        self.post, self.transmit = queue.post, queue.transmit
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

    @property
    def idle(self) -> bool:
        """Return whether everything posted has been carried out."""
        return self._queue.idle

    # -- acknowledgement -----------------------------------------------------------------------

    def on_ack(self, psn24: int, frame: memoryview, at: int, now: int) -> None:
        """Handle an ACK or NAK whose AETH is at ``at``."""
        queue = self._queue
        (word,) = headers.AETH.unpack_from(frame, at)
        syndrome = word >> _MSN_BITS
        psn = unwrap(psn24, queue.una)
        kind = syndrome & SYNDROME_KIND
        # The newest acknowledged one may come again: the responder answers duplicates with it.
        if not queue.una - 1 <= psn < queue.high:
            self._counts["rx_drop_ack_outside_window"] += 1
        elif kind == Syndrome.ACK:
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
