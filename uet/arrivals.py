"""Arriving frames of a fabric endpoint, sorted by PDC and kind (UES 3.5.8, 3.5.12).

In order: NACKs for packets of no PDC, trimmed packets; then frames and packets, requests,
acknowledgements and refusals, control packets, packets without a PDC.  Everything that is wrong
with a packet is counted under a name or refused with a NACK; nothing is raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from uet.carrier_codec import Decapsulator
from uet.compatibility import Compatibility
from uet.config import FepConfig
from uet.counts import Counts
from uet.encapsulation_choice import Encapsulation
from uet.pds.controls import on_control
from uet.pds.credit_granter import CreditGranter
from uet.pds.destination import Reception
from uet.pds.feedback import on_ack, on_nack
from uet.pds.packets import MAX_PSN_OFFSET, OPENING, nack_packet
from uet.pds.pdc import Pdc
from uet.pds.table import PdcTable
from uet.pds.window import MASK, PsnArrival
from uet.peer import traffic_class
from uet.transport import Frame
from uet.wire import headers
from uet.wire.codes import (
    ACK_TYPES,
    ECN_CE,
    NACK_TYPES,
    PSN_OFFSET_BITS,
    REQUEST_TYPES,
    USE_RSV_PDC_ACCEPTED,
    AckFlag,
    ControlFlag,
    NackCode,
    NackFlag,
    NextHeader,
    PacketType,
    RequestFlag,
)

if TYPE_CHECKING:
    from uet.fep import FabricEndpoint

# Plain numbers: arithmetic on enum members is slow, and this is the data path.
_TYPE_SHIFT: Final = headers.RUD_REQ.shift("type")
_NEXT_HEADER_SHIFT: Final = headers.RUD_REQ.shift("next_hdr")
_NEXT_HEADER: Final = headers.RUD_REQ.mask("next_hdr") >> _NEXT_HEADER_SHIFT
_SYN: Final = int(RequestFlag.SYN)
_RETX: Final = int(RequestFlag.RETX)
_ACK_DPDCID_AT: Final = headers.ACK.field("dpdcid").offset // 8
_REQUEST: Final = headers.RUD_REQ
_unpack_request: Final = _REQUEST.unpack_from
_REQUEST_SIZE: Final = _REQUEST.size
_RUD: Final = int(PacketType.RUD_REQ)
_ROD: Final = int(PacketType.ROD_REQ)
_RUD_CC: Final = int(PacketType.RUD_CC_REQ)
_ROD_CC: Final = int(PacketType.ROD_CC_REQ)
_ORDERED: Final = frozenset({_ROD, _ROD_CC})
_CREDITED: Final = frozenset({_RUD_CC, _ROD_CC})
_NACK_CODE_SHIFT: Final = headers.NACK.shift("nack_code")
_ACK_TYPES: Final = ACK_TYPES
_ECN_CE: Final = int(ECN_CE)
_TSS: Final = int(PacketType.TSS)
_CP: Final = int(PacketType.CP)
_RUDI_REQ: Final = int(PacketType.RUDI_REQ)
_RUDI_RESP: Final = int(PacketType.RUDI_RESP)
_UUD: Final = int(PacketType.UUD_REQ)
#: What a reception holds between packets: a packet in a ring would keep the ring's socket open.
_NOTHING: Final = memoryview(b"")
#: Octets of the PDS header, by packet type.
_SIZES: Final[dict[int, int]] = {
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
_SES_SIZES: Final[dict[int, int]] = {
    int(NextHeader.REQUEST_SMALL): headers.SES_SMALL.size,
    int(NextHeader.REQUEST_MEDIUM): headers.SES_MEDIUM.size,
    int(NextHeader.REQUEST_STD): headers.SES_STD_SOM.size,
    int(NextHeader.RESPONSE_DATA): headers.SES_RESPONSE_DATA.size,
    int(NextHeader.RESPONSE_DATA_SMALL): headers.SES_RESPONSE_DATA_SMALL.size,
}
#: Those that may begin a PDC.
_BEGINNING: Final = frozenset(
    {
        int(NextHeader.REQUEST_SMALL),
        int(NextHeader.REQUEST_MEDIUM),
        int(NextHeader.REQUEST_STD),
    }
)


class UnplacedNacks:
    """NACKs for packets that belong to no PDC of an endpoint (UES 3.5.12, 3.5.22)."""

    def __init__(self, config: FepConfig, control: list[Frame], counts: Counts) -> None:
        self._control = control
        self._counts = counts
        self._class = traffic_class(config.dscp_control, ecn_capable=False)
        self._in_clear = config.compatibility.clear_nack_without_pdc

    def refuse(self, reception: Reception, code: NackCode, *, payload: int = 0) -> None:
        """Refuse a packet that belongs to no PDC here: the NACK's spdcid is 0 (UES 3.5.12)."""
        self._counts["tx_nacks"] += 1
        nack = nack_packet(
            code,
            reception.psn,
            0,
            reception.spdcid,
            resent=bool(reception.word & _RETX),
            marked=reception.marked,
            payload=payload,
        )
        wrap, _ = reception.peer.way(None if self._in_clear else reception.sdi)
        self._control.append(wrap(self._class, reception.entropy, nack, b""))

    def refuse_rudi(self, reception: Reception, code: NackCode, packet_id: int) -> None:
        """Refuse a RUDI request, which its packet id names (UES 3.5.22)."""
        self._counts["tx_nacks"] += 1
        nack = headers.NACK_RUDI.encode(
            m=int(reception.marked),
            retx=int(bool(reception.word & _RETX)),
            nack_code=code,
            nack_pkt_id=packet_id,
        )
        wrap, _ = reception.peer.way(reception.sdi)
        self._control.append(wrap(self._class, reception.entropy, nack, b""))


