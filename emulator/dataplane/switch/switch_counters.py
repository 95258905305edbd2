"""Counters of the model of a port's queues."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from emulator.dataplane.kernel.programs.bpf_syscall import LOCKED
from emulator.dataplane.switch.bpf.layout import (
    CLASS_COUNTERS,
    POOL,
    PORT_HEAD,
    PORT_KEY,
    PORT_SETTINGS_BYTES,
    PORT_STATE_BYTES,
    QUEUE_STATE,
    RATE_SHIFT,
    SHARE_SHIFT,
    STATE_HEAD,
    TAIL,
    TAIL_AT,
    VIRTUAL_PORT,
    DropReason,
    Queue,
    TrafficClass,
    places,
    unpack,
)
from emulator.dataplane.switch.bpf.port_program import check_index
from emulator.dataplane.switch.bpf.switch_tables import SwitchTables

DEPTH = struct.Struct("=Q")  # what a QUEUE_STATE begins with
LOST_FIELD = 7  # of CLASS_COUNTERS
#: Where in the words of a virtual clock marks on departure are counted, to the end.
MARKS_AT = places("virtual_port")["departure_draws"].offset
#: Where in a port's state the lost octets of the class of data are.
LOST_AT = (
    STATE_HEAD.size
    + len(Queue) * QUEUE_STATE.size
    + TrafficClass.DATA * CLASS_COUNTERS.size
    + LOST_FIELD * DEPTH.size
)


@dataclass(frozen=True, slots=True)
class ClassCounters:
    """One traffic class at one port.  Octets are those on the wire, 38 more than the IP packet.

    ``packets`` found room in the queue; those trimmed here did not and count in the class
    ``trimmed``, too.  ``reordered`` ones went ahead of others that waited.  ``lost_bytes``, of
    ``bytes``, never arrived: a fault of the cable took them, or they waited in the data queue when
    it was pulled (these count in the class ``data``).  ``drops`` by reason.
    """

    packets: int
    bytes: int
    marked: int
    trimmed: int
    corrupted: int
    duplicated: int
    reordered: int
    lost_bytes: int
    drops: Mapping[DropReason, int]

    @property
    def dropped(self) -> int:
        return sum(self.drops.values())


#: A class without packets, as most are at most ports: all of them are this one.
NO_PACKETS = ClassCounters(0, 0, 0, 0, 0, 0, 0, 0, dict.fromkeys(DropReason, 0))


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """One queue: octets now and at most, and the depth at arrivals of packets.

    ``histogram[i]`` counts depths of ``i * bin_bytes`` up to the next bin; the last has the rest.
    """

    bytes: int
    max_bytes: int
    histogram: tuple[int, ...]
    bin_bytes: int


@dataclass(frozen=True, slots=True)
class PoolUse:
    """What all ports of a switch use of their pool, now and at most, and of its headroom."""

    size_bytes: int
    bytes: int
    max_bytes: int
    headroom_bytes: int
    headroom_max_bytes: int


@dataclass(frozen=True, slots=True)
class AsicCounters:
    """One port since the program was loaded, or since :func:`reset`."""

    classes: Mapping[TrafficClass, ClassCounters]
    queues: Mapping[Queue, QueueDepth]
    #: of its switch; None where ports share nothing
    pool: PoolUse | None = None

    def as_dict(self) -> dict[str, object]:
        """Return the counters for a result file: names in lower case instead of numbers."""
        classes = {}
        for traffic_class, row in self.classes.items():
            drops = {reason.name.lower(): count for reason, count in row.drops.items()}
            classes[traffic_class.name.lower()] = _by_name(row) | {"drops": drops}
        queues = {queue.name.lower(): _by_name(depth) for queue, depth in self.queues.items()}
        found: dict[str, object] = {"classes": classes, "queues": queues}
        if self.pool is not None:
            found["pool"] = _by_name(self.pool)
        return found


_NAMES: Mapping[type, tuple[str, ...]] = {
    kind: tuple(one.name for one in fields(kind)) for kind in (ClassCounters, QueueDepth, PoolUse)
}


def _by_name(counters: ClassCounters | QueueDepth | PoolUse) -> dict[str, object]:
    return {name: getattr(counters, name) for name in _NAMES[type(counters)]}


def read(program: SwitchTables, index: int) -> AsicCounters:
    """The counters of port ``index``, all of one moment, and the depths at this one."""
    check_index(program, index)
    key = PORT_KEY.pack(index)
    virtual = program.virtual_ports
    depths = None if virtual is None else virtual.get(key)
    return _counted(
        program.settings.get(key), program.ports.get(key, flags=LOCKED), depths, _pools(program)
    )


def read_all(program: SwitchTables, indices: Sequence[int]) -> list[AsicCounters]:
    """Return the result of :func:`read` for all of ``indices`` in a few system calls."""
    for index in indices:
        check_index(program, index)
    count = max(indices, default=-1) + 1
    settings = memoryview(program.settings.first(count))
    states = memoryview(program.ports.first(count, flags=LOCKED))
    virtual = program.virtual_ports
    depths = None if virtual is None else memoryview(virtual.first(count))
    pools = _pools(program)
    return [
        _counted(
            settings[index * PORT_SETTINGS_BYTES :],
            states[index * PORT_STATE_BYTES :],
            None if depths is None else depths[index * VIRTUAL_PORT.size :],
            pools,
        )
        for index in indices
    ]


def _pools(program: SwitchTables) -> bytes | bytearray:
    """Return the pools of all switches, one after the other; empty with the host's clock."""
    table = program.virtual_pools
    return b"" if table is None else table.first(table.entries)


