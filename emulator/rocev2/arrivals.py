"""Arriving packets of one endpoint: matched, checked, and passed to a queue pair (IBA 9.6).

A packet of any kind is dropped silently when it is for no queue pair that receives. It is also
dropped from another peer than the queue pair's, of another partition or of another service.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final

from emulator.rocev2.connection.queue_pair import QueuePair
from emulator.rocev2.connection.requester import Requester
from emulator.rocev2.datagrams import Datagrams
from emulator.rocev2.wire.codes import (
    CNP_OPCODE,
    OPERATION_MASK,
    PSN_MASK,
    SERVICE_MASK,
    BthOperation,
    pkeys_match,
)
from emulator.rocev2.wire.packets import ACK_REQUEST, PacketDecapsulator, PacketFlow
from uet.encapsulation_choice import Encapsulation
from uet.wire.codes import ECN_CE

if TYPE_CHECKING:
    from emulator.rocev2.hca import HostChannelAdapter

#: What a requester takes: responses to READs, acknowledgements, and those of atomics.
_FIRST_RESPONSE: Final = int(BthOperation.READ_RESPONSE_FIRST)
_LAST_RESPONSE: Final = int(BthOperation.ATOMIC_ACKNOWLEDGE)
#: The last word of a BTH: AckReq, and the PSN.
_LAST_WORD: Final = Struct(">I").unpack_from
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
        opener, counts, hca = self._opener, self._counts, self._hca
        for frame in frames:
            self.queue_pair = None
            flow = opener.open(frame)
            if isinstance(flow, str):
                counts[flow] += 1
                continue
            opcode = flow.opcode
            extensions_at, at, end = flow.extensions_at, flow.payload_at, flow.payload_end
            self.queue_pair = qp = hca.queue_pair(flow.dqpn)
            if qp is None:
                self._other(flow, frame)
                continue
            if not qp.receives:
                counts["rx_drop_qp_state"] += 1
            elif flow.source != qp.peer_key:
                counts["rx_drop_other_peer"] += 1
            elif flow.pkey != qp.pkey and not qp.takes(flow.pkey):
                counts["rx_drop_bad_pkey"] += 1
            elif opcode == CNP_OPCODE:
                self._receive_cnp(qp, now)
            elif opcode & SERVICE_MASK != qp.service:
                counts["rx_drop_other_service"] += 1
            else:
                operation = opcode & OPERATION_MASK
                if flow.traffic_class & 3 == ECN_CE:
                    self._marked(qp, operation, now)
                word: int = _LAST_WORD(frame, flow.crc_at)[0]
                psn = word & PSN_MASK
                if _FIRST_RESPONSE <= operation <= _LAST_RESPONSE:
                    self._receive_response(qp, operation, psn, frame, extensions_at, at, end, now)
                elif qp.responder is not None:
                    asks = word & ACK_REQUEST != 0
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

    def _other(self, flow: PacketFlow, frame: memoryview) -> None:
        """A packet for no connected queue pair."""
        peer = self._hca.peers.meet(flow.source)
        if flow.dqpn != self._config.ud_qpn:
            self._counts["rx_drop_unknown_qp"] += 1
        elif peer is None:
            self._counts["rx_drop_other_peer"] += 1
        elif not pkeys_match(flow.pkey, self._config.pkey):
            self._counts["rx_drop_bad_pkey"] += 1
        else:
            self._datagrams.receive(
                flow.opcode, peer, frame, flow.extensions_at, flow.payload_at, flow.payload_end
            )

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
