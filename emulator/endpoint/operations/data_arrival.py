"""Data of a peer that are in a GPU's memory before the Receive that takes them."""

from __future__ import annotations

from typing import NamedTuple


class DataArrival(NamedTuple):
    """A peer's data is in our memory; it may count from ``at`` on.

    ``crc`` is the sender's, or None if the data have been verified by it already.
    """

    crc: int | None
    offset: int
    length: int
    at: int
