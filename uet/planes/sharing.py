"""Division of work among the planes of a fabric interface, and its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class InterfaceConfig:
    """The rules by which a fabric interface divides work.

    ``peers`` has the fabric addresses of each peer, in the order of planes; the first is its name.
    ``quarantine`` (ns) is how long a packet may be on its way. ``silence`` (ns) is the time after
    which a plane is given up, and ``time_limit`` (ns) the pause before it is probed for the first
    time.
    """

    peers: Sequence[tuple[str, ...]]
    stripe_above: int = 16_384
    quarantine: int = 200_000
    silence: int = 600_000
    time_limit: int = 1_000_000


class Sharing:
    """The octets that each of ``count`` planes has unanswered, and who takes more."""

    __slots__ = ("_load", "_ordered_by", "_turn")

    def __init__(self, count: int) -> None:
        self._load = [0] * count
        self._turn = 0
        self._ordered_by: dict[str, int] = {}  # the plane of what is ordered, by peer

    def choose(self, peer: str, delivery: str, usable: Sequence[int]) -> int:
        """The plane, of those ``usable``, for what goes whole: the one with least to do."""
        if delivery == "rod":
            plane = self._ordered_by.get(peer, -1)
            if plane in usable:
                return plane
        self._turn += 1
        count = len(self._load)
        plane = min(usable, key=lambda each: (self._load[each], (each - self._turn) % count))
        if delivery == "rod":
            self._ordered_by[peer] = plane
        return plane

    def begin(self, plane: int, octets: int) -> None:
        """A part of so many octets has been given to ``plane``."""
        self._load[plane] += octets + 1

    def end(self, plane: int, octets: int) -> None:
        """Note that work of ``octets`` has ended in ``plane``."""
        self._load[plane] -= octets + 1
