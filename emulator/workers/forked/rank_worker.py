"""Workers that are ranks of a launcher, each with a lab on its own machine.

Every rank drives the run, with the same calls. So a call that is given to another rank's worker
needs no message: that rank gives it to itself.  Outcomes alone travel, in one message to each other
rank.  Those of a window go to the ranks alone that they concern, and all gather the times.
"""

from __future__ import annotations

from typing import Any

from emulator.workers.forked.window_report import WindowReport
from emulator.workers.forked.worker import LocalWorker
from emulator.workers.forked.worker_part import Counted, EndedSchedules, WorkerPart
from emulator.workers.ranks.rank_exchange import Ranks


class OwnRank:
    """The worker of this rank: it carries out calls, and shares their outcomes."""

    def __init__(self, part: WorkerPart, ranks: Ranks) -> None:
        self._local, self._ranks = LocalWorker(part), ranks
        self._given: list[str] = []

    @property
    def number(self) -> int:
        """The worker's number."""
        return self._local.number

    def give(self, method: str, *arguments: object) -> None:
        """Have ``method`` called as soon as the answer is awaited."""
        self._given.append(str(arguments[2]) if method == "at" else method)
        self._local.give(method, *arguments)

    def answer(self, time_limit_s: float | None = None) -> Any:
        """Carry out the oldest call, and share what it returns or raises."""
        what = self._given.pop(0)
        try:
            value = self._local.answer()
        except Exception as failure:
            self._ranks.fail(what, failure)
            raise
        if isinstance(value, WindowReport):
            self._ranks.share_window(what, value.times(), value.parcels(self._ranks.others))
        elif isinstance(value, Counted):
            self._ranks.share_with_first(what, value)
        elif isinstance(value, EndedSchedules):
            self._ranks.share(what, value.for_worker)
        else:
            self._ranks.share(what, lambda _: value)
        return value

    def close(self) -> None:
        """Give up the part."""
        self._local.close()


class OtherRank:
    """The worker of another rank, which gives the same calls to itself."""

    def __init__(self, number: int, ranks: Ranks) -> None:
        self.number, self._ranks = number, ranks

    def give(self, method: str, *arguments: object) -> None:
        """Do nothing: that rank has the call."""

    def answer(self, time_limit_s: float | None = None) -> Any:
        """Return what that rank has shared of the call that this one has just carried out."""
        if self._ranks.in_window:
            return WindowReport.heard(*self._ranks.hear_window(self.number), self._ranks.number)
        return self._ranks.hear(self.number)

    def close(self) -> None:
        """Do nothing: that rank closes its own."""
