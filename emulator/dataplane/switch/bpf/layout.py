"""Layouts and numbers that the program and the emulator share: ``asic.h`` in Python."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from emulator.dataplane.switch.parameters import OF_CLASS, OF_DSCP, OF_PFC, OF_PROFILE, OWN, members

RATE_SHIFT = 24
SLOPE_SHIFT = 16
SHARE_SHIFT = 16
ALPHA_SHIFT = 16
BINS = 32
HOPS = 64
FLOWLETS = 1024  # of each switch
CODE_POINTS = 64
WHOLE = 1 << 32  # probability 1


class TrafficClass(IntEnum):
    """The class of a packet, which its code point selects (UES 4.1), as the program numbers it."""

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
    POOL = 8  # the pool that the switch's ports share had no room for it


# What of a port faults act on, and one more bit of a black hole.
FAULTS_DEPARTURES = 1
FAULTS_ARRIVALS = 2
WITHOUT_CARRIER = 4  # the cable is pulled, and each frame lost to it counts as LINK_DOWN


class Array(NamedTuple):
    """A member that is ``number`` structs of the name ``of``, one after the other."""

    of: str
    number: int


#: Members of structs that have parameters of switches, and those around them: each one's format
#: (of the module ``struct``), in C's order.  A further parameter of a class comes behind the others
#: of it, one of a port behind all.
CLASS = {**members(OF_CLASS), "priority": "I", "queue": "I"}
PAUSE = {**members(OF_PFC), "enabled": "I", "dropping": "I", "paused_until": "Q"}
_OF_PORT = members(OWN, OF_PROFILE, {"": OF_DSCP})
TAIL = {
    "class_of": _OF_PORT["class_of"],
    "trim_payload": _OF_PORT["trim_payload"],
    "trimmed_dscp": "I",
    "bin_shift": "I",
    "balancing": _OF_PORT["balancing"],
    "switch_number": "I",
    "native_protocol": "I",
    "measured": "I",
    "peer": "I",
    "low_share": _OF_PORT["low_share"],
    "switch_seed": "Q",
    **_OF_PORT,
}
#: Every struct that C and Python share, by its name in C: each member's format, or the structs that
#: it is, by its name in C and in C's order.
STRUCTS: dict[str, Mapping[str, str | Array]] = {
    "class_settings": CLASS,
    "fault_settings": {
        "loss": "Q",
        "good_to_bad": "Q",
        "bad_to_good": "Q",
        "loss_in_bad": "Q",
        "corruption": "Q",
        "duplication": "Q",
        "reordering": "Q",
        "bit_errors": "Q",
        "black_hole": "I",
        "enabled": "I",
    },
    "port_settings": {
        "rate": "Q",
        "seed": "Q",
        "classes": Array("class_settings", len(TrafficClass)),
        "faults": Array("fault_settings", 1),
        **TAIL,
    },
    "class_counters": {
        "packets": "Q",
        "bytes": "Q",
        "marked": "Q",
        "trimmed": "Q",
        "corrupted": "Q",
        "duplicated": "Q",
        "reordered": "Q",
        "lost": "Q",
        "drops": f"{len(DropReason)}Q",
    },
    "queue": {"depth": "Q", "deepest": "Q", "histogram": f"{BINS}Q"},
    "port_state": {
        "lock": "I",
        "in_burst": "I",
        "drained_at": "Q",
        "credit": "Q",
        "low_credit": "Q",
        "mark_draws": "Q",
        "fault_draws": "Q",
        "hash_draws": "Q",
        "queues": Array("queue", len(Queue)),
        "classes": Array("class_counters", len(TrafficClass)),
    },
    "route_key": {"prefix_length": "I", "switch_number": "I", "address": "16s"},
    "route": {"turn": "Q", "hops": "I", "ports": f"{HOPS}I", "unused": "I"},
    "flowlet": {"last": "Q", "salt": "Q"},
    "pause_rules": PAUSE,
    "pause_state": {
        "held": "q",
        "deepest": "q",
        "missed": "Q",
        "freed": "Q",
        "asserted": "I",
        "unused": "I",
        "in_headroom": "q",
    },
    # Frames that wait: the port that they are to leave by, and the one that they came in by.
    "waiting_key": {"egress": "I", "origin": "I"},
    # What :class:`emulator.dataplane.switch.cable_counters.PauseCounters` names.
    "pause_counts": {"counts": "12Q"},
    # ``control`` is the opcode of a MAC control frame and what follows it.
    "pause_event": {
        "time": "Q",
        "port": "I",
        "kind": "I",
        "source": "6s",
        "destination": "6s",
        "control": "20s",
    },
    "virtual_pool": {
        "size": "Q",
        "reserved": "Q",
        "headroom": "Q",
        "used": "Q",
        "most": "Q",
        "in_headroom": "Q",
        "most_in_headroom": "Q",
        "unused": "Q",
    },
    "virtual_switch": {"now": "Q", "passed": "Q", "dropped": "Q", "unused": "Q"},
    "virtual_port": {
        "depth": f"{len(Queue)}Q",
        "overtakes": "Q",
        "peak": "Q",
        "kernel_draws": "Q",
        "kernel_lost": "Q",
        "departure_draws": "Q",
        "departures_marked": f"{len(TrafficClass)}Q",
    },
}


class MemberPlace(NamedTuple):
    """A member's place in its struct, in octets."""

    offset: int
    size: int


