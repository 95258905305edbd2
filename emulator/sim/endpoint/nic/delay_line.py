"""A delay line: frames are held for the propagation time of their path.

Two parts.  *Propagation* is the cables' (0 where the kernel's links delay).  *Serialisation* is the
last octet's wait for all octets before it, once at every port on the way: the kernel's shaper lets
a frame go when its transmission begins, and holds back the next one. So queues and rates are right,
but each store-and-forward hop hands its frame on one transmission too early.  The sum of what was
left out is added here, at the end of the path.

Frames of one path leave in the order in which they came; those of paths with different delays
overtake each other as they would on cables.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

from topologies.ethernet import FRAMING_OCTETS

Source = TypeVar("Source", bound=Hashable)
Item = TypeVar("Item")


_SMALLEST = 60  # octets of the shortest frame, without its check sequence


class PathDelay(NamedTuple):
    """The delay of one path: propagation, tunnels, and serialisation at every port.

    Propagation is in ns, with what tunnels add to the serialisation of any frame. The rest is ns
    for each octet of a frame, all ports added up.
    """

    propagation_ns: int
    ns_per_octet: float = 0.0


class DelayLine(Generic[Source, Item]):
    """Holds items by the delay (ns of fabric time) of the path from their source.

    One queue per distinct path is enough: within it, items are due in the order of arrival.
    """

    def __init__(self, delays: Mapping[Source, PathDelay]) -> None:
        queues: dict[PathDelay, deque[tuple[int, Item]]] = {}
        self._by_source = {
            source: (*delay, queues.setdefault(delay, deque())) for source, delay in delays.items()
        }
        no_delay = PathDelay(0)
        self._undelayed = (*no_delay, queues.setdefault(no_delay, deque()))
        self._queues = tuple(queues.values())
        #: No frame is due sooner than this after its arrival.
        self.shortest_ns = min((_delay_of(_SMALLEST, path) for path in delays.values()), default=0)
        self.unknown_sources = 0
        self.held = 0
        #: How long before the last release its most overdue item was due (ns).
        self.lateness = 0

    def hold(self, source: Source, arrival: int, octets: int, item: Item) -> None:
        """Take ``item``, a frame of ``octets`` which came from ``source`` at ``arrival``."""
        known = self._by_source.get(source)
        if known is None:
            known = self._undelayed
            self.unknown_sources += 1
        propagation, per_octet, queue = known
        due = arrival + propagation + int((octets + FRAMING_OCTETS) * per_octet)
        if queue and queue[-1][0] > due:
            due = queue[-1][0]  # behind a longer frame, or a clock step: no reordering
        queue.append((due, item))
        self.held += 1

    def release(self, now: int, limit: int) -> list[Item]:
        """Return at most ``limit`` items whose time is over, in the order of their times."""
        out: list[Item] = []
        due_queues = [queue for queue in self._queues if queue and queue[0][0] <= now]
        self.lateness = now - min(map(_first_due, due_queues)) if due_queues else 0
        while due_queues and len(out) < limit:
            if len(due_queues) == 1:
                queue = due_queues[0]
                while queue and queue[0][0] <= now and len(out) < limit:
                    out.append(queue.popleft()[1])
                break
            queue = min(due_queues, key=_first_due)
            out.append(queue.popleft()[1])
            if not queue or queue[0][0] > now:
                due_queues.remove(queue)
        self.held -= len(out)
        return out

    def next_due(self) -> int | None:
        """Return when the next item is due, or ``None`` when nothing is held."""
        return min((queue[0][0] for queue in self._queues if queue), default=None)


def _delay_of(octets: int, path: PathDelay) -> int:
    return path.propagation_ns + int((octets + FRAMING_OCTETS) * path.ns_per_octet)


def _first_due(queue: deque[tuple[int, Item]]) -> int:
    return queue[0][0]
