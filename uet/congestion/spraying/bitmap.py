"""Spraying with penalties: an EV whose path was bad is passed over for some rounds.

UES 3.6.16 (path-aware spraying).  The set is sized so that an EV comes round within about two
RTTs (:func:`uet.congestion.spraying.paths.ev_set_size`).  Not for switches that spray by
themselves: there an EV is no path.
"""

from __future__ import annotations

import random
from typing import Final

from uet.congestion.spraying.paths import ECN, LOST, NACK, TIMEOUT, draw_evs, shuffle_evs
from uet.timekeeper import NEVER

#: Rounds that an EV is passed over after a mark, a trim and a loss, and at most.
PENALTIES: Final = {ECN: 1, NACK: 4, TIMEOUT: 15, LOST: 15}
MOST: Final = 15
#: Up to here a penalty may come from congestion, which passes; beyond, the path may be broken.
_CONGESTED: Final = PENALTIES[NACK]
#: After so many rounds they have another order.
_ROUNDS: Final = 8


class PenaltySpraying:
    """``rest``: the least time for which an EV that was marked is not used, one RTT (ns).

    Time is that of the newest feedback.  Penalties on more than half of the EVs show a network that
    is busy everywhere. They exclude no EV then.
    """

    __slots__ = (
        "_blamed",
        "_blamed_at",
        "_evs",
        "_next",
        "_now",
        "_penalty",
        "_rest",
        "_rng",
        "_rounds",
    )

    def __init__(self, rng: random.Random, *, size: int, rest: int) -> None:
        self._rng = rng
        self._rest = rest
        self._evs = draw_evs(rng, size)
        self._penalty = dict.fromkeys(self._evs, 0)
        self._blamed_at = dict.fromkeys(self._evs, -NEVER)
        self._blamed = 0  # EVs with a penalty
        self._now = -NEVER
        self._next = 0
        self._rounds = _ROUNDS

    def pick(self) -> int:
        """The EV of the next packet."""
        ev = self._turn()
        if self._penalty[ev]:
            for _ in self._evs:
                if not self._passed_over(ev):
                    break
                ev = self._turn()
        return ev

    def on_feedback(self, ev: int, how: int, now: int, packets: int = 1) -> None:
        """A packet with ``ev`` was answered or lost."""
        if now > self._now:
            self._now = now
        if not how or ev not in self._penalty:
            return
        penalty = self._penalty[ev]
        if not penalty:
            self._blamed += 1
        self._penalty[ev] = min(penalty + PENALTIES[how], MOST)
        self._blamed_at[ev] = now

    def timed_out(self) -> None:
        """Do nothing: the feedback names the EVs."""

    def _turn(self) -> int:
        position = self._next
        if position == len(self._evs):
            position = 0
            self._rounds -= 1
            if not self._rounds:
                self._rounds = _ROUNDS
                shuffle_evs(self._rng, self._evs)
        self._next = position + 1
        return self._evs[position]

    def _passed_over(self, ev: int) -> bool:
        """Return whether it is too early to use ``ev``; it is one round less early then."""
        penalty = self._penalty[ev]
        if not penalty:
            return False
        if 2 * self._blamed > len(self._evs):
            if penalty <= _CONGESTED:
                self._serve(ev, penalty)
                return False
        elif self._now - self._blamed_at[ev] < self._rest:
            return True
        self._serve(ev, penalty)
        return True

    def _serve(self, ev: int, penalty: int) -> None:
        self._penalty[ev] = penalty - 1
        if penalty == 1:
            self._blamed -= 1
