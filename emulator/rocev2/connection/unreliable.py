"""Unreliable connections: the segmentation of RC without any answer (IBA 9.8.2)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from emulator.rocev2.connection.inbound import Inbound
from emulator.rocev2.connection.work import FLUSHED, WorkRequest
from emulator.rocev2.wire.codes import PSN_MASK, SHAPES
from uet.transport import Frame

if TYPE_CHECKING:
    from emulator.rocev2.connection.queue_pair import QueuePair

#: There is no SEND with Invalidate on an unreliable connection.
_SHAPES: Final = {operation: shape for operation, shape in SHAPES.items() if not shape.invalidate}


class UnreliableRequester:
    """An unreliable requester sends messages; each completes when its last packet has left."""

    def __init__(self, qp: QueuePair, first_psn: int) -> None:
        self._qp = qp
        self._mtu = qp.host.config.mtu
        self._next = self._end = first_psn
        self._todo: deque[WorkRequest] = deque()

    def post(self, work: WorkRequest) -> None:
        """Queue work behind all other."""
        work.first = work.next = self._end
        self._end = work.end = work.first + work.packets(self._mtu)
        self._todo.append(work)

    @property
    def idle(self) -> bool:
        """Return whether everything posted has been sent."""
        return not self._todo

    def transmit(self, out: list[Frame], now: int, limit: int) -> None:
        """Send what may leave now, until ``out`` has ``limit`` frames."""
        qp, mtu = self._qp, self._mtu
        while self._todo and len(out) < limit:
            if qp.pacer is not None and now < qp.pacer.next:
                return
            work, psn = self._todo[0], self._next
            last = work.end - 1
            place = 0 if work.first == last else 1 if psn == work.first else 3 if psn == last else 2
            at = (psn - work.first) * mtu
            frame = qp.frames.frame(
                qp.data_class,
                work.words[place],
                psn & PSN_MASK,
                work.extensions[place],
                work.payload[at : at + mtu],
            )
            out.append(frame)
            if qp.pacer is not None:
                qp.pacer.sent(len(frame[0]) + len(frame[1]), now)
            qp.host.counts["tx_data_packets"] += 1
            self._next = psn + 1
            if psn == last:
                self._todo.popleft()
                qp.host.complete(work.completion(None))

    def flush(self) -> None:
        """End everything that is still to be sent as flushed."""
        while self._todo:
            self._qp.host.complete(self._todo.popleft().completion(FLUSHED))

    def next_deadline(self) -> int | None:
        """Return None, as this end waits for nothing."""
        return None

    def on_timer(self, now: int) -> None:
        """Do nothing, as this end has no timers."""


class UnreliableResponder:
    """An unreliable responder receives messages that arrive whole, and drops all others."""

    def __init__(self, qp: QueuePair, expected_psn: int) -> None:
        self._qp = qp
        self._counts = qp.host.counts
        self._inbound = Inbound(qp)
        self._expected = expected_psn & PSN_MASK
        self.reading = False

    def on_request(
        self,
        operation: int,
        psn24: int,
        asks: bool,
        frame: memoryview,
        extensions_at: int,
        at: int,
        end: int,
    ) -> None:
        """Receive a packet.  After a gap the next message begins anew, whatever its PSN."""
        self._counts["rx_data_packets"] += 1
        shape = _SHAPES.get(operation)
        if psn24 != self._expected and self._inbound.open:
            self._counts["rx_broken_messages"] += 1
            self._inbound.abandon()
        self._expected = psn24 + 1 & PSN_MASK
        if shape is None or (not shape.starts and not self._inbound.open):
            self._counts["rx_drop_out_of_order"] += 1
            return
        if shape.starts and self._inbound.open:
            self._counts["rx_broken_messages"] += 1
            self._inbound.abandon()
        refused = self._inbound.take(shape, frame, extensions_at, at, end)
        if refused is not None:
            self._counts["rx_drop_refused"] += 1
            self._inbound.abandon()

    def transmit_answers(self, out: list[Frame]) -> None:
        """Do nothing, as an unreliable connection has no answers."""

    def transmit_reads(self, out: list[Frame], now: int, limit: int) -> None:
        """Do nothing, as an unreliable connection has no READs."""

    def withdraw(self, key: int) -> None:
        """Discard what a WRITE into region ``key`` still brings: the region is deregistered."""
        self._inbound.withdraw(key)

    def stop(self) -> None:
        """End the message that is arriving as flushed."""
        self._inbound.abandon(FLUSHED)
