"""The desk that hands trials to ranks: which of them gets which, and what is tried again.

A trial that failed is tried once more on another machine, or where there is none by another rank;
what came of that counts.  Plain bookkeeping: no messages, no files, no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from emulator.suite.farm.farm_messages import FarmTask
from emulator.suite.trials import TrialEnd

#: A rank gets no trials any more when so many failed there that ran elsewhere.
STRIKES = 2


@dataclass(eq=False)
class TrialOrder:
    """A trial that somebody waits for; ``failed`` is the rank that it failed at, and why."""

    task: FarmTask
    failed: tuple[int, str] | None = None


@dataclass
class _Rank:
    machine: str
    order: TrialOrder | None = None
    strikes: int = 0


class TrialDesk:
    """Orders and the ranks that work on them; ``machines`` are those of the ranks."""

    def __init__(self, machines: Mapping[int, str]) -> None:
        self._ranks = {rank: _Rank(machine) for rank, machine in machines.items()}
        self._waiting: deque[TrialOrder] = deque()

    @property
    def ranks(self) -> list[int]:
        """Return the ranks that are there."""
        return list(self._ranks)

    def place(self, rank: int) -> str:
        """Return the words for a rank and its machine."""
        return f"rank {rank} on {self._ranks[rank].machine}"

    def submit(self, order: TrialOrder) -> None:
        """Put ``order`` behind those that wait."""
        self._waiting.append(order)

    def assignments(self) -> Iterator[tuple[int, TrialOrder]]:
        """Give idle ranks what waits, the oldest first; yield each rank with its order."""
        for order in [*self._waiting]:
            idle = [rank for rank, state in self._ranks.items() if state.order is None]
            rank = next((one for one in idle if one in self._allowed(order)), None)
            if rank is not None:
                self._waiting.remove(order)
                self._ranks[rank].order = order
                yield rank, order

    def order_of(self, rank: int) -> TrialOrder | None:
        """Return what ``rank`` works on."""
        return self._ranks[rank].order

    def ended(self, rank: int, end: TrialEnd) -> TrialEnd | None:
        """Take the end of the order of ``rank``; return it with its place.

        None if it tries again or has none.
        """
        order, self._ranks[rank].order = self._ranks[rank].order, None
        if order is None:
            return None
        end = replace(end, place=self.place(rank))
        if order.failed is not None:
            return self._second(order.failed, end)
        if end.status != 0 and len(self._ranks) > 1:
            order.failed = rank, f"{self.place(rank)} ({end.why})"
            self._waiting.appendleft(order)
            return None
        return end

    def lost(self, rank: int, why: str) -> TrialEnd | None:
        """Strike ``rank`` off; return the end of its order, None if it tries again or has none."""
        place, order = self.place(rank), self._ranks.pop(rank).order
        if order is None:
            return None
        end = TrialEnd(status=-1, seconds=0.0, error=why, place=place)
        if order.failed is not None:
            return self._second(order.failed, end)
        if not self._ranks:
            return end
        order.failed = rank, f"{place} ({why})"
        self._waiting.appendleft(order)
        return None

    def _allowed(self, order: TrialOrder) -> set[int]:
        """Return the ranks that may take ``order``: the best there are, idle or not."""
        fit = {rank for rank, state in self._ranks.items() if state.strikes < STRIKES}
        fit = fit or set(self._ranks)
        if order.failed is None:
            return fit
        first = order.failed[0]
        others = {rank for rank in self._ranks if rank != first}
        here = self._ranks[first].machine if first in self._ranks else None
        away = {rank for rank in others if self._ranks[rank].machine != here}
        return (away & fit) or (others & fit) or others or set(self._ranks)

    def _second(self, failed: tuple[int, str], end: TrialEnd) -> TrialEnd:
        first, stated = failed
        if end.status != 0:
            return replace(end, again=f"failed at {stated}, and at {end.place} ({end.why})")
        if first in self._ranks:
            self._ranks[first].strikes += 1
        return replace(end, again=f"failed at {stated}, and ran at {end.place}")
