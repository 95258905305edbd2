"""The transport service of a frame: UET by PDS type, RoCEv2 by class of opcodes, TCP, other."""

from __future__ import annotations

from collections.abc import Mapping

from emulator.rocev2.wire.codes import (
    CNP_OPCODE,
    SHAPES,
    SYNDROME_KIND,
    BthOperation,
    Service,
    Syndrome,
)
from emulator.rocev2.wire.codes import UDP_PORT as ROCEV2_PORT
from uet.wire.codes import UDP_PORT as UET_PORT
from uet.wire.codes import PacketType
from uet.wire.envelope import VXLAN_PORT, open_frame

_TCP, _UDP = 6, 17
_PLAIN = b"\x08\x00\x45"
_PORTS = {port.to_bytes(2): port for port in (UET_PORT, ROCEV2_PORT)}
#: A port and the first octet of RFC 7348, and where the frame inside begins.
_VXLAN, _VNI_VALID, _BEHIND_VXLAN = VXLAN_PORT.to_bytes(2), b"\x08", 50
CUT, OTHER = "cut before its service", "other"
#: UES Table 3-32; with the types that carry a state of congestion control.
_UET: Mapping[int, str] = {
    PacketType.TSS: "UET secured",
    PacketType.RUD_REQ: "UET RUD request",
    PacketType.RUD_CC_REQ: "UET RUD request",
    PacketType.ROD_REQ: "UET ROD request",
    PacketType.ROD_CC_REQ: "UET ROD request",
    PacketType.RUDI_REQ: "UET RUDI request",
    PacketType.RUDI_RESP: "UET RUDI response",
    PacketType.UUD_REQ: "UET UUD request",
    PacketType.ACK: "UET ACK",
    PacketType.ACK_CC: "UET ACK",
    PacketType.ACK_CCX: "UET ACK",
    PacketType.NACK: "UET NACK",
    PacketType.NACK_CCX: "UET NACK",
    PacketType.CP: "UET control",
}
_OPERATIONS: Mapping[int, str] = {
    **{int(one): "send" if shape.send else "write" for one, shape in SHAPES.items()},
    **{int(one): "read" for one in BthOperation if one.name.startswith("READ")},
    BthOperation.ATOMIC_ACKNOWLEDGE: "atomic",
    BthOperation.COMPARE_SWAP: "atomic",
    BthOperation.FETCH_ADD: "atomic",
}
#: By opcode; a syndrome tells whether an acknowledgement is a NAK.
_ROCEV2: Mapping[int, str] = {
    **{
        service | operation: f"RoCEv2 {service.name} {words}"
        for service in Service
        if service != Service.CNP
        for operation, words in _OPERATIONS.items()
    },
    CNP_OPCODE: "RoCEv2 CNP",
}
_ACKNOWLEDGE: Mapping[int, str] = {
    service | BthOperation.ACKNOWLEDGE: service.name for service in (Service.RC, Service.XRC)
}
#: Octets from the BTH to the syndrome of an AETH.
_SYNDROME_AT = 12


def transport_service(frame: bytes, wire_length: int) -> str:
    """Return the service of the innermost packet; ``wire_length`` is the frame's before a cut."""
    plain = frame[12:15] == _PLAIN and len(frame) >= 42 and not (frame[20] & 0x1F or frame[21])
    if plain and frame[23] == _TCP:
        return "TCP"
    port = _PORTS.get(frame[36:38]) if plain and frame[23] == _UDP else None
    if port is not None:
        return _of_uet(frame, 42) if port == UET_PORT else _of_rocev2(frame, 42)
    if plain and frame[23] == _UDP and frame[36:38] == _VXLAN and frame[42:43] == _VNI_VALID:
        return transport_service(frame[_BEHIND_VXLAN:], wire_length - _BEHIND_VXLAN)
    found = open_frame(frame, wire_length=wire_length)
    if found.uet is None and found.dport == ROCEV2_PORT:
        at = open_frame(frame, wire_length=wire_length, udp_port=ROCEV2_PORT).uet
        return CUT if at is None else _of_rocev2(frame, at)
    if found.uet is not None:
        return _of_uet(frame, found.uet)
    if found.protocol == _TCP:
        return "TCP"
    known = any(one.startswith("no UET") for one in found.errors)
    return OTHER if known or not found.cut else CUT


def _of_uet(frame: bytes, at: int) -> str:
    return _UET.get(frame[at] >> 3, "UET other") if len(frame) > at else CUT


def _of_rocev2(frame: bytes, at: int) -> str:
    if len(frame) <= at:
        return CUT
    opcode = frame[at]
    if opcode not in _ACKNOWLEDGE:
        return _ROCEV2.get(opcode, "RoCEv2 other")
    if len(frame) <= at + _SYNDROME_AT:
        return CUT
    kind = frame[at + _SYNDROME_AT] & SYNDROME_KIND
    return f"RoCEv2 {_ACKNOWLEDGE[opcode]} {'ACK' if kind == Syndrome.ACK else 'NAK'}"
