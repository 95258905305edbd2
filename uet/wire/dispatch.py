"""Dispatch of compiled headers: format by type, variant by the overlay's flag.

Octets that are not there count as zero, so that a truncated header has a layout too.
"""

from __future__ import annotations

from uet.wire import headers
from uet.wire.codec import Header
from uet.wire.codes import (
    ATOMIC_OPCODES,
    CSWAP_OPCODES,
    DEFERRABLE_OPCODES,
    RENDEZVOUS_OPCODES,
    AckFlag,
    CcType,
    NackFlag,
    NextHeader,
    Opcode,
    PacketType,
    ProviderOpcode,
    RequestFlag,
)

Octets = bytes | memoryview

#: type -> header without and with its overlay (SYN, probe, RUDI), and the flag that decides.
_PDS: dict[int, tuple[Header, Header, int]] = {
    PacketType.RUD_REQ: (headers.RUD_REQ, headers.RUD_REQ_SYN, RequestFlag.SYN),
    PacketType.RUD_CC_REQ: (headers.RUD_REQ, headers.RUD_REQ_SYN, RequestFlag.SYN),
    PacketType.ROD_REQ: (headers.ROD_REQ, headers.ROD_REQ_SYN, RequestFlag.SYN),
    PacketType.ROD_CC_REQ: (headers.ROD_REQ, headers.ROD_REQ_SYN, RequestFlag.SYN),
    PacketType.RUDI_REQ: (headers.RUDI_REQ, headers.RUDI_REQ, 0),
    PacketType.RUDI_RESP: (headers.RUDI_RESP, headers.RUDI_RESP, 0),
    PacketType.UUD_REQ: (headers.UUD_REQ, headers.UUD_REQ, 0),
    PacketType.ACK: (headers.ACK, headers.ACK_PROBE, AckFlag.P),
    PacketType.ACK_CCX: (headers.ACK_CCX, headers.ACK_CCX_PROBE, AckFlag.P),
    PacketType.NACK: (headers.NACK, headers.NACK_RUDI, NackFlag.NT),
    PacketType.NACK_CCX: (headers.NACK_CCX, headers.NACK_CCX_RUDI, NackFlag.NT),
    PacketType.CP: (headers.CP, headers.CP_SYN, RequestFlag.SYN),
}
_ACK_CC: dict[int, tuple[Header, Header]] = {
    CcType.NSCC: (headers.ACK_CC_NSCC, headers.ACK_CC_NSCC_PROBE),
    CcType.CREDIT: (headers.ACK_CC_CREDIT, headers.ACK_CC_CREDIT_PROBE),
}
_ACK_CC_OTHER = (headers.ACK_CC_OTHER, headers.ACK_CC_OTHER_PROBE)

#: SES responses by ``next_hdr`` (UES Table 3-16).
RESPONSES: dict[int, Header] = {
    NextHeader.RESPONSE: headers.SES_RESPONSE,
    NextHeader.RESPONSE_DATA: headers.SES_RESPONSE_DATA,
    NextHeader.RESPONSE_DATA_SMALL: headers.SES_RESPONSE_DATA_SMALL,
}
#: ACK flag with which the UEC reference provider announces :data:`headers.EXPECTED_PSN`.
EXPECTED_PSN_FLAG = 0x40
#: Packet types that have a PDS header.
KNOWN_TYPES = frozenset({*_PDS, PacketType.ACK_CC})


def pds_header(octets: Octets) -> Header:
    """The PDS header in front of ``octets``; their type must be one of :data:`KNOWN_TYPES`."""
    kind = octets[0] >> 3
    flags = octets[1] if len(octets) > 1 else 0
    if kind == PacketType.ACK_CC:
        cc_type = octets[12] >> 4 if len(octets) > 12 else 0
        return _ACK_CC.get(cc_type, _ACK_CC_OTHER)[bool(flags & AckFlag.P)]
    plain, overlay, flag = _PDS[kind]
    return overlay if flags & flag else plain


def request_header(next_header: int, octets: Octets) -> Header:
    """The SES request in front of ``octets`` (UES Tables 3-8 to 3-10, Figure 3-14)."""
    opcode = octets[0] & 0x3F if octets else 0
    flags = octets[1] if len(octets) > 1 else 0
    if next_header == NextHeader.REQUEST_SMALL:
        return headers.SES_SMALL
    if next_header == NextHeader.REQUEST_MEDIUM:
        return headers.SES_MEDIUM_HD if flags & 0x04 else headers.SES_MEDIUM
    som = flags & 0x01
    if opcode in DEFERRABLE_OPCODES:
        return headers.SES_DEFERRABLE_SOM if som else headers.SES_DEFERRABLE_NOSOM
    if opcode == Opcode.DEFERRABLE_RTR:
        return headers.SES_RTR_SOM if som else headers.SES_RTR_NOSOM
    return headers.SES_STD_SOM if som else headers.SES_STD_NOSOM


def extension_headers(
    opcode: int, octets: Octets, *, reference_provider: bool
) -> tuple[Header, ...]:
    """The headers between a request of ``opcode`` and its payload; ``octets`` begin with them.

    ``reference_provider``: also those of :class:`~uet.wire.codes.ProviderOpcode`.
    """
    if opcode in RENDEZVOUS_OPCODES:
        return (headers.SES_RENDEZVOUS,)
    if opcode in ATOMIC_OPCODES:
        return (_atomic(octets),)
    if not reference_provider:
        return ()
    if opcode == ProviderOpcode.SYNC_WRITE:
        return (headers.SES_SYNC,)
    if opcode == ProviderOpcode.SYNC_ATOMIC:
        return headers.SES_SYNC, _atomic(octets[headers.SES_SYNC.size :])
    return ()


def _atomic(octets: Octets) -> Header:
    cswap = bool(octets) and octets[0] in CSWAP_OPCODES
    return headers.SES_CSWAP if cswap else headers.SES_ATOMIC