class TrimmedArrivals:
    """Answers packets that a switch has trimmed to their headers: requests them again (UES 4.1).

    Nothing vouches for what is left of them, so they change nothing but the counters.  Of a secured
    packet the PDS header must be left (12 octets behind the TSS header, 16 with credit): it is read
    without authentication and answered only if it names a PDC of its secure domain, or might open
    one.
    """

    def __init__(
        self,
        table: PdcTable,
        credits: CreditGranter,
        compatibility: Compatibility,
        lasthop: int | None,
        counts: Counts,
        nacks: UnplacedNacks,
    ) -> None:
        self._table = table
        self._credits = credits
        self._compatibility = compatibility
        self._lasthop = lasthop  # the DSCP of those trimmed by the last switch
        self._counts = counts
        self._nacks = nacks

    def receive(self, reception: Reception, dscp: int) -> None:
        """Answer a request by a NACK, an ACK of old by one too, and nothing else.

        Of a secured packet the reception holds the plaintext of the header.
        """
        self._counts["rx_trimmed"] += 1
        kind = reception.packet[reception.at] >> 3
        code = NackCode.TRIMMED_LASTHOP if dscp == self._lasthop else NackCode.TRIMMED
        if kind in REQUEST_TYPES:
            self._receive_request(reception, code)
        elif kind == _RUDI_REQ:
            self._receive_rudi(reception, code)
        elif kind in ACK_TYPES:
            self._receive_ack(reception)

    def _receive_rudi(self, reception: Reception, code: NackCode) -> None:
        packet, at = reception.packet, reception.at
        if len(packet) < at + headers.RUDI_REQ.size:
            self._counts["rx_drop_truncated"] += 1
            return
        reception.word, _, packet_id = headers.RUDI_REQ.unpack_from(packet, at)
        self._nacks.refuse_rudi(reception, code, packet_id)

    def _receive_request(self, reception: Reception, code: NackCode) -> None:
        packet, at, peer, sdi = reception.packet, reception.at, reception.peer, reception.sdi
        if len(packet) < at + _REQUEST_SIZE:
            self._counts["rx_drop_truncated"] += 1
            return
        word, _, psn, spdcid, dpdcid = _unpack_request(packet, at)
        reception.word, reception.psn, reception.spdcid = word, psn, spdcid
        pdc: Pdc | None
        if word & _SYN:
            pdc = self._table.find_target(peer.key, spdcid)
            if pdc is None:
                if not self._compatibility.silent_trimmed_syn:
                    self._nacks.refuse(reception, code)
                return
        else:
            pdc = self._table.by_id.get(dpdcid)
        if pdc is None or pdc.peer is not peer or pdc.peer_id != spdcid or pdc.sdi != sdi:
            return  # a trimmed packet never makes a PDC; its timer will bring it again
        if sdi is not None and pdc.destination.window.classify(psn) is PsnArrival.OUTSIDE:
            return  # forged, or too late to matter
        state_at = at + _REQUEST_SIZE
        if packet[at] >> 3 in _CREDITED and len(packet) >= state_at + 4:
            state = int.from_bytes(packet[state_at : state_at + 4], "big")
            self._credits.on_trimmed(pdc, state, reception.entropy)
        pdc.writer.nack(code, psn, word & _RETX, reception.entropy, reception.marked)

    def _receive_ack(self, reception: Reception) -> None:
        """Refuse an ACK that carried data; since UES 1.0.3 the timer of its request does that."""
        packet, at = reception.packet, reception.at
        if not self._compatibility.trimmed_ack_nack or len(packet) < at + headers.ACK.size:
            return
        word, offset, cack, spdcid, dpdcid = headers.ACK.unpack_from(packet, at)
        pdc = self._table.by_id.get(dpdcid)
        if (
            pdc is not None
            and pdc.peer is reception.peer
            and pdc.peer_id == spdcid
            and pdc.sdi == reception.sdi
            and not word & AckFlag.P
        ):
            psn = (cack + offset) & MASK
            pdc.writer.nack(
                NackCode.TRIMMED_ACK,
                psn,
                word & AckFlag.RETX,
                reception.entropy,
                reception.marked,
            )


