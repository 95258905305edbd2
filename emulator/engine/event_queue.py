"""Events in the order of virtual time, which is the same on every machine and for every run.

Times are picoseconds: an octet at 400 Gb/s lasts 20 of them.  Events of one instant are in the
order of ``order``, a number that their source gives: its own number in the high bits and a counter
of its own in the low ones (:class:`Source`).  So the order depends on no memory address, no
dictionary and no other source.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

PS = 1000  # in a nanosecond
#: Counters of a source have so many bits.
COUNTER_BITS = 44
#: An event of the run itself (a fault, a sample) comes before all others of its instant.
RUN_SOURCE = 0
NEVER = 1 << 62

Act = Callable[[Any], None]
Event = tuple[int, int, Act, Any]


class EventQueue:
    """The events to come; ``now`` is the time (ps) of the one that runs, or ran last."""

    __slots__ = ("events", "heap", "now", "stopped")

    def __init__(self) -> None:
        self.now = 0
        self.heap: list[Event] = []
        self.events = 0
        self.stopped = False

    def at(self, when: int, order: int, act: Act, argument: Any) -> None:
        """Call ``act(argument)`` at ``when`` (ps)."""
        heappush(self.heap, (when, order, act, argument))

    def stop(self) -> None:
        """Have :meth:`run` return after the event that runs now."""
        self.stopped = True

    def run(self, until: int = NEVER) -> bool:
        """Run events up to and with ``until`` (ps); return whether :meth:`stop` ended that.

        Without :meth:`stop` the time is ``until`` afterwards, or that of the last event if no
        limit was given.
        """
        heap, pop = self.heap, heappop
        count = 0
        self.stopped = False
        try:
            while heap and heap[0][0] <= until:
                self.now, _, act, argument = pop(heap)
                count += 1
                act(argument)
                if self.stopped:
                    return True
        finally:
            self.events += count
        if until != NEVER:
            self.now = until
        return False


class Source:
    """Numbers for the events of one source, growing: ``number`` in the high bits."""

    __slots__ = ("order",)

    def __init__(self, number: int) -> None:
        self.order = number << COUNTER_BITS

    def next(self) -> int:
        """The order of the source's next event."""
        self.order += 1
        return self.order
