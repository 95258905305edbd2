"""Recycled entropy (REPS): a path that was clean is used again.

UES 3.6.16 (path-aware spraying).  Good EVs come back with the ACKs and wait in a small ring; while
it is empty EVs are random, so new paths are always being tried.  When a packet times out some path
is broken: then only EVs that were good are used, over and over ("frozen"), until things have calmed
down (REPS, arXiv 2407.21625).  A loss inferred from newer packets only removes its EV from the
ring.
"""

from __future__ import annotations

import random
from array import array
from typing import Final

from uet.congestion.spraying.paths import (
    CLEAN,
    ECN,
    EV_SET_SIZE,
    LOST,
    TIMEOUT,
    draw_more_evs,
    shuffle_evs,
)

#: Good EVs remembered.
CACHE_SIZE: Final = 8
_SLOT: Final = CACHE_SIZE - 1
#: While it explores after a freeze, one packet in so many has a random EV.
_EXPLORE_EVERY: Final = 8
_EMPTY: Final = -1


class Reps:
    """``window_packets``: packets in one bandwidth-delay product, ``freeze_time`` in ns.

    ``evs`` are those to choose from, if not :data:`EV_SET_SIZE` of all.
    """

    __slots__ = (
        "_evs",
        "_explore",
        "_freeze_time",
        "_fresh",
        "_head",
        "_left",
        "_replay",
        "_ring",
        "_rng",
        "_size",
        "_thaw_at",
        "_turn",
        "_warm_up",
        "_wary_until",
        "_window",
        "frozen",
    )

    def __init__(
        self,
        rng: random.Random,
        *,
        window_packets: int,
        freeze_time: int,
        evs: array[int] | None = None,
    ) -> None:
        self._rng = rng
        self._evs = array("H") if evs is None else evs
        self._size = len(evs) if evs is not None else EV_SET_SIZE
        self._turn = 0
        self._window = window_packets
        self._freeze_time = freeze_time
        self._ring = [_EMPTY] * CACHE_SIZE
        self._left = [0] * CACHE_SIZE  # by slot: packets that may still use it
        self._head = 0  # where the next good EV goes
        self._fresh = 0  # how many of those before it have not been used again
        self._replay = 0  # while frozen: the next one to use over again
        self._warm_up = window_packets  # packets until the cache is looked at
        self._explore = 0  # packets left of the exploration that follows a freeze
        self._thaw_at = 0
        self._wary_until = 0  # some path was bad not long before (ns)
        #: whether only EVs that were good are used
        self.frozen = False

    def pick(self) -> int:
        """The EV of the next packet."""
        if self.frozen:
            return self._replayed()
        if self._warm_up:
            self._warm_up -= 1
        elif self._explore and self._explores():
            pass
        elif self._fresh:  # the oldest of them
            slot = (self._head - self._fresh) & _SLOT
            left = self._left[slot] - 1
            self._left[slot] = left
            if left <= 0:
                self._fresh -= 1
            return self._ring[slot]
        return self._random()

    def on_feedback(self, ev: int, how: int, now: int, packets: int = 1) -> None:
        """``packets`` were answered by what came back with ``ev``, or one was lost.

        An answer that stands for several packets has the EV of one of them only.  It is used once:
        more would let chance pile packets onto some paths of many.  Only where paths were bad of
        late it is used for as many as it answers, or most packets would have to take their chance.
        """
        if how == CLEAN:
            if self.frozen and now >= self._thaw_at:
                self.frozen = False
                self._explore = self._window
                self._fresh = 0  # the ring is not in the order of answers any more
            if self.frozen and ev in self._ring:
                # Stored twice it would displace others, until one path is left of all.
                self._left[self._ring.index(ev)] += packets
                return
            head = self._head
            self._ring[head] = ev
            self._left[head] = packets if now < self._wary_until else 1
            self._head = (head + 1) & _SLOT
            if self._fresh < CACHE_SIZE:
                self._fresh += 1
            return
        self._wary_until = now + self._freeze_time
        if how == TIMEOUT:
            self._forget(ev)
            self._freeze(now)
        elif how == LOST or (how != ECN and self.frozen):
            self._forget(ev)

    def timed_out(self) -> None:
        """Keep what the feedback of EVs reported: packets were lost on unknown paths."""

    def _random(self) -> int:
        """Every EV of the set once, then all again in another order."""
        turn = self._turn
        if turn == self._size:
            shuffle_evs(self._rng, self._evs)
            turn = 0
        elif turn == len(self._evs):
            draw_more_evs(self._rng, self._evs, self._size)
        self._turn = turn + 1
        return self._evs[turn]

    def _explores(self) -> bool:
        self._explore -= 1
        return self._explore % _EXPLORE_EVERY == 0

    def _freeze(self, now: int) -> None:
        if not self.frozen:
            self.frozen = True
            self._warm_up = self._explore = 0
            self._thaw_at = now + self._freeze_time

    def _replayed(self) -> int:
        """One that is answered for, else any stored; random only if there never was a good one."""
        ring, left = self._ring, self._left
        stored = _EMPTY
        for _ in range(CACHE_SIZE):
            slot = self._replay
            self._replay = (slot + 1) & _SLOT
            if left[slot] > 0 and ring[slot] != _EMPTY:
                left[slot] -= 1
                return ring[slot]
            if stored == _EMPTY:
                stored = slot if ring[slot] != _EMPTY else _EMPTY
        if stored == _EMPTY:
            return self._random()
        self._replay = (stored + 1) & _SLOT
        return ring[stored]

    def _forget(self, ev: int) -> None:
        """``ev`` is not good any more: out of the ring, whose order stays."""
        if ev not in self._ring:
            return
        ring, head = self._ring, self._head
        places = [(head - n) & _SLOT for n in range(CACHE_SIZE, 0, -1)]  # from the oldest on
        kept = [place for place in places if ring[place] not in (ev, _EMPTY)]
        new = [ring[(head - n) & _SLOT] for n in range(self._fresh, 0, -1)]
        self._fresh -= new.count(ev)
        empty = CACHE_SIZE - len(kept)
        self._ring = [_EMPTY] * empty + [ring[place] for place in kept]
        self._left = [0] * empty + [self._left[place] for place in kept]
        self._head = 0
