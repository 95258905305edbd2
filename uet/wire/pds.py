# scapy.contrib.description = Ultra Ethernet Transport (UET): packet delivery sublayer
# scapy.contrib.status = loads

"""Packet delivery sublayer (PDS) of Ultra Ethernet Transport, UES 3.5.

``fields_desc`` is the only place where these layouts are written: the fast codec and the
Wireshark dissector are generated from it.  Reserved bits are fields too (their names begin with
``rsvd``), so that whatever was dissected is built again bit for bit.

>>> Ether() / IP(tos=184) / UDP(sport=7) / UET_ACK(m=1, cack_psn=99) / UET_SES_RESPONSE()
"""

from __future__ import annotations

from scapy.fields import (
    BitEnumField,
    BitField,
    ByteEnumField,
    ByteField,
    ConditionalField,
    IntField,
    ShortField,
    SignedShortField,
    X3BytesField,
    XIntField,
    XLongField,
    XShortField,
)
from scapy.packet import Packet, bind_layers

from uet.wire.codes import AckRequest, CcType, ControlType, NackCode, NextHeader, PacketType
from uet.wire.encapsulation import UETFirst, UETLayer, bind_type


class NextHeaderField(BitEnumField):
    """``next_hdr``: when left open it follows from the SES header that is stacked on top."""

    #: SES header class -> number, filled by :func:`bind_next_header`.
    numbers: dict[type[Packet], int] = {}

    def __init__(self) -> None:
        super().__init__("next_hdr", None, 4, NextHeader)

    def i2m(self, pkt: Packet | None, x: int | None) -> int:
        if x is not None:
            return x
        payload = pkt.payload if pkt is not None else None
        if isinstance(payload, UET_REQ_CC_STATE):
            payload = payload.payload
        return self.numbers.get(type(payload), NextHeader.NONE)


def bind_next_header(header: type[Packet], number: int) -> None:
    """Announce the SES ``header`` that ``next_hdr`` value ``number`` stands for."""
    NextHeaderField.numbers[header] = number
    for lower in (UET_RUD_REQ, UET_ROD_REQ, UET_RUDI_REQ, UET_RUDI_RESP, UET_UUD_REQ):
        bind_layers(lower, header, next_hdr=number)
    for lower in (UET_ACK, UET_ACK_CC, UET_ACK_CCX):
        bind_layers(lower, header, next_hdr=number)


def _syn_overlay() -> list[ConditionalField]:
    """The target's PDC identifier, or with SYN how to make the PDC (UES Table 3-33)."""
    return [
        ConditionalField(ShortField("dpdcid", 0), lambda pkt: not pkt.syn),
        ConditionalField(BitField("pdc_info", 0, 4), lambda pkt: pkt.syn),
        ConditionalField(BitField("psn_offset", 0, 12), lambda pkt: pkt.syn),
    ]


def _request(packet_type: PacketType) -> list[BitField]:
    return [
        BitEnumField("type", packet_type, 5, PacketType),
        NextHeaderField(),
        BitField("rsvd_flags_hi", 0, 2),
        BitField("retx", 0, 1),
        BitField("ar", 0, 1),
        BitField("syn", 0, 1),
        BitField("rsvd_flags_lo", 0, 2),
        SignedShortField("clear_psn_offset", 0),
        IntField("psn", 0),
        ShortField("spdcid", 0),
        *_syn_overlay(),
    ]


class UET_RUD_REQ(UETFirst):
    """Reliable unordered request (UES Table 3-33); type 13 adds :class:`UET_REQ_CC_STATE`."""

    name = "UET RUD request"
    uet_name = "pds.rud_req"
    fields_desc = _request(PacketType.RUD_REQ)


class UET_ROD_REQ(UETFirst):
    """Reliable ordered request (UES Table 3-33); type 14 adds :class:`UET_REQ_CC_STATE`."""

    name = "UET ROD request"
    uet_name = "pds.rod_req"
    fields_desc = _request(PacketType.ROD_REQ)


class UET_REQ_CC_STATE(UETLayer):
    """Congestion-control state of RUD_CC_REQ and ROD_CC_REQ (UES Table 3-34)."""

    name = "UET request CC state"
    uet_name = "pds.req_cc_state"
    fields_desc = [ByteField("ccc_id", 0), X3BytesField("credit_target", 0)]

    def following(self, payload: bytes) -> type[Packet]:
        if isinstance(self.underlayer, (UET_RUD_REQ, UET_ROD_REQ)):
            number = self.underlayer.next_hdr
            for header, bound in NextHeaderField.numbers.items():
                if bound == number:
                    return header
        return super().following(payload)


