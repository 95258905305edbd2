"""When goodput was restored after a fault.

It is *restored* at the first moment after the fault from which the fabric delivers, over
:data:`WINDOW_RTTS` base RTTs, at least :data:`RESTORED` of what the undisturbed iteration delivered
from the same point of its data on, times the share that the remaining links allow: that is the
ratio of the trial's ideal times without the fault and with it.  The time is 0 if goodput never fell
below, and there is none if it was not restored before the next fault or the end, or if either came
too soon to tell.  Towards the end the window is what the undisturbed iteration would still take,
and ends at a quarter: the last octets are soon delivered by any goodput.

Held against the same point of the data (give or take :data:`TOLERANCE` of it), a collective's own
pauses between its steps, its beginning and its end are not taken for the fault's.  Delivered is
what the switch ports of the receivers have sent of data and no fault took, by the telemetry.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np
import numpy.typing as npt

from emulator.scenario import Outcome
from topologies.model import Topology

WINDOW_RTTS = 8
RESTORED = 0.9
#: By how much a window may be shorter where the data end.
SHORTENED = 4
TOLERANCE = 0.01
#: Points of a delivery curve in each base RTT.
_RESOLUTION = 4

#: What had been delivered, as a share of all: from 0 to 1, in equal steps of time.
Curve = npt.NDArray[np.float64]


def deliveries(topology: Topology, outcome: Outcome, base_rtt_ns: int) -> list[Curve]:
    """Of each iteration what had been delivered every fraction of a base RTT, as a share of all.

    Empty without telemetry.
    """
    ports = [
        str(theirs)
        for gpu in topology.gpus
        for _, _, theirs in topology.neighbours(gpu.name)
        if str(theirs) in outcome.queues
    ]
    series = [outcome.queues[port] for port in ports if len(outcome.queues[port].admitted)]
    if not series:
        return []
    curves = []
    for iteration, duration in zip(outcome.iterations, outcome.times_ns, strict=False):
        steps = max(2, math.ceil(duration * _RESOLUTION / base_rtt_ns) + 1)
        times = iteration.origin_ns + np.arange(steps) * base_rtt_ns / _RESOLUTION
        total = np.sum([np.interp(times, one.t_ns, one.arrived) for one in series], axis=0)
        grown = np.maximum.accumulate(total - total[0])
        if grown[-1] > 0:
            curves.append(grown / grown[-1])
    return curves


class Goodput(enum.StrEnum):
    """What became of it after a fault."""

    WHOLE = "did not fall below what the links left allow"
    RESTORED = "restored"
    LOST = "not restored before the next fault or the end"
    CUT = "has no way left"
    UNKNOWN = "not observed long enough to tell"


#: What became of goodput, and when that was after the fault (ns) if it was restored.
Verdict = tuple[Goodput, int]


def restored(
    curve: Curve,
    reference: Curve,
    *,
    base_rtt_ns: int,
    fault_ns: int,
    until_ns: int | None,
    allowed: float,
) -> Verdict:
    """By the definition above.

    ``curve`` and ``reference`` are those of :func:`deliveries`, of the iteration with the fault
    and of that without.  ``fault_ns`` and ``until_ns``, when the next fault came, count from the
    start; ``allowed`` is the share (0..1) that the remaining links allow.
    """
    if not allowed:
        return Goodput.CUT, 0
    step_ns = base_rtt_ns / _RESOLUTION
    window = WINDOW_RTTS * _RESOLUTION
    first, last = math.ceil(fault_ns / step_ns), len(curve) - 1
    if until_ns is not None:
        last = min(last, int(until_ns / step_ns) - window)
    enough = RESTORED * min(1.0, allowed)

    def usual(begin: int, steps: float) -> float:
        points = (_when(reference, curve[begin] + aside) for aside in (-TOLERANCE, 0, TOLERANCE))
        return min(_from(reference, point, steps) for point in points)

    verdict = Goodput.UNKNOWN
    for begin in range(first, last + 1):
        left = len(reference) - 1 - _when(reference, curve[begin] + TOLERANCE)
        span = min(left, window)
        telling = span >= window / SHORTENED
        if _from(curve, begin, window) < enough * usual(begin, window):
            verdict = Goodput.LOST
        elif verdict is Goodput.LOST:
            if telling and _from(curve, begin, span) >= enough * usual(begin, span):
                return Goodput.RESTORED, max(0, round(begin * step_ns - fault_ns))
        elif telling:
            verdict = Goodput.WHOLE
    return verdict, 0


def told(verdicts: Sequence[Verdict]) -> dict[str, object]:
    """The worst of several iterations in words, and the mean time of those where it has one."""
    order = list(Goodput)
    worst = max((one for one, _ in verdicts), key=order.index, default=Goodput.UNKNOWN)
    timed = worst in (Goodput.WHOLE, Goodput.RESTORED)
    return {
        "goodput": str(worst),
        "restored_us": fmean(time for _, time in verdicts) / 1000 if timed else None,
    }


def _when(curve: Curve, share: float) -> float:
    """The step at which ``share`` of all had been delivered."""
    after = int(np.searchsorted(curve, share))
    if not 0 < after < len(curve):
        return float(after)
    early, late = curve[after - 1 : after + 1]
    return float(after - 1 + (share - early) / (late - early))


def _from(curve: Curve, begin: float, window: float) -> float:
    """What ``curve`` delivers in ``window`` steps from step ``begin`` on."""
    steps = np.arange(len(curve))
    early, late = np.interp([begin, begin + window], steps, curve)
    return float(late - early)
