"""The checksum that covers every transferred region: CRC32C, a slice at a time."""

from __future__ import annotations

from collections.abc import Generator
from functools import lru_cache

import google_crc32c
import numpy as np
import numpy.typing as npt

#: Work on longer regions is done in slices of this many octets, between which the endpoint looks at
#: its NIC (a slice takes some tens of microseconds).
SLICE_OCTETS = 256 * 1024
#: Lengths whose slices are remembered: a schedule has a few.
_LENGTHS = 64


@lru_cache(_LENGTHS)
def slices(length: int, item_octets: int = 1) -> tuple[slice, ...]:
    """``range(length)`` of items cut into slices of :data:`SLICE_OCTETS`."""
    step = max(1, SLICE_OCTETS // item_octets)
    return tuple(slice(start, min(start + step, length)) for start in range(0, length, step))


def crc32c(octets: npt.NDArray[np.uint8], before: int = 0) -> int:
    """CRC32C of ``octets``, continuing from ``before``."""
    return int(google_crc32c.extend(before, octets))


def sliced_crc32c(octets: npt.NDArray[np.uint8]) -> Generator[int, None, int]:
    """Return the CRC32C of ``octets``; yield after each slice how long it was."""
    crc = 0
    for part in slices(len(octets)):
        crc = crc32c(octets[part], crc)
        yield part.stop - part.start
    return crc
