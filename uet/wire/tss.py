# scapy.contrib.description = Ultra Ethernet Transport (UET): transport security sublayer
# scapy.contrib.status = loads

"""Transport security sublayer (TSS) of Ultra Ethernet Transport, UES 3.7.

The header is in clear; what follows it (PDS, SES, payload) is encrypted, up to the 16 octets of
authentication tag that end the packet.  Without keys both stay opaque.
"""

from __future__ import annotations

from scapy.fields import (
    BitEnumField,
    BitField,
    ConditionalField,
    ShortField,
    XBitField,
    XIntField,
    XStrFixedLenField,
)
from scapy.packet import Packet, Raw

from uet.wire.codes import ICV_SIZE, PacketType
from uet.wire.encapsulation import UETLayer, bind_type, is_trimmed


class UET_TSS(UETLayer):
    """Security header, 12 octets, or 16 with a source identifier (UES Table 3-90, 3.7.11)."""

    name = "UET TSS"
    uet_name = "tss"
    fields_desc = [
        BitEnumField("type", PacketType.TSS, 5, PacketType),
        BitField("sp", 0, 1),
        BitField("rsvd", 0, 1),
        BitField("an", 0, 1),
        XBitField("sdi", 0, 24),
        ConditionalField(XIntField("ssi", 0), lambda pkt: pkt.sp),
        ShortField("epoch", 0),
        XBitField("counter", 0, 48),
    ]

    def do_dissect_payload(self, s: bytes) -> None:
        if len(s) < ICV_SIZE or is_trimmed(self):
            super().do_dissect_payload(s)
            return
        super().do_dissect_payload(s[:-ICV_SIZE])
        self.lastlayer().add_payload(UET_ICV(s[-ICV_SIZE:]))

    def following(self, payload: bytes) -> type[Packet]:
        return UET_CIPHERTEXT


class UET_CIPHERTEXT(Raw):
    """Encrypted PDS, SES and payload."""

    name = "UET ciphertext"


class UET_ICV(Packet):
    """Authentication tag that ends a secured packet."""

    name = "UET ICV"
    fields_desc = [XStrFixedLenField("icv", bytes(ICV_SIZE), ICV_SIZE)]


bind_type(UET_TSS, PacketType.TSS)
