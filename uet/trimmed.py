"""Packets that a switch has cut down to their headers: ask for them again (UES 4.1).

Nothing vouches for what is left of them, so they change nothing but the counters.  Of a secured
packet the PDS header must be left (12 octets behind the TSS header, 16 with credit): it is read
without authentication and answered only if it names a PDC of its secure domain, or might open one.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from uet.compatibility import Compatibility
from uet.pds.credit_granter import CreditGranter
from uet.pds.pdc.pdc import Pdc
from uet.pds.pdc_table import PdcTable
from uet.pds.psn import MASK
from uet.pds.window import PsnArrival
from uet.peer import Peer
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


class Refuse(Protocol):
    """Sends a NACK for a packet that belongs to no PDC here."""

    def __call__(
        self,
        peer: Peer,
        sdi: int | None,
        code: NackCode,
        psn: int,
        dpdcid: int,
        flags: int,
        entropy: int,
        marked: bool,
        /,
    ) -> None: ...


class RefuseRudi(Protocol):
    """Sends a NACK for a RUDI request."""

    def __call__(
        self,
        peer: Peer,
        sdi: int | None,
        code: NackCode,
        packet_id: int,
        flags: int,
        entropy: int,
        marked: bool,
        /,
    ) -> None: ...


class TrimmedArrivals:
    """Answers the trimmed packets of one endpoint."""

    def __init__(
        self,
        table: PdcTable,
        credits: CreditGranter,
        compatibility: Compatibility,
        lasthop: int | None,
        counts: Counter[str],
        refuse: Refuse,
        refuse_rudi: RefuseRudi,
    ) -> None:
        self._table = table
        self._credits = credits
        self._compatibility = compatibility
        self._lasthop = lasthop  # the DSCP of those trimmed by the last switch
        self._counts = counts
        self._refuse = refuse
        self._refuse_rudi = refuse_rudi

    def receive(
        self,
        packet: memoryview,
        at: int,
        peer: Peer,
        sdi: int | None,
        dscp: int,
        entropy: int,
        marked: bool,
    ) -> None:
        """A request draws a NACK, an ACK of old does, nothing else.

        ``sdi``: the domain of a secured packet, of which ``packet`` is the plaintext.
        """
        self._counts["rx_trimmed"] += 1
        kind = packet[at] >> 3
        code = NackCode.TRIMMED_LASTHOP if dscp == self._lasthop else NackCode.TRIMMED
        if kind in REQUEST_TYPES:
            self._receive_request(packet, at, peer, sdi, code, entropy, marked)
        elif kind == _RUDI:
            self._receive_rudi(packet, at, peer, sdi, code, entropy, marked)
        elif kind in ACK_TYPES:
            self._receive_ack(packet, at, peer, sdi, entropy, marked)

    def _receive_rudi(
        self,
        packet: memoryview,
        at: int,
        peer: Peer,
        sdi: int | None,
        code: NackCode,
        entropy: int,
        marked: bool,
    ) -> None:
        if len(packet) < at + _RUDI_REQUEST.size:
            self._counts["rx_drop_truncated"] += 1
            return
        word, _, packet_id = _RUDI_REQUEST.unpack_from(packet, at)
        self._refuse_rudi(peer, sdi, code, packet_id, word, entropy, marked)

    def _receive_request(
        self,
        packet: memoryview,
        at: int,
        peer: Peer,
        sdi: int | None,
        code: NackCode,
        entropy: int,
        marked: bool,
    ) -> None:
        if len(packet) < at + _REQUEST.size:
            self._counts["rx_drop_truncated"] += 1
            return
        word, _, psn, spdcid, dpdcid = _REQUEST.unpack_from(packet, at)
        pdc: Pdc | None
        if word & _SYN:
            pdc = self._table.find_target(peer.key, spdcid)
            if pdc is None:
                if not self._compatibility.silent_trimmed_syn:
                    self._refuse(peer, sdi, code, psn, spdcid, word, entropy, marked)
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
            self._credits.on_trimmed(pdc, state, entropy)
        pdc.nack(code, psn, word & _RETX, entropy, marked)

    def _receive_ack(
        self,
        packet: memoryview,
        at: int,
        peer: Peer,
        sdi: int | None,
        entropy: int,
        marked: bool,
    ) -> None:
        """An ACK that carried data: since UES 1.0.3 the timer of its request repairs that."""
        if not self._compatibility.trimmed_ack_nack or len(packet) < at + _ACK.size:
            return
        word, offset, cack, spdcid, dpdcid = _ACK.unpack_from(packet, at)
        pdc = self._table.by_id.get(dpdcid)
        if (
            pdc is not None
            and pdc.peer is peer
            and pdc.peer_id == spdcid
            and pdc.sdi == sdi
            and not word & AckFlag.P
        ):
            psn = (cack + offset) & MASK
            pdc.nack(NackCode.TRIMMED_ACK, psn, word & AckFlag.RETX, entropy, marked)
