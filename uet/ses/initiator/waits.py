"""Waits of operations without a message on its way, and their deadlines."""

from __future__ import annotations

import enum
import heapq
from typing import Generic, Protocol, TypeVar

from uet.timekeeper import Timekeeper


class Waits(enum.Enum):
    """The events that are awaited; the value names the error if one does not come."""

    NOTHING = ""
    #: the time of the next attempt
    RESTART = "restart"
    #: DEFERRABLE_RTR
    PERMISSION = "RESTART_TIMEOUT"
    #: return data
    DATA = "READ_TIMEOUT"
    #: the peer's reads of what a rendezvous send kept back
    FETCH = "RENDEZVOUS_TIMEOUT"


class Waiter(Protocol):
    """Whatever waits for one thing at a time."""

    waits: Waits
    #: number of the timer that counts, among all it ever had
    timer: int


W = TypeVar("W", bound=Waiter)


class Timers(Generic[W]):
    """One timer for each waiter."""

    def __init__(self, time: Timekeeper) -> None:
        self._time = time
        self._heap: list[tuple[int, int, W]] = []
        self._number = 0
        self._enough = 64  # entries after which to throw out what nobody waits for

    def start(self, waiter: W, for_what: Waits, due: int) -> None:
        """Wait until ``due`` (ns), and for nothing else any more."""
        self._number += 1
        self.stop(waiter)
        waiter.waits, waiter.timer = for_what, self._number
        heapq.heappush(self._heap, (due, self._number, waiter))
        self._time.started(due)
        if len(self._heap) > self._enough:
            self._heap = [entry for entry in self._heap if _counts(entry)]
            heapq.heapify(self._heap)
            self._enough = max(64, 2 * len(self._heap))

    def stop(self, waiter: W) -> None:
        """``waiter`` waits for nothing any more."""
        if waiter.waits is not Waits.NOTHING:
            waiter.waits = Waits.NOTHING
            self._time.stopped()

    def next_deadline(self) -> int | None:
        """The earliest time that somebody still waits for (ns)."""
        heap = self._heap
        while heap:
            if _counts(heap[0]):
                return heap[0][0]
            heapq.heappop(heap)
        return None

    def pop(self, now: int) -> tuple[W, Waits] | None:
        """Somebody whose time has come, who waits for nothing any more."""
        due = self.next_deadline()
        if due is None or due > now:
            return None
        waiter = heapq.heappop(self._heap)[2]
        waited = waiter.waits
        self.stop(waiter)
        return waiter, waited


def _counts(entry: tuple[int, int, W]) -> bool:
    _, number, waiter = entry
    return waiter.timer == number and waiter.waits is not Waits.NOTHING
