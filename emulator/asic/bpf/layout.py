"""Layouts and numbers that the program and the emulator share: ``asic.h`` in Python."""

from __future__ import annotations

import struct
from enum import IntEnum

RATE_SHIFT = 24
SLOPE_SHIFT = 16
SHARE_SHIFT = 16
BINS = 32
HOPS = 64
FLOWLETS = 1024  # of each switch
CODE_POINTS = 64
WHOLE = 1 << 32  # probability 1


class TrafficClass(IntEnum):
    """What a code point stands for (UES 4.1); the program's number of it."""

    CONTROL = 0
    TRIMMED = 1
    DATA = 2
    RETRANSMISSION = 3
    UNTRIMMED = 4
    OTHER = 5


class Queue(IntEnum):
    """Served in this order, but for the share of the link that the low queue owns."""

    HIGH = 0
    MEDIUM = 1
    LOW = 2


class DropReason(IntEnum):
    """Why a frame was not passed on."""

    TAIL = 0  # its queue was at the limit
    LOSS = 1  # fault: independent loss
    BURST = 2  # fault: Gilbert-Elliott loss
    BLACK_HOLE = 3  # fault: the port swallows everything
    FAILURE = 4  # the kernel could not trim it (out of memory)
    HEADROOM = 5  # PFC: the lossless buffer of the port that it came in by was full
    WATCHDOG = 6  # PFC: its queue was paused for so long that the watchdog stepped in
    LINK_DOWN = 7  # fault: the cable has no carrier


class Balancing(IntEnum):
    """How a switch chooses among equal next hops."""

    KERNEL = 0  # not at all: the kernel hashes
    FLOW = 1
    FLOWLET = 2
    PACKET = 3
    ROUND_ROBIN = 4
    LEAST_LOADED = 5


CLASS_SETTINGS = struct.Struct("=5Q2I")
FAULT_SETTINGS = struct.Struct("=7Q2I")
DEPARTURES, ARRIVALS = 1, 2  # what faults strike
WITHOUT_CARRIER = 4  # of a black hole: what it takes is lost to a pulled cable
#: rate, seed | classes, faults | code points, eight numbers, low share, switch seed, flowlet gap
PORT_HEAD = struct.Struct("=2Q")
PORT_TAIL = struct.Struct(f"={CODE_POINTS}s8I3Q")
#: Where in a port's settings its faults are, and what comes after them.
FAULTS_AT = PORT_HEAD.size + len(TrafficClass) * CLASS_SETTINGS.size
TAIL_AT = FAULTS_AT + FAULT_SETTINGS.size
PORT_SETTINGS_BYTES = TAIL_AT + PORT_TAIL.size

CLASS_COUNTERS = struct.Struct(f"={8 + len(DropReason)}Q")
QUEUE_STATE = struct.Struct(f"={2 + BINS}Q")
#: lock, in burst | drained at, credit, low credit, draws of three streams
STATE_HEAD = struct.Struct("=2I6Q")
PORT_STATE_BYTES = (
    STATE_HEAD.size + len(Queue) * QUEUE_STATE.size + len(TrafficClass) * CLASS_COUNTERS.size
)

PORT_KEY = struct.Struct("=I")
ROUTE_KEY = struct.Struct("=II16s")
ROUTE = struct.Struct(f"=QI{HOPS}II")

#: xoff, xon, ceiling in octets on the wire; enabled, dropping.
PAUSE_RULES = struct.Struct("=3Q2I")
#: held, deepest, missed, freed; asserted, unused.
PAUSE_STATE = struct.Struct("=2q2Q2I")
#: Of frames that wait: the port that they are to leave by, and the one that they came in by.
WAITING_KEY = struct.Struct("=2I")
#: What :class:`emulator.asic.pfc.pause_counters.PauseCounters` names.
PAUSE_COUNTS = struct.Struct("=12Q")
#: time, port, kind, source, destination, opcode and all that follows it
PAUSE_EVENT = struct.Struct("=QII6s6s20s")

#: now, passed, dropped, unused
VIRTUAL_SWITCH = struct.Struct("=4Q")
#: depth by queue | overtakes, peak, kernel draws, kernel lost, unused
VIRTUAL_PORT = struct.Struct(f"={len(Queue)}Q5Q")

#: Octets of a value by map name: what an object file must agree with.
VALUE_BYTES = {
    "pause_rules": PAUSE_RULES.size,
    "pause_states": PAUSE_STATE.size,
    "pause_counts": PAUSE_COUNTS.size,
    "waiting_octets": 8,
    "settings": PORT_SETTINGS_BYTES,
    "ports": PORT_STATE_BYTES,
    "routes": ROUTE.size,
    "flowlets": 16,
}
#: Those of the maps that only the program for a virtual clock has.
VIRTUAL_VALUE_BYTES = {
    "virtual_switches": VIRTUAL_SWITCH.size,
    "virtual_ports": VIRTUAL_PORT.size,
}
