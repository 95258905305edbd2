"""Numbers of the RoCEv2 wire: opcodes, what each carries, AETH syndromes, timers, limits.

Sources are IBA chapters 5, 9 and annex A17; FLUSH and ATOMIC WRITE came with annex A19.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

UDP_PORT: Final = 4791
#: Source ports that RoCEv2 senders use: 14 bits of entropy below two ones.
FIRST_SOURCE_PORT: Final = 0xC000
SOURCE_PORT_BITS: Final = 14
ICRC_SIZE: Final = 4
PSN_MASK: Final = 0xFF_FFFF
QPN_MASK: Final = 0xFF_FFFF
#: QP number of the general service interface, and the Q_Key its packets carry.
GSI_QPN: Final = 1
GSI_QKEY: Final = 0x8001_0000
DEFAULT_PKEY: Final = 0xFFFF
#: P_Key of a full member rather than a limited one.
FULL_MEMBER: Final = 0x8000
#: What a path MTU can be; it counts payload only.
PATH_MTUS: Final = (256, 512, 1024, 2048, 4096)
#: RETH DMALen has 32 bits, but no message is longer than this.
MAX_MESSAGE: Final = 1 << 31
#: PSNs that may be unacknowledged: half of the space separates new from old.
MAX_OUTSTANDING: Final = 1 << 23
#: Octets in front of a datagram in its receive buffer: room for a GRH.
GRH_SIZE: Final = 40
CNP_RESERVED: Final = 16
#: What ``TIMEOUT_UNIT * 2^exponent`` ns a requester waits for an answer; exponent 0: forever.
TIMEOUT_UNIT: Final = 4_096
MAX_TIMEOUT_EXPONENT: Final = 31
#: rnr_retry of a requester that never gives up.
RNR_RETRY_FOREVER: Final = 7


class Service(IntEnum):
    """The transport service: the three upper bits of an opcode."""

    RC = 0x00
    UC = 0x20
    RD = 0x40
    UD = 0x60
    CNP = 0x80
    XRC = 0xA0


SERVICE_MASK: Final = 0xE0
OPERATION_MASK: Final = 0x1F


class BthOperation(IntEnum):
    """The operation: the five lower bits of an opcode."""

    SEND_FIRST = 0x00
    SEND_MIDDLE = 0x01
    SEND_LAST = 0x02
    SEND_LAST_IMM = 0x03
    SEND_ONLY = 0x04
    SEND_ONLY_IMM = 0x05
    WRITE_FIRST = 0x06
    WRITE_MIDDLE = 0x07
    WRITE_LAST = 0x08
    WRITE_LAST_IMM = 0x09
    WRITE_ONLY = 0x0A
    WRITE_ONLY_IMM = 0x0B
    READ_REQUEST = 0x0C
    READ_RESPONSE_FIRST = 0x0D
    READ_RESPONSE_MIDDLE = 0x0E
    READ_RESPONSE_LAST = 0x0F
    READ_RESPONSE_ONLY = 0x10
    ACKNOWLEDGE = 0x11
    ATOMIC_ACKNOWLEDGE = 0x12
    COMPARE_SWAP = 0x13
    FETCH_ADD = 0x14
    SEND_LAST_INVALIDATE = 0x16
    SEND_ONLY_INVALIDATE = 0x17


CNP_OPCODE: Final = 0x81


class Extension(IntEnum):
    """Headers between BTH and payload."""

    DETH = 0
    RETH = 1
    ATOMIC_ETH = 2
    AETH = 3
    ATOMIC_ACK_ETH = 4
    IMM_DT = 5
    IETH = 6
    CNP_PADDING = 7


_O: Final = BthOperation
_X: Final = Extension
#: Extension headers of an operation of RC and UC, in wire order; operations not here have none.
_EXTENSIONS: Final[Mapping[int, tuple[Extension, ...]]] = {
    _O.SEND_LAST_IMM: (_X.IMM_DT,),
    _O.SEND_ONLY_IMM: (_X.IMM_DT,),
    _O.WRITE_FIRST: (_X.RETH,),
    _O.WRITE_LAST_IMM: (_X.IMM_DT,),
    _O.WRITE_ONLY: (_X.RETH,),
    _O.WRITE_ONLY_IMM: (_X.RETH, _X.IMM_DT),
    _O.READ_REQUEST: (_X.RETH,),
    _O.READ_RESPONSE_FIRST: (_X.AETH,),
    _O.READ_RESPONSE_LAST: (_X.AETH,),
    _O.READ_RESPONSE_ONLY: (_X.AETH,),
    _O.ACKNOWLEDGE: (_X.AETH,),
    _O.ATOMIC_ACKNOWLEDGE: (_X.AETH, _X.ATOMIC_ACK_ETH),
    _O.COMPARE_SWAP: (_X.ATOMIC_ETH,),
    _O.FETCH_ADD: (_X.ATOMIC_ETH,),
    _O.SEND_LAST_INVALIDATE: (_X.IETH,),
    _O.SEND_ONLY_INVALIDATE: (_X.IETH,),
}
_UD_EXTENSIONS: Final[Mapping[int, tuple[Extension, ...]]] = {
    _O.SEND_ONLY: (_X.DETH,),
    _O.SEND_ONLY_IMM: (_X.DETH, _X.IMM_DT),
}
#: Extension headers by opcode, of every opcode that this stack supports.
EXTENSIONS: Final[Mapping[int, tuple[Extension, ...]]] = {
    **{Service.RC | o: _EXTENSIONS.get(o, ()) for o in BthOperation},
    **{Service.UC | o: _EXTENSIONS.get(o, ()) for o in BthOperation if o <= _O.WRITE_ONLY_IMM},
    **{Service.UD | o: headers for o, headers in _UD_EXTENSIONS.items()},
    CNP_OPCODE: (_X.CNP_PADDING,),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """The position of a packet of a SEND or WRITE operation in its message.

    ``immediate`` and ``invalidate``: what its last extension header carries.
    """

    send: bool
    starts: bool
    ends: bool
    immediate: bool = False
    invalidate: bool = False


#: Of the operations that carry a message's data.
SHAPES: Final[dict[int, Shape]] = {
    _O.SEND_FIRST: Shape(True, True, False),
    _O.SEND_MIDDLE: Shape(True, False, False),
    _O.SEND_LAST: Shape(True, False, True),
    _O.SEND_LAST_IMM: Shape(True, False, True, immediate=True),
    _O.SEND_ONLY: Shape(True, True, True),
    _O.SEND_ONLY_IMM: Shape(True, True, True, immediate=True),
    _O.WRITE_FIRST: Shape(False, True, False),
    _O.WRITE_MIDDLE: Shape(False, False, False),
    _O.WRITE_LAST: Shape(False, False, True),
    _O.WRITE_LAST_IMM: Shape(False, False, True, immediate=True),
    _O.WRITE_ONLY: Shape(False, True, True),
    _O.WRITE_ONLY_IMM: Shape(False, True, True, immediate=True),
    _O.SEND_LAST_INVALIDATE: Shape(True, False, True, invalidate=True),
    _O.SEND_ONLY_INVALIDATE: Shape(True, True, True, invalidate=True),
}


class Syndrome(IntEnum):
    """AETH syndromes: kinds (three upper bits), and the NAK codes whole (IBA 9.7.5.2)."""

    ACK = 0x00
    RNR_NAK = 0x20
    NAK_SEQUENCE_ERROR = 0x60
    NAK_INVALID_REQUEST = 0x61
    NAK_REMOTE_ACCESS_ERROR = 0x62
    NAK_REMOTE_OPERATIONAL_ERROR = 0x63
    NAK_INVALID_RD_REQUEST = 0x64


SYNDROME_KIND: Final = 0xE0
SYNDROME_VALUE: Final = 0x1F
#: An ACK without end-to-end credits: the requester may send as it likes.
ACK_UNLIMITED: Final = Syndrome.ACK | 0x1F
#: RNR timer codes in microseconds (IBA table 45).
RNR_MICROSECONDS: Final = (
    655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920,
    2_560, 3_840, 5_120, 7_680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920,
    122_880, 163_840, 245_760, 327_680, 491_520,
)  # fmt: skip


def flow_label(local_qpn: int, remote_qpn: int) -> int:
    """The 20-bit label of a connection, the same at both ends (as Linux derives it)."""
    mixed = local_qpn * remote_qpn
    mixed ^= mixed >> 20
    mixed ^= mixed >> 40
    return mixed & 0xF_FFFF


def source_port(label: int) -> int:
    """The UDP source port that a flow label folds into (as Linux derives it)."""
    return ((label & 0x3FFF) ^ (label & 0xF_C000) >> SOURCE_PORT_BITS) | FIRST_SOURCE_PORT


def pkeys_match(one: int, other: int) -> bool:
    """Return whether two partition keys let their owners talk.

    One of them is a full member (IBA 10.9).
    """
    base = one & 0x7FFF
    return base != 0 and base == other & 0x7FFF and bool((one | other) & FULL_MEMBER)


def timeout_ns(exponent: int) -> int:
    """The transport timeout of an exponent in ns; 0 is none."""
    return TIMEOUT_UNIT << exponent if exponent else 0


_HALF: Final = 0x80_0000
_SPACE: Final = PSN_MASK + 1


def add(psn: int, n: int) -> int:
    """``psn + n`` modulo 2^24."""
    return (psn + n) & PSN_MASK


def distance(a: int, b: int) -> int:
    """Return how far ``a`` lies after ``b``: signed, -2^23 .. 2^23 - 1.

    Half of the space is behind.
    """
    d = (a - b) & PSN_MASK
    return d - _SPACE if d & _HALF else d


def after(a: int, b: int) -> bool:
    """Return whether ``a`` is newer than ``b``."""
    return 0 < ((a - b) & PSN_MASK) < _HALF


def unwrap(psn: int, near: int) -> int:
    """The integer nearest to ``near`` whose 24 lower bits are ``psn``; may be negative."""
    d = (psn - near) & PSN_MASK
    return near + d - _SPACE if d & _HALF else near + d
