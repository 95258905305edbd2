"""Arriving frames of a fabric endpoint, sorted by PDC and kind (UES 3.5.8, 3.5.12).

In order: frames and packets, requests, acknowledgements and refusals, control packets, packets
without a PDC; trimmed ones are in :mod:`uet.trimmed`.  Everything that is wrong with a packet is
counted under a name or refused with a NACK; nothing is raised.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from uet.carrier_codec import Decapsulator, Encapsulation
from uet.config import FepConfig
from uet.pds.connectionless import ConnectionlessPds
from uet.pds.control_packets import MAX_PSN_OFFSET, OPENING, nack_packet
from uet.pds.credit_granter import CreditGranter
from uet.pds.pdc.pdc import Pdc
from uet.pds.pdc.secure import SecureStarts
from uet.pds.pdc_table import PdcTable
from uet.pds.psn import MASK
from uet.peer import Peer, Peers, traffic_class
from uet.ses.target.target import Target
from uet.transport import Frame
from uet.trimmed import TrimmedArrivals
from uet.tss.record import SecureDomains
from uet.wire import headers
from uet.wire.codes import (
    ACK_TYPES,
    ECN_CE,
    NACK_TYPES,
    PSN_OFFSET_BITS,
    REQUEST_TYPES,
    USE_RSV_PDC_ACCEPTED,
    ControlFlag,
    NackCode,
    NackFlag,
    NextHeader,
    PacketType,
    RequestFlag,
)

# Plain numbers: arithmetic on enum members is slow, and this is the data path.
_TYPE_SHIFT = headers.RUD_REQ.shift("type")
_NEXT_HEADER_SHIFT = headers.RUD_REQ.shift("next_hdr")
_NEXT_HEADER = headers.RUD_REQ.mask("next_hdr") >> _NEXT_HEADER_SHIFT
_FLAGS = 0x7F
_SYN, _RETX, _AR = int(RequestFlag.SYN), int(RequestFlag.RETX), int(RequestFlag.AR)
_ACK_DPDCID_AT = headers.ACK.field("dpdcid").offset // 8
_REQUEST = headers.RUD_REQ
_RUD, _ROD = int(PacketType.RUD_REQ), int(PacketType.ROD_REQ)
_RUD_CC, _ROD_CC = int(PacketType.RUD_CC_REQ), int(PacketType.ROD_CC_REQ)
_ORDERED = frozenset({_ROD, _ROD_CC})
_CREDITED = frozenset({_RUD_CC, _ROD_CC})
_NACK_CODE_SHIFT = headers.NACK.shift("nack_code")
_TSS, _CP = int(PacketType.TSS), int(PacketType.CP)
_RUDI_REQ, _RUDI_RESP = int(PacketType.RUDI_REQ), int(PacketType.RUDI_RESP)
_UUD = int(PacketType.UUD_REQ)
#: Octets of the PDS header, by packet type.
_SIZES: dict[int, int] = {
    _RUD: _REQUEST.size,
    _ROD: _REQUEST.size,
    _RUD_CC: _REQUEST.size + headers.REQ_CC_STATE.size,
    _ROD_CC: _REQUEST.size + headers.REQ_CC_STATE.size,
    _RUDI_REQ: headers.RUDI_REQ.size,
    _RUDI_RESP: headers.RUDI_RESP.size,
    _UUD: headers.UUD_REQ.size,
    int(PacketType.ACK): headers.ACK.size,
    int(PacketType.ACK_CC): headers.ACK_CC_NSCC.size,
    int(PacketType.ACK_CCX): headers.ACK_CCX.size,
    int(PacketType.NACK): headers.NACK.size,
    int(PacketType.NACK_CCX): headers.NACK_CCX.size,
    _CP: headers.CP.size,
}
#: Least octets of the SES part of a request, by next header; others make no sense in one.
_SES_SIZES: dict[int, int] = {
    int(NextHeader.REQUEST_SMALL): headers.SES_SMALL.size,
    int(NextHeader.REQUEST_MEDIUM): headers.SES_MEDIUM.size,
    int(NextHeader.REQUEST_STD): headers.SES_STD_SOM.size,
    int(NextHeader.RESPONSE_DATA): headers.SES_RESPONSE_DATA.size,
    int(NextHeader.RESPONSE_DATA_SMALL): headers.SES_RESPONSE_DATA_SMALL.size,
}
#: Those that may begin a PDC.
_BEGINNING = frozenset(
    {
        int(NextHeader.REQUEST_SMALL),
        int(NextHeader.REQUEST_MEDIUM),
        int(NextHeader.REQUEST_STD),
    }
)


class ReceivingEndpoint(Protocol):
    """The parts of an endpoint that sorting of arrivals uses."""

    config: FepConfig
    counts: Counter[str]
    control: list[Frame]
    target: Target
    domains: SecureDomains | None
    peers: Peers
    table: PdcTable
    secure: SecureStarts
    connectionless: ConnectionlessPds
    credits: CreditGranter

    def activate(self, pdc: Pdc) -> None: ...


class FepArrivals:
    """The receive side of one endpoint."""

    def __init__(self, endpoint: ReceivingEndpoint, encapsulation: Encapsulation) -> None:
        config = endpoint.config
        self._endpoint = endpoint
        self._counts = endpoint.counts
        self._peers = endpoint.peers
        self._table = endpoint.table
        self._by_id = endpoint.table.by_id
        self._domains = endpoint.domains
        self._clear_nacks = frozenset(d.sdi for d in config.domains if d.accept_clear)
        self._job_id = config.job_id
        self._control_class = traffic_class(config.dscp_control, ecn_capable=False)
        self._trimmed = frozenset(
            dscp for dscp in (config.dscp_trimmed, config.dscp_trimmed_lasthop) if dscp is not None
        )
        self._opener = Decapsulator(encapsulation, self._trimmed)
        self._open = self._opener.open
        self._compatibility = config.compatibility
        self._on_trimmed = TrimmedArrivals(
            endpoint.table,
            endpoint.credits,
            config.compatibility,
            config.dscp_trimmed_lasthop,
            endpoint.counts,
            self._refuse,
            self._refuse_rudi,
        ).receive

    # -- frames and packets --------------------------------------------------------------------

    def receive(self, frame: memoryview, now: int) -> None:
        """Take a whole Ethernet frame."""
        opened = self._open(frame)
        if isinstance(opened, str):
            self._counts[opened] += 1
            return
        source, at, end, entropy, tos, source_at = opened
        peer = self._peers.get(source) or self._peers.meet(source)
        if peer is None:
            self._counts["rx_drop_unknown_peer"] += 1
            return
        marked = tos & 3 == ECN_CE
        packet = frame if end == len(frame) else frame[:end]
        kind = packet[at] >> 3
        if tos >> 2 in self._trimmed:
            if kind == _TSS:
                self._receive_trimmed_secured(
                    frame, packet, at, source_at, peer, tos >> 2, entropy, marked
                )
            elif self._domains is None:
                self._on_trimmed(packet, at, peer, None, tos >> 2, entropy, marked)
            else:
                self._counts["tss_clear_refused"] += 1
            return
        sdi = None
        if kind == _TSS:
            if self._domains is None:
                self._counts["rx_drop_unsupported_type"] += 1
                return
            prefix = self._opener.sealed_prefix(frame, source_at, at)
            plaintext = self._domains.open(prefix, packet[at:], len(source), now)
            if isinstance(plaintext, str):
                return  # counted by reason
            sdi = int.from_bytes(packet[at + 1 : at + 4], "big")
            packet, at, end = memoryview(plaintext), 0, len(plaintext)
            if end < 2:
                self._counts["rx_drop_truncated"] += 1
                return
            kind = packet[0] >> 3
        elif self._domains is not None and not (kind in NACK_TYPES and self._clear_nacks):
            self._counts["tss_clear_refused"] += 1
            return
        least = _SIZES.get(kind)
        if least is None:
            self._counts["rx_drop_unsupported_type"] += 1
        elif end < at + least:
            self._counts["rx_drop_truncated"] += 1
        elif kind in REQUEST_TYPES:
            self._receive_request(packet, peer, kind, sdi, at, at + least, entropy, marked, now)
        elif kind in ACK_TYPES:
            id_at = at + _ACK_DPDCID_AT
            pdc = self._by_id.get(packet[id_at] << 8 | packet[id_at + 1])
            if pdc is None or pdc.peer is not peer or pdc.sdi != sdi:
                self._counts["rx_drop_ack_of_unknown_pdc"] += 1
                return
            self._counts["rx_acks"] += 1
            pdc.on_ack(packet, at, entropy, now)
            self._endpoint.activate(pdc)
        elif kind in NACK_TYPES:
            self._receive_nack(packet, at, peer, sdi, entropy, now)
        elif kind == _CP:
            self._receive_control(packet, at, peer, sdi, entropy, marked, now)
        else:
            self._receive_connectionless(packet, at, peer, kind, sdi, least, entropy, marked, now)

    def _receive_trimmed_secured(
        self,
        frame: memoryview,
        packet: memoryview,
        at: int,
        source_at: int,
        peer: Peer,
        dscp: int,
        entropy: int,
        marked: bool,
    ) -> None:
        """Read the PDS header of a trimmed secured packet, if it is there, and answer it."""
        self._counts["rx_trimmed_secured"] += 1
        if self._domains is None:
            return
        prefix = self._opener.sealed_prefix(frame, source_at, at)
        header = self._domains.peek(prefix, packet[at:], len(peer.key))
        if not isinstance(header, str):  # else counted by reason
            sdi = int.from_bytes(packet[at + 1 : at + 4], "big")
            self._on_trimmed(memoryview(header), 0, peer, sdi, dscp, entropy, marked)

    # -- requests ------------------------------------------------------------------------------

    def _receive_request(
        self,
        packet: memoryview,
        peer: Peer,
        kind: int,
        sdi: int | None,
        at: int,
        ses_at: int,
        entropy: int,
        marked: bool,
        now: int,
    ) -> None:
        word, clear_offset, psn, spdcid, dpdcid = _REQUEST.unpack_from(packet, at)
        next_header = word >> _NEXT_HEADER_SHIFT & _NEXT_HEADER
        ses_size = _SES_SIZES.get(next_header, 0)
        if len(packet) < ses_at + ses_size:
            self._counts["rx_drop_truncated"] += 1
            return
        self._counts["rx_data_packets"] += 1
        ordered = kind in _ORDERED
        if word & _SYN:
            pdc = self._find_or_accept(
                peer, sdi, ordered, word, next_header, psn, spdcid, dpdcid, entropy, marked, now
            )
            if pdc is None:
                return
        else:
            pdc = self._by_id.get(dpdcid)
            if pdc is None or pdc.peer is not peer:
                closed = self._table.find_closed(peer.key, spdcid)
                code = NackCode.INV_DPDCID
                if closed is not None and closed.id == dpdcid and closed.is_beyond(psn):
                    code = NackCode.CLOSING
                self._refuse(peer, sdi, code, psn, spdcid, word, entropy, marked)
                return
            if spdcid != pdc.writer.peer_id and (
                pdc.sdi != sdi or not pdc.learns_peer(spdcid, psn, next_header)
            ):
                if not pdc.writer.peer_id:
                    # Data has overtaken the ACK that names the target; it will come again.
                    self._counts["rx_drop_data_before_establishment"] += 1
                    return
                self._refuse(
                    peer, sdi, NackCode.PDC_HDR_MISMATCH, psn, spdcid, word, entropy, marked
                )
                return
        if pdc.sdi != sdi:
            self._counts["rx_drop_other_domain"] += 1
            return
        if pdc.ordered is not ordered:
            pdc.nack(NackCode.PDC_MODE_MISMATCH, psn, word & _RETX, entropy, marked)
            return
        if not ses_size:
            pdc.nack(NackCode.PDC_HDR_MISMATCH, psn, word & _RETX, entropy, marked)
            return
        if pdc.initiator and not pdc.takes_return_data(next_header, psn, word, entropy, marked):
            return
        if kind in _CREDITED:
            state_at = at + _REQUEST.size
            self._endpoint.credits.on_data(
                pdc,
                int.from_bytes(packet[state_at : state_at + 4], "big"),
                len(packet) - at + pdc.writer.nominal_overhead,
                entropy,
            )
        pdc.destination.on_request(
            psn,
            (psn + clear_offset) & MASK,
            next_header,
            word & _AR,
            word & _RETX,
            word & _SYN,
            entropy,
            marked,
            packet,
            at,
            ses_at,
        )
        if pdc.initiator and pdc.source.has_unsent:
            self._endpoint.activate(pdc)  # data that has come lets it ask for more

    def _find_or_accept(
        self,
        peer: Peer,
        sdi: int | None,
        ordered: bool,
        word: int,
        next_header: int,
        psn: int,
        spdcid: int,
        info_and_offset: int,
        entropy: int,
        marked: bool,
        now: int,
    ) -> Pdc | None:
        """The PDC of a SYN packet; any of them may be the first to arrive (UES 3.5.8)."""
        if not spdcid:
            self._counts["rx_drop_syn_without_pdcid"] += 1
            return None
        pdc = self._table.find_target(peer.key, spdcid)
        if pdc is not None:
            if pdc.sdi == sdi and pdc.contradicts(psn, info_and_offset, word, entropy, marked):
                return None
            return pdc
        if next_header not in _BEGINNING:
            self._refuse(peer, sdi, NackCode.PDC_HDR_MISMATCH, psn, spdcid, word, entropy, marked)
            return None
        if self._comes_too_early(
            peer, sdi, ordered, word, psn, spdcid, info_and_offset, entropy, marked
        ):
            return None
        return self._accept(
            peer, sdi, ordered, word, psn, spdcid, info_and_offset, entropy, marked, now
        )

    def _comes_too_early(
        self,
        peer: Peer,
        sdi: int | None,
        ordered: bool,
        word: int,
        psn: int,
        spdcid: int,
        info_and_offset: int,
        entropy: int,
        marked: bool,
    ) -> bool:
        """An ordered PDC begins with its first packet, unless it may wait for that (UES 3.5.21)."""
        offset = info_and_offset & MAX_PSN_OFFSET
        if not ordered or not offset or self._endpoint.config.rod_reorder:
            return False
        start = (psn - offset) & MASK
        self._refuse(peer, sdi, NackCode.ROD_OOO, psn, spdcid, word, entropy, marked, payload=start)
        return True

    def _accept(
        self,
        peer: Peer,
        sdi: int | None,
        ordered: bool,
        word: int,
        psn: int,
        spdcid: int,
        info_and_offset: int,
        entropy: int,
        marked: bool,
        now: int,
    ) -> Pdc | None:
        """A new PDC, unless it is an old one come back, or there is no room."""
        start = (psn - (info_and_offset & MAX_PSN_OFFSET)) & MASK
        closed = self._table.find_closed(peer.key, spdcid)
        if closed is not None and closed.start_psn == start:
            if closed.is_beyond(psn):
                self._refuse(peer, sdi, NackCode.CLOSING, psn, spdcid, word, entropy, marked)
            else:
                self._counts["rx_drop_syn_of_closed_pdc"] += 1
            return None
        if sdi is not None:
            requested = self._endpoint.secure.refuse(peer.key, spdcid, sdi, start, now)
            if requested is not None:
                code = NackCode.NEW_START_PSN
                self._refuse(peer, sdi, code, psn, spdcid, word, entropy, marked, payload=requested)
                return None
        pdc = self._table.accept(
            peer,
            spdcid,
            start,
            now,
            ordered=ordered,
            sdi=sdi,
            reserved=bool(info_and_offset >> PSN_OFFSET_BITS & USE_RSV_PDC_ACCEPTED),
        )
        if pdc is None:
            self._refuse(peer, sdi, NackCode.NO_PDC_AVAIL, psn, spdcid, word, entropy, marked)
            # The pool is exhausted: close something that is not in use.
            for idle in self._table.reclaim(now):
                self._endpoint.activate(idle)
        return pdc

    def _refuse(
        self,
        peer: Peer,
        sdi: int | None,
        code: NackCode,
        psn: int,
        dpdcid: int,
        flags: int,
        entropy: int,
        marked: bool,
        *,
        payload: int = 0,
    ) -> None:
        """A NACK for a packet that belongs to no PDC here: its spdcid is 0 (UES 3.5.12)."""
        self._counts["tx_nacks"] += 1
        nack = nack_packet(
            code, psn, 0, dpdcid, resent=bool(flags & _RETX), marked=marked, payload=payload
        )
        wrap, _ = peer.way(None if self._compatibility.clear_nack_without_pdc else sdi)
        self._endpoint.control.append(wrap(self._control_class, entropy, nack, b""))

    def _refuse_rudi(
        self,
        peer: Peer,
        sdi: int | None,
        code: NackCode,
        packet_id: int,
        flags: int,
        entropy: int,
        marked: bool,
    ) -> None:
        """A NACK for a RUDI request, which its packet id names (UES 3.5.22)."""
        self._counts["tx_nacks"] += 1
        nack = headers.NACK_RUDI.encode(
            m=int(marked),
            retx=int(bool(flags & _RETX)),
            nack_code=code,
            nack_pkt_id=packet_id,
        )
        wrap, _ = peer.way(sdi)
        self._endpoint.control.append(wrap(self._control_class, entropy, nack, b""))

    # -- refusals ------------------------------------------------------------------------------

    def _receive_nack(
        self, packet: memoryview, at: int, peer: Peer, sdi: int | None, entropy: int, now: int
    ) -> None:
        word, psn, _, dpdcid, _ = headers.NACK.unpack_from(packet, at)
        if word >> 16 & NackFlag.NT:
            own = self._endpoint.config.sdi
            allowed = own if sdi is None and own in self._clear_nacks else sdi
            code = word >> _NACK_CODE_SHIFT & 0xFF
            self._endpoint.connectionless.on_nack(psn, code, peer, allowed, now)
            return
        pdc = self._by_id.get(dpdcid)
        if (
            pdc is None
            or pdc.peer is not peer
            or (pdc.sdi != sdi and (sdi is not None or pdc.sdi not in self._clear_nacks))
        ):
            self._counts["rx_drop_nack_of_unknown_pdc"] += 1
            return
        self._counts["rx_nacks"] += 1
        pdc.on_nack(packet, at, entropy, now)
        self._endpoint.activate(pdc)

    # -- control packets -----------------------------------------------------------------------

    def _receive_control(
        self,
        packet: memoryview,
        at: int,
        peer: Peer,
        sdi: int | None,
        entropy: int,
        marked: bool,
        now: int,
    ) -> None:
        word, opaque, psn, spdcid, dpdcid, payload = headers.CP.unpack_from(packet, at)
        self._counts["rx_control_packets"] += 1
        kind = word >> _NEXT_HEADER_SHIFT & _NEXT_HEADER
        if word & ControlFlag.SYN:
            pdc = self._table.find_target(peer.key, spdcid)
            if pdc is not None:
                opens = kind in OPENING and pdc.sdi == sdi
                if opens and pdc.contradicts(psn, dpdcid, word, entropy, marked):
                    return
            elif kind in OPENING and spdcid:
                ordered = bool(word & ControlFlag.ISROD)
                if self._comes_too_early(
                    peer, sdi, ordered, word, psn, spdcid, dpdcid, entropy, marked
                ):
                    return
                pdc = self._accept(
                    peer, sdi, ordered, word, psn, spdcid, dpdcid, entropy, marked, now
                )
                if pdc is None:
                    return
        else:
            pdc = self._by_id.get(dpdcid)
        if pdc is None or pdc.peer is not peer:
            self._refuse(peer, sdi, NackCode.INV_DPDCID, psn, spdcid, word, entropy, marked)
        elif not pdc.peer_id:
            self._counts["rx_drop_control_before_establishment"] += 1
        elif spdcid != pdc.peer_id:
            self._refuse(peer, sdi, NackCode.PDC_HDR_MISMATCH, psn, spdcid, word, entropy, marked)
        elif pdc.sdi != sdi:
            self._counts["rx_drop_other_domain"] += 1
        else:
            more = packet[at + headers.CP.size :]
            pdc.on_control(kind, word & _FLAGS, psn, payload, opaque, more, entropy, marked, now)
            self._endpoint.activate(pdc)

    # -- packets without a PDC -----------------------------------------------------------------

    def _receive_connectionless(
        self,
        packet: memoryview,
        at: int,
        peer: Peer,
        kind: int,
        sdi: int | None,
        size: int,
        entropy: int,
        marked: bool,
        now: int,
    ) -> None:
        word = packet[at] << 8 | packet[at + 1]
        next_header = word >> _NEXT_HEADER_SHIFT & _NEXT_HEADER
        without = self._endpoint.connectionless
        if kind == _RUDI_RESP:
            without.on_response(packet, at, peer, sdi, now)
            return
        ses_at = at + size
        if next_header not in _BEGINNING or len(packet) < ses_at + _SES_SIZES[next_header]:
            self._counts["rx_drop_truncated"] += 1
            return
        self._counts["rx_data_packets"] += 1
        delivery = "rudi" if kind == _RUDI_REQ else "uud"
        response = self._endpoint.target.deliver_connectionless(
            delivery, peer.address, next_header, packet, ses_at
        )
        if response is not None and kind == _RUDI_REQ:
            _, _, packet_id = headers.RUDI_REQ.unpack_from(packet, at)
            self._endpoint.control.append(
                without.answer(peer, sdi, packet_id, response, marked=marked, entropy=entropy)
            )
