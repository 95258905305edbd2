"""A rank's clock as Python's: ``time.time()`` and others of the script are fabric time."""

from __future__ import annotations

import time
from typing import SupportsIndex

from emulator.torch_backend.rank_link import RankLink


def show_fabric_time(link: RankLink) -> None:
    """Have all clocks of :mod:`time` count fabric time, and ``sleep`` take it.

    Whoever has taken a function of :mod:`time` before, as torch has, keeps the host's.
    """

    def seconds() -> float:
        return link.clock_ns / 1e9

    def nanoseconds() -> int:
        return link.clock_ns

    def sleep(duration: float | SupportsIndex, /) -> None:
        length = float(duration)
        if length < 0:
            raise ValueError("sleep length must be non-negative")
        link.sleep(round(length * 1e9))

    for name in ("time", "monotonic", "perf_counter"):
        setattr(time, name, seconds)
        setattr(time, f"{name}_ns", nanoseconds)
    time.sleep = sleep
