"""Blocks that all ranks of a run gather after a window of virtual time, each as long as the others.

A block has the times that decide how long the next windows are, and a mask of the ranks that its
sender has a message for::

    step | which step | now | following | away | first receiver | away to others | mask ...

Ranks without a bit in the mask wait for no message.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass

from emulator.sim.event_queue import NEVER

#: Ranks, each with a bit, for which a mask grows by so many octets.
_RANKS, _OCTETS = 64, 8


@dataclass(frozen=True, slots=True)
class WindowTimes:
    """A rank's time after a window, and when something happens next (ps), here or by its messages.

    The first thing ``away`` from it is for rank ``receiver``, and the first that is for another
    one is there at ``away_to_others``.
    """

    now: int
    following: int
    away: int = NEVER
    receiver: int = -1
    away_to_others: int = NEVER

    def following_for(self, number: int) -> int:
        """Return when something happens next, as rank ``number`` has to know it.

        It gets what is for itself, with the time of that.
        """
        away = self.away_to_others if self.receiver == number else self.away
        return min(self.following, away)


#: Times of a rank whose part of a window has failed.
NO_TIMES = WindowTimes(0, NEVER)


@dataclass(frozen=True, slots=True)
class WindowBlock:
    """The block of a rank in ``step``; ``which`` says what is done in it.

    The ``mask`` has a bit for each rank that gets a message.
    """

    step: int
    which: int
    times: WindowTimes
    mask: int

    def has_message_for(self, number: int) -> bool:
        """Return whether rank ``number`` gets a message."""
        return bool(self.mask >> number & 1)


class BlockForm:
    """The octets of blocks of ``count`` ranks."""

    def __init__(self, count: int) -> None:
        self._mask_octets = -(-count // _RANKS) * _OCTETS
        self._struct = struct.Struct(f"<7q{self._mask_octets}s")

    @property
    def octets(self) -> int:
        """The length of a block."""
        return self._struct.size

    def packed(
        self, step: int, which: int, times: WindowTimes, receivers: Collection[int]
    ) -> bytes:
        """Return the octets of a block; ``receivers`` get a message."""
        mask = 0
        for receiver in receivers:
            mask |= 1 << receiver
        return self._struct.pack(
            step,
            which,
            times.now,
            times.following,
            times.away,
            times.receiver,
            times.away_to_others,
            mask.to_bytes(self._mask_octets, "little"),
        )

    def unpacked(self, octets: bytes | bytearray) -> list[WindowBlock]:
        """Return the blocks of all ranks, by number, which ``octets`` has one behind the other."""
        return [
            WindowBlock(step, which, WindowTimes(*times), int.from_bytes(mask, "little"))
            for step, which, *times, mask in self._struct.iter_unpack(octets)
        ]
