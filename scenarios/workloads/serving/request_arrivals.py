"""When requests arrive."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def poisson_arrivals(requests: int, rate: float, scale: int, seed: int) -> tuple[int, ...]:
    """Return the times (ns) of ``requests`` that arrive at random, ``rate`` a second on average.

    The first one arrives at 0.  Times are divided by ``scale``.
    """
    gaps = np.random.default_rng((seed, 4)).exponential(1e9 / rate / scale, requests - 1)
    return (0, *(int(time) for time in np.cumsum(gaps)))


def listed_arrivals(times: Sequence[int], scale: int) -> tuple[int, ...]:
    """Return ``times`` (ns) in order, divided by ``scale``."""
    return tuple(time // scale for time in sorted(times))
