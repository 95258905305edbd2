"""Data of a peer that are in a GPU's memory before the Receive that takes them."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class DataArrival(NamedTuple):
    """A peer's data is in our memory; it may count from ``at`` on.

    ``crc`` is the sender's, or None if the data have been verified by it already.
    """

    crc: int | None
    offset: int
    length: int
    at: int


#: What has arrived and nobody has taken yet, by execution, peer and tag.
Arrivals = dict[tuple[int, int, int], DataArrival]


def lose_after(arrivals: Arrivals, peers: Collection[int], last: int) -> int:
    """Forget what comes from ``peers`` after ``last`` (ns); return how many writes that were."""
    late = [key for key, one in arrivals.items() if key[1] in peers and one.at > last]
    for key in late:
        del arrivals[key]
    return len(late)
