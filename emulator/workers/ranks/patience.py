"""How long a rank waits for others, and how it spends that time."""

from __future__ import annotations

import os
import time

#: Host time (s) between two polls beyond which this rank was stopped, or its machine was.
_STALL_S = 1.0
#: Polls before a rank that waits begins to sleep, and its longest sleep (s).
_EAGER_POLLS = 300
LONGEST_PAUSE_S = 0.001


class Patience:
    """One wait of ``budget_s`` at most (host s), in which this process itself was running."""

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._now = time.monotonic()
        self._give_up = self._now + budget_s
        self._polls, self._pause = 0, 0.0

    def eager(self) -> bool:
        """Let others have the processor; return whether to poll again and to do nothing else."""
        self._polls += 1
        if self._polls >= _EAGER_POLLS:
            return False
        os.sched_yield()
        return True

    def look(self) -> None:
        """Look at the clock; a time in which this rank stood still does not count."""
        before, self._now = self._now, time.monotonic()
        if self._now - before > _STALL_S:
            self._give_up += self._now - before

    @property
    def half_over(self) -> bool:
        """Return whether half of it has passed."""
        return self._now > self._give_up - self._budget_s / 2

    @property
    def over(self) -> bool:
        """Return whether it has passed."""
        return self._now > self._give_up

    def pause(self) -> None:
        """Sleep, longer from time to time."""
        self._pause = min(2 * self._pause or 50e-6, LONGEST_PAUSE_S)
        time.sleep(self._pause)
