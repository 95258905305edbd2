"""What the model of a port's queues has seen."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from emulator.asic.kernel import LOCKED
from emulator.asic.layout import (
    CLASS_COUNTERS,
    CLASS_SETTINGS,
    FAULT_SETTINGS,
    PORT_HEAD,
    PORT_KEY,
    PORT_STATE_BYTES,
    PORT_TAIL,
    QUEUE_STATE,
    RATE_SHIFT,
    STATE_HEAD,
    DropReason,
    Queue,
    TrafficClass,
)
from emulator.asic.ports import check_index
from emulator.asic.program import Program

TAIL_OFFSET = PORT_HEAD.size + len(TrafficClass) * CLASS_SETTINGS.size + FAULT_SETTINGS.size
BIN_SHIFT_FIELD, MEASURED_FIELD = 3, 7  # of PORT_TAIL


@dataclass(frozen=True, slots=True)
class ClassCounters:
    """One traffic class at one port.  Octets are those on the wire, 38 more than the IP packet.

    ``packets`` found room in the queue; those trimmed here did not and count in the class
    ``trimmed``, too.  ``drops`` by reason.
    """

    packets: int
    bytes: int
    marked: int
    trimmed: int
    corrupted: int
    duplicated: int
    drops: Mapping[DropReason, int]

    @property
    def dropped(self) -> int:
        return sum(self.drops.values())


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """One queue: octets now and at most, and how deep arriving packets found it.

    ``histogram[i]`` counts depths of ``i * bin_bytes`` up to the next bin; the last has the rest.
    """

    bytes: int
    max_bytes: int
    histogram: tuple[int, ...]
    bin_bytes: int


@dataclass(frozen=True, slots=True)
class AsicCounters:
    """One port since the program was loaded, or since :func:`reset`."""

    classes: Mapping[TrafficClass, ClassCounters]
    queues: Mapping[Queue, QueueDepth]

    def as_dict(self) -> dict[str, object]:
        """For a result file: names in lower case instead of numbers."""
        classes = {}
        for traffic_class, row in self.classes.items():
            drops = {reason.name.lower(): count for reason, count in row.drops.items()}
            classes[traffic_class.name.lower()] = asdict(row) | {"drops": drops}
        queues = {queue.name.lower(): asdict(depth) for queue, depth in self.queues.items()}
        return {"classes": classes, "queues": queues}


def read(program: Program, index: int) -> AsicCounters:
    """The counters of port ``index``, all of one moment, and the depths at this one."""
    check_index(program, index)
    key = PORT_KEY.pack(index)
    settings, state = program.settings.get(key), program.ports.get(key, flags=LOCKED)
    rate, _ = PORT_HEAD.unpack_from(settings)
    numbers = PORT_TAIL.unpack_from(settings, TAIL_OFFSET)
    bin_bytes = 1 << numbers[BIN_SHIFT_FIELD]
    _, _, drained_at, credit, *_ = STATE_HEAD.unpack_from(state)
    measured = numbers[MEASURED_FIELD]
    idle = 0 if measured else max(0, time.monotonic_ns() - drained_at)
    served = (idle * rate + credit) >> RATE_SHIFT
    offset = STATE_HEAD.size
    queues = {}
    for queue in Queue:
        depth, deepest, *histogram = QUEUE_STATE.unpack_from(state, offset)
        offset += QUEUE_STATE.size
        taken = min(depth, served)
        served -= taken
        queues[queue] = QueueDepth(depth - taken, deepest, tuple(histogram), bin_bytes)
    classes = {}
    for traffic_class in TrafficClass:
        *counts, tail, loss, burst, hole, failure = CLASS_COUNTERS.unpack_from(state, offset)
        offset += CLASS_COUNTERS.size
        drops = dict(zip(DropReason, (tail, loss, burst, hole, failure), strict=True))
        packets, octets, marked, trimmed, corrupted, duplicated = counts
        classes[traffic_class] = ClassCounters(
            packets, octets, marked, trimmed, corrupted, duplicated, drops
        )
    return AsicCounters(classes, queues)


def reset(program: Program, index: int) -> None:
    """Empty the model's queues and set all counts, and all seeded sequences, to their start."""
    check_index(program, index)
    program.ports.put(PORT_KEY.pack(index), bytes(PORT_STATE_BYTES), flags=LOCKED)
