"""The lateness of an agent's event loop, from which the fidelity verdict is made.

Two things are recorded, both in fabric time, because that is what they cost the emulation: how late
the loop came to a timer or to a frame that was due (timer slip), and how long one turn took.
"""

from __future__ import annotations

_BUCKETS = 48
#: Lateness of so many bits in ns, half a microsecond and more, is a stall: short of that it is what
#: waking up costs, and most of it is made good by waiting less.
_STALL_BITS = 10


class Durations:
    """Durations in ns: count, sum, sum of the long ones, maximum, a histogram by powers of two."""

    __slots__ = ("_buckets", "count", "long", "maximum", "total")

    def __init__(self) -> None:
        self.count = self.total = self.long = self.maximum = 0
        self._buckets = [0] * _BUCKETS

    def add(self, duration_ns: int) -> None:
        self.count += 1
        self.total += duration_ns
        if duration_ns > self.maximum:
            self.maximum = duration_ns
        bits = duration_ns.bit_length()
        self._buckets[min(bits, _BUCKETS - 1)] += 1
        if bits >= _STALL_BITS:
            self.long += duration_ns

    def quantile(self, share: float) -> int:
        """Upper bound (ns) of the bucket below which ``share`` of all durations lie."""
        left = share * self.count
        for bits, count in enumerate(self._buckets):
            left -= count
            if count and left <= 0:
                return min((1 << bits) - 1, self.maximum)
        return self.maximum

    def summary(self, name: str) -> dict[str, int]:
        """``<name>_count``, ``_mean_ns``, ``_p99_ns``, ``_max_ns`` and ``_long_ns``."""
        return {
            f"{name}_count": self.count,
            f"{name}_mean_ns": self.total // self.count if self.count else 0,
            f"{name}_p99_ns": self.quantile(0.99),
            f"{name}_max_ns": self.maximum,
            f"{name}_long_ns": self.long,
        }


class LoopRecord:
    """Timer slip and turn length since the last :meth:`reset`."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.slip = Durations()
        self.turn = Durations()

    def counters(self) -> dict[str, int]:
        return {**self.slip.summary("timer_slip"), **self.turn.summary("turn")}
