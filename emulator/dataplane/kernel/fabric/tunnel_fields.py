"""Fix the fields of tunnel packets that a kernel draws by chance, so that runs repeat.

- The UDP source port of VXLAN is the kernel's hash of the packet inside (RFC 7348, 5). The hash has
  a secret of the machine's last start.  With a virtual clock it is a hash of the addresses and
  ports inside, unless the switch ASIC has given the packet one.
- The IPv4 identification starts at random and goes on with the host's clock.  A packet that may not
  be fragmented needs none (RFC 6864, 4.1), nor does one that nobody fragments, as here: it is 0.
"""

from __future__ import annotations

import struct
from functools import cache

from emulator.dataplane.kernel.kernel_objects import VXLAN_UDP_PORT
from emulator.dataplane.kernel.programs.ebpf import (
    ADD,
    ADD_REGISTER,
    CALL,
    COPY,
    EXIT,
    FRAME_POINTER,
    JUMP_IF_ZERO,
    JUMP_UNLESS,
    LOAD_BYTE,
    LOAD_HALF,
    LOAD_OCTETS,
    LOAD_WORD,
    MOVE,
    MULTIPLY,
    OR,
    REPLACE_IN_CHECKSUM,
    SET_HASH,
    SHIFT_RIGHT,
    SKB_HASH,
    STORE_HALF_VALUE,
    STORE_OCTETS,
    TC_ACT_UNSPEC,
    XOR_REGISTER,
    instruction,
)
from emulator.dataplane.kernel.release import FOR_TUNNELS, egress_program
from emulator.dataplane.kernel.shaping import TcRequest

MULTIPLIER = 0x5BD1_E995  # odd, below 2**31
FOLD = 32
#: Octets 12 to 37 of a frame: EtherType, an IPv4 header without options, the UDP ports.
FIRST, OCTETS = 12, 26
BASE = -30  # where they are on the stack, so that the addresses are aligned
ETHERTYPE, VERSION, IDENTIFICATION, PROTOCOL = 12, 14, 18, 23
SOURCE, DESTINATION, PORTS, DESTINATION_PORT = 26, 30, 34, 36
IP_CHECKSUM = 24
IPV4, NO_OPTIONS, UDP = 0x0800, 0x45, 17


def on_wire(value: int) -> int:
    """Return a field of two octets as the machine reads it."""
    number: int = struct.unpack("=H", struct.pack("!H", value))[0]
    return number


def _place(offset: int) -> int:
    return BASE + offset - FIRST


def _load_headers(done: int) -> tuple[bytes, ...]:
    """Put the headers on the stack and keep the frame in register 6.

    ``done``: where to jump from the end of these instructions if it has none of IPv4 without
    options.
    """
    return (
        instruction(COPY, to=1, source=6),
        instruction(MOVE, to=2, value=FIRST),
        instruction(COPY, to=3, source=FRAME_POINTER),
        instruction(ADD, to=3, value=BASE),
        instruction(MOVE, to=4, value=OCTETS),
        instruction(CALL, value=LOAD_OCTETS),
        instruction(JUMP_UNLESS, to=0, value=0, offset=done + 4),
        instruction(LOAD_HALF, to=1, source=FRAME_POINTER, offset=_place(ETHERTYPE)),
        instruction(JUMP_UNLESS, to=1, value=on_wire(IPV4), offset=done + 2),
        instruction(LOAD_BYTE, to=1, source=FRAME_POINTER, offset=_place(VERSION)),
        instruction(JUMP_UNLESS, to=1, value=NO_OPTIONS, offset=done),
    )


_LEAVE = (instruction(MOVE, value=TC_ACT_UNSPEC), instruction(EXIT))

