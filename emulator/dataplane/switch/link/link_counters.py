"""Counters of the link layer at a port: link layer retry and credits (UES 5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Protocol


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


def link_total(earlier: LinkCounters | None, later: LinkCounters) -> LinkCounters:
    """Return ``later`` with the larger ones of what does not add up."""
    if earlier is None:
        return later
    return replace(
        later,
        **{name: max(getattr(earlier, name), getattr(later, name)) for name in LARGEST_OF_LINKS},
    )


class LinkKeeper(Protocol):
    """The engine of a virtual clock, which counts."""

    def link_counters(self) -> Mapping[str, LinkCounters]:
        """Return the counters of all ports up to now."""

    def restart_links(self) -> None:
        """Measure the largest and longest anew; counts go on."""


class LinkReadings:
    """The link layer's counters of all ports, for whoever reads them.

    ``keeper`` is the engine, once it works on the cables.
    """

    def __init__(self) -> None:
        self.keeper: LinkKeeper | None = None

    def counters(self) -> Mapping[str, LinkCounters]:
        """Return the counters by ``node:port`` up to now; empty where no cable has a link layer."""
        return {} if self.keeper is None else self.keeper.link_counters()

    def restart(self) -> None:
        """Measure the largest and longest anew; counts go on."""
        if self.keeper is not None:
            self.keeper.restart_links()
