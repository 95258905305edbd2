"""How much a run is to do: frames at all nodes, and roughly how long a machine takes for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from emulator.run.plan.run_plan import RunPlan
from emulator.sim.endpoint.operations.operation_table import distinct
from emulator.workers.partition import ExpectedTraffic
from topologies.model import Topology
from topologies.routing.paths import spans_from

#: Frames that two idle processors bring to a node in a second, in namespaces or on a model, or
#: operations of schedules that they carry out: 80,000 to 200,000 compiled.
PER_SECOND = 90_000
#: Senders whose paths stand for all.
SAMPLE = 16


class Effort(NamedTuple):
    """``frames`` count once for each node that they come to; ``seconds`` are an order of magnitude.

    What is lost and sent again is not among them.
    """

    frames: int
    seconds: float

    def __str__(self) -> str:
        rounded = float(f"{self.frames:.1e}")
        return f"about {rounded:,.0f} frames at all nodes, roughly {_duration(self.seconds)}"


def effort(plan: RunPlan) -> Effort:
    """Return what ``plan`` takes, warm-ups included; its trials are weighed."""
    hops = mean_hops(plan.topology, plan.traffic())
    sent = operations = 0
    for trial, load in zip(plan.trials, plan.loads, strict=True):
        undisturbed = bool(plan.moments_of(trial))  # an iteration without the user's faults
        times = trial.warmups + undisturbed + trial.iterations
        sent += (load.packets + load.answers) * times
        operations += load.operations * times
    frames = round(sent * (hops + 1))
    return Effort(frames, (frames + operations) / PER_SECOND)


def mean_hops(topology: Topology, traffic: ExpectedTraffic) -> float:
    """Return the cables that a packet of ``traffic`` passes, by the paths of a few senders."""
    names = [gpu.name for gpu in topology.gpus]
    sending = traffic.written > 0
    senders = distinct(traffic.sender[sending])
    weighed = list(_lengths(topology, names, traffic, senders[:: len(senders) // SAMPLE + 1]))
    octets = sum(written for _, written in weighed)
    return sum(length * written for length, written in weighed) / octets if octets else 0.0


def _lengths(
    topology: Topology, names: list[str], traffic: ExpectedTraffic, senders: Iterable[int]
) -> Iterable[tuple[int, int]]:
    """Yield the cables to each receiver of ``senders``, and the octets that it gets."""
    for sender in senders:
        reached = spans_from(topology, names[sender])
        own = (traffic.sender == sender) & (traffic.written > 0)
        for receiver, written in zip(traffic.receiver[own], traffic.written[own], strict=True):
            if (span := reached.get(names[receiver])) is not None:
                yield span.hops, int(written)


def _duration(seconds: float) -> str:
    if seconds < 1:
        return "a second"
    for unit, least, length in (("hours", 5400, 3600), ("minutes", 90, 60)):
        if seconds >= least:
            return f"{float(f'{seconds / length:.1g}'):g} {unit}"
    return f"{float(f'{seconds:.1g}'):g} s"