#: The hash in register 7; see :func:`tunnel_hash`.
_GIVE_HASH = (
    instruction(LOAD_WORD, to=7, source=FRAME_POINTER, offset=_place(SOURCE)),
    instruction(MULTIPLY, to=7, value=MULTIPLIER),
    instruction(LOAD_WORD, to=1, source=FRAME_POINTER, offset=_place(DESTINATION)),
    instruction(ADD_REGISTER, to=7, source=1),
    instruction(MULTIPLY, to=7, value=MULTIPLIER),
    instruction(LOAD_WORD, to=1, source=FRAME_POINTER, offset=_place(PORTS)),
    instruction(ADD_REGISTER, to=7, source=1),
    instruction(MULTIPLY, to=7, value=MULTIPLIER),
    instruction(COPY, to=1, source=7),
    instruction(SHIFT_RIGHT, to=1, value=FOLD),
    instruction(XOR_REGISTER, to=7, source=1),
    instruction(MULTIPLY, to=7, value=MULTIPLIER),
    instruction(SHIFT_RIGHT, to=7, value=FOLD),
    instruction(OR, to=7, value=1),  # 0 stands for no hash
    instruction(COPY, to=1, source=6),
    instruction(COPY, to=2, source=7),
    instruction(CALL, value=SET_HASH),
)
_HEADERS_AND_HASH = (*_load_headers(len(_GIVE_HASH)), *_GIVE_HASH)
_HASH = (
    *FOR_TUNNELS,  # the frame is in register 6 then
    instruction(LOAD_WORD, to=1, source=6, offset=SKB_HASH),
    instruction(JUMP_UNLESS, to=1, value=0, offset=len(_HEADERS_AND_HASH)),
    *_HEADERS_AND_HASH,
    *_LEAVE,
)

_CLEAR = (
    instruction(COPY, to=1, source=6),
    instruction(MOVE, to=2, value=IP_CHECKSUM),
    instruction(MOVE, to=4, value=0),
    instruction(MOVE, to=5, value=2),  # octets that have changed
    instruction(CALL, value=REPLACE_IN_CHECKSUM),
    instruction(STORE_HALF_VALUE, to=FRAME_POINTER, offset=-2, value=0),
    instruction(COPY, to=1, source=6),
    instruction(MOVE, to=2, value=IDENTIFICATION),
    instruction(COPY, to=3, source=FRAME_POINTER),
    instruction(ADD, to=3, value=-2),
    instruction(MOVE, to=4, value=2),
    instruction(MOVE, to=5, value=0),
    instruction(CALL, value=STORE_OCTETS),
)
_CLEAR_IF_VXLAN = (
    instruction(LOAD_BYTE, to=1, source=FRAME_POINTER, offset=_place(PROTOCOL)),
    instruction(JUMP_UNLESS, to=1, value=UDP, offset=len(_CLEAR) + 4),
    instruction(LOAD_HALF, to=1, source=FRAME_POINTER, offset=_place(DESTINATION_PORT)),
    instruction(JUMP_UNLESS, to=1, value=on_wire(VXLAN_UDP_PORT), offset=len(_CLEAR) + 2),
    instruction(LOAD_HALF, to=3, source=FRAME_POINTER, offset=_place(IDENTIFICATION)),
    instruction(JUMP_IF_ZERO, to=3, offset=len(_CLEAR)),
    *_CLEAR,
)
_IDENTIFICATION = (
    instruction(COPY, to=6, source=1),
    *_load_headers(len(_CLEAR_IF_VXLAN)),
    *_CLEAR_IF_VXLAN,
    *_LEAVE,
)


@cache
def tunnel_requests() -> tuple[TcRequest, ...]:
    """Return requests that have each packet of a tunnel port looked up, with a hash that repeats.

    Raises :class:`UserError` if the kernel does not take the program.
    """
    return egress_program(_HASH, "uetemu-tunnel-hash")


@cache
def identification_requests() -> tuple[TcRequest, ...]:
    """Return requests that make a routed port clear the identification of tunnel packets.

    Raises :class:`UserError` if the kernel does not take the program.
    """
    return egress_program(_IDENTIFICATION, "uetemu-identification")


def tunnel_hash(source: bytes, destination: bytes, ports: bytes) -> int:
    """Return the hash of a packet inside a tunnel, from its octets: 32 bits, never 0."""
    mixed = 0
    for word in struct.unpack("=3I", source + destination + ports):
        mixed = (mixed + word) * MULTIPLIER & 0xFFFF_FFFF_FFFF_FFFF
    mixed = (mixed ^ mixed >> FOLD) * MULTIPLIER & 0xFFFF_FFFF_FFFF_FFFF
    return mixed >> FOLD | 1