def places(name: str) -> dict[str, MemberPlace]:
    """Return where each member of the struct ``name`` is, by the member's name."""
    found, offset = {}, 0
    for member, what in STRUCTS[name].items():
        size = what.number * size_of(what.of) if isinstance(what, Array) else _octets(what)
        found[member] = MemberPlace(offset, size)
        offset += size
    return found


def size_of(name: str) -> int:
    """Return how many octets the struct ``name`` has."""
    return sum(place.size for place in places(name).values())


def _octets(numbers: str) -> int:
    return struct.calcsize(f"={numbers}")


def _packed(name: str, last: str | None = None) -> struct.Struct:
    """Return the format of the members up to ``last`` of the struct ``name``."""
    members = list(STRUCTS[name])
    end = members.index(last) + 1 if last else len(members)
    numbers = [STRUCTS[name][member] for member in members[:end]]
    return struct.Struct("=" + "".join(one for one in numbers if isinstance(one, str)))


def pack(members: Mapping[str, str], **numbers: int | bytes) -> bytes:
    """Return ``members`` one after the other; of ``numbers`` those that are not given are 0."""
    formats = "=" + "".join(members.values())
    return struct.pack(formats, *(numbers.get(name, 0) for name in members))


def unpack(members: Mapping[str, str], octets: bytes | memoryview, at: int = 0) -> dict[str, Any]:
    """Return the numbers of ``members``, which are in ``octets`` from ``at`` on."""
    formats = "=" + "".join(members.values())
    return dict(zip(members, struct.unpack_from(formats, octets, at), strict=True))


CLASS_SETTINGS = _packed("class_settings")
FAULT_SETTINGS = _packed("fault_settings")
#: A port's settings, before its classes and faults.
PORT_HEAD = _packed("port_settings", last="seed")
#: Where in a port's settings its faults are, and what comes after them.
FAULTS_AT = places("port_settings")["faults"].offset
TAIL_AT = places("port_settings")["class_of"].offset
PORT_SETTINGS_BYTES = size_of("port_settings")

CLASS_COUNTERS = _packed("class_counters")
QUEUE_STATE = _packed("queue")
STATE_HEAD = _packed("port_state", last="hash_draws")
PORT_STATE_BYTES = size_of("port_state")

PORT_KEY = struct.Struct("=I")
ROUTE_KEY = _packed("route_key")
ROUTE = _packed("route")
FLOWLET = _packed("flowlet")

PAUSE_RULES = _packed("pause_rules")
PAUSE_STATE = _packed("pause_state")
WAITING_KEY = _packed("waiting_key")
PAUSE_COUNTS = _packed("pause_counts")
PAUSE_EVENT = _packed("pause_event")

POOL = _packed("virtual_pool")
VIRTUAL_SWITCH = _packed("virtual_switch")
VIRTUAL_PORT = _packed("virtual_port")

#: Octets of a value by map name: what an object file must agree with.
VALUE_BYTES = {
    "pause_rules": PAUSE_RULES.size,
    "pause_states": PAUSE_STATE.size,
    "pause_counts": PAUSE_COUNTS.size,
    "waiting_octets": 8,
    "settings": PORT_SETTINGS_BYTES,
    "ports": PORT_STATE_BYTES,
    "routes": ROUTE.size,
    "flowlets": FLOWLET.size,
}
#: Those of the maps that only the program for a virtual clock has.
VIRTUAL_VALUE_BYTES = {
    "virtual_pools": POOL.size,
    "virtual_switches": VIRTUAL_SWITCH.size,
    "virtual_ports": VIRTUAL_PORT.size,
}
