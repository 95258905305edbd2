"""Packets of PDCs (UES Tables 3-33 to 3-40).

In order: control packets, NACKs, the features of NEGOTIATION, and the writer of one end of a PDC,
which puts together once whatever stays the same.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter

from uet.compatibility import Compatibility
from uet.congestion.spraying.paths import PathSelection
from uet.pds.semantics import Outbound
from uet.pds.window import MASK, distance
from uet.peer import Peer, traffic_class
from uet.transport import Frame
from uet.wire import headers
from uet.wire.codes import (
    BYTE_COUNT_UNIT,
    PSN_OFFSET_BITS,
    SERVICE_TIME_INVALID,
    USE_RSV_PDC,
    AckFlag,
    ControlType,
    NextHeader,
    PacketType,
    RequestFlag,
)

if TYPE_CHECKING:
    from uet.pds.destination import RequestDestination
    from uet.pds.pdc import Endpoint, PdcIdentity

#: psn_offset of SYN packets has 12 bits: as many may leave before the first answer.
MAX_PSN_OFFSET: Final = 4_095
#: Control packets that may open a PDC (UES 3.5.16).
OPENING: Final = frozenset({ControlType.NOOP, ControlType.NEGOTIATION})
_FEATURES: Final = Struct(">BBHI")
FEATURES_OCTETS: Final = _FEATURES.size
_TYPE_FEATURES: Final = 1
_WORDS: Final = FEATURES_OCTETS // 4
#: A packet first sent with SYN may be sent again without, once the target is known (SYN_RETX_
#: TRANSFER; its meaning is read from its name).
SYN_RETX_TRANSFER: Final = 1
_REQUEST: Final = headers.RUD_REQ
_ACK: Final = headers.ACK
_ACK_CC: Final = headers.ACK_CC_NSCC
_ACK_CCX: Final = headers.ACK_CCX
_pack_ack: Final = _ACK.pack
_pack_ack_cc: Final = _ACK_CC.pack
_NEXT_HEADER_SHIFT: Final = _REQUEST.shift("next_hdr")
#: restore_cwnd and rcv_cwnd_pend stand above the 24 bits of rcvd_bytes.
_RESTORE: Final = 1 << 31
_PENALTY_SHIFT: Final = 24
_pack_credit: Final = Struct(">I").pack  # UET_REQ_CC_STATE as one word
#: From the type of a request to that with congestion control state, unordered and ordered.
_WITH_CREDIT: Final = tuple(
    (with_state - plain) << _REQUEST.shift("type")
    for plain, with_state in (
        (PacketType.RUD_REQ, PacketType.RUD_CC_REQ),
        (PacketType.ROD_REQ, PacketType.ROD_CC_REQ),
    )
)
#: First word of an ACK without flags and without SES header, by the name of its type.
_ACK_WORDS: Final = {
    "ack": _ACK.word(type=PacketType.ACK, next_hdr=NextHeader.NONE),
    "ack_cc": _ACK_CC.word(type=PacketType.ACK_CC, next_hdr=NextHeader.NONE),
    "ack_ccx": _ACK_CCX.word(type=PacketType.ACK_CCX, next_hdr=NextHeader.NONE),
}
# Plain numbers: arithmetic on enum members is slow, and this is the data path.
_RETX: Final = int(RequestFlag.RETX)
_AR: Final = int(RequestFlag.AR)
_SYN: Final = int(RequestFlag.SYN)
_ACK_M: Final = int(AckFlag.M)
_ACK_RETX: Final = int(AckFlag.RETX)
_ACK_P: Final = int(AckFlag.P)
_ACK_REQ_CLEAR: Final = int(AckFlag.REQ_CLEAR)
_ACK_REQ_CLOSE: Final = int(AckFlag.REQ_CLOSE)
#: Flag of the UEC reference provider: the Expected_PSN follows the ACK's twelve octets.
_ACK_EPSN: Final = 0x40


def control_packet(  # noqa: PLR0913  fields of a header
    kind: ControlType,
    *,
    psn: int,
    spdcid: int,
    peer_id: int,
    start_psn: int,
    ordered: bool = False,
    ar: bool = False,
    retx: bool = False,
    payload: int = 0,
    opaque: int = 0,
) -> bytes:
    """A control packet; while ``peer_id`` is 0, that is unknown, one with SYN (UES Table 3-33).

    ``ordered`` sets the kind of PDC in packets that may open one.
    """
    header = headers.CP if peer_id else headers.CP_SYN
    offset = (psn - start_psn) & MASK & MAX_PSN_OFFSET
    return header.encode(
        ctl_type=kind,
        isrod=int(ordered and kind in OPENING),
        ar=int(ar),
        retx=int(retx),
        probe_opaque=opaque,
        psn=psn,
        spdcid=spdcid,
        payload_word=payload,
        **({"dpdcid": peer_id} if peer_id else {"psn_offset": offset}),
    )


def nack_packet(
    code: int,
    psn: int,
    spdcid: int,
    dpdcid: int,
    *,
    resent: bool,
    marked: bool,
    payload: int = 0,
) -> bytes:
    """A NACK of a RUD or ROD packet; ``spdcid`` 0 where there is no PDC."""
    return headers.NACK.encode(
        m=int(marked),
        retx=int(resent),
        nack_code=code,
        nack_psn=psn,
        spdcid=spdcid,
        dpdcid=dpdcid,
        payload_word=payload,
    )


def supported(compatibility: Compatibility) -> int:
    """The features of an endpoint."""
    return 0 if compatibility.keep_syn_on_retransmission else SYN_RETX_TRANSFER


def feature_request(compatibility: Compatibility) -> bytes:
    """The payload of a NEGOTIATION: eight octets behind the header (UES 1.0.3, 3.5.16.7).

    Type 1, length in 32-bit words, 16 reserved bits and a mask of features.  A target answers with
    those of them that it has too.
    """
    return _FEATURES.pack(_TYPE_FEATURES, _WORDS, 0, supported(compatibility))


def agreed_features(octets: bytes, compatibility: Compatibility) -> int | None:
    """Return what both ends have, or ``None`` for a payload that is not understood."""
    if len(octets) < FEATURES_OCTETS:
        return None
    kind, words, _, mask = _FEATURES.unpack_from(octets)
    if kind != _TYPE_FEATURES or words != _WORDS:
        return None
    return int(mask & supported(compatibility))


def _put(octets: BytesWriter, number: int) -> None:
    """Add a field of 16 bits, without the call and the numbers in memory of a struct."""
    octets.append(number >> 8)
    octets.append(number & 0xFF)


class PacketWriter:
    """Writes the requests, ACKs, NACKs and control packets of one end of a PDC."""

    __slots__ = (
        "_ack_type",
        "_ack_word",
        "_compatibility",
        "_control_class",
        "_counts",
        "_data_class",
        "_echo",
        "_entropy",
        "_mpr",
        "_ordered",
        "_outbox",
        "_pdc_info",
        "_penalised",
        "_pressure",
        "_request_word",
        "_trimmable_ack_size",
        "_wrap",
        "asked_on",
        "asks_to_close",
        "id",
        "nominal_overhead",
        "peer_id",
        "start_psn",
    )

    def __init__(
        self, endpoint: Endpoint, identity: PdcIdentity, peer: Peer, entropy: PathSelection
    ) -> None:
        config = endpoint.config
        self.id = identity.local_id
        self.peer_id = identity.peer_id  # 0 until it is known
        self.start_psn = identity.start_psn
        #: ``nominal_overhead``: what a packet's nominal size has beyond its UET octets (UES 3.6.12)
        self._wrap, self.nominal_overhead = peer.way(identity.sdi)
        #: the EV of the last control packet that was no answer
        self.asked_on = 0
        #: set REQ_CLOSE in every ACK
        self.asks_to_close = False
        self._compatibility: Compatibility = config.compatibility
        self._echo = not config.compatibility.ack_without_echo
        self._ordered = identity.ordered
        kind = PacketType.ROD_REQ if identity.ordered else PacketType.RUD_REQ
        self._request_word = _REQUEST.word(type=kind, next_hdr=NextHeader.NONE)
        self._ack_type = config.ack_type
        self._ack_word = _ACK_WORDS[config.ack_type]
        self._data_class = traffic_class(config.dscp_data, ecn_capable=config.ecn_capable)
        self._control_class = traffic_class(config.dscp_control, ecn_capable=False)
        self._trimmable_ack_size = config.trimmable_ack_size
        self._mpr = config.mpr
        self._pdc_info = (USE_RSV_PDC if identity.reserved else 0) << PSN_OFFSET_BITS
        self._entropy = entropy
        # Only unexpected messages are kept in memory of ours.
        self._pressure = endpoint.pressure if config.unexpected == "keep" else None
        self._penalised = False
        self._outbox = endpoint.control
        self._counts = endpoint.counts

    def repath(self) -> None:
        """The present one may be broken."""
        self._entropy.timed_out()

    # -- requests ------------------------------------------------------------------------------

    def request(  # noqa: PLR0913  fields of a header
        self,
        psn: int,
        message: Outbound,
        index: int,
        clear_offset: int,
        syn: bool,
        again: bool,
        ar: bool,
        ev: int,
        credit: int | None,
    ) -> tuple[Frame, int]:
        """Packet ``index`` of a message, and its nominal size; CLEAR_PSN rides in every request.

        ``clear_offset`` is CLEAR_PSN relative to ``psn``, never positive; ``credit`` is the
        ccc_id and credit_target of a context that needs credit.
        """
        word = self._request_word | message.next_header << _NEXT_HEADER_SHIFT
        if ar:
            word |= _AR
        if again:
            word |= _RETX
        if syn:
            word |= _SYN
            target = self._pdc_info | ((psn - self.start_psn) & MAX_PSN_OFFSET)
        else:
            target = self.peer_id
        ses, payload = message.packet(index)
        if credit is not None:
            word += _WITH_CREDIT[self._ordered]
        uet_headers = BytesWriter()
        _put(uet_headers, word)
        _put(uet_headers, clear_offset & 0xFFFF)
        _put(uet_headers, psn >> 16)
        _put(uet_headers, psn & 0xFFFF)
        _put(uet_headers, self.id)
        _put(uet_headers, target)
        if credit is not None:
            uet_headers.write(_pack_credit(credit))
        uet_headers.write(ses)
        uet = uet_headers.getvalue()
        size = len(uet) + len(payload) + self.nominal_overhead
        return self._wrap(self._data_class, ev, uet, payload), size

    # -- answers -------------------------------------------------------------------------------

    def ack(
        self,
        psn: int,
        destination: RequestDestination,
        answer: bytes,
        next_header: int,
        resent: int,
        entropy: int,
        marked: bool,
        cack: int | None = None,
    ) -> None:
        """An ACK that ``psn`` has caused, with the SES response ``answer`` to it, if any."""
        window = destination.window
        if cack is None:
            cack = (window.base - 1) & MASK
        word = self._ack_word | next_header << _NEXT_HEADER_SHIFT
        if marked and self._echo:
            word |= _ACK_M
        if resent and self._echo:
            word |= _ACK_RETX
        if destination.stored and psn in destination.stored:
            word |= _ACK_REQ_CLEAR
        elif self.asks_to_close:
            word |= _ACK_REQ_CLOSE
        offset = ((psn - cack + 0x8000) & MASK) - 0x8000
        self._acknowledge(word, offset, cack, destination, None, answer, entropy)

    def probe_ack(
        self, opaque: int, sack_base: int, destination: RequestDestination, *, marked: bool, ev: int
    ) -> None:
        """The answer to a PROBE: the state of the window, and no PSN (UES 3.6.13.7)."""
        word = self._ack_word | _ACK_P | (_ACK_M if marked else 0)
        signed = ((opaque + 0x8000) & 0xFFFF) - 0x8000
        cack = destination.window.cack
        if not -0x8000 <= distance(sack_base, cack) < 0x8000:
            sack_base = cack  # no ACK could express the one that was requested
        self._acknowledge(word, signed, cack, destination, sack_base, b"", ev)

    def _acknowledge(
        self,
        word: int,
        offset: int,
        cack: int,
        destination: RequestDestination,
        sack_base: int | None,
        answer: bytes,
        entropy: int,
    ) -> None:
        if self._ack_type == "ack":
            destination.acknowledged()
            packet = _pack_ack(word, offset, cack, self.id, self.peer_id)
        else:
            base, bitmap = destination.sack(sack_base)
            sack_offset = ((base - cack + 0x8000) & MASK) - 0x8000
            if self._ack_type == "ack_cc":
                octets = -(-destination.received_octets // BYTE_COUNT_UNIT) & 0xFF_FFFF
                if self._pressure is not None:
                    octets |= self._congestion_flags(self._pressure())
                packet = _pack_ack_cc(
                    word,
                    offset,
                    cack,
                    self.id,
                    self.peer_id,
                    self._mpr,  # cc_type NSCC and no flags above it
                    sack_offset,
                    bitmap,
                    SERVICE_TIME_INVALID,  # answered in the same instant, nothing to take off
                    octets,
                    min(destination.window.out_of_order, 0xFFFE),
                )
            else:
                packet = _ACK_CCX.pack(
                    word, offset, cack, self.id, self.peer_id, self._mpr, sack_offset, bitmap, 0, 0
                )
        self._counts["tx_acks"] += 1
        big = len(answer) > self._trimmable_ack_size
        self._outbox.append(
            self._wrap(
                self._data_class if big else self._control_class, entropy, packet + answer, b""
            )
        )

    def _congestion_flags(self, penalty: int) -> int:
        """Return rcv_cwnd_pend; once it was above 0, restore_cwnd reports its end."""
        if penalty:
            self._penalised = True
            return penalty << _PENALTY_SHIFT
        return _RESTORE if self._penalised else 0

    def closing_ack(
        self,
        psn: int,
        destination: RequestDestination,
        *,
        expected_psn: int | None,
        resent: int,
        entropy: int,
        marked: bool,
    ) -> None:
        """The ACK of a CLOSE (UES Table 3-43); ``expected_psn`` for the next secured PDC."""
        excluding = self._compatibility.close_ack_excludes_close
        cack = (psn - 1) & MASK if excluding else None
        if expected_psn is None or not self._compatibility.epsn_in_close_ack:
            self.ack(psn, destination, b"", 0, resent, entropy, marked, cack)
            return
        base = destination.window.cack if cack is None else cack
        word = _ACK_WORDS["ack"] | _ACK_EPSN
        packet = _pack_ack(
            word, ((psn - base + 0x8000) & MASK) - 0x8000, base, self.id, self.peer_id
        )
        self._counts["tx_acks"] += 1
        self._outbox.append(
            self._wrap(self._control_class, entropy, packet + expected_psn.to_bytes(4, "big"), b"")
        )

    def nack(
        self, code: int, psn: int, resent: int, entropy: int, marked: bool, payload: int = 0
    ) -> None:
        """Refuse a packet; a NACK echoes RETX, CE and the entropy of what it refuses."""
        self._counts["tx_nacks"] += 1
        packet = nack_packet(
            code,
            psn,
            self.id,
            self.peer_id,
            resent=bool(resent),
            marked=marked,
            payload=payload,
        )
        self._outbox.append(self._wrap(self._control_class, entropy, packet, b""))

    # -- control packets -----------------------------------------------------------------------

    def control(  # noqa: PLR0913  fields of a header
        self,
        kind: ControlType,
        *,
        psn: int,
        ar: bool = False,
        retx: bool = False,
        payload: int = 0,
        opaque: int = 0,
        syn: bool | None = None,
        more: bytes = b"",
        ev: int | None = None,
        with_data: bool = False,
    ) -> Frame:
        """A control packet; while the peer's identifier is not known, one with SYN.

        ``ev`` is that of the packet which it answers, if it answers one.  ``with_data``: it waits
        in the queues of data.
        """
        self._counts["tx_control_packets"] += 1
        if kind is ControlType.ACK_REQ and self._compatibility.ack_req_without_ar:
            ar = False
        packet = control_packet(
            kind,
            psn=psn,
            spdcid=self.id,
            peer_id=0 if syn else self.peer_id,
            start_psn=self.start_psn,
            ordered=self._ordered,
            ar=ar,
            retx=retx,
            payload=payload,
            opaque=opaque,
        )
        if ev is None:
            ev = self.asked_on = self._entropy.pick()
        tos = self._data_class if with_data else self._control_class
        return self._wrap(tos, ev, packet + more, b"")
