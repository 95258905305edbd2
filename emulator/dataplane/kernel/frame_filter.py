"""The frames of the transport: one classic BPF program for socket and for ingress.

The kernel runs the same classifier in two places with different verdicts: as a socket filter it
lets transport frames (and nothing else) into the endpoint's ring. On the port's ingress it drops
them after that tap, so that the kernel's own stack never sees them.  What passes the cables of a
lab with a virtual clock is sorted by :mod:`emulator.dataplane.kernel.fabric.inner.carried`, which
looks into tunnels.
"""

from __future__ import annotations

from dataclasses import dataclass

from emulator.dataplane.kernel.programs.classic_bpf import (
    JUMP_ANY_BIT,
    JUMP_EQUAL,
    LOAD_BYTE,
    LOAD_HALF,
    LOAD_HALF_AFTER_X,
    LOAD_WORD,
    PACKET_TYPE,
    RETURN,
    X_FROM_IHL,
    Assembler,
)

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
        code = Assembler()
        if only_for_us:
            code.add(LOAD_WORD, PACKET_TYPE)
            code.jump(JUMP_EQUAL, _PACKET_HOST, "ethertype", "other")
            code.label("ethertype")
        code.add(LOAD_HALF, 12)
        code.jump(JUMP_EQUAL, _IPV4, "ipv4", "maybe-ipv6")
        code.label("maybe-ipv6")
        code.jump(JUMP_EQUAL, _IPV6, "ipv6", "other")
        code.label("ipv4")
        code.add(LOAD_HALF, 20)
        code.jump(JUMP_ANY_BIT, 0x1FFF, "other", "ipv4-whole")  # later fragments have no ports
        code.label("ipv4-whole")
        code.add(LOAD_BYTE, 23)
        code.one_of(self.ip_protocols, "matching")
        code.jump(JUMP_EQUAL, _UDP, "ipv4-udp", "other")
        code.label("ipv4-udp")
        code.add(X_FROM_IHL, 14)
        code.add(LOAD_HALF_AFTER_X, 14 + 2)
        code.one_of(self.udp_ports, "matching")
        code.add(RETURN, other)
        code.label("ipv6")
        code.add(LOAD_BYTE, 20)
        code.one_of(self.ip_protocols, "matching")
        code.jump(JUMP_EQUAL, _UDP, "ipv6-udp", "other")
        code.label("ipv6-udp")
        code.add(LOAD_HALF, 14 + 40 + 2)
        code.one_of(self.udp_ports, "matching")
        code.label("other")
        code.add(RETURN, other)
        code.label("matching")
        code.add(RETURN, matching)
        return code.assemble()
