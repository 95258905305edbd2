"""The fabric endpoint (FEP): the whole Ultra Ethernet stack behind one sans-IO face.

In order: what an application does (register, post, completions), what arrives, what leaves.
See :mod:`uet.transport` for the contract.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address

import uet.congestion.fixed  # noqa: F401  registers itself
from uet.config import FepConfig
from uet.congestion import base as congestion
from uet.pds.control import MAX_PSN_OFFSET, nack_packet
from uet.pds.pdc import Pdc
from uet.pds.psn import MASK
from uet.pds.table import PdcTable
from uet.peer import Peer, traffic_class
from uet.ses.memory import MemoryRegion, MemoryTable
from uet.ses.messages import Address, MessageError, OutboundMessage, check
from uet.ses.target import Target
from uet.transport import Completion, Frame, Write
from uet.wire import headers
from uet.wire.codec import compile_stack
from uet.wire.codes import (
    CRC_SIZE,
    ECN_CE,
    ControlFlag,
    NackCode,
    NackFlag,
    NextHeader,
    PacketType,
    RequestFlag,
)
from uet.wire.crc import verify

_FRAME = compile_stack(headers.ETHERNET, headers.IPV4, headers.UDP_HEADER)
_IP_AT = headers.ETHERNET.size
_UDP_AT = _IP_AT + headers.IPV4.size
_UET_AT = _FRAME.size
_ETHERTYPE_IPV4, _VERSION_IHL, _PROTOCOL_UDP = 0x0800, 0x45, 17
_MORE_FRAGMENTS, _FRAGMENT_SHIFT = 0x3FFF, 16
_TYPE_SHIFT = headers.RUD_REQ.shift("type")
_NEXT_HEADER = headers.RUD_REQ.mask("next_hdr")
_NEXT_HEADER_SHIFT = headers.RUD_REQ.shift("next_hdr")
_FLAGS = 0x7F
_REQUESTS = frozenset({PacketType.RUD_REQ, PacketType.RUD_CC_REQ})
_ACKS = frozenset({PacketType.ACK, PacketType.ACK_CC, PacketType.ACK_CCX})
# Plain numbers: arithmetic on enum members is slow, and this is the data path.
_SYN, _RETX = int(RequestFlag.SYN), int(RequestFlag.RETX)
_SES_SIZE = headers.SES_STD_SOM.size
_STANDARD = NextHeader.REQUEST_STD << _NEXT_HEADER_SHIFT
_MESSAGE_IDS = 0xFFFF  # 1..65535; id 0 belongs to UUD
_PSN_OFFSET = MAX_PSN_OFFSET  # as a mask

#: Least octets of the UET part, by packet type.
_LEAST: dict[int, int] = {
    PacketType.RUD_REQ: headers.RUD_REQ.size,
    PacketType.RUD_CC_REQ: headers.RUD_REQ.size + headers.REQ_CC_STATE.size,
    PacketType.ACK: headers.ACK.size,
    PacketType.ACK_CC: headers.ACK_CC_NSCC.size,
    PacketType.ACK_CCX: headers.ACK_CCX.size,
    PacketType.NACK: headers.NACK.size,
    PacketType.CP: headers.CP.size,
}


class FabricEndpoint:
    """One FEP with one process and one resource index.

    ``seed`` decides everything that is random here: first PSNs, PDC ids, entropy.
    """

    def __init__(self, config: FepConfig, *, seed: int) -> None:
        self.config = config
        self.counts: dict[str, int] = Counter()
        self.control: list[Frame] = []
        self._rng = random.Random(seed)
        self._memory = MemoryTable()
        self._completions: list[Completion] = []
        self._target = Target(config, self._memory, self._completions.append, self.counts)
        self._address = IPv4Address(config.address).packed
        self._peers = {
            IPv4Address(peer).packed: Peer(
                config, peer, congestion.create(config.congestion_control, config.window_bytes)
            )
            for peer in config.neighbours
        }
        self._table = PdcTable(self, self._rng)
        self._to = Address(
            job_id=config.job_id,
            pid_on_fep=config.pid_on_fep,
            resource_index=config.resource_index,
            initiator_id=config.initiator_id,
        )
        self._waiting: deque[Write] = deque()  # no message id or no PDC was free
        self._open_ids: set[int] = set()
        self._newest_id = 0
        self._active: dict[int, Pdc] = {}  # PDCs with something to do, by id
        self._closing = False
        self._retry_at: int | None = None  # when to try again to give a request a PDC
        self.deliver = self._target.deliver
        self._control_class = traffic_class(config.dscp_control, ecn_capable=False)
        self._trimmed = frozenset(
            dscp for dscp in (config.dscp_trimmed, config.dscp_trimmed_lasthop) if dscp is not None
        )

    # -- the application's side ----------------------------------------------------------------

    def register(self, memory: memoryview, *, key: int, writable: bool = True) -> None:
        """Let peers of the job write to ``memory``; ``MemoryRegionError`` for a bad key."""
        self._memory.register(
            MemoryRegion(memory=memory, key=key, writable=writable, job_id=self.config.job_id)
        )

    def post(self, request: Write) -> None:
        """Queue a write; ``MessageError`` for one that could never be carried out."""
        if self._closing:
            raise MessageError("the endpoint is closing and takes no more requests")
        check(request)
        if request.peer not in self.config.neighbours:
            raise MessageError(f"{request.peer} is not among the configured neighbours")
        self._waiting.append(request)
        self._start_waiting()

    def _start_waiting(self) -> None:
        """Give waiting requests a message id and a PDC, in the order they were posted."""
        self._retry_at = None
        while self._waiting and len(self._open_ids) < _MESSAGE_IDS:
            request = self._waiting[0]
            pdc = self._table.initiator(self._peers[IPv4Address(request.peer).packed])
            if pdc is None:
                self.counts["post_waits_for_pdc"] += 1
                return
            self._waiting.popleft()
            message_id = self._newest_id % _MESSAGE_IDS + 1
            while message_id in self._open_ids:
                message_id = message_id % _MESSAGE_IDS + 1
            self._newest_id = message_id
            self._open_ids.add(message_id)
            pdc.source.post(OutboundMessage(request, message_id, self._to, self.config.payload_mtu))
            self._active[pdc.id] = pdc

    def completions(self) -> list[Completion]:
        """Completions since the last call."""
        if not self._completions:
            return []
        done = self._completions[:]
        self._completions.clear()
        return done

    def message_end(self, message: OutboundMessage) -> None:
        """Every packet of a message is answered, or it has failed (called by its PDC)."""
        self._open_ids.discard(message.id)
        request = message.request
        self.counts["tx_messages" if message.error is None else "tx_messages_failed"] += 1
        self._completions.append(
            Completion(
                kind="write",
                peer=request.peer,
                length=message.length,
                context=request.context,
                error=message.error,
            )
        )

    def close(self) -> None:
        """Finish what was posted, then close every PDC initiated here, with its handshake."""
        self._closing = True
        if not self._waiting:
            self._table.quiesce()
            for pdc in self._table.by_id.values():
                if pdc.initiator:
                    self._active[pdc.id] = pdc

    @property
    def closed(self) -> bool:
        """Nothing of ours is open any more.  Peers may still want answers."""
        return self._closing and not self._waiting and not self._table.open_initiators

    def pdc_closed(self, pdc: Pdc) -> None:
        """(called by the PDC)"""
        self._table.remove(pdc)
        self._active.pop(pdc.id, None)
        if not pdc.initiator:
            self._target.forget(pdc.id)

    def counters(self) -> Mapping[str, int]:
        """Counters by name."""
        return {**self.counts, "pdcs_open": len(self._table)}

    # -- what leaves ---------------------------------------------------------------------------

    def transmit(self, now: int, limit: int) -> list[Frame]:
        """Every answer that is due, then at most ``limit`` more frames, PDCs in turn."""
        out = self.control[:]
        self.control.clear()
        limit += len(out)
        if self._waiting:
            self._start_waiting()
            if self._waiting and len(self._open_ids) < _MESSAGE_IDS:
                self._reclaim(now)
                self._retry_at = now + self.config.close_req_time
        if self._active:
            for pdc in list(self._active.values()):
                pdc.transmit(out, now, limit)
                if not pdc.has_work:
                    self._active.pop(pdc.id, None)
                if len(out) >= limit:
                    # The others go first the next time.
                    if len(self._active) > 1 and pdc.id in self._active:
                        self._active[pdc.id] = self._active.pop(pdc.id)
                    break
        if self._closing and not self._waiting:
            self.close()
        return out

    def next_deadline(self) -> int | None:
        """The earliest timer of any PDC (ns)."""
        earliest = self._retry_at
        for pdc in self._active.values():
            deadline = pdc.next_deadline()
            if deadline is not None and (earliest is None or deadline < earliest):
                earliest = deadline
        return earliest

    # -- what arrives --------------------------------------------------------------------------

    def receive(self, frames: Sequence[memoryview], now: int) -> None:
        """Take whole Ethernet frames.  What is not for this endpoint, or hostile, is counted."""
        self._target.now = now
        for frame in frames:
            self._receive(frame, now)

    def _receive(self, frame: memoryview, now: int) -> None:
        counts = self.counts
        if len(frame) < _UET_AT + 4:
            counts["rx_drop_truncated"] += 1
            return
        (
            _, _, ethertype, version_tos, ip_octets, _, fragment_ttl_protocol, _, source, address,
            entropy, port, udp_octets, _,
        ) = _FRAME.unpack_from(frame)  # fmt: skip
        if (
            ethertype != _ETHERTYPE_IPV4
            or version_tos >> 8 != _VERSION_IHL
            or fragment_ttl_protocol & 0xFF != _PROTOCOL_UDP
            or port != self.config.udp_port
        ):
            counts["rx_drop_not_uet"] += 1
            return
        if address != self._address:
            counts["rx_drop_other_address"] += 1
            return
        peer = self._peers.get(source)
        if peer is None:
            counts["rx_drop_unknown_peer"] += 1
            return
        if fragment_ttl_protocol >> _FRAGMENT_SHIFT & _MORE_FRAGMENTS:
            counts["rx_drop_fragment"] += 1
            return
        end = _IP_AT + ip_octets
        if end > len(frame) or end < _UET_AT + 4:
            counts["rx_drop_bad_ip_length"] += 1
            return
        dscp = version_tos >> 2 & 0x3F
        if self._trimmed and dscp in self._trimmed:
            self._receive_trimmed(frame[:end], peer, dscp, entropy, version_tos & 3 == ECN_CE)
            return
        if udp_octets != end - _UDP_AT:
            counts["rx_drop_bad_udp_length"] += 1
            return
        if self.config.crc:
            if end < _UET_AT + 4 + CRC_SIZE or not verify(
                frame[_IP_AT:end], udp_offset=headers.IPV4.size
            ):
                counts["rx_drop_bad_crc"] += 1
                return
            end -= CRC_SIZE
        packet = frame[:end]
        marked = version_tos & 3 == ECN_CE
        word = packet[_UET_AT] << 8 | packet[_UET_AT + 1]
        kind = word >> _TYPE_SHIFT
        least = _LEAST.get(kind)
        if least is None:
            counts["rx_drop_unsupported_type"] += 1
        elif end < _UET_AT + least:
            counts["rx_drop_truncated"] += 1
        elif kind in _REQUESTS:
            self._receive_request(packet, peer, _UET_AT + least, entropy, marked, now)
        elif kind in _ACKS:
            pdc = self._table.by_id.get(packet[_UET_AT + 10] << 8 | packet[_UET_AT + 11])
            if pdc is None or pdc.peer is not peer:
                counts["rx_drop_ack_of_unknown_pdc"] += 1
                return
            counts["rx_acks"] += 1
            pdc.on_ack(packet, _UET_AT, now)
            if pdc.has_work:
                self._active[pdc.id] = pdc
        elif kind == PacketType.NACK:
            self._receive_nack(packet, peer, now)
        else:
            self._receive_control(packet, peer, entropy, marked, now)

    def _receive_request(
        self,
        packet: memoryview,
        peer: Peer,
        ses_at: int,
        entropy: int,
        marked: bool,
        now: int,
    ) -> None:
        word, clear_offset, psn, spdcid, dpdcid = headers.RUD_REQ.unpack_from(packet, _UET_AT)
        if len(packet) < ses_at + _SES_SIZE and word & _NEXT_HEADER == _STANDARD:
            self.counts["rx_drop_truncated"] += 1
            return
        self.counts["rx_data_packets"] += 1
        if word & _SYN:
            pdc = self._find_or_accept(peer, word, psn, spdcid, dpdcid, entropy, marked, now)
            if pdc is None:
                return
        else:
            pdc = self._table.by_id.get(dpdcid)
            if pdc is None or pdc.initiator or pdc.peer is not peer:
                closed = self._table.find_closed(peer.key, spdcid)
                code = NackCode.INV_DPDCID
                if closed is not None and closed.id == dpdcid and closed.is_beyond(psn):
                    code = NackCode.CLOSING
                self._refuse(peer, code, psn, spdcid, word, entropy, marked)
                return
            if spdcid != pdc.peer_id:
                self._refuse(peer, NackCode.PDC_HDR_MISMATCH, psn, spdcid, word, entropy, marked)
                return
        if word & _NEXT_HEADER != _STANDARD:
            pdc.nack(NackCode.PDC_HDR_MISMATCH, psn, word & _RETX, entropy, marked)
            return
        pdc.on_request(word & _FLAGS, clear_offset, psn, packet, ses_at, entropy, marked)

    def _find_or_accept(
        self,
        peer: Peer,
        word: int,
        psn: int,
        spdcid: int,
        info_and_offset: int,
        entropy: int,
        marked: bool,
        now: int,
    ) -> Pdc | None:
        """The PDC of a SYN packet; any of them may be the first to arrive (UES 3.5.8)."""
        if not spdcid:
            self.counts["rx_drop_syn_without_pdcid"] += 1
            return None
        pdc = self._table.find_target(peer.key, spdcid)
        if pdc is not None:
            return pdc
        if word & _NEXT_HEADER != _STANDARD:
            self._refuse(peer, NackCode.PDC_HDR_MISMATCH, psn, spdcid, word, entropy, marked)
            return None
        start = (psn - (info_and_offset & _PSN_OFFSET)) & MASK
        closed = self._table.find_closed(peer.key, spdcid)
        if closed is not None and closed.start_psn == start:
            if closed.is_beyond(psn):
                self._refuse(peer, NackCode.CLOSING, psn, spdcid, word, entropy, marked)
            else:
                self.counts["rx_drop_syn_of_closed_pdc"] += 1
            return None
        pdc = self._table.accept(peer, spdcid, start)
        if pdc is None:
            self._refuse(peer, NackCode.NO_PDC_AVAIL, psn, spdcid, word, entropy, marked)
            self._reclaim(now)
        return pdc

    def _reclaim(self, now: int) -> None:
        """The pool is exhausted: close something that is not in use."""
        for pdc in self._table.reclaim(now):
            self._active[pdc.id] = pdc

    def _refuse(
        self,
        peer: Peer,
        code: NackCode,
        psn: int,
        dpdcid: int,
        flags: int,
        entropy: int,
        marked: bool,
    ) -> None:
        """A NACK for a packet that belongs to no PDC here: its spdcid is 0 (UES 3.5.12)."""
        self.counts["tx_nacks"] += 1
        nack = nack_packet(code, psn, 0, dpdcid, resent=bool(flags & _RETX), marked=marked)
        self.control.append(peer.envelope.wrap(self._control_class, entropy, nack))

    def _receive_nack(self, packet: memoryview, peer: Peer, now: int) -> None:
        word, _, _, dpdcid, _ = headers.NACK.unpack_from(packet, _UET_AT)
        pdc = self._table.by_id.get(dpdcid)
        if word >> 16 & NackFlag.NT or pdc is None or pdc.peer is not peer:
            self.counts["rx_drop_nack_of_unknown_pdc"] += 1
            return
        self.counts["rx_nacks"] += 1
        pdc.on_nack(packet, _UET_AT, now)
        if pdc.has_work:
            self._active[pdc.id] = pdc

    def _receive_control(
        self, packet: memoryview, peer: Peer, entropy: int, marked: bool, now: int
    ) -> None:
        word, _, psn, spdcid, dpdcid, payload = headers.CP.unpack_from(packet, _UET_AT)
        self.counts["rx_control_packets"] += 1
        if word & ControlFlag.SYN:
            pdc = self._table.find_target(peer.key, spdcid)
        else:
            pdc = self._table.by_id.get(dpdcid)
        if pdc is None or pdc.peer is not peer:
            self._refuse(peer, NackCode.INV_DPDCID, psn, spdcid, word, entropy, marked)
        elif not pdc.peer_id:
            self.counts["rx_drop_control_before_establishment"] += 1
        elif spdcid != pdc.peer_id:
            self._refuse(peer, NackCode.PDC_HDR_MISMATCH, psn, spdcid, word, entropy, marked)
        else:
            kind = (word & _NEXT_HEADER) >> _NEXT_HEADER_SHIFT
            pdc.on_control(kind, word & _FLAGS, psn, payload, entropy, marked, now)
            if pdc.has_work:
                self._active[pdc.id] = pdc

    def _receive_trimmed(
        self, packet: memoryview, peer: Peer, dscp: int, entropy: int, marked: bool
    ) -> None:
        """A switch cut the payload off: ask for the packet again (UES 4.1), change nothing."""
        self.counts["rx_trimmed"] += 1
        word = packet[_UET_AT] << 8 | packet[_UET_AT + 1]
        if word >> _TYPE_SHIFT not in _REQUESTS:
            return
        if len(packet) < _UET_AT + headers.RUD_REQ.size:
            self.counts["rx_drop_truncated"] += 1
            return
        word, _, psn, spdcid, dpdcid = headers.RUD_REQ.unpack_from(packet, _UET_AT)
        if word & _SYN:
            pdc = self._table.find_target(peer.key, spdcid)
        else:
            pdc = self._table.by_id.get(dpdcid)
        if pdc is None or pdc.peer is not peer or pdc.peer_id != spdcid:
            return  # a trimmed packet never makes a PDC; its timer will bring it again
        lasthop = dscp == self.config.dscp_trimmed_lasthop
        code = NackCode.TRIMMED_LASTHOP if lasthop else NackCode.TRIMMED
        pdc.nack(code, psn, word & _RETX, entropy, marked)
