"""Arriving packets of one endpoint: matched, checked, and passed to a queue pair (IBA 9.6).

A packet of any kind is dropped silently when it is for no queue pair that receives. It is also
dropped from another peer than the queue pair's, of another partition or of another service.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from emulator.rocev2.connection.queue_pair import QueuePair
from emulator.rocev2.connection.requester import Requester
from emulator.rocev2.datagrams import Datagrams
from emulator.rocev2.wire.codes import (
    CNP_OPCODE,
    OPERATION_MASK,
    SERVICE_MASK,
    BthOperation,
    pkeys_match,
)
from emulator.rocev2.wire.packets import PacketDecapsulator
from uet.encapsulation_choice import Encapsulation
from uet.wire.codes import ECN_CE

if TYPE_CHECKING:
    from emulator.rocev2.hca import HostChannelAdapter

_ACKREQ: Final = 0x80
_RESPONSES: Final = frozenset(
    {
        BthOperation.READ_RESPONSE_FIRST,
        BthOperation.READ_RESPONSE_MIDDLE,
        BthOperation.READ_RESPONSE_LAST,
        BthOperation.READ_RESPONSE_ONLY,
        BthOperation.ATOMIC_ACKNOWLEDGE,
    }
)
_ACKNOWLEDGE: Final = int(BthOperation.ACKNOWLEDGE)
_ACKNOWLEDGEMENTS: Final = frozenset({BthOperation.ACKNOWLEDGE, BthOperation.ATOMIC_ACKNOWLEDGE})


class HcaArrivals:
    """Takes the frames of one endpoint."""

    def __init__(
        self, hca: HostChannelAdapter, encapsulation: Encapsulation, datagrams: Datagrams
    ) -> None:
        self._hca = hca
        self._config = hca.config
        self._counts = hca.counts
        self._datagrams = datagrams
        self._opener = PacketDecapsulator(encapsulation)
        #: the queue pair that the newest packet is for, if there is one
        self.queue_pair: QueuePair | None = None

    def receive(self, frames: Sequence[memoryview], now: int) -> None:
        """Take whole Ethernet frames."""
        opening, counts, queue_pair = self._opener.open, self._counts, self._hca.queue_pair
        for frame in frames:
            self.queue_pair = None
            flow = opening(frame)
            if isinstance(flow, str):
                counts[flow] += 1
                continue
            (
                _, crc_at, extensions_at, at, end, _, opcode, pkey, dqpn, source, _,
                traffic_class, _,
            ) = flow  # fmt: skip
            self.queue_pair = qp = queue_pair(dqpn)
            if qp is None:
                self._other(opcode, dqpn, pkey, source, frame, extensions_at, at, end)
                continue
            if not qp.receives:
                counts["rx_drop_qp_state"] += 1
            elif source != qp.peer_key:
                counts["rx_drop_other_peer"] += 1
            elif pkey != qp.pkey and not qp.takes(pkey):
                counts["rx_drop_bad_pkey"] += 1
            elif opcode == CNP_OPCODE:
                self._receive_cnp(qp, now)
            elif opcode & SERVICE_MASK != qp.service:
                counts["rx_drop_other_service"] += 1
            else:
                operation = opcode & OPERATION_MASK
                if traffic_class & 3 == ECN_CE:
                    self._marked(qp, operation, now)
                psn = int.from_bytes(frame[crc_at + 1 : crc_at + 4], "big")
                if operation == _ACKNOWLEDGE or operation in _RESPONSES:
                    self._receive_response(qp, operation, psn, frame, extensions_at, at, end, now)
                elif qp.responder is not None:
                    asks = frame[crc_at] & _ACKREQ != 0
                    qp.responder.on_request(operation, psn, asks, frame, extensions_at, at, end)

    def _receive_response(
        self,
        qp: QueuePair,
        operation: int,
        psn: int,
        frame: memoryview,
        extensions_at: int,
        at: int,
        end: int,
        now: int,
    ) -> None:
        requester = qp.requester
        if not isinstance(requester, Requester):
            self._counts["rx_drop_unexpected_response"] += 1
            return
        if operation == _ACKNOWLEDGE:
            requester.on_ack(psn, frame, extensions_at, now)
        else:
            requester.on_response(operation, psn, frame, at, end, now)
        self._hca.activate(qp)

    def _other(
        self,
        opcode: int,
        dqpn: int,
        pkey: int,
        source: bytes,
        frame: memoryview,
        extensions_at: int,
        at: int,
        end: int,
    ) -> None:
        """A packet for no connected queue pair."""
        peer = self._hca.peers.meet(source)
        if dqpn != self._config.ud_qpn:
            self._counts["rx_drop_unknown_qp"] += 1
        elif peer is None:
            self._counts["rx_drop_other_peer"] += 1
        elif not pkeys_match(pkey, self._config.pkey):
            self._counts["rx_drop_bad_pkey"] += 1
        else:
            self._datagrams.receive(opcode, peer, frame, extensions_at, at, end)

    def _marked(self, qp: QueuePair, operation: int, now: int) -> None:
        """A switch has marked a packet (RFC 3168): notify its sender, not too often.

        An acknowledgement's sender has no rate to reduce, and gets no CNP.
        """
        self._counts["rx_ecn_marked_packets"] += 1
        if operation in _ACKNOWLEDGEMENTS:
            return
        if qp.notification is not None and qp.notification.on_marked(now):
            self._hca.owe_cnp(qp)

    def _receive_cnp(self, qp: QueuePair, now: int) -> None:
        self._counts["rx_cnps"] += 1
        if qp.pacer is not None:
            qp.pacer.on_cnp(now)
            self._hca.activate(qp)
