"""Restoration of goodput after a fault: when it was reached again.

It is *restored* at the first moment after the fault from which the fabric delivers enough over
:data:`WINDOW_RTTS` base RTTs. Enough is :data:`RESTORED` of what the undisturbed iteration
delivered from the same point of its data on, times the share that the remaining links allow: that
is the ratio of the trial's ideal times without the fault and with it.  The time is 0 if goodput
never fell below. There is none if it was not restored before the next fault or the end, or if
either came too soon for a measurement.  Towards the end the window is what the undisturbed
iteration would still take, and ends at a quarter: the last octets are soon delivered by any
goodput.

Pairs of GPUs that the fault cuts off from each other cannot be restored: while they are, goodput,
and what the links allow of it, is that of all others.  What they have to send comes late then, and
last, from few senders: so from there on each flow is held against the same point of its own data.

It is compared with the same point of the data, give or take :data:`TOLERANCE` of it. So a
collective's own pauses between its steps, its beginning and its end are not taken for the fault's.
Delivered is what the switch ports of the receivers have sent of data and no fault took, by the
telemetry.  That does not separate flows. Where they have to be separate, it is what messages have
brought, evenly from the end of one to the end of the next.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np
import numpy.typing as npt

from emulator.scenario import Outcome
from topologies.model import Topology
from topologies.parts.attachment import switch_ends

WINDOW_RTTS = 8
RESTORED = 0.9
#: By how much a window may be shorter where the data end.
SHORTENED = 4
TOLERANCE = 0.01
#: Points of a delivery curve in each base RTT.
_RESOLUTION = 4

#: What had been delivered, as a share of all: from 0 to 1, in equal steps of time; or a row for
#: each flow, which add up to that.
Curve = npt.NDArray[np.float64]


def deliveries(
    topology: Topology,
    outcome: Outcome,
    base_rtt_ns: int,
    counts: Callable[[int, int], bool] | None = None,
) -> list[Curve]:
    """Return for each iteration the share delivered at every fraction of a base RTT.

    With ``counts`` it is counted by flow, of those for which that is true, given the ranks of
    source and destination. Without telemetry it is counted by flow or not at all.
    """
    ports = dict.fromkeys(
        str(end)
        for gpu in topology.gpus
        for end in switch_ends(topology, gpu.name)  # one of several GPUs, behind a shared NIC
        if str(end) in outcome.queues
    )
    series = [outcome.queues[port] for port in ports if len(outcome.queues[port].admitted)]
    if counts is None and not series:
        return []
    curves = []
    for iteration, duration in zip(outcome.iterations, outcome.times_ns, strict=False):
        steps = max(2, math.ceil(duration * _RESOLUTION / base_rtt_ns) + 1)
        times = iteration.origin_ns + np.arange(steps) * base_rtt_ns / _RESOLUTION
        if counts is None:
            total = np.sum([np.interp(times, one.t_ns, one.arrived) for one in series], axis=0)
        else:
            flows = sorted(
                (pair, flow) for pair, flow in iteration.flows().items() if counts(*pair)
            )
            parts = [np.array(flow.points).T for _, flow in flows]
            since = times - iteration.origin_ns
            total = np.array([np.interp(since, at, octets) for at, octets in parts])
            total = total.reshape(-1, steps)
        grown = np.maximum.accumulate(total - total[..., :1], axis=-1)
        if (whole := grown[..., -1].sum()) > 0:
            curves.append(grown / whole)
    return curves


class Goodput(enum.StrEnum):
    """The goodput after a fault."""

    WHOLE = "did not fall below what the links left allow"
    RESTORED = "restored"
    LOST = "not restored before the next fault or the end"
    RESTARTED = "ended with the step, and the job went on from its checkpoint"
    CUT = "has no way left"
    UNKNOWN = "not observed long enough to tell"
    UNSEEN = "not observed: no switch ASIC counted what was delivered"


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
    """Return when goodput was restored by the definition above.

    ``curve`` and ``reference`` are those of :func:`deliveries`, of the iteration with the fault
    and of that without.  ``fault_ns`` and ``until_ns``, when the next fault came, count from the
    start; ``allowed`` is the share (0..1) that the remaining links allow.
    """
    if not allowed:
        return Goodput.CUT, 0
    step_ns = base_rtt_ns / _RESOLUTION
    window = WINDOW_RTTS * _RESOLUTION
    flows = list(zip(np.atleast_2d(curve), np.atleast_2d(reference), strict=True))
    first, last = math.ceil(fault_ns / step_ns), curve.shape[-1] - 1
    if until_ns is not None:
        last = min(last, int(until_ns / step_ns) - window)
    if first > last:
        return Goodput.UNKNOWN, 0
    enough = RESTORED * min(1.0, allowed)
    begins = np.arange(first, last + 1)
    #: for each tolerance and flow: where the undisturbed iteration was at the same point
    points = [
        [_when(usual, now[begins] + aside * usual[-1]) for now, usual in flows]
        for aside in (-TOLERANCE, 0, TOLERANCE)
    ]

    def suffices(steps: float | Curve) -> npt.NDArray[np.bool_]:
        delivered = np.sum([_from(now, begins, steps) for now, _ in flows], axis=0)
        usual = [
            np.sum([_from(f[1], p, steps) for f, p in zip(flows, places, strict=True)], axis=0)
            for places in points
        ]
        return np.asarray(delivered >= enough * np.min(usual, axis=0))

    ends = [_when(usual, usual[-1:]) for _, usual in flows]
    left = np.max([end - point for end, point in zip(ends, points[-1], strict=True)], axis=0)
    span = np.minimum(left, window)
    verdict = Goodput.UNKNOWN
    for begin, whole, rest, telling in zip(
        begins, suffices(window), suffices(span), span >= window / SHORTENED, strict=True
    ):
        if not whole:
            verdict = Goodput.LOST
        elif verdict is Goodput.LOST:
            if telling and rest:
                return Goodput.RESTORED, max(0, round(begin * step_ns - fault_ns))
        elif telling:
            verdict = Goodput.WHOLE
    return verdict, 0


def reported(verdicts: Sequence[Verdict]) -> dict[str, object]:
    """The worst of several iterations in words, and the mean time of those where it has one."""
    order = list(Goodput)
    worst = max((one for one, _ in verdicts), key=order.index, default=Goodput.UNKNOWN)
    timed = worst in (Goodput.WHOLE, Goodput.RESTORED)
    return {
        "goodput": str(worst),
        "restored_us": fmean(time for _, time in verdicts) / 1000 if timed else None,
    }


def _when(curve: Curve, shares: Curve) -> Curve:
    """The steps at which ``shares`` of all had been delivered."""
    after = np.searchsorted(curve, shares)
    inside = np.clip(after, 1, len(curve) - 1)
    early, late = curve[inside - 1], curve[inside]
    with np.errstate(divide="ignore", invalid="ignore"):
        between = inside - 1 + (shares - early) / (late - early)
    return np.where((after > 0) & (after < len(curve)), between, after)


def _from(curve: Curve, begins: Curve, steps: float | Curve) -> Curve:
    """Return what ``curve`` delivers in so many ``steps`` from the steps ``begins`` on."""
    places = np.arange(len(curve))
    return np.interp(begins + steps, places, curve) - np.interp(begins, places, curve)
