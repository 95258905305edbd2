"""Spraying with penalties: an EV whose path was bad is passed over for some rounds.

UES 3.6.16 (path-aware spraying).  The set is sized so that an EV comes round within about two
RTTs (:func:`uet.congestion.paths.ev_set_size`); each round has another order.
"""

from __future__ import annotations

import random

from uet.congestion.parameters import NEVER
from uet.congestion.paths import CLEAN, ECN, NACK, TIMEOUT, draw_evs

#: Rounds that an EV is passed over after a mark, a trim and a loss, and at most.
PENALTIES = {CLEAN: 0, ECN: 1, NACK: 4, TIMEOUT: 15}
MOST = 15


class PenaltySpraying:
    """``rest`` is the least time for which an EV with a penalty is not used (ns): one RTT.

    Time is that of the newest feedback.  While more than half of the EVs have penalties, they say
    nothing: the network is busy all over, and marks and trims are passed over in their turn.
    """

    __slots__ = (
        "_congested",
        "_evs",
        "_next",
        "_now",
        "_penalty",
        "_position",
        "_rest",
        "_rested_at",
        "_rng",
    )

    def __init__(self, rng: random.Random, *, size: int, rest: int) -> None:
        self._rng = rng
        self._evs = draw_evs(rng, size)
        self._position = {ev: 0 for ev in self._evs}  # only says which EVs are ours
        self._penalty = dict.fromkeys(self._evs, 0)
        self._rested_at = dict.fromkeys(self._evs, -NEVER)
        self._rest = rest
        self._congested = 0
        self._now = -NEVER
        self._next = 0
