"""Counters of the link layer at a port: link layer retry and credits (UES 5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields


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
_NAMES = tuple(field.name for field in fields(LinkCounters))


def link_change(before: LinkCounters | None, after: LinkCounters) -> LinkCounters:
    """Return what came between two readings; of the largest ones, what they were at the end."""
    if before is None:
        return after
    return LinkCounters(
        **{
            name: getattr(after, name) - (0 if name in LARGEST_OF_LINKS else getattr(before, name))
            for name in _NAMES
        }
    )


class LinkReadings:
    """The link layer's counters of all ports, for whoever reads them.

    ``read`` is the engine's, once it works on the cables.
    """

    def __init__(self) -> None:
        self.read: Callable[[], Mapping[str, LinkCounters]] | None = None

    def counters(self) -> Mapping[str, LinkCounters]:
        """Return the counters by ``node:port`` up to now; empty where no cable has a link layer."""
        return {} if self.read is None else self.read()
