"""Tolerance bands of what traffic scenarios must show, in the manner of htsim's validation.

A band is stated beside what it is about; a test runs the scenario over several seeds and holds
every row against it with :func:`within`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Band:
    """``key`` of a row is a number of at least ``low`` and at most ``high``."""

    key: str
    low: float | None = None
    high: float | None = None

    def trouble(self, row: Mapping[str, object]) -> str | None:
        """Return what is wrong with ``row``, or None."""
        value = row.get(self.key)
        if not isinstance(value, int | float):
            return f"{self.key} is {value!r}, which is no number"
        if self.low is not None and value < self.low:
            return f"{self.key} is {value:g}, below {self.low:g}"
        if self.high is not None and value > self.high:
            return f"{self.key} is {value:g}, above {self.high:g}"
        return None


def within(row: Mapping[str, object], bands: Sequence[Band]) -> list[str]:
    """All that is wrong with ``row``."""
    return [trouble for band in bands if (trouble := band.trouble(row)) is not None]


#: Target delay of NSCC where switches trim, in base RTTs (UES 3.6.13).
NSCC_TARGET = 0.75


def around_target(bdp_bytes: int) -> Band:
    """The queue of a bottleneck that NSCC keeps, on average over the steady state."""
    target = NSCC_TARGET * bdp_bytes
    return Band("steady_queue_bytes", low=0.4 * target, high=1.3 * target)


#: An incast of 16 under NSCC on shallow switches that trim.
INCAST = (
    Band("goodput_share", low=0.9, high=1),
    Band("jain", low=0.95),
    Band("timeouts", high=0),
    Band("dropped_packets", high=0),
)
#: An incast under RCCC of up to 63 senders, near and far: htsim is 2 % above its ideal there.
CREDITED_INCAST = (
    Band("efficiency", low=0.96, high=1),
    Band("jain", low=0.99),
    Band("dropped_packets", high=0),
)
#: One of 8 into queues of five bandwidth-delay products that drop.  Times of htsim over the ideal:
#: 1.07 with SLEEK, 1.6 to 1.67 without.
DEEP_INCAST = (Band("efficiency", low=1 / 1.25), Band("timeouts", high=0))
#: One of four uplinks at a quarter of its rate; NSCC does not keep it full, nor does htsim's.
LINK_SLOW = (Band("efficiency", low=0.45, high=1), Band("timeouts", high=0))
#: A permutation at full load on a non-blocking fabric, packets sprayed.
PERMUTATION = (Band("efficiency", low=1 / 1.15),)
#: How many times longer the same takes at least if each flow is hashed onto one path.
ONE_PATH_SLOWER = 1.3
#: A victim beside an incast under NSCC with spraying, and alone.
VICTIM = (Band("victim_share", low=0.8, high=1.01),)
VICTIM_ALONE = (Band("victim_share", low=0.9, high=1.01),)
#: One of four uplinks black, REPS.
LINK_BLACK = (Band("efficiency", low=1 / 1.5),)
#: How many times longer oblivious spraying takes then, at least.
OBLIVIOUS_SLOWER = 1.5