def _ack(packet_type: PacketType) -> list[BitField]:
    return [
        BitEnumField("type", packet_type, 5, PacketType),
        NextHeaderField(),
        BitField("rsvd_flags_hi", 0, 1),
        BitField("m", 0, 1),
        BitField("retx", 0, 1),
        BitField("p", 0, 1),
        BitEnumField("req", 0, 2, AckRequest),
        BitField("rsvd_flags_lo", 0, 1),
        ConditionalField(SignedShortField("ack_psn_offset", 0), lambda pkt: not pkt.p),
        ConditionalField(XShortField("probe_opaque", 0), lambda pkt: pkt.p),
        IntField("cack_psn", 0),
        ShortField("spdcid", 0),
        ShortField("dpdcid", 0),
    ]


def _sack(type_field: BitField) -> list[BitField]:
    return [
        type_field,
        BitField("cc_flags", 0, 4),
        ByteField("mpr", 0),
        SignedShortField("sack_psn_offset", 0),
        XLongField("sack_bitmap", 0),
    ]


class UET_ACK(UETFirst):
    """Acknowledgment (UES Table 3-35)."""

    name = "UET ACK"
    uet_name = "pds.ack"
    fields_desc = _ack(PacketType.ACK)


class UET_ACK_CC(UETFirst):
    """Acknowledgment with SACK and congestion-control state (UES Tables 3-36, 3-74, 3-75)."""

    name = "UET ACK_CC"
    uet_name = "pds.ack_cc"
    uet_labels = {
        field: f"cc.{field}"
        for field in (
            "service_time",
            "restore_cwnd",
            "rcv_cwnd_pend",
            "rcvd_bytes",
            "credit",
            "ooo_count",
            "state",
        )
    }
    fields_desc = [
        *_ack(PacketType.ACK_CC),
        *_sack(BitEnumField("cc_type", CcType.NSCC, 4, CcType)),
        ConditionalField(ShortField("service_time", 0), lambda pkt: pkt.cc_type == CcType.NSCC),
        ConditionalField(BitField("restore_cwnd", 0, 1), lambda pkt: pkt.cc_type == CcType.NSCC),
        ConditionalField(BitField("rcv_cwnd_pend", 0, 7), lambda pkt: pkt.cc_type == CcType.NSCC),
        ConditionalField(BitField("rcvd_bytes", 0, 24), lambda pkt: pkt.cc_type == CcType.NSCC),
        ConditionalField(BitField("credit", 0, 24), lambda pkt: pkt.cc_type == CcType.CREDIT),
        ConditionalField(BitField("rsvd_credit", 0, 24), lambda pkt: pkt.cc_type == CcType.CREDIT),
        ConditionalField(ShortField("ooo_count", 0), lambda pkt: pkt.cc_type <= CcType.CREDIT),
        ConditionalField(XLongField("state", 0), lambda pkt: pkt.cc_type > CcType.CREDIT),
    ]


class UET_ACK_CCX(UETFirst):
    """Acknowledgment with SACK and extended, opaque CC state (UES Table 3-37)."""

    name = "UET ACK_CCX"
    uet_name = "pds.ack_ccx"
    uet_labels = {"ccx_state_hi": "ccx_state.hi", "ccx_state_lo": "ccx_state.lo"}
    fields_desc = [
        *_ack(PacketType.ACK_CCX),
        *_sack(BitField("ccx_type", 0, 4)),
        XLongField("ccx_state_hi", 0),
        XLongField("ccx_state_lo", 0),
    ]


class UET_EXPECTED_PSN(UETLayer):
    """The header behind an ACK with flag 0x40, which UES reserves (UEC reference provider)."""

    name = "UET expected PSN"
    uet_name = "pds.expected_psn"
    fields_desc = [IntField("expected_psn", 0)]


def _nack(packet_type: PacketType) -> list[BitField]:
    return [
        BitEnumField("type", packet_type, 5, PacketType),
        BitEnumField("next_hdr", 0, 4, NextHeader),
        BitField("rsvd_flags_hi", 0, 1),
        BitField("m", 0, 1),
        BitField("retx", 0, 1),
        BitField("nt", 0, 1),
        BitField("rsvd_flags_lo", 0, 3),
        ByteEnumField("nack_code", 0, NackCode),
        ByteField("vendor_code", 0),
        ConditionalField(IntField("nack_psn", 0), lambda pkt: not pkt.nt),
        ConditionalField(XIntField("nack_pkt_id", 0), lambda pkt: pkt.nt),
        ShortField("spdcid", 0),
        ShortField("dpdcid", 0),
        IntField("payload_word", 0),
    ]


