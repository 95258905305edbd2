"""The base of all path selections: the feedback, the set of EVs, round robin.

The entropy value (EV) of a packet comes back in what answers it, so whoever chose it learns how
the path was (UES 3.6.16).
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from typing import Protocol

from uet.congestion.spraying.entropy_values import EV_FIRST, EV_LAST, EV_SET_SIZE

#: How a path was: in order, marked CE, trimmed there, lost without a word: by its timer, or as
#: newer packets reveal.  What was trimmed at the last hop is not held against the path and counts
#: as ``CLEAN`` (UES 3.6.16).
CLEAN, ECN, NACK, TIMEOUT, LOST = range(5)

#: The smallest set of EVs that is worth spraying over.
_LEAST_EVS = 8


class PathSelection(Protocol):
    """Chooses the EV of each packet.  One per context, shared by its PDCs."""

    def pick(self) -> int:
        """The EV of the next packet."""
        ...

    def on_feedback(self, ev: int, how: int, now: int, packets: int = 1) -> None:
        """Learn how a packet with ``ev`` fared: one of ``CLEAN``, ``ECN`` and the others.

        ``packets``: so many were answered together with it.
        """
        ...

    def timed_out(self) -> None:
        """Take note of lost packets whose paths are unknown."""
        ...


def ev_set_size(bdp: int, mtu: int, most: int = EV_SET_SIZE) -> int:
    """Return how many EVs come round within about two RTTs at full rate (UES 3.6.16)."""
    return max(_LEAST_EVS, min(most, 2 * bdp // mtu))


def draw_evs(
    rng: random.Random, size: int, among: Sequence[int] = range(EV_FIRST, EV_LAST + 1)
) -> array[int]:
    """Return so many different EVs in random order; ``ValueError`` if there are not so many.

    Two octets each: an endpoint has a set for every peer that it met.
    """
    return array("H", rng.sample(among, size))


class RoundRobin:
    """The EVs of a random set in turn, always in the same order (UES 3.6.16).

    It takes no notice of what the paths are like.
    """

    __slots__ = ("_evs", "_next")

    def __init__(self, rng: random.Random, size: int = EV_SET_SIZE) -> None:
        self._evs = draw_evs(rng, size)
        self._next = 0

    def pick(self) -> int:
        """The EV of the next packet."""
        position = self._next
        ev = self._evs[position]
        position += 1
        self._next = position if position < len(self._evs) else 0
        return ev

    def on_feedback(self, ev: int, how: int, now: int, packets: int = 1) -> None:
        """Nothing."""

    def timed_out(self) -> None:
        """Nothing: the next packets take other paths anyway."""