def _use(pools: bytes | bytearray, switch: int) -> PoolUse | None:
    if len(pools) < (switch + 1) * POOL.size:
        return None
    size, _, _, *state = POOL.unpack_from(pools, switch * POOL.size)
    used, most, in_headroom, most_in_headroom, _ = state
    return PoolUse(size, used, most, in_headroom, most_in_headroom) if size else None


def reset_pool(program: SwitchTables, switch: int) -> None:
    """Measure anew the most that is used of the pool of a switch."""
    table = program.virtual_pools
    if table is None:
        return
    key = PORT_KEY.pack(switch)
    size, reserved, headroom, used, _, in_headroom, _, unused = POOL.unpack(table.get(key))
    state = used, used, in_headroom, in_headroom, unused
    table.put(key, POOL.pack(size, reserved, headroom, *state))


def _counted(
    settings: bytes | memoryview,
    state: bytes | memoryview,
    depths: bytes | memoryview | None,
    pools: bytes | bytearray,
) -> AsicCounters:
    """``depths`` is what a virtual clock's engine keeps of the port; None with the host's clock."""
    rate, _ = PORT_HEAD.unpack_from(settings)
    tail = unpack(TAIL, settings, TAIL_AT)
    bin_bytes = 1 << tail["bin_shift"]
    _, _, drained_at, credit, low_credit, *_ = STATE_HEAD.unpack_from(state)
    idle = 0 if tail["measured"] else max(0, time.monotonic_ns() - drained_at)
    served = (idle * rate + credit) >> RATE_SHIFT
    owned = (served * tail["low_share"] + low_credit) >> SHARE_SHIFT
    offset = STATE_HEAD.size
    rows = {}
    for queue in Queue:
        rows[queue] = QUEUE_STATE.unpack_from(state, offset)
        offset += QUEUE_STATE.size
    departed = (0,) * len(TrafficClass)
    if depths is not None:
        words = VIRTUAL_PORT.unpack_from(depths)
        left = dict(zip(Queue, words, strict=False))
        departed = words[-len(TrafficClass) :]
    else:
        left = _drained({queue: depth for queue, (depth, *_) in rows.items()}, served, owned)
    queues = {
        queue: QueueDepth(left[queue], deepest, tuple(histogram), bin_bytes)
        for queue, (_, deepest, *histogram) in rows.items()
    }
    classes: dict[TrafficClass, ClassCounters] = {}
    for traffic_class in TrafficClass:
        numbers = CLASS_COUNTERS.unpack_from(state, offset)
        offset += CLASS_COUNTERS.size
        if not any(numbers):
            classes[traffic_class] = NO_PACKETS
            continue
        counts = numbers[: -len(DropReason)]
        drops = dict(zip(DropReason, numbers[-len(DropReason) :], strict=True))
        packets, octets, marked, trimmed, corrupted, duplicated, reordered, lost = counts
        marked += departed[traffic_class]
        classes[traffic_class] = ClassCounters(
            packets, octets, marked, trimmed, corrupted, duplicated, reordered, lost, drops
        )
    return AsicCounters(classes, queues, _use(pools, tail["switch_number"]))


def _drained(depths: Mapping[Queue, int], served: int, owned: int) -> dict[Queue, int]:
    """Return the depths after ``served`` octets, of which ``owned`` belong to the low queue.

    See drain in queue.h.
    """
    left = dict(depths)
    for queue, most in ((Queue.LOW, owned), *((queue, served) for queue in Queue)):
        taken = min(left[queue], most, served)
        left[queue] -= taken
        served -= taken
    return left


def reset(program: SwitchTables, index: int) -> None:
    """Empty the model's queues and set all counts, and all seeded sequences, to their start.

    Queues that a virtual clock's engine keeps stay as they are: their frames are still to leave.
    """
    check_index(program, index)
    key = PORT_KEY.pack(index)
    program.ports.put(key, bytes(PORT_STATE_BYTES), flags=LOCKED)
    if (virtual := program.virtual_ports) is not None:
        words = virtual.get(key)
        if any(words[MARKS_AT:]):
            virtual.put(key, words[:MARKS_AT].ljust(len(words), b"\0"))


def lose(program: SwitchTables, index: int, octets: int) -> None:
    """Count ``octets`` of the data queue of a port as lost.  Nothing may pass it meanwhile."""
    check_index(program, index)
    key = PORT_KEY.pack(index)
    state = bytearray(program.ports.get(key, flags=LOCKED))
    (lost,) = DEPTH.unpack_from(state, LOST_AT)
    DEPTH.pack_into(state, LOST_AT, lost + octets)
    program.ports.put(key, bytes(state), flags=LOCKED)


def empty(program: SwitchTables, index: int) -> None:
    """Empty the model's queues of a port that receives nothing.

    All counts stay, and what was in the data queue counts as lost.
    """
    check_index(program, index)
    key = PORT_KEY.pack(index)
    state = bytearray(program.ports.get(key, flags=LOCKED))
    (waiting,) = DEPTH.unpack_from(state, STATE_HEAD.size + Queue.LOW * QUEUE_STATE.size)
    if program.virtual_ports is not None:
        depths = program.virtual_ports.get(key)
        waiting = VIRTUAL_PORT.unpack(depths)[Queue.LOW]
        kept = depths[len(Queue) * DEPTH.size :]
        program.virtual_ports.put(key, bytes(len(Queue) * DEPTH.size) + kept)
    (lost,) = DEPTH.unpack_from(state, LOST_AT)
    DEPTH.pack_into(state, LOST_AT, lost + waiting)
    for queue in Queue:
        DEPTH.pack_into(state, STATE_HEAD.size + queue * QUEUE_STATE.size, 0)
    program.ports.put(key, bytes(state), flags=LOCKED)
