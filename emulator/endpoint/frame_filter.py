"""Which frames belong to the transport: one classic BPF program for socket and for ingress.

The kernel runs the same classifier in two places with different verdicts: as a socket filter it
lets transport frames (and nothing else) into the endpoint's ring, and on the port's ingress it
drops them after that tap so that the kernel's own stack never sees them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

_INSTRUCTION = struct.Struct("=HBBI")  # struct sock_filter

# Opcodes of classic BPF (linux/bpf_common.h); all loads are at absolute frame offsets.
_LOAD_WORD, _LOAD_HALF, _LOAD_BYTE = 0x20, 0x28, 0x30
_LOAD_HALF_AFTER_X = 0x48
_X_FROM_IHL = 0xB1
_JUMP_EQUAL, _JUMP_ANY_BIT = 0x15, 0x45
_RETURN = 0x06

_PACKET_TYPE = 0xFFFF_F000 + 4  # SKF_AD_OFF + SKF_AD_PKTTYPE
_PACKET_HOST = 0
_IPV4, _IPV6, _UDP = 0x0800, 0x86DD, 17


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportFrames:
    """Frames over IPv4 or IPv6 with one of these UDP destination ports or IP protocol numbers.

    The defaults are those of Ultra Ethernet (UES 3.5.4 over UDP, and native IP).
    """

    udp_ports: tuple[int, ...] = (4793,)
    ip_protocols: tuple[int, ...] = (253,)

    def program(self, *, matching: int, other: int, only_for_us: bool) -> list[bytes]:
        """Classic BPF instructions (``struct sock_filter``) returning ``matching`` or ``other``.

        ``only_for_us`` leaves out frames that a bridge flooded here for another MAC address.
        """
        code = _Assembler()
        if only_for_us:
            code.add(_LOAD_WORD, _PACKET_TYPE)
            code.jump(_JUMP_EQUAL, _PACKET_HOST, "ethertype", "other")
            code.label("ethertype")
        code.add(_LOAD_HALF, 12)
        code.jump(_JUMP_EQUAL, _IPV4, "ipv4", "maybe-ipv6")
        code.label("maybe-ipv6")
        code.jump(_JUMP_EQUAL, _IPV6, "ipv6", "other")
        code.label("ipv4")
        code.add(_LOAD_HALF, 20)
        code.jump(_JUMP_ANY_BIT, 0x1FFF, "other", "ipv4-whole")  # later fragments have no ports
        code.label("ipv4-whole")
        code.add(_LOAD_BYTE, 23)
        code.one_of(self.ip_protocols, "matching")
        code.jump(_JUMP_EQUAL, _UDP, "ipv4-udp", "other")
        code.label("ipv4-udp")
        code.add(_X_FROM_IHL, 14)
        code.add(_LOAD_HALF_AFTER_X, 14 + 2)
        code.one_of(self.udp_ports, "matching")
        code.add(_RETURN, other)
        code.label("ipv6")
        code.add(_LOAD_BYTE, 20)
        code.one_of(self.ip_protocols, "matching")
        code.jump(_JUMP_EQUAL, _UDP, "ipv6-udp", "other")
        code.label("ipv6-udp")
        code.add(_LOAD_HALF, 14 + 40 + 2)
        code.one_of(self.udp_ports, "matching")
        code.label("other")
        code.add(_RETURN, other)
        code.label("matching")
        code.add(_RETURN, matching)
        return code.assemble()


class _Assembler:
    """Classic BPF with named forward jumps."""

    def __init__(self) -> None:
        self._code: list[tuple[int, int, str | None, str | None]] = []
        self._labels: dict[str, int] = {}

    def add(self, opcode: int, operand: int) -> None:
        self._code.append((opcode, operand, None, None))

    def jump(self, opcode: int, operand: int, if_true: str, if_false: str | None) -> None:
        self._code.append((opcode, operand, if_true, if_false))

    def one_of(self, values: Sequence[int], target: str) -> None:
        """Jump to ``target`` when the accumulator is one of ``values``, else fall through."""
        for value in values:
            self.jump(_JUMP_EQUAL, value, target, None)

    def label(self, name: str) -> None:
        self._labels[name] = len(self._code)

    def assemble(self) -> list[bytes]:
        def skip(at: int, label: str | None) -> int:
            return 0 if label is None else self._labels[label] - at - 1

        return [
            _INSTRUCTION.pack(opcode, skip(at, if_true), skip(at, if_false), operand)
            for at, (opcode, operand, if_true, if_false) in enumerate(self._code)
        ]
