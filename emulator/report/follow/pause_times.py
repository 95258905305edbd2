"""Times in which PAUSE frames by priority stopped ports, from the frames that reached these ports.

A frame stops its classes for so many quanta of the link, and replaces what an earlier one said of
them; 0 quanta let them go on (IEEE 802.1Q 36, IEEE 802.3 annex 31B).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from emulator.dataplane.switch.pfc.pause_frame import ETHERTYPE, duration_ns, quanta
from emulator.report.follow.capture_stream import PortFrame
from topologies.model import CableEnd, Topology

_TYPE, _CONTROL_AT, _SHORTEST = ETHERTYPE.to_bytes(2, "big"), 14, 34
#: PAUSE frames of a port that are kept, at most.
MOST_FRAMES = 100_000


@dataclass(frozen=True, slots=True)
class PortPause:
    """A part of a wait: ``priority`` of a port was stopped for ``stopped_ns`` of it."""

    priority: int
    stopped_ns: int


@dataclass
class PauseTimes:
    """PAUSE frames by the port that they reached; ``topology`` has the rates of its links."""

    topology: Topology
    _frames: dict[CableEnd, list[tuple[int, Mapping[int, int]]]] = field(default_factory=dict)

    def take(self, frame: PortFrame) -> bool:
        """Keep ``frame`` if it stops or releases its port; return whether it is MAC control."""
        if frame.octets[_CONTROL_AT - 2 : _CONTROL_AT] != _TYPE:
            return False
        if not frame.leaves and len(frame.octets) >= _SHORTEST:
            meant = quanta(frame.octets[:6], frame.octets[_CONTROL_AT:])
            kept = self._frames.setdefault(frame.end, [])
            if meant and len(kept) < MOST_FRAMES:
                kept.append((frame.at_ns, meant))
        return True

    def during(self, end: CableEnd, begin_ns: int, end_ns: int) -> Iterator[PortPause]:
        """Yield the priorities that were stopped at port ``end`` in a time of the file's clock."""
        stopped: dict[int, int] = {}
        for priority, since, until in self._stops(end):
            part = min(until, end_ns) - max(since, begin_ns)
            if part > 0:
                stopped[priority] = stopped.get(priority, 0) + part
        yield from (PortPause(priority, part) for priority, part in stopped.items())

    def released(self, end: CableEnd, begin_ns: int, end_ns: int) -> Iterator[PortPause]:
        """Yield the stops of port ``end`` that were over in a time, each with its whole length."""
        for priority, since, until in self._stops(end):
            if begin_ns <= until <= end_ns:
                yield PortPause(priority, until - since)

    def _stops(self, end: CableEnd) -> Iterator[tuple[int, int, int]]:
        """Yield each time in which a priority was stopped without interruption."""
        frames = self._frames.get(end, [])
        if not frames:
            return
        rate_bps = self.topology.link_at(end).rate_bps
        for priority in sorted({one for _, meant in frames for one in meant}):
            since = until = 0
            for at_ns, meant in frames:
                if priority not in meant:
                    continue
                if until <= at_ns:  # the stop before ran out
                    if since < until:
                        yield priority, since, until
                    since = at_ns
                until = at_ns + duration_ns(meant[priority], rate_bps)
            if since < until:
                yield priority, since, until