class FepArrivals:
    """The receive side of one endpoint."""

    def __init__(self, endpoint: FabricEndpoint, encapsulation: Encapsulation) -> None:
        config = endpoint.config
        self._endpoint = endpoint
        self._counts = endpoint.counts
        self._peers = endpoint.peers
        self._table = endpoint.table
        self._by_id = endpoint.table.by_id
        self._domains = endpoint.domains
        self._clear_nacks = frozenset(d.sdi for d in config.domains if d.accept_clear)
        self._job_id = config.job_id
        self._trimmed = frozenset(
            dscp for dscp in (config.dscp_trimmed, config.dscp_trimmed_lasthop) if dscp is not None
        )
        self._opener = Decapsulator(encapsulation, self._trimmed)
        self._open = self._opener.open
        nacks = UnplacedNacks(config, endpoint.control, endpoint.counts)
        self._refuse = nacks.refuse
        self._on_trimmed = TrimmedArrivals(
            endpoint.table,
            endpoint.credits,
            config.compatibility,
            config.dscp_trimmed_lasthop,
            endpoint.counts,
            nacks,
        ).receive
        self._reception = Reception()
        #: the PDC that the newest frame is for, once that is known
        self.pdc: Pdc | None = None

    # -- frames and packets --------------------------------------------------------------------

    def receive(self, frame: memoryview, now: int) -> None:  # noqa: C901  the way of a packet, without calls
        """Take a whole Ethernet frame."""
        self.pdc = None
        opened = self._open(frame)
        if isinstance(opened, str):
            self._counts[opened] += 1
            return
        source, at, end, entropy, tos, source_at = opened
        peer = self._peers.get(source) or self._peers.meet(source)
        if peer is None:
            self._counts["rx_drop_unknown_peer"] += 1
            return
        marked = tos & 3 == _ECN_CE
        packet = frame if end == len(frame) else frame[:end]
        kind = packet[at] >> 3
        if tos >> 2 in self._trimmed:
            reception = self._reception
            reception.packet, reception.at, reception.kind = packet, at, kind
            reception.peer, reception.sdi = peer, None
            reception.entropy, reception.marked, reception.now = entropy, marked, now
            if kind == _TSS:
                self._receive_trimmed_secured(reception, frame, source_at, tos >> 2)
            elif self._domains is None:
                self._on_trimmed(reception, tos >> 2)
            else:
                self._counts["tss_clear_refused"] += 1
            reception.packet = _NOTHING
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
            return
        if end < at + least:
            self._counts["rx_drop_truncated"] += 1
            return
        if kind in _ACK_TYPES:
            id_at = at + _ACK_DPDCID_AT
            pdc = self._by_id.get(packet[id_at] << 8 | packet[id_at + 1])
            if pdc is None or pdc.peer is not peer or pdc.sdi != sdi:
                self._counts["rx_drop_ack_of_unknown_pdc"] += 1
                return
            self._counts["rx_acks"] += 1
            self.pdc = pdc
            on_ack(pdc, packet, at, entropy, now)
            self._endpoint.activate(pdc)
            return
        reception = self._reception
        reception.packet, reception.at, reception.ses_at = packet, at, at + least
        reception.kind, reception.peer, reception.sdi = kind, peer, sdi
        reception.entropy, reception.marked, reception.now = entropy, marked, now
        if kind in REQUEST_TYPES:
            self._receive_request(reception)
        elif kind in NACK_TYPES:
            self._receive_nack(reception)
        elif kind == _CP:
            self._receive_control(reception)
        else:
            self._receive_connectionless(reception)
        reception.packet = _NOTHING

    def _receive_trimmed_secured(
        self, reception: Reception, frame: memoryview, source_at: int, dscp: int
    ) -> None:
        """Read the PDS header of a trimmed secured packet, if it is there, and answer it."""
        self._counts["rx_trimmed_secured"] += 1
        if self._domains is None:
            return
        packet, at = reception.packet, reception.at
        prefix = self._opener.sealed_prefix(frame, source_at, at)
        header = self._domains.peek(prefix, packet[at:], len(reception.peer.key))
        if not isinstance(header, str):  # else counted by reason
            reception.sdi = int.from_bytes(packet[at + 1 : at + 4], "big")
            reception.packet, reception.at = memoryview(header), 0
            self._on_trimmed(reception, dscp)

    # -- requests ------------------------------------------------------------------------------

    def _receive_request(self, reception: Reception) -> None:
        packet, at, ses_at = reception.packet, reception.at, reception.ses_at
        word: int
        clear_offset: int
        psn: int
        spdcid: int
        dpdcid: int
        word, clear_offset, psn, spdcid, dpdcid = _unpack_request(packet, at)
        next_header = word >> _NEXT_HEADER_SHIFT & _NEXT_HEADER
        ses_size = _SES_SIZES.get(next_header, 0)
        if len(packet) < ses_at + ses_size:
            self._counts["rx_drop_truncated"] += 1
            return
        reception.word, reception.psn, reception.next_header = word, psn, next_header
        reception.clear_psn = (psn + clear_offset) & MASK
        self._counts["rx_data_packets"] += 1
        kind, sdi = reception.kind, reception.sdi
        ordered = kind in _ORDERED
        if word & _SYN:
            reception.spdcid, reception.dpdcid = spdcid, dpdcid
            pdc = self._find_or_accept(reception, ordered)
            if pdc is None:
                return
        else:
            peer = reception.peer
            pdc = self._by_id.get(dpdcid)
            if pdc is None or pdc.peer is not peer:
                closed = self._table.find_closed(peer.key, spdcid)
                code = NackCode.INV_DPDCID
                if closed is not None and closed.id == dpdcid and closed.is_beyond(psn):
                    code = NackCode.CLOSING
                reception.spdcid = spdcid
                self._refuse(reception, code)
                return
            if spdcid != pdc.writer.peer_id and (
                pdc.sdi != sdi or not pdc.learns_peer(spdcid, psn, next_header)
            ):
                if not pdc.writer.peer_id:
                    # Data has overtaken the ACK that names the target; it will come again.
                    self._counts["rx_drop_data_before_establishment"] += 1
                    return
                reception.spdcid = spdcid
                self._refuse(reception, NackCode.PDC_HDR_MISMATCH)
                return
        self.pdc = pdc
        if pdc.sdi != sdi:
            self._counts["rx_drop_other_domain"] += 1
            return
        if pdc.ordered is not ordered:
            pdc.writer.nack(
                NackCode.PDC_MODE_MISMATCH, psn, word & _RETX, reception.entropy, reception.marked
            )
            return
        if not ses_size:
            pdc.writer.nack(
                NackCode.PDC_HDR_MISMATCH, psn, word & _RETX, reception.entropy, reception.marked
            )
            return
        if pdc.initiator and not pdc.takes_return_data(reception):
            return
        if kind in _CREDITED:
            state_at = at + _REQUEST_SIZE
            self._endpoint.credits.on_data(
                pdc,
                int.from_bytes(packet[state_at : state_at + 4], "big"),
                len(packet) - at + pdc.writer.nominal_overhead,
                reception.entropy,
            )
        pdc.destination.on_request(reception)
        if pdc.initiator and pdc.source.has_unsent:
            self._endpoint.activate(pdc)  # data that has come lets it request more

    def _find_or_accept(self, reception: Reception, ordered: bool) -> Pdc | None:
        """Return the PDC of a SYN packet; any of them may be the first to arrive (UES 3.5.8)."""
        if not reception.spdcid:
            self._counts["rx_drop_syn_without_pdcid"] += 1
            return None
        pdc = self._table.find_target(reception.peer.key, reception.spdcid)
        if pdc is not None:
            if pdc.sdi == reception.sdi and pdc.contradicts(reception):
                return None
            return pdc
        if reception.next_header not in _BEGINNING:
            self._refuse(reception, NackCode.PDC_HDR_MISMATCH)
            return None
        if self._comes_too_early(reception, ordered):
            return None
        return self._accept(reception, ordered)

    def _comes_too_early(self, reception: Reception, ordered: bool) -> bool:
        """Refuse a packet of an ordered PDC that is not its first, unless it may wait for that.

        UES 3.5.21.
        """
        offset = reception.dpdcid & MAX_PSN_OFFSET
        if not ordered or not offset or self._endpoint.config.rod_reorder:
            return False
        self._refuse(reception, NackCode.ROD_OOO, payload=(reception.psn - offset) & MASK)
        return True

    def _accept(self, reception: Reception, ordered: bool) -> Pdc | None:
        """Return a new PDC, unless it is an old one come back, or there is no room."""
        peer, sdi, spdcid = reception.peer, reception.sdi, reception.spdcid
        start = (reception.psn - (reception.dpdcid & MAX_PSN_OFFSET)) & MASK
        closed = self._table.find_closed(peer.key, spdcid)
        if closed is not None and closed.start_psn == start:
            if closed.is_beyond(reception.psn):
                self._refuse(reception, NackCode.CLOSING)
            else:
                self._counts["rx_drop_syn_of_closed_pdc"] += 1
            return None
        if sdi is not None:
            requested = self._endpoint.secure.refuse(peer.key, spdcid, sdi, start, reception.now)
            if requested is not None:
                self._refuse(reception, NackCode.NEW_START_PSN, payload=requested)
                return None
        pdc = self._table.accept(
            peer,
            spdcid,
            start,
            reception.now,
            ordered=ordered,
            sdi=sdi,
            reserved=bool(reception.dpdcid >> PSN_OFFSET_BITS & USE_RSV_PDC_ACCEPTED),
        )
        if pdc is None:
            self._refuse(reception, NackCode.NO_PDC_AVAIL)
            # The pool is exhausted: close something that is not in use.
            for idle in self._table.reclaim(reception.now):
                self._endpoint.activate(idle)
        elif sdi is not None:
            self._endpoint.secure.opened(peer.key, spdcid, sdi)
        return pdc

    # -- refusals ------------------------------------------------------------------------------

    def _receive_nack(self, reception: Reception) -> None:
        packet, at, peer = reception.packet, reception.at, reception.peer
        sdi, entropy, now = reception.sdi, reception.entropy, reception.now
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
        self.pdc = pdc
        on_nack(pdc, packet, at, entropy, now)
        self._endpoint.activate(pdc)

    # -- control packets -----------------------------------------------------------------------

    def _receive_control(self, reception: Reception) -> None:
        word, opaque, psn, spdcid, dpdcid, payload = headers.CP.unpack_from(
            reception.packet, reception.at
        )
        reception.word, reception.psn = word, psn
        reception.spdcid, reception.dpdcid = spdcid, dpdcid
        self._counts["rx_control_packets"] += 1
        peer, sdi = reception.peer, reception.sdi
        kind = word >> _NEXT_HEADER_SHIFT & _NEXT_HEADER
        if word & ControlFlag.SYN:
            pdc = self._table.find_target(peer.key, spdcid)
            if pdc is not None:
                opens = kind in OPENING and pdc.sdi == sdi
                if opens and pdc.contradicts(reception):
                    return
            elif kind in OPENING and spdcid:
                ordered = bool(word & ControlFlag.ISROD)
                if self._comes_too_early(reception, ordered):
                    return
                pdc = self._accept(reception, ordered)
                if pdc is None:
                    return
        else:
            pdc = self._by_id.get(dpdcid)
        if pdc is None or pdc.peer is not peer:
            self._refuse(reception, NackCode.INV_DPDCID)
        elif not pdc.peer_id:
            self._counts["rx_drop_control_before_establishment"] += 1
        elif spdcid != pdc.peer_id:
            self._refuse(reception, NackCode.PDC_HDR_MISMATCH)
        elif pdc.sdi != sdi:
            self._counts["rx_drop_other_domain"] += 1
        else:
            self.pdc = pdc
            on_control(pdc, reception, kind, payload, opaque)
            self._endpoint.activate(pdc)

    # -- packets without a PDC -----------------------------------------------------------------

    def _receive_connectionless(self, reception: Reception) -> None:
        packet, at, ses_at = reception.packet, reception.at, reception.ses_at
        peer, kind, sdi = reception.peer, reception.kind, reception.sdi
        word = packet[at] << 8 | packet[at + 1]
        next_header = word >> _NEXT_HEADER_SHIFT & _NEXT_HEADER
        without = self._endpoint.connectionless
        if kind == _RUDI_RESP:
            without.on_response(packet, at, peer, sdi, reception.now)
            return
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
                without.answer(
                    peer,
                    sdi,
                    packet_id,
                    response,
                    marked=reception.marked,
                    entropy=reception.entropy,
                )
            )
