"""The checksum that covers every transferred region: CRC32C, a slice at a time."""

from __future__ import annotations

from collections.abc import Iterator

import google_crc32c
import numpy as np
import numpy.typing as npt

#: Work on longer regions is done in slices of this many octets, between which the agent looks at
#: its NIC (a slice takes some tens of microseconds).
SLICE_OCTETS = 256 * 1024


def slices(length: int, item_octets: int = 1) -> Iterator[slice]:
    """``range(length)`` of items cut into slices of :data:`SLICE_OCTETS`."""
    step = max(1, SLICE_OCTETS // item_octets)
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))


def crc32c(octets: npt.NDArray[np.uint8], before: int = 0) -> int:
    """CRC32C of ``octets``, continuing from ``before``."""
    return int(google_crc32c.extend(before, octets))
