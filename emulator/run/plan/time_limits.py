"""The time limit of an iteration, after which it counts as failed.

Where nothing will happen any more a run ends at once. A transport that lacks a peer goes on until
its retries are over, so that the error is its own.  What is left to bound are endless timers.
"""

from __future__ import annotations

#: What an iteration may take, in ideal times, and fabric time (s) beyond that.
TIMEOUT_FACTOR = 20.0
BEYOND_S = 10.0


def time_limit_s(ideal_ns: float, faulted_ns: int = 0) -> float:
    """Fabric time (s) for an iteration with the bound ``ideal_ns`` and faults until then (ns)."""
    return BEYOND_S + (TIMEOUT_FACTOR * ideal_ns + faulted_ns) * 1e-9
