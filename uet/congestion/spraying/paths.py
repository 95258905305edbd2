"""The base of all path selections: EVs without feedback, the feedback, the set of EVs, round robin.

The entropy value (EV) of a packet comes back in what answers it, so whoever chose it learns how
the path was (UES 3.6.16).
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from struct import unpack
from typing import Final, Protocol

#: EVs in the set of who learns about each (UES 3.6.16: typically 256 or more).
EV_SET_SIZE: Final = 256
#: EVs are drawn from the dynamic ports so that captures do not label frames as other services.
EV_FIRST: Final = 49_152
EV_LAST: Final = 65_535
EVS: Final = EV_LAST - EV_FIRST + 1  # a power of two
_EV_MASK: Final = EVS - 1
#: A generator draws words of so many bits; the highest bits of one are a number.
_WORD_BITS: Final = 32


class ObliviousSpraying:
    """Every EV there is once, in random order, then again in a new order (UES 3.6.16).

    A small set would stay as uneven as its hashes are: 256 EVs on four paths load the fullest by
    some tenth above the mean, for ever.  Over all of them chance evens out with every packet.  It
    takes no notice of what the paths are like.
    """

    __slots__ = ("_left", "_rng", "_state", "_step", "_times")

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._state = 0
        self._left = 0  # of this round
        # The order is that of a linear congruential generator of full period (Knuth, TAOCP 2,
        # 3.2.1.2: an odd step, and a factor of 1 modulo 4): no list of them has to be kept.
        self._times, self._step = 1, 1

    def pick(self) -> int:
        """The EV of the next packet."""
        if not self._left:
            self._another_round()
        self._left -= 1
        self._state = state = (self._state * self._times + self._step) & _EV_MASK
        return EV_FIRST + state

    def _another_round(self) -> None:
        rng, last = self._rng, self._state
        self._left = EVS
        self._times = 4 * rng.randrange(EVS // 4) + 1
        self._step = 2 * rng.randrange(EVS // 2) + 1
        # A retransmission must not follow its original's path: the first one is not the last.
        self._state = start = rng.randrange(EVS)
        if (start * self._times + self._step) & _EV_MASK == last:
            self._state ^= 1

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


#: How a path was: in order, marked CE, trimmed there, lost without a word: by its timer, or as
#: newer packets reveal.  What was trimmed at the last hop is not held against the path and counts
#: as ``CLEAN`` (UES 3.6.16).
CLEAN: Final = 0
ECN: Final = 1
NACK: Final = 2
TIMEOUT: Final = 3
LOST: Final = 4
#: The smallest set of EVs that is worth spraying over.
_LEAST_EVS: Final = 8


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


#: So many EVs are drawn first where they are drawn as packets need them, then as many again.
_DRAWN_FIRST: Final = 8


def draw_more_evs(rng: random.Random, evs: array[int], size: int) -> None:
    """Append to ``evs``, which are all so far, some more of the ``size`` of :func:`draw_evs`.

    Most peers take a few packets, and a whole set takes longer to draw than they do.  So long as
    nothing else is drawn from ``rng``, and ``size`` is a small part of all EVs, it is the same set.
    """
    taken = set(evs)
    bits = EVS.bit_length()
    size = min(size, max(_DRAWN_FIRST, 2 * len(evs)))
    while len(evs) < size:
        value = rng.getrandbits(bits)
        ev = EV_FIRST + value
        if value < EVS and ev not in taken:
            taken.add(ev)
            evs.append(ev)


def shuffle_evs(rng: random.Random, evs: array[int]) -> None:
    """Bring ``evs`` into another order: that of ``rng.shuffle``, which draws word by word."""
    last = len(evs) - 1  # the place that is filled next
    bits = (last + 1).bit_length()
    while last > 0:
        words = rng.getrandbits(_WORD_BITS * last).to_bytes(4 * last, "little")
        for word in unpack(f"<{last}I", words):
            place: int = word >> (_WORD_BITS - bits)
            if place <= last:
                evs[last], evs[place] = evs[place], evs[last]
                if last + 1 == 1 << (bits - 1):
                    bits -= 1
                last -= 1


class RoundRobin:
    """The EVs of a random set in turn, always in the same order (UES 3.6.16).

    It takes no notice of what the paths are like.
    """

    __slots__ = ("_evs", "_next", "_rng", "_size")

    def __init__(self, rng: random.Random, size: int = EV_SET_SIZE) -> None:
        self._rng = rng
        self._size = size
        self._evs = array("H")
        self._next = 0

    def pick(self) -> int:
        """The EV of the next packet."""
        position = self._next
        if position == len(self._evs):
            draw_more_evs(self._rng, self._evs, self._size)
        ev = self._evs[position]
        position += 1
        self._next = position if position < self._size else 0
        return ev

    def on_feedback(self, ev: int, how: int, now: int, packets: int = 1) -> None:
        """Nothing."""

    def timed_out(self) -> None:
        """Nothing: the next packets take other paths anyway."""
