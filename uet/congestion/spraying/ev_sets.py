"""The EV sets of many contexts, drawn at one go.

An endpoint draws a set for each of its peers when it begins, whether it will ever send to it or
not: so what is drawn for one depends on no other's traffic.  Where there are hundreds of peers, one
draw after the other takes longer than the run.
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


class EvSets:
    """``count`` sets of ``size`` EVs each, drawn at once from ``rng``.

    They are those that so many calls of :func:`~uet.congestion.spraying.paths.draw_evs` would draw.
    """

    __slots__ = ("_evs",)

    def __init__(self, rng: random.Random, size: int, count: int) -> None:
        version, internal, gauss = rng.getstate()
        if version != _MERSENNE_VERSION:
            raise ValueError(f"random.Random has state version {version}, not {_MERSENNE_VERSION}")
        key, position = np.array(internal[:-1], np.uint32), internal[-1]
        words = int(_WORDS * size * count) + 1024
        while True:
            # random.Random.sample draws _BITS at a time, and what is no EV, or one again, is
            # drawn anew.
            drawn = _generator(key, position).random_raw(words) >> (_WORD_BITS - _BITS)
            places = np.flatnonzero(drawn < EVS)
            evs = drawn[places].astype(np.uint16)
            again = _repeated(evs, size, count)
            used = size * count + len(again)
            if used <= len(evs):
                break
            words *= 2
        self._evs = np.delete(evs[:used], again).reshape(count, size) + EV_FIRST
        if used:
            behind = _generator(key, position)
            behind.random_raw(int(places[used - 1]) + 1, output=False)
            state = behind.state["state"]
            rng.setstate((version, (*state["key"].tolist(), int(state["pos"])), gauss))

    def __getitem__(self, number: int) -> list[int]:
        evs: list[int] = self._evs[number].tolist()
        return evs


def _generator(key: np.ndarray, position: int) -> np.random.MT19937:
    """The generator of :mod:`random` (Matsumoto and Nishimura's MT19937) in that state."""
    made = np.random.MT19937(0)
    made.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": position}}
    return made


def _repeated(evs: np.ndarray, size: int, count: int) -> list[int]:
    """Return the places of EVs in ``evs`` that occur earlier in their set, for ``count`` sets."""
    order = np.argsort(evs, kind="stable")
    same = evs[order[1:]] == evs[order[:-1]]
    later, earlier = order[1:][same], order[:-1][same]
    near = later - earlier < 2 * size
    later, earlier = later[near], earlier[near]
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
