"""Frames on the wires that an engine takes, selected by one classifier in classic BPF.

They are the transports': UET over UDP and natively, and RoCEv2, either in one tunnel over IPv4 too
(VXLAN, IP in IP). MAC control, which pauses ports, is the other kind.  The switch program sorts the
packets alike (``emulator/dataplane/switch/bpf/transport.h``).
"""

from __future__ import annotations

from emulator.dataplane.kernel.kernel_objects import VXLAN_UDP_PORT
from emulator.dataplane.kernel.programs.classic_bpf import (
    ADD,
    ADD_X,
    AND,
    FROM_X,
    INTERFACE,
    JUMP_ANY_BIT,
    JUMP_EQUAL,
    JUMP_FROM_X,
    LOAD_BYTE_AFTER_X,
    LOAD_HALF,
    LOAD_HALF_AFTER_X,
    LOAD_LENGTH,
    LOAD_MEMORY,
    LOAD_WORD,
    RETURN,
    SHIFT_LEFT,
    SHIFT_RIGHT,
    STORE,
    STORE_X,
    TO_X,
    X_FROM_MEMORY,
    X_FROM_VALUE,
    Assembler,
)
from emulator.dataplane.switch.pause import ETHERTYPE as MAC_CONTROL
from uet.wire.codes import NATIVE_PROTOCOL
from uet.wire.codes import UDP_PORT as UET_UDP_PORT

UDP_PORTS = (UET_UDP_PORT, 4791)  # the second is that of RoCEv2, as IANA has it
IPV4, IPV6 = 0x0800, 0x86DD
IP_IN_IP, UDP = 4, 17  # RFC 2003
LATER_FRAGMENT = 0x1FFF  # bits of the offset: only the first fragment has the ports
ETHERNET, SHORTEST_IPV4, IPV6_HEADER, PORTS, VXLAN = 14, 20, 40, 4, 8 + 8
OFFSET, PROTOCOL = 0, 1  # places in the program's memory


def classifier(
    *, matching: int, other: int, interfaces: tuple[int, int] | None = None
) -> list[bytes]:
    """Return classic BPF instructions that give ``matching`` for an engine's frame, else ``other``.

    With ``interfaces``, (n, bits), only frames on interfaces whose index shifted right by so many
    bits is n match.  A frame that ends within its headers is no engine's.
    """
    code = Assembler()
    if interfaces is not None:
        number, bits = interfaces
        code.add(LOAD_WORD, INTERFACE)
        code.add(SHIFT_RIGHT, bits)
        code.jump(JUMP_EQUAL, number, None, "other")
    code.add(X_FROM_VALUE, ETHERNET)
    code.add(LOAD_HALF, ETHERNET - 2)
    code.jump(JUMP_EQUAL, MAC_CONTROL, "matching", None)
    code.jump(JUMP_EQUAL, IPV6, "ipv6", None)
    code.jump(JUMP_EQUAL, IPV4, None, "other")
    _ipv4(code)
    code.jump(JUMP_EQUAL, IP_IN_IP, "inside", None)
    code.jump(JUMP_EQUAL, UDP, None, "other")
    _udp(code)
    code.jump(JUMP_EQUAL, VXLAN_UDP_PORT, None, "other")
    _require(code, VXLAN + ETHERNET)
    code.add(LOAD_HALF_AFTER_X, VXLAN + ETHERNET - 2)
    code.add(STORE, PROTOCOL)
    _go_on(code, VXLAN + ETHERNET)
    code.add(LOAD_MEMORY, PROTOCOL)
    code.jump(JUMP_EQUAL, IPV6, "ipv6", None)
    code.jump(JUMP_EQUAL, IPV4, None, "other")
    code.label("inside")
    _ipv4(code)
    code.jump(JUMP_EQUAL, UDP, None, "other")
    _udp(code)
    code.add(RETURN, other)
    code.label("ipv6")
    _require(code, IPV6_HEADER)
    code.add(LOAD_BYTE_AFTER_X, 6)
    code.jump(JUMP_EQUAL, NATIVE_PROTOCOL, "matching", None)
    code.jump(JUMP_EQUAL, UDP, None, "other")
    _go_on(code, IPV6_HEADER)
    _udp(code)
    code.label("other")
    code.add(RETURN, other)
    code.label("matching")
    code.add(RETURN, matching)
    return code.assemble()


def _ipv4(code: Assembler) -> None:
    """Read the IPv4 packet at X: X is its payload then, and the accumulator its protocol."""
    _require(code, SHORTEST_IPV4)
    code.add(LOAD_HALF_AFTER_X, 6)
    code.jump(JUMP_ANY_BIT, LATER_FRAGMENT, "other", None)
    code.add(LOAD_BYTE_AFTER_X, 9)
    code.add(STORE, PROTOCOL)
    code.add(LOAD_BYTE_AFTER_X, 0)
    code.add(AND, 0xF)
    code.add(SHIFT_LEFT, 2)
    code.add(ADD_X)
    code.add(TO_X)
    code.add(LOAD_MEMORY, PROTOCOL)
    code.jump(JUMP_EQUAL, NATIVE_PROTOCOL, "matching", None)


def _udp(code: Assembler) -> None:
    """Read the UDP header at X: the accumulator is its destination port then."""
    _require(code, PORTS)
    code.add(LOAD_HALF_AFTER_X, 2)
    code.one_of(UDP_PORTS, "matching")


def _go_on(code: Assembler, octets: int) -> None:
    code.add(FROM_X)
    code.add(ADD, octets)
    code.add(TO_X)


def _require(code: Assembler, octets: int) -> None:
    """Leave by ``other`` unless the frame has so many octets from X on.

    The kernel would end the program on a load beyond the frame and take 0 for its answer.
    """
    code.add(STORE_X, OFFSET)
    _go_on(code, octets)
    code.add(LOAD_LENGTH)
    code.jump(JUMP_FROM_X, 0, None, "other")
    code.add(X_FROM_MEMORY, OFFSET)
