"""Counters of priority flow control at a port of a switch or of a NIC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace

from emulator.dataplane.switch.bpf.layout import PAUSE_COUNTS, PAUSE_STATE, PORT_KEY
from emulator.dataplane.switch.bpf.switch_tables import SwitchTables


@dataclass(slots=True)
class PauseCounters:
    """One port and its lossless class.  Times are fabric time.

    A frame whose time is 0 ends a pause and counts as XON.  ``paused_ns`` is how long the port was
    not allowed to send; ``watchdog_ns`` how long it did so in spite of it.  ``late_ns``: a pause
    was requested, or took effect, so much later than on real hardware, at worst.
    """

    xoff_sent: int = 0
    xon_sent: int = 0
    xoff_received: int = 0
    xon_received: int = 0
    malformed: int = 0  # MAC control frames that are no PAUSE by priority
    unsent: int = 0  # the port did not take the frame: its link is down
    pauses: int = 0
    paused_ns: int = 0
    longest_pause_ns: int = 0
    watchdog_storms: int = 0
    watchdog_ns: int = 0
    late_ns: int = 0

    #: most octets on the wire that the port's lossless buffer has held since the lab's start; this
    #: one the switch program counts
    max_held_bytes: int = 0
    #: octets of that buffer whose frames were lost where they waited to leave: by a pulled cable,
    #: which frees them at once, or otherwise; the program's, too
    freed_bytes: int = 0

    def packed(self) -> bytes:
        return PAUSE_COUNTS.pack(*astuple(self)[:-2])

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


#: Of these the larger counts where two spans become one; all others add up.
LARGEST = frozenset({"longest_pause_ns", "late_ns", "max_held_bytes"})
NAMES = tuple(field.name for field in fields(PauseCounters))


def read(program: SwitchTables, indices: Sequence[int]) -> list[PauseCounters]:
    """The counters of these ports, as the agent last wrote them."""
    count = max(indices, default=-1) + 1
    counts = memoryview(program.pause_counts.first(count))
    states = memoryview(program.pause_states.first(count))
    found = []
    for index in indices:
        row = PauseCounters(*PAUSE_COUNTS.unpack_from(counts, index * PAUSE_COUNTS.size))
        _, row.max_held_bytes, _, row.freed_bytes, *_ = PAUSE_STATE.unpack_from(
            states, index * PAUSE_STATE.size
        )
        found.append(row)
    return found


def write(program: SwitchTables, index: int, counters: PauseCounters) -> None:
    program.pause_counts.put(PORT_KEY.pack(index), counters.packed())


def larger(one: PauseCounters | None, other: PauseCounters) -> PauseCounters:
    """``other`` with the larger ones of what does not add up."""
    if one is None:
        return other
    return replace(
        other, **{name: max(getattr(one, name), getattr(other, name)) for name in LARGEST}
    )


def change(before: PauseCounters | None, after: PauseCounters) -> PauseCounters:
    """Return what came between two readings; of the largest ones, what they were at the end."""
    if before is None:
        return after
    return PauseCounters(
        **{
            name: getattr(after, name) - (0 if name in LARGEST else getattr(before, name))
            for name in NAMES
        }
    )
