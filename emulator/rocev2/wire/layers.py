"""Scapy layers of RoCEv2: those that scapy lacks, bound to the BTH that it has.

``BTH`` (with its ICRC), ``AETH`` and the 16 octets of a CNP are scapy's own
(:mod:`scapy.contrib.roce`).  A packet is built as::

    IP() / UDP(sport=0xC123, chksum=0) / BTH(opcode=0x0A, ...) / RETH(...) / payload

Which extension headers follow is decided by the opcode alone, for building by the caller and for
dissecting by :data:`~emulator.rocev2.wire.codes.EXTENSIONS`.  Scapy leaves PadCnt and the
pad octets to the caller, and checks no ICRC; :mod:`emulator.rocev2.wire.packets` does.
"""

from __future__ import annotations

from scapy.contrib.roce import AETH as _AETH
from scapy.contrib.roce import BTH, CNPPadding
from scapy.fields import BitField, XBitField, XIntField, XLongField
from scapy.packet import Packet, Raw, bind_layers, split_layers

from emulator.rocev2.wire.codes import (
    CNP_OPCODE,
    EXTENSIONS,
    BthOperation,
    Extension,
    Service,
)

__all__ = [
    "AETH",
    "BTH",
    "DETH",
    "IETH",
    "RETH",
    "AtomicAckETH",
    "AtomicETH",
    "CNPPadding",
    "ImmDt",
]


class _ExtensionHeader(Packet):
    """A header behind a BTH, whose opcode selects it."""

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        below = self.underlayer
        passed = 1
        while below is not None and not isinstance(below, BTH):
            below = below.underlayer
            passed += 1
        expected = EXTENSIONS.get(below.opcode, ()) if below is not None else ()
        return LAYERS[expected[passed]] if passed < len(expected) else Raw


class RETH(_ExtensionHeader):
    """RDMA extended transport header (IBA 9.3.3)."""

    name = "RETH"
    fields_desc = [XLongField("va", 0), XIntField("rkey", 0), XIntField("dmalen", 0)]


class AETH(_ExtensionHeader, _AETH):
    """ACK extended transport header (IBA 9.3.5), as scapy's, with what may follow it."""

    name = "AETH"
    fields_desc = _AETH.fields_desc


class AtomicETH(_ExtensionHeader):
    """Atomic extended transport header (IBA 9.3.4)."""

    name = "AtomicETH"
    fields_desc = [
        XLongField("va", 0),
        XIntField("rkey", 0),
        XLongField("swap_or_add", 0),
        XLongField("compare", 0),
    ]


class AtomicAckETH(_ExtensionHeader):
    """Atomic ACK extended transport header (IBA 9.3.6)."""

    name = "AtomicAckETH"
    fields_desc = [XLongField("origremdt", 0)]


class ImmDt(_ExtensionHeader):
    """Immediate data (IBA 9.3.7)."""

    name = "ImmDt"
    fields_desc = [XIntField("immediate", 0)]


class IETH(_ExtensionHeader):
    """Invalidate extended transport header (IBA 9.3.8)."""

    name = "IETH"
    fields_desc = [XIntField("rkey", 0)]


class DETH(_ExtensionHeader):
    """Datagram extended transport header (IBA 9.3.2)."""

    name = "DETH"
    fields_desc = [XIntField("qkey", 0), BitField("rsvd", 0, 8), XBitField("srcqp", 0, 24)]


LAYERS: dict[Extension, type[Packet]] = {
    Extension.DETH: DETH,
    Extension.RETH: RETH,
    Extension.ATOMIC_ETH: AtomicETH,
    Extension.AETH: AETH,
    Extension.ATOMIC_ACK_ETH: AtomicAckETH,
    Extension.IMM_DT: ImmDt,
    Extension.IETH: IETH,
    Extension.CNP_PADDING: CNPPadding,
}

split_layers(BTH, _AETH, opcode=Service.RC | BthOperation.ACKNOWLEDGE)
for _opcode, _headers in EXTENSIONS.items():
    if _headers and _opcode != CNP_OPCODE:  # scapy recognises a CNP
        bind_layers(BTH, LAYERS[_headers[0]], opcode=int(_opcode))
