"""The lower bound of an iteration's time: an iteration faster than it shows a defect.

A time may fall short of the bound by rounding: that of the clock and of each packet's delay.
"""

from __future__ import annotations

from collections.abc import Sequence

CLOCK_NS = 1
#: Of the bound: delays of packets are whole nanoseconds.
ROUNDING = 1e-4


def rounding_ns(ideal_ns: float) -> float:
    """Return how far a time may fall short of its bound by rounding (ns of fabric time)."""
    return CLOCK_NS + ROUNDING * ideal_ns


def violation(times_ns: Sequence[int], ideal_ns: float) -> str | None:
    """A sentence about the fastest of ``times_ns`` if it is below ``ideal_ns``."""
    fastest = min(times_ns, default=0)
    if not times_ns or fastest >= ideal_ns - rounding_ns(ideal_ns):
        return None
    return (
        f"internal error: an iteration took {fastest / 1000:.3f} us, less than the ideal time of "
        f"{ideal_ns / 1000:.3f} us, which nothing can beat: please report it with the run folder"
    )
