"""The machine that a benchmark ran on: what it is, how fast, and how quiet it was."""

import os
import statistics
import time
from typing import Any

from emulator.run.environment import describe_machine

_LOOP = 200_000
_REPEATS = 15


def describe() -> dict[str, Any]:
    """Processor, kernel, load, and the speed of a small loop, as JSON types.

    ``loop_ns`` is the time of one turn of a Python loop of integer arithmetic, the median of a few
    stretches; ``loop_spread`` is the slowest of them over the fastest, 1 on a quiet machine.
    """
    facts = describe_machine()
    stretches = [_stretch() for _ in range(_REPEATS)]
    kernel = facts["kernel"]
    assert isinstance(kernel, dict)
    return {
        "processor": facts["processor"] or kernel["machine"],
        "processors": facts["processors"],
        "memory_bytes": facts["memory_bytes"],
        "kernel": kernel["release"],
        "distribution": facts["distribution"],
        "python": facts["python"],
        "load_average_1min": os.getloadavg()[0],
        "loop_ns": statistics.median(stretches) * 1e9 / _LOOP,
        "loop_spread": max(stretches) / min(stretches),
    }


def _stretch() -> float:
    """Seconds for the loop."""
    start = time.perf_counter()
    value = 1
    for step in range(_LOOP):
        value = (value * 31 + step) & 0xFFFF_FFFF
    return time.perf_counter() - start
