"""Packets that a switch has trimmed to their headers: request them again (UES 4.1).

Nothing vouches for what is left of them, so they change nothing but the counters.  Of a secured
packet the PDS header must be left (12 octets behind the TSS header, 16 with credit): it is read
without authentication and answered only if it names a PDC of its secure domain, or might open one.
"""

from __future__ import annotations

from collections import Counter

from uet.compatibility import Compatibility
from uet.pds.credit_granter import CreditGranter
from uet.pds.destination import Reception
from uet.pds.pdc.pdc import Pdc
from uet.pds.pdc.table import PdcTable
from uet.pds.window import MASK, PsnArrival
from uet.unplaced_nacks import UnplacedNacks
from uet.wire import headers
from uet.wire.codes import (
    ACK_TYPES,
    REQUEST_TYPES,
    AckFlag,
    NackCode,
    PacketType,
    RequestFlag,
)

_REQUEST, _ACK = headers.RUD_REQ, headers.ACK
_RUDI, _RUDI_REQUEST = int(PacketType.RUDI_REQ), headers.RUDI_REQ
_CREDITED = frozenset({int(PacketType.RUD_CC_REQ), int(PacketType.ROD_CC_REQ)})
_SYN, _RETX = int(RequestFlag.SYN), int(RequestFlag.RETX)


class TrimmedArrivals:
    """Answers the trimmed packets of one endpoint."""

    def __init__(
        self,
        table: PdcTable,
        credits: CreditGranter,
        compatibility: Compatibility,
        lasthop: int | None,
        counts: Counter[str],
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
        elif kind == _RUDI:
            self._receive_rudi(reception, code)
        elif kind in ACK_TYPES:
            self._receive_ack(reception)

    def _receive_rudi(self, reception: Reception, code: NackCode) -> None:
        packet, at = reception.packet, reception.at
        if len(packet) < at + _RUDI_REQUEST.size:
            self._counts["rx_drop_truncated"] += 1
            return
        reception.word, _, packet_id = _RUDI_REQUEST.unpack_from(packet, at)
        self._nacks.refuse_rudi(reception, code, packet_id)

    def _receive_request(self, reception: Reception, code: NackCode) -> None:
        packet, at, peer, sdi = reception.packet, reception.at, reception.peer, reception.sdi
        if len(packet) < at + _REQUEST.size:
            self._counts["rx_drop_truncated"] += 1
            return
        word, _, psn, spdcid, dpdcid = _REQUEST.unpack_from(packet, at)
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
        state_at = at + _REQUEST.size
        if packet[at] >> 3 in _CREDITED and len(packet) >= state_at + 4:
            state = int.from_bytes(packet[state_at : state_at + 4], "big")
            self._credits.on_trimmed(pdc, state, reception.entropy)
        pdc.writer.nack(code, psn, word & _RETX, reception.entropy, reception.marked)

    def _receive_ack(self, reception: Reception) -> None:
        """Refuse an ACK that carried data; since UES 1.0.3 the timer of its request does that."""
        packet, at = reception.packet, reception.at
        if not self._compatibility.trimmed_ack_nack or len(packet) < at + _ACK.size:
            return
        word, offset, cack, spdcid, dpdcid = _ACK.unpack_from(packet, at)
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
