"""Propagation delay where the kernel has no netem: hold a frame until its path's delay is over.

A source's delay is constant, so its frames leave in the order in which they came; frames of
sources with different delays overtake each other exactly as they would on cables.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

Source = TypeVar("Source", bound=Hashable)
Item = TypeVar("Item")


class DelayLine(Generic[Source, Item]):
    """Holds items by the delay (ns of fabric time) of their source.

    One queue per distinct delay is enough: within it, items are due in the order of arrival.
    """

    def __init__(self, delays: Mapping[Source, int]) -> None:
        queues: dict[int, deque[tuple[int, Item]]] = {}
        self._by_source = {
            source: (delay, queues.setdefault(delay, deque())) for source, delay in delays.items()
        }
        self._undelayed: tuple[int, deque[tuple[int, Item]]] = (0, queues.setdefault(0, deque()))
        self._queues = tuple(queues.values())
        self.shortest_ns = min((delay for delay in delays.values()), default=0)
        self.unknown_sources = 0
        self.held = 0
        #: How long before the last release its most overdue item was due (ns).
        self.lateness = 0

    def hold(self, source: Source, arrival: int, item: Item) -> None:
        """Take ``item``, which came from ``source`` at ``arrival``."""
        known = self._by_source.get(source)
        if known is None:
            known = self._undelayed
            self.unknown_sources += 1
        delay, queue = known
        due = arrival + delay
        if queue and queue[-1][0] > due:
            due = queue[-1][0]  # a clock step must not turn into reordering
        queue.append((due, item))
        self.held += 1

    def release(self, now: int, limit: int) -> list[Item]:
        """At most ``limit`` items that are due, by the time at which they were."""
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
        """When the next item is due, or ``None`` when nothing is held."""
        return min((queue[0][0] for queue in self._queues if queue), default=None)


def _first_due(queue: deque[tuple[int, Item]]) -> int:
    return queue[0][0]