class UET_NACK(UETFirst):
    """Refusal of one packet (UES Table 3-40)."""

    name = "UET NACK"
    uet_name = "pds.nack"
    uet_labels = {"payload_word": "payload"}
    fields_desc = _nack(PacketType.NACK)


class UET_NACK_CCX(UETFirst):
    """Refusal with extended, opaque CC state (UES Table 3-41)."""

    name = "UET NACK_CCX"
    uet_name = "pds.nack_ccx"
    uet_labels = {"payload_word": "payload"}
    fields_desc = [
        *_nack(PacketType.NACK_CCX),
        BitField("nccx_type", 0, 4),
        BitField("nack_ccx_state1", 0, 60),
        XLongField("nack_ccx_state2", 0),
    ]


class UET_CP(UETFirst):
    """Control packet (UES Tables 3-38, 3-66).  A NEGOTIATION may be longer than these octets."""

    name = "UET control packet"
    uet_name = "pds.cp"
    uet_labels = {"payload_word": "payload"}
    fields_desc = [
        BitEnumField("type", PacketType.CP, 5, PacketType),
        BitEnumField("ctl_type", ControlType.NOOP, 4, ControlType),
        BitField("rsvd_flags_hi", 0, 1),
        BitField("isrod", 0, 1),
        BitField("retx", 0, 1),
        BitField("ar", 0, 1),
        BitField("syn", 0, 1),
        BitField("rsvd_flags_lo", 0, 2),
        XShortField("probe_opaque", 0),
        IntField("psn", 0),
        ShortField("spdcid", 0),
        *_syn_overlay(),
        IntField("payload_word", 0),
    ]


def _rudi(packet_type: PacketType) -> list[BitField]:
    return [
        BitEnumField("type", packet_type, 5, PacketType),
        NextHeaderField(),
        BitField("rsvd_flags_hi", 0, 1),
        BitField("m", 0, 1),
        BitField("retx", 0, 1),
        BitField("rsvd_flags_lo", 0, 4),
        ShortField("rsvd", 0),
        XIntField("pkt_id", 0),
    ]


class UET_RUDI_REQ(UETFirst):
    """Request for an idempotent operation, without a PDC (UES Table 3-39)."""

    name = "UET RUDI request"
    uet_name = "pds.rudi_req"
    fields_desc = _rudi(PacketType.RUDI_REQ)


class UET_RUDI_RESP(UETFirst):
    """Response to a RUDI request (UES Table 3-39)."""

    name = "UET RUDI response"
    uet_name = "pds.rudi_resp"
    fields_desc = _rudi(PacketType.RUDI_RESP)


class UET_UUD_REQ(UETFirst):
    """Unreliable unordered datagram (UES Table 3-42)."""

    name = "UET UUD request"
    uet_name = "pds.uud_req"
    fields_desc = [
        BitEnumField("type", PacketType.UUD_REQ, 5, PacketType),
        NextHeaderField(),
        BitField("rsvd_flags", 0, 7),
        ShortField("rsvd", 0),
    ]


bind_type(UET_RUD_REQ, PacketType.RUD_REQ, PacketType.RUD_CC_REQ)
bind_type(UET_ROD_REQ, PacketType.ROD_REQ, PacketType.ROD_CC_REQ)
bind_type(UET_RUDI_REQ, PacketType.RUDI_REQ)
bind_type(UET_RUDI_RESP, PacketType.RUDI_RESP)
bind_type(UET_UUD_REQ, PacketType.UUD_REQ)
bind_type(UET_ACK, PacketType.ACK)
bind_type(UET_ACK_CC, PacketType.ACK_CC)
bind_type(UET_ACK_CCX, PacketType.ACK_CCX)
bind_type(UET_NACK, PacketType.NACK)
bind_type(UET_NACK_CCX, PacketType.NACK_CCX)
bind_type(UET_CP, PacketType.CP)
bind_layers(UET_RUD_REQ, UET_REQ_CC_STATE, type=PacketType.RUD_CC_REQ)
bind_layers(UET_ROD_REQ, UET_REQ_CC_STATE, type=PacketType.ROD_CC_REQ)
