"""Which frames belong to the transport: one classic BPF program for socket and for ingress.

The kernel runs the same classifier in two places with different verdicts: as a socket filter it
lets transport frames (and nothing else) into the endpoint's ring, and on the port's ingress it
drops them after that tap so that the kernel's own stack never sees them.

On the cables of a lab with a virtual clock (:mod:`emulator.fabric.passage`) the classifier looks
into tunnels too.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

_INSTRUCTION = struct.Struct("=HBBI")  # struct sock_filter

# Opcodes of classic BPF (linux/bpf_common.h); all loads are at absolute frame offsets.
_LOAD_WORD, _LOAD_HALF, _LOAD_BYTE = 0x20, 0x28, 0x30
_LOAD_HALF_AFTER_X, _LOAD_BYTE_AFTER_X = 0x48, 0x50
_X_FROM_IHL = 0xB1
_AND, _SHIFT_LEFT, _SHIFT_RIGHT, _ADD, _ADD_X = 0x54, 0x64, 0x74, 0x04, 0x0C
_TO_X, _FROM_X, _STORE_X, _LOAD_X, _LOAD_LENGTH = 0x07, 0x87, 0x03, 0x61, 0x80
_JUMP_EQUAL, _JUMP_ANY_BIT, _JUMP_FROM, _JUMP_FROM_X = 0x15, 0x45, 0x35, 0x3D
_RETURN = 0x06

_PACKET_TYPE = 0xFFFF_F000 + 4  # SKF_AD_OFF + SKF_AD_PKTTYPE
_INTERFACE = 0xFFFF_F000 + 8  # SKF_AD_OFF + SKF_AD_IFINDEX
_PACKET_HOST = 0
_IPV4, _IPV6, _UDP, _IP_IN_IP = 0x0800, 0x86DD, 17, 4
_LATER_FRAGMENT = 0x1FFF  # has no ports
_ETHERNET, _IPV6_HEADER, _UDP_AND_VXLAN = 14, 40, 8 + 8
_SO_ATTACH_FILTER = 26

WHOLE_FRAME = 0x0004_0000  # as many octets as a frame may have


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportFrames:
    """Frames over IPv4 or IPv6 with one of these UDP destination ports or IP protocol numbers.

    Frames of one of the ``ethertypes`` belong to it as well, and those in a tunnel: VXLAN to the
    UDP port ``vxlan_port`` (RFC 7348), with ``ip_in_ip`` IPv4 in IPv4 (RFC 2003).
    The defaults are those of Ultra Ethernet (UES 3.5.4 over UDP, and native IP).
    """

    udp_ports: tuple[int, ...] = (4793,)
    ip_protocols: tuple[int, ...] = (253,)
    ethertypes: tuple[int, ...] = ()
    vxlan_port: int | None = None
    ip_in_ip: bool = False

    def program(
        self,
        *,
        matching: int,
        other: int,
        only_for_us: bool,
        interfaces: tuple[int, int] | None = None,
        whole: bool = False,
    ) -> list[bytes]:
        """Classic BPF instructions (``struct sock_filter``) returning ``matching`` or ``other``.

        ``only_for_us`` leaves out frames that a bridge flooded here for another MAC address.
        With ``interfaces``, (n, bits), only frames on interfaces whose index shifted right by so
        many bits is n match.  A frame that ends within its headers returns 0, unless ``whole`` says
        that these be looked for first: then ``other``.
        """
        code = _Assembler(whole)
        if only_for_us:
            code.add(_LOAD_WORD, _PACKET_TYPE)
            code.jump(_JUMP_EQUAL, _PACKET_HOST, "for-us", "other")
            code.label("for-us")
        if interfaces is not None:
            number, bits = interfaces
            code.add(_LOAD_WORD, _INTERFACE)
            code.add(_SHIFT_RIGHT, bits)
            code.jump(_JUMP_EQUAL, number, "ethertype", "other")
            code.label("ethertype")
        code.add(_LOAD_HALF, 12)
        code.one_of(self.ethertypes, "matching")
        code.jump(_JUMP_EQUAL, _IPV4, "ipv4", "maybe-ipv6")
        code.label("maybe-ipv6")
        code.jump(_JUMP_EQUAL, _IPV6, "ipv6", "other")
        code.label("ipv4")
        code.require(_ETHERNET + 20)
        code.add(_LOAD_HALF, 20)
        code.jump(_JUMP_ANY_BIT, _LATER_FRAGMENT, "other", "ipv4-whole")
        code.label("ipv4-whole")
        code.add(_LOAD_BYTE, 23)
        code.one_of(self.ip_protocols, "matching")
        if self.ip_in_ip:
            code.jump(_JUMP_EQUAL, _IP_IN_IP, "ip-in-ip", None)
        code.jump(_JUMP_EQUAL, _UDP, "ipv4-udp", "other")
        code.label("ipv4-udp")
        code.add(_X_FROM_IHL, 14)
        code.require_after_x(14 + 4)
        code.add(_LOAD_HALF_AFTER_X, 14 + 2)
        code.one_of(self.udp_ports, "matching")
        if self.vxlan_port is not None:
            code.jump(_JUMP_EQUAL, self.vxlan_port, "vxlan", None)
        code.add(_RETURN, other)
        if self.vxlan_port is not None:
            self._in_vxlan(code, other)
        if self.ip_in_ip:
            code.label("ip-in-ip")
            code.add(_X_FROM_IHL, _ETHERNET)
            self._in_ipv4(code, _ETHERNET, "in-ip", other)
        code.label("ipv6")
        code.require(_ETHERNET + _IPV6_HEADER)
        code.add(_LOAD_BYTE, 20)
        code.one_of(self.ip_protocols, "matching")
        code.jump(_JUMP_EQUAL, _UDP, "ipv6-udp", "other")
        code.label("ipv6-udp")
        code.require(_ETHERNET + _IPV6_HEADER + 4)
        code.add(_LOAD_HALF, 14 + 40 + 2)
        code.one_of(self.udp_ports, "matching")
        code.label("other")
        code.add(_RETURN, other)
        code.label("matching")
        code.add(_RETURN, matching)
        return code.assemble()

    def _in_vxlan(self, code: _Assembler, other: int) -> None:
        """The frame in a VXLAN packet; X is the length of the IP header outside."""
        inside = _ETHERNET + _UDP_AND_VXLAN
        ip = inside + _ETHERNET
        code.label("vxlan")
        code.require_after_x(ip)
        code.add(_LOAD_HALF_AFTER_X, inside + 12)
        code.jump(_JUMP_EQUAL, _IPV4, "vxlan-ipv4", None)
        code.jump(_JUMP_EQUAL, _IPV6, "vxlan-ipv6", "other")
        code.label("vxlan-ipv6")
        code.require_after_x(ip + _IPV6_HEADER)
        code.add(_LOAD_BYTE_AFTER_X, ip + 6)
        code.one_of(self.ip_protocols, "matching")
        code.jump(_JUMP_EQUAL, _UDP, "vxlan-ipv6-udp", "other")
        code.label("vxlan-ipv6-udp")
        code.require_after_x(ip + _IPV6_HEADER + 4)
        code.add(_LOAD_HALF_AFTER_X, ip + _IPV6_HEADER + 2)
        code.one_of(self.udp_ports, "matching")
        code.add(_RETURN, other)
        code.label("vxlan-ipv4")
        self._in_ipv4(code, ip, "vxlan-in-ip", other)

    def _in_ipv4(self, code: _Assembler, ip: int, where: str, other: int) -> None:
        """The IPv4 packet ``ip`` octets after the place that X is short of."""
        code.require_after_x(ip + 20)
        code.add(_LOAD_HALF_AFTER_X, ip + 6)
        code.jump(_JUMP_ANY_BIT, _LATER_FRAGMENT, "other", f"{where}-whole")
        code.label(f"{where}-whole")
        code.add(_LOAD_BYTE_AFTER_X, ip + 9)
        code.one_of(self.ip_protocols, "matching")
        code.jump(_JUMP_EQUAL, _UDP, f"{where}-udp", "other")
        code.label(f"{where}-udp")
        code.add(_LOAD_BYTE_AFTER_X, ip)
        code.add(_AND, 0xF)
        code.add(_SHIFT_LEFT, 2)
        code.add(_ADD_X)
        code.add(_TO_X)
        code.require_after_x(ip + 4)
        code.add(_LOAD_HALF_AFTER_X, ip + 2)
        code.one_of(self.udp_ports, "matching")
        code.add(_RETURN, other)


def attach(raw: socket.socket, program: Sequence[bytes]) -> None:
    """Let only those frames into ``raw`` for which ``program`` returns octets to keep."""
    octets = b"".join(program)
    code = ctypes.create_string_buffer(octets, len(octets))
    filter_ = struct.pack("@HP", len(program), ctypes.addressof(code))
    raw.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_)


class _Assembler:
    """Classic BPF with named forward jumps."""

    def __init__(self, checks_length: bool) -> None:
        self._checks_length = checks_length
        self._code: list[tuple[int, int, str | None, str | None]] = []
        self._labels: dict[str, int] = {}

    def add(self, opcode: int, operand: int = 0) -> None:
        self._code.append((opcode, operand, None, None))

    def jump(self, opcode: int, operand: int, if_true: str | None, if_false: str | None) -> None:
        self._code.append((opcode, operand, if_true, if_false))

    def one_of(self, values: Sequence[int], target: str) -> None:
        """Jump to ``target`` when the accumulator is one of ``values``, else fall through."""
        for value in values:
            self.jump(_JUMP_EQUAL, value, target, None)

    def require(self, octets: int) -> None:
        """Jump to ``other`` if the frame is shorter, where lengths are checked."""
        if self._checks_length:
            self.add(_LOAD_LENGTH)
            self.jump(_JUMP_FROM, octets, None, "other")

    def require_after_x(self, octets: int) -> None:
        """As :meth:`require`, with X octets more."""
        if self._checks_length:
            self.add(_STORE_X)
            self.add(_FROM_X)
            self.add(_ADD, octets)
            self.add(_TO_X)
            self.add(_LOAD_LENGTH)
            self.jump(_JUMP_FROM_X, 0, None, "other")
            self.add(_LOAD_X)

    def label(self, name: str) -> None:
        self._labels[name] = len(self._code)

    def assemble(self) -> list[bytes]:
        def skip(at: int, label: str | None) -> int:
            return 0 if label is None else self._labels[label] - at - 1

        return [
            _INSTRUCTION.pack(opcode, skip(at, if_true), skip(at, if_false), operand)
            for at, (opcode, operand, if_true, if_false) in enumerate(self._code)
        ]
