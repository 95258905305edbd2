"""Replayed traces as writers of traces get them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scenarios.traces.trace_model import Trace, TraceCollective


@dataclass(frozen=True, kw_only=True)
class CollectiveRun:
    """One collective of one iteration; times are ns of fabric time from the common start.

    ``number`` counts the collectives of the group from 0 on.  ``begins_ns`` has by member the
    start of its first message, ``ends_ns`` the arrival of its last one.
    """

    collective: TraceCollective
    ranks: tuple[int, ...]
    number: int
    begins_ns: dict[int, int]
    ends_ns: dict[int, int]

    @property
    def start_ns(self) -> int:
        """Return when the first member began."""
        return min(self.begins_ns.values())

    @property
    def end_ns(self) -> int:
        """Return when the last member was done."""
        return max(self.ends_ns.values())


@dataclass(frozen=True, kw_only=True)
class TraceRun:
    """A replayed trace.

    ``messages`` is the trace with every collective as the messages that it became. ``collectives``
    are those of the last iteration, and ``servers`` has the server of each rank.  ``origin_us`` is
    the fabric time of its start.
    """

    trace: Trace
    messages: Trace
    collectives: Sequence[CollectiveRun]
    servers: Sequence[str]
    origin_us: int
