"""Which path a packet takes: the entropy value (EV) in the UDP source port or entropy header.

Switches hash it, so a new value is, most likely, a new path (UES 3.6.16).
"""

from __future__ import annotations

import random

#: EVs in a set (UES 3.6.16: typically 256 or more).
EV_SET_SIZE = 256

#: EVs are drawn from the dynamic ports so that captures do not label frames as other services.
EV_FIRST, EV_LAST = 49_152, 65_535


class ObliviousSpraying:
    """Every EV of a random set once, in random order, then again in a new order (UES 3.6.16).

    It takes no notice of what the paths are like.
    """

    __slots__ = ("_evs", "_next", "_rng", "_size")

    def __init__(self, rng: random.Random, size: int = EV_SET_SIZE) -> None:
        self._rng = rng
        self._size = size
        self._evs: list[int] = []  # drawn when the first packet leaves
        self._next = 0

    def pick(self) -> int:
        """The EV of the next packet."""
        position = self._next
        if position == len(self._evs):
            if not position:
                self._evs = self._rng.sample(range(EV_FIRST, EV_LAST + 1), self._size)
                self._next = 1
                return self._evs[0]
            last = self._evs[-1]
            self._rng.shuffle(self._evs)
            if self._evs[0] == last:  # a retransmission must not follow its original's path
                self._evs.append(self._evs.pop(0))
            position = 0
        self._next = position + 1
        return self._evs[position]

    def on_feedback(self, ev: int, how: int, now: int, packets: int = 1) -> None:
        """Nothing."""

    def timed_out(self) -> None:
        """Nothing: the next packets take other paths anyway."""


class SinglePath:
    """One EV for all packets, so that they keep their order on the way (UES 3.6.16, ROD).

    It changes only when a path swallows everything, so that nothing is in flight there.
    """

    __slots__ = ("_ev", "_rng")

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._ev = rng.randint(EV_FIRST, EV_LAST)

    def pick(self) -> int:
        """The EV of every packet."""
        return self._ev

    def on_feedback(self, ev: int, how: int, now: int, packets: int = 1) -> None:
        """Nothing: packets in flight keep to their path."""

    def timed_out(self) -> None:
        """Another EV from now on."""
        step = self._rng.randint(1, EV_LAST - EV_FIRST)
        self._ev = EV_FIRST + (self._ev - EV_FIRST + step) % (EV_LAST - EV_FIRST + 1)
