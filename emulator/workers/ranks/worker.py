"""Workers that are ranks of a launcher, each with a lab on its own machine.

Every rank drives the run, with the same calls. So a call that is given to another rank's worker
needs no message: that rank gives it to itself.  Outcomes alone travel, in one message to each other
rank.  Those of a window go to the ranks alone that they concern, and all gather the times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from emulator.workers.ranks.exchange import Ranks
from emulator.workers.windows import WindowReport
from emulator.workers.worker import Call, Counted, EndedSchedules, WorkerPart

T = TypeVar("T")


class OwnRank:
    """The worker of this rank: it carries out calls, and shares their outcomes."""

    def __init__(self, part: WorkerPart, ranks: Ranks) -> None:
        self._part, self._ranks = part, ranks

    @property
    def number(self) -> int:
        """The worker's number."""
        return self._part.number

    def give(self, call: Call[T], time_limit_s: float | None = None) -> Callable[[], T]:
        """Return what carries ``call`` out, and shares what it returns or raises."""
        return partial(self._carry_out, call)

    def _carry_out(self, call: Call[T]) -> T:
        what = call.name
        try:
            value = call.carry_out(self._part)
        except Exception as failure:
            self._ranks.fail(what, failure, window=call.window)
            raise
        if isinstance(value, WindowReport):
            self._ranks.share_window(what, value.times(), value.messages(self._ranks.others))
        elif isinstance(value, Counted):
            self._ranks.share_with_first(what, value)
        elif isinstance(value, EndedSchedules):
            self._ranks.share(what, value.for_worker)
        else:
            self._ranks.share(what, lambda _: value)
        return value

    def close(self) -> None:
        """Give up the part."""
        self._part.close()


class OtherRank:
    """The worker of another rank, which gives the same calls to itself."""

    def __init__(self, number: int, ranks: Ranks) -> None:
        self.number, self._ranks = number, ranks

    def give(self, call: Call[T], time_limit_s: float | None = None) -> Callable[[], T]:
        """Return what returns that rank's answer, once this rank has carried out its own part."""
        return partial(self._heard, call.window)

    def _heard(self, window: bool) -> Any:
        if window:
            return WindowReport.heard(*self._ranks.hear_window(self.number), self._ranks.number)
        return self._ranks.hear(self.number)

    def close(self) -> None:
        """Do nothing: that rank closes its own."""


class RankedPorts:
    """The ports of all ``ranks``; ``owner`` is the number of a node's rank, by its name.

    It is the :class:`emulator.dataplane.switch.joined_ports.JoinedPorts` of a run.
    """

    def __init__(self, ranks: Ranks, owner: Mapping[str, int]) -> None:
        self._ranks, self._owner = ranks, owner
        #: the ranks of lists of ports that are asked for again and again, by the list's identity
        self._ranks_of: dict[int, tuple[Sequence[str], NDArray[np.intp]]] = {}

    def mine(self, names: Sequence[str]) -> list[str]:
        """Return those of ``names`` (``node:port``) whose node is this rank's; all at its end."""
        if self._ranks.ended:
            return list(names)
        return [name for name in names if self._rank(name) == self._ranks.number]

    def by_name(self, names: Sequence[str], own: Mapping[str, T]) -> dict[str, T]:
        """Return for each of ``names`` (``node:port``) what the rank of its node has in ``own``.

        Ranks that report nothing have nothing.
        """
        if self._ranks.ended:  # what the others have is out of reach
            return {name: own[name] for name in names if name in own}
        mine = {name: own[name] for name in self.mine(names) if name in own}
        parts = self._ranks.to_first("counters of ports", mine)
        if not parts:
            return {}
        found = ((name, parts[self._rank(name)]) for name in names)
        return {name: part[name] for name, part in found if name in part}

    def rows(self, names: Sequence[str], own: NDArray[Any]) -> NDArray[Any]:
        """Return for each of ``names`` the row that the rank of its node has in ``own``.

        Ranks that report nothing have their own.
        """
        if self._ranks.ended:
            return own
        if id(names) not in self._ranks_of:
            self._ranks_of[id(names)] = names, np.array([self._rank(name) for name in names])
        _, rank_of = self._ranks_of[id(names)]
        mine = own[rank_of == self._ranks.number]
        parts = self._ranks.to_first("samples of ports", mine)
        if not parts:
            return own
        joined = own.copy()
        for number, part in enumerate(parts):
            joined[rank_of == number] = part
        return joined

    def _rank(self, name: str) -> int:
        return self._owner[name.partition(":")[0]]
