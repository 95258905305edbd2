"""The PAUSE frame of priority flow control, and how long it lasts (IEEE 802.3 31B, 802.1Q 36).

::

    destination 01:80:C2:00:00:01 | source: the port | 0x8808 | opcode 0x0101
    | which classes (bit i: class i) | eight times | zeros up to 60 octets

A time is in quanta of 512 bit times of its link; 0 lets the class go on at once.  A frame replaces
what is left of the one before.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

DESTINATION = bytes.fromhex("0180c2000001")
ETHERTYPE = 0x8808
OPCODE = 0x0101
CLASSES = 8
QUANTUM_BITS = 512
LONGEST = 0xFFFF
#: Without its frame check sequence.
FRAME_OCTETS = 60
#: With it, preamble and gap.
WIRE_OCTETS = FRAME_OCTETS + 24

_CONTROL = struct.Struct("!HH8H")
_HEAD = struct.Struct("!6s6sH")


def frame(source: bytes, quanta: Mapping[int, int]) -> bytes:
    """The frame by which port ``source`` (its MAC address) pauses classes for so many quanta."""
    vector, times = 0, [0] * CLASSES
    for number, time in quanta.items():
        vector |= 1 << number
        times[number] = time
    octets = _HEAD.pack(DESTINATION, source, ETHERTYPE) + _CONTROL.pack(OPCODE, vector, *times)
    return octets.ljust(FRAME_OCTETS, b"\0")


def quanta(destination: bytes, control: bytes) -> dict[int, int] | None:
    """The quanta of each class that is meant; None if this is no PAUSE frame by priority.

    ``control`` is what comes behind the EtherType, 20 octets or more.
    """
    if destination != DESTINATION:
        return None
    opcode, vector, *times = _CONTROL.unpack_from(control)
    if opcode != OPCODE:
        return None
    return {number: times[number] for number in range(CLASSES) if vector >> number & 1}


def duration_ns(quanta: int, rate_bps: int) -> int:
    """Return how long ``quanta`` last on a link of ``rate_bps``; ns of the link's own time."""
    return -(-quanta * QUANTUM_BITS * 10**9 // rate_bps)
