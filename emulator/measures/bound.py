"""The lower bound of an iteration's time: an iteration faster than it shows a defect.

A time may fall short of the bound by rounding: that of the clock and of each packet's delay.  By
the host's clock the queue of a port may catch up after a late timer, once for the port that is the
bottleneck (:data:`~emulator.kernel.shaping.CATCH_UP_NS`). A fault that came late left its links
longer than the bound has it, which gives as much.
"""

from __future__ import annotations

from collections.abc import Sequence

from emulator.dilation import Dilation
from emulator.kernel.shaping import CATCH_UP_NS

CLOCK_NS = 1
#: Of the bound: delays of packets are whole nanoseconds.
ROUNDING = 1e-4


def rounding_ns(ideal_ns: float, dilation: float | None) -> float:
    """Return how far a time may fall short of its bound by rounding (ns of fabric time).

    ``dilation`` None: the clock is virtual, and no timer late.
    """
    catch_up_ns = 0.0 if dilation is None else Dilation(dilation).fabric_ns(CATCH_UP_NS)
    return CLOCK_NS + ROUNDING * ideal_ns + catch_up_ns


def violation(
    times_ns: Sequence[int], ideal_ns: float, *, dilation: float | None, late_ns: float = 0.0
) -> str | None:
    """A sentence about the fastest of ``times_ns`` if it is below ``ideal_ns``.

    ``late_ns`` is how late faults came, added up.
    """
    fastest = min(times_ns, default=0)
    if not times_ns or fastest >= ideal_ns - rounding_ns(ideal_ns, dilation) - late_ns:
        return None
    return (
        f"internal error: an iteration took {fastest / 1000:.3f} us, less than the ideal time of "
        f"{ideal_ns / 1000:.3f} us, which nothing can beat: please report it with the run folder"
    )
