"""The share of the emulated bus bandwidth that measured clusters reach, by the size of a message.

It is computed from the points of ``points.toml`` that are a collective's time or bus bandwidth, and
the values that the manual's table has for them.  Small sizes have small shares, for GPUs and NICs
take no time in uetemu.
"""

from __future__ import annotations

from collections.abc import Mapping

from emulator.nccl_tests.cluster_log import COLLECTIVES
from scenarios.hardware import manual_table
from scenarios.hardware.points import HardwarePoint, points
from topologies.units import parse_size

#: Where a band of sizes begins (octets).
BANDS = (0, 2**20, 2**23, 2**26, 2**29)
_SCENARIOS = frozenset(form.scenario for form in COLLECTIVES.values())


def by_size(timed: bool = False) -> dict[int, dict[str, float]]:
    """Return the shares in each band of sizes, by the number of their point.

    The key is the least size (octets) of the band.  ``timed``: shares of what is emulated with NICs
    and libraries that take time; a band without such a point has the smaller shares of those that
    take none.
    """
    bands: dict[int, dict[str, float]] = {least: {} for least in BANDS}
    for number, (size, share) in shares(timed).items():
        bands[max(least for least in BANDS if least <= size)][number] = share
    if timed:
        others = by_size()
        return {least: found or others[least] for least, found in bands.items()}
    return bands


def shares(timed: bool = False) -> Mapping[str, tuple[int, float]]:
    """Return the size (octets) and the share of each point of a collective that counts.

    A bus bandwidth is one of the largest sizes, unless its point has another.  Of a published range
    the lower end is taken.
    """
    emulated = manual_table.measured(manual_table.MANUAL.read_text())
    return {
        point.number: (_size(point), _share(point, emulated[point.number]))
        for point in points()
        if point.number in emulated and _of_collective(point) and _is_timed(point) is timed
    }


def _of_collective(point: HardwarePoint) -> bool:
    rated = point.metric in ("time_us", "busbw_gbps") and not point.per and not point.fitted
    return rated and point.run.get("scenario") in _SCENARIOS


def _is_timed(point: HardwarePoint) -> bool:
    """Return whether NICs and the library take time in the point's run."""
    return "--nic" in point.run.get("options", ()) and "library" in point.run["params"]


def _size(point: HardwarePoint) -> int:
    if point.metric == "time_us":
        return int(point.row["size_bytes"])
    return parse_size(point.size) if point.size else BANDS[-1]


def _share(point: HardwarePoint, emulated: float) -> float:
    return emulated / point.high if point.metric == "time_us" else point.low / emulated
