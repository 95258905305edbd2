"""The time limit of an iteration, after which it counts as failed.

The host's clock gives up for lack of news.  Virtual time need not: where nothing will happen any
more the run ends at once. A transport that lacks a peer goes on until its retries are over, so that
the error is its own.  What is left to bound are timers that never end.
"""

from __future__ import annotations

import math

from emulator.run.faults.expectation import FaultExpectation
from emulator.run.time_base import RunClock

#: What an iteration may take beyond what its ideal time, dilated, would be.
TIMEOUT_S = 60.0
TIMEOUT_FACTOR = 20.0
#: Fabric time that retransmission timers, doubling, may add to it.
RECOVERY_NS = 4_000_000
#: Fabric time from the last fault on that a job is given that cannot end, as parts of it still may.
FORLORN_NS = 500_000
FORLORN_FACTOR = 3
#: Fabric time (s) beyond that of an iteration after which timers in virtual time lead to nothing.
VIRTUAL_S = 10.0
#: No longer than poll(2) can wait, which counts milliseconds in 31 bits.
LONGEST_TIMEOUT_S = 2_000_000.0


def virtual_time_limit_s(ideal_ns: float, faulted_ns: int = 0) -> float:
    """Fabric time (s) for an iteration with the bound ``ideal_ns`` and faults until then (ns)."""
    return VIRTUAL_S + (TIMEOUT_FACTOR * ideal_ns + faulted_ns) * 1e-9


def time_limit_s(
    clock: RunClock, ideal_ns: float, expected: FaultExpectation | None = None
) -> float:
    """Host seconds for an iteration with the bound ``ideal_ns`` and the faults ``expected``."""
    faulted_s = clock.host_seconds(expected.moments[-1].at_ns) if expected is not None else 0.0
    if expected is not None and expected.severed:
        hope_ns = max(FORLORN_NS, math.ceil(FORLORN_FACTOR * ideal_ns))
        return min(LONGEST_TIMEOUT_S, faulted_s + clock.host_seconds(hope_ns))
    ideal_s = clock.host_seconds(math.ceil(ideal_ns))
    recovery_s = clock.host_seconds(RECOVERY_NS)
    requested = TIMEOUT_S + TIMEOUT_FACTOR * ideal_s + recovery_s + faulted_s
    return min(LONGEST_TIMEOUT_S, requested)
