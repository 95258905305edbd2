"""Times of this machine's processors: evidence of whether it sets the pace of a measurement."""

from __future__ import annotations

from dataclasses import dataclass

import psutil


@dataclass(frozen=True, kw_only=True)
class ProcessorTimes:
    """Processor time since the machine began (s): busy, whoever it was for, and total."""

    busy_s: float
    total_s: float

    @classmethod
    def now(cls) -> ProcessorTimes:
        """Return the times until now (proc_stat(5))."""
        times = psutil.cpu_times()
        busy = times.user + times.nice + times.system + times.irq + times.softirq + times.steal
        return cls(busy_s=busy, total_s=busy + times.idle + times.iowait)

    def busy_share_since(self, before: ProcessorTimes) -> float:
        """Return the busy part of the time of all processors since ``before``, 0 to 1."""
        total_s = self.total_s - before.total_s
        return (self.busy_s - before.busy_s) / total_s if total_s > 0 else 0.0
