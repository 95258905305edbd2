"""A histogram keeps latencies in bounded memory; buckets are an eighth of their value wide."""

from __future__ import annotations

_STEPS = 8  # buckets for each doubling
_SHIFT = 3


class LatencyHistogram:
    """Counts times in ns; percentiles are exact to an eighth."""

    def __init__(self) -> None:
        self._buckets = [0] * (64 * _STEPS)
        self.count = 0
        self.total_ns = 0
        self.least_ns = 0
        self.most_ns = 0

    def add(self, ns: int) -> None:
        """Count one time."""
        ns = max(ns, 1)
        self.least_ns = ns if not self.count else min(ns, self.least_ns)
        self.most_ns = max(ns, self.most_ns)
        self.count += 1
        self.total_ns += ns
        self._buckets[_bucket(ns)] += 1

    def percentile(self, share: float) -> int:
        """Return the upper end (ns) of the bucket that holds this share (0 to 1) of the times."""
        rank = share * self.count
        seen = 0
        for number, count in enumerate(self._buckets):
            seen += count
            if count and seen >= rank:
                return min(_end(number), self.most_ns)
        return 0

    def summary_us(self) -> dict[str, float]:
        """Return mean and percentiles in microseconds; without times, nothing."""
        if not self.count:
            return {}
        return {
            "mean": round(self.total_ns / self.count / 1e3, 1),
            "least": round(self.least_ns / 1e3, 1),
            "p50": round(self.percentile(0.5) / 1e3, 1),
            "p99": round(self.percentile(0.99) / 1e3, 1),
            "most": round(self.most_ns / 1e3, 1),
        }


def _bucket(ns: int) -> int:
    if ns < _STEPS:
        return ns
    shift = ns.bit_length() - 1 - _SHIFT
    return shift * _STEPS + (ns >> shift)


def _end(number: int) -> int:
    if number < 2 * _STEPS:
        return number
    shift = number // _STEPS - 1
    return ((number % _STEPS + _STEPS + 1) << shift) - 1
