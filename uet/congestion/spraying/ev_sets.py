"""The EV sets of many contexts, drawn at one go.

An endpoint draws a set for each of its peers when it begins, whether it will ever send to it or
not: so what is drawn for one depends on no other's traffic.  Where there are hundreds of peers, one
draw after the other takes longer than the run.  Sets of many peers are not kept: who asks for
one has its block of sets drawn again.
"""

from __future__ import annotations

import random
from bisect import bisect_left

import numpy as np

from uet.congestion.spraying.entropy_values import EV_FIRST, EVS

_WORD_BITS = 32
_BITS = EVS.bit_length()  # of a number that is drawn, before those of EVS and more are rejected
#: Words of the generator for each EV: half are rejected.
_WORDS = 2.2
_MERSENNE_VERSION = 3  # random.Random.getstate
#: Sets that are drawn again together; where there are no more, they are kept.
_BLOCK = 64


class EvSets:
    """``count`` sets of ``size`` EVs each, drawn at once from ``rng``.

    They are those that so many calls of :func:`~uet.congestion.spraying.paths.draw_evs` would draw.
    Memory: a few octets for each set, and one block of sets.
    """

    __slots__ = ("_at", "_begins", "_block", "_count", "_key", "_position", "_size")

    def __init__(self, rng: random.Random, size: int, count: int) -> None:
        version, internal, gauss = rng.getstate()
        if version != _MERSENNE_VERSION:
            raise ValueError(f"random.Random has state version {version}, not {_MERSENNE_VERSION}")
        key, position = np.array(internal[:-1], np.uint32), internal[-1]
        words = int(_WORDS * size * count) + 1024
        while True:
            # random.Random.sample draws _BITS at a time, and what is no EV, or one again, is
            # drawn anew.
            places, evs = _drawn(_generator(key, position), words)
            again = _repeated(evs, size, count)
            used = size * count + len(again)
            if used <= len(evs):
                break
            words *= 2
        self._size, self._count = size, count
        self._key, self._position = key, position
        # a set begins behind those before it, and behind what they have rejected
        wanted = np.arange(0, count, _BLOCK) * size
        begins = wanted + np.searchsorted(np.array(again) - np.arange(len(again)), wanted)
        #: words of the generator before each block
        self._begins = [0, *(places[begins[1:] - 1] + 1).tolist()]
        self._at = 0
        self._block = _chosen(evs, again, size, min(count, _BLOCK))
        if used:
            behind = _generator(key, position)
            behind.random_raw(int(places[used - 1]) + 1, output=False)
            state = behind.state["state"]
            rng.setstate((version, (*state["key"].tolist(), int(state["pos"])), gauss))

    def __getitem__(self, number: int) -> list[int]:
        if not 0 <= number < self._count:
            raise IndexError(f"there is no EV set {number} among {self._count}")
        at, place = divmod(number, _BLOCK)
        if at != self._at:
            self._draw(at)
        evs: list[int] = self._block[place].tolist()
        return evs

    def _draw(self, at: int) -> None:
        """Draw block number ``at`` again."""
        size, count = self._size, min(_BLOCK, self._count - at * _BLOCK)
        words = int(_WORDS * size * count) + 1024
        while True:
            generator = _generator(self._key, self._position)
            generator.random_raw(self._begins[at], output=False)
            _, evs = _drawn(generator, words)
            again = _repeated(evs, size, count)
            if size * count + len(again) <= len(evs):
                break
            words *= 2
        self._at, self._block = at, _chosen(evs, again, size, count)


def _drawn(generator: np.random.MT19937, words: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which of the next ``words`` are EVs, and these."""
    drawn = (generator.random_raw(words) >> (_WORD_BITS - _BITS)).astype(np.uint16)
    places = np.flatnonzero(drawn < EVS)
    return places, drawn[places]


def _chosen(evs: np.ndarray, again: list[int], size: int, count: int) -> np.ndarray:
    """Return the first ``count`` sets in ``evs``, without those at the places ``again``."""
    rejected = _rejected(again, size * count)
    kept = np.delete(evs[: size * count + rejected], again[:rejected])
    return kept.reshape(count, size) + np.uint16(EV_FIRST)


def _rejected(again: list[int], wanted: int) -> int:
    """Return how many of the places ``again`` stand before the one behind ``wanted`` good EVs."""
    rejected = 0
    while rejected < len(again) and again[rejected] < wanted + rejected:
        rejected += 1
    return rejected


def _generator(key: np.ndarray, position: int) -> np.random.MT19937:
    """The generator of :mod:`random` (Matsumoto and Nishimura's MT19937) in that state."""
    made = np.random.MT19937(0)
    made.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": position}}
    return made


def _repeated(evs: np.ndarray, size: int, count: int) -> list[int]:
    """Return the places of EVs in ``evs`` that occur earlier in their set, for ``count`` sets."""
    order = np.argsort(evs, kind="stable")
    apart = order[1:] - order[:-1]
    near = np.flatnonzero((apart > 0) & (apart < 2 * size))  # of equal ones the earlier is first
    later, earlier = order[near + 1], order[near]
    same = evs[later] == evs[earlier]
    later, earlier = later[same], earlier[same]
    by_place = np.argsort(later, kind="stable")  # as on processors that are emulated, too
    places, before = later[by_place].tolist(), earlier[by_place].tolist()
    again: list[int] = []
    begin = 0
    for _ in range(count):
        end = begin + size
        number = bisect_left(places, begin)
        while number < len(places) and places[number] < end:
            if before[number] >= begin:
                again.append(places[number])
                end += 1
            number += 1
        begin = end
    return again
