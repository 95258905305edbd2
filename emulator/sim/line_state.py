"""Frames that the lines of a fabric have carried, lost and still hold, by all workers' counts.

The worker that owns a port counts what leaves by it. The worker that owns the port at the other end
of the cable counts what arrives there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from emulator.dataplane.kernel.port_counters import QueueCounters
from emulator.sim.line import QUEUES, Line, LineCounts, LineTally
from topologies.model import CableEnd


@dataclass(frozen=True, slots=True)
class LineState:
    """Counts of one line, the CRC32C of its frames, and frames and octets that wait by queue.

    ``crc`` is of the row that runs, ``past`` of those before; ``before`` is how counts stood when
    the row began.
    """

    crc: int
    past: tuple[int, ...]
    counts: LineCounts
    before: LineTally
    waiting: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, line: Line) -> LineState:
        """The state of ``line`` now."""
        waiting = tuple(line.waiting(queue) for queue in range(QUEUES))
        return cls(line.crc, tuple(line.past), line.counts, line.before, waiting)

    def with_arrivals(self, far: LineState) -> LineState:
        """Return the state of this port's owner with the counters of ``far``.

        ``far`` is the state of the other end's owner.
        """
        counts = replace(
            self.counts,
            arrived=far.counts.arrived,
            arrived_octets=far.counts.arrived_octets,
            in_flight=far.counts.in_flight,
        )
        then = far.before
        before = self.before._replace(arrived=then.arrived, in_flight=then.in_flight)
        return replace(self, counts=counts, before=before)

    def queue(self, number: int, drops: int = 0) -> QueueCounters:
        packets, octets = self.counts.by_queue[number]
        waiting, waiting_octets = self.waiting[number]
        return QueueCounters(
            packets=packets,
            bytes=octets,
            drops=drops,
            backlog_packets=waiting,
            backlog_bytes=waiting_octets,
        )


#: The state of every line by the port that it leaves.
LineStates = Mapping[CableEnd, LineState]


def joined(first: QueueCounters, second: QueueCounters) -> QueueCounters:
    """The counters of both queues, as those of one."""
    return QueueCounters(
        packets=first.packets + second.packets,
        bytes=first.bytes + second.bytes,
        drops=first.drops + second.drops,
        backlog_packets=first.backlog_packets + second.backlog_packets,
        backlog_bytes=first.backlog_bytes + second.backlog_bytes,
    )
