"""Counters of the ends of a cable: pauses (PFC), link layer retry and credits (UES 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from typing import Protocol

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


@dataclass(slots=True)
class LinkCounters:
    """One end of a cable, both directions.  Times are fabric time.

    UES 5 gives its counters names that are not public; these are the emulator's.
    """

    acks_sent: int = 0
    acks_received: int = 0
    nacks_sent: int = 0
    nacks_received: int = 0
    replays: int = 0
    replayed_frames: int = 0
    replayed_bytes: int = 0
    replay_timer_expiries: int = 0
    duplicates: int = 0
    out_of_sequence: int = 0
    errored_frames: int = 0
    errored_sets: int = 0
    lost_frames: int = 0
    link_failures: int = 0
    buffer_full_stalls: int = 0
    buffer_full_ns: int = 0
    recovered_frames: int = 0
    recovery_ns: int = 0
    credit_updates_sent: int = 0
    credit_updates_received: int = 0
    consumed_updates_sent: int = 0
    consumed_updates_received: int = 0
    repaired_cells: int = 0
    credit_stalls: int = 0
    credit_stalled_ns: int = 0
    longest_recovery_ns: int = 0
    max_replay_bytes: int = 0
    max_held_bytes: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return all counters by name."""
        return asdict(self)


#: Counters of which the larger counts where two spans become one; all others add up.
LARGEST_OF_LINKS = frozenset({"longest_recovery_ns", "max_replay_bytes", "max_held_bytes"})
_LINK_NAMES = tuple(field.name for field in fields(LinkCounters))


def link_change(before: LinkCounters | None, after: LinkCounters) -> LinkCounters:
    """Return what came between two readings; of the largest ones, what they were at the end."""
    if before is None:
        return after
    return LinkCounters(
        **{
            name: getattr(after, name) - (0 if name in LARGEST_OF_LINKS else getattr(before, name))
            for name in _LINK_NAMES
        }
    )


def link_total(earlier: LinkCounters | None, later: LinkCounters) -> LinkCounters:
    """Return ``later`` with the larger ones of what does not add up."""
    if earlier is None:
        return later
    return replace(
        later,
        **{name: max(getattr(earlier, name), getattr(later, name)) for name in LARGEST_OF_LINKS},
    )


class LinkCounting(Protocol):
    """The engine of a virtual clock, which counts."""

    def link_counters(self) -> Mapping[str, LinkCounters]:
        """Return the counters of all ports up to now."""

    def restart_links(self) -> None:
        """Measure the largest and longest anew; counts go on."""


class LinkReadings:
    """The link layer's counters of all ports, for whoever reads them.

    ``source`` is the engine, once it works on the cables.
    """

    def __init__(self) -> None:
        self.source: LinkCounting | None = None

    def counters(self) -> Mapping[str, LinkCounters]:
        """Return the counters by ``node:port`` up to now; empty where no cable has a link layer."""
        return {} if self.source is None else self.source.link_counters()

    def restart(self) -> None:
        """Measure the largest and longest anew; counts go on."""
        if self.source is not None:
            self.source.restart_links()
