"""The arithmetic of traffic experiments, on plain numbers.

Sources: R. Jain, D. Chiu, W. Hawe, "A Quantitative Measure of Fairness and Discrimination for
Resource Allocation in Shared Computer Systems", DEC-TR-301, 1984; D. Bertsekas, R. Gallager,
"Data Networks", 2nd ed., section 6.5.2 (max-min fairness by progressive filling); the BMWG drafts
on AI fabrics (max-mean ratio, percentiles by nearest rank).  All times are ns of fabric time, all
rates octets per ns, which is GB/s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


def jain(values: Sequence[float]) -> float | None:
    """Jain's fairness index, (sum x)^2 / (n sum x^2): 1 if all are alike, 1/n if one has it all.

    ``None`` if there are no values or all are 0.
    """
    squares = sum(value * value for value in values)
    # Rounding may leave equal values a little above 1.
    return min(1.0, sum(values) ** 2 / (len(values) * squares)) if squares else None


def max_mean(values: Sequence[float]) -> float | None:
    """The largest value over the mean: 1 is a perfect balance.  ``None`` if there is nothing."""
    total = sum(values)
    return max(values) * len(values) / total if total else None


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least ``share`` (0..1) of all do not exceed (nearest rank)."""
    return nearest_rank(values, share) if values else None


def nearest_rank(values: Sequence[float], share: float) -> float:
    """Return :func:`percentile` of ``values``, which are some."""
    ordered = sorted(values)
    rank = max(1, math.ceil(share * len(ordered) - 1e-9))  # 0.07 * 100 is not 7 in binary
    return ordered[rank - 1]


def payload_rate(rate_bps: float, payload_mtu: int, around_bytes: int) -> float:
    """Payload that a link carries at best, in GB/s: full packets, back to back.

    ``around_bytes`` is what the link spends on each packet beside its payload.
    """
    return rate_bps / 8e9 * payload_mtu / (payload_mtu + around_bytes)


@dataclass(frozen=True)
class FlowProgress:
    """The delivery of a flow: octets that arrived, in order of time.

    ``points`` are (time, octets delivered by then), both growing; the first is the flow's start
    with 0 octets.  Between two points delivery is taken to be even.
    """

    points: Sequence[tuple[float, float]]

    @classmethod
    def of(cls, start: float, deliveries: Sequence[tuple[float, float]]) -> FlowProgress:
        """Return the progress of a flow from its start and its messages (end, octets)."""
        points = [(start, 0.0)]
        for end, octets in sorted(deliveries):
            points.append((end, points[-1][1] + octets))
        return cls(tuple(points))

    @property
    def first_delivery(self) -> float:
        return self.points[1][0] if len(self.points) > 1 else self.points[0][0]

    @property
    def end(self) -> float:
        return self.points[-1][0]

    @property
    def rate(self) -> float:
        """Octets over the time from its start to its end."""
        duration = self.end - self.points[0][0]
        return self.points[-1][1] / duration if duration > 0 else 0.0

    def delivered(self, at: float) -> float:
        """Octets delivered by the time ``at``."""
        if at <= self.points[0][0]:
            return 0.0
        for (before, octets), (after, more) in pairwise(self.points):
            if at <= after:
                share = (at - before) / (after - before) if after > before else 1.0
                return octets + (more - octets) * share
        return self.points[-1][1]


def steady_interval(flows: Sequence[FlowProgress]) -> tuple[float, float] | None:
    """While all flows are under way: every first message is there, and no flow has ended.

    ``None`` if there is no such time, or if it is shorter than what it took the first messages to
    come: several are under way at once, and so many of them ending in a short time is no evidence
    of the rate.
    """
    if not flows:
        return None
    begin = max(flow.first_delivery for flow in flows)
    end = min(flow.end for flow in flows)
    settled = begin + max(flow.first_delivery - flow.points[0][0] for flow in flows)
    return (begin, end) if end > settled else None


def together(flows: Sequence[FlowProgress]) -> tuple[float, float] | None:
    """While all flows are under way: all have begun, and none has ended; None if never."""
    begin = max((flow.points[0][0] for flow in flows), default=0.0)
    end = min((flow.end for flow in flows), default=0.0)
    return (begin, end) if end > begin else None


def rates_between(flows: Sequence[FlowProgress], begin: float, end: float) -> list[float]:
    return [(flow.delivered(end) - flow.delivered(begin)) / (end - begin) for flow in flows]


def convergence(
    flows: Sequence[FlowProgress], joined_at: float, window: float, tolerance: float
) -> float | None:
    """Return how long after ``joined_at`` the rates of all ``flows`` are alike and stay so.

    Rates are taken over windows that begin a quarter of ``window`` apart, up to the end of the
    first flow.  They are alike where each is within ``tolerance`` (0..1) of their mean.  The time
    is that from ``joined_at`` to the begin of the first window from which on all are so.  None if
    the last is not, or if there is none.
    """
    last = min((flow.end for flow in flows), default=joined_at) - window
    begins = [
        joined_at + step * window / 4 for step in range(int(4 * (last - joined_at) / window) + 1)
    ]
    alike_from = None
    for begin in begins:
        rates = rates_between(flows, begin, begin + window)
        mean = sum(rates) / len(rates)
        if not mean or any(abs(rate - mean) > tolerance * mean for rate in rates):
            alike_from = None
        elif alike_from is None:
            alike_from = begin
    return None if alike_from is None else alike_from - joined_at


def max_min(
    flows: Sequence[Sequence[str] | Mapping[str, float]], capacities: Mapping[str, float]
) -> list[float]:
    """The max-min fair rate of every flow, each given by the resources it uses.

    A mapping gives how much of each it uses for an octet; otherwise that is one.  All rates grow
    together until a resource is full; its flows stay there, the others go on.
    """
    uses = [flow if isinstance(flow, Mapping) else dict.fromkeys(flow, 1.0) for flow in flows]
    rates = [0.0] * len(flows)
    left = dict(capacities)
    growing = {index for index, used in enumerate(uses) if used}
    while growing:
        users: dict[str, float] = {}
        for index in growing:
            for resource, used in uses[index].items():
                users[resource] = users.get(resource, 0) + used
        step = min(left[resource] / count for resource, count in users.items())
        for index in growing:
            rates[index] += step
        for resource, count in users.items():
            left[resource] -= step * count
        full = {r for r in users if left[r] <= 1e-12 * capacities[r]}
        growing = {index for index in growing if full.isdisjoint(uses[index])}
    return rates
