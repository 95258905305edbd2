"""Which flow ended last, how long it was by itself, and what held it back meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

from emulator.run.measures.message_times import Iteration
from emulator.scenario import Outcome
from topologies.model import Topology
from topologies.parts.attachment import nic_rate_bps

#: Below this share of its rate a flow by itself is held back.
FULL = 0.9


@dataclass(frozen=True)
class LastFlow:
    """The flow ``name`` of the iteration in which flows ended furthest apart.

    Its last message was there ``end_us`` after the iteration's start, ``alone_us`` after all other
    flows' ends.  In that time it got ``share`` (0..1) of its NIC's rate.  ``waited_for`` is the
    first of these that its sender shows: ``retransmission timers`` that expired, ``pauses`` (its
    NIC was stopped for half of the time or more), ``its rate or window`` (none of those, and less
    than 0.9 of the NIC's rate), ``nothing``.
    """

    name: str
    end_us: float
    alone_us: float
    share: float | None
    waited_for: str


def last_flow(topology: Topology, outcome: Outcome) -> LastFlow | None:
    """Return the flow that ended last; None for fewer than two flows."""
    apart = [found for one in outcome.iterations if (found := _apart(one)) is not None]
    if not apart:
        return None
    alone_ns, end_ns, (source, destination), octets = max(apart)
    gpus = topology.gpus
    rate_bps = nic_rate_bps(topology, gpus[source].name)
    share = min(1.0, octets * 8e9 / alone_ns / rate_bps) if alone_ns else None
    return LastFlow(
        name=f"{gpus[source].name} to {gpus[destination].name}",
        end_us=end_ns / 1000,
        alone_us=alone_ns / 1000,
        share=share,
        waited_for=_reason(topology, outcome, source, alone_ns, share),
    )


def _apart(iteration: Iteration) -> tuple[float, float, tuple[int, int], float] | None:
    """Return how long the last flow was alone, its end, its ranks, and its octets meanwhile."""
    flows = sorted(iteration.flows().items(), key=lambda one: one[1].end)
    if len(flows) < 2:
        return None
    (_, before), (pair, last) = flows[-2:]
    left = last.points[-1][1] - last.delivered(before.end)
    return last.end - before.end, last.end, pair, left


def _reason(
    topology: Topology, outcome: Outcome, source: int, alone_ns: float, share: float | None
) -> str:
    counters = outcome.endpoints.get(source, {})
    if counters.get("rto_expirations"):
        return "retransmission timers"
    ports = (f"{topology.gpus[source].name}:{port.name}" for port in topology.gpus[source].ports)
    pauses = [outcome.ports[port].pause for port in ports if port in outcome.ports]
    paused_ns = max((pause.paused_ns for pause in pauses if pause is not None), default=0)
    if paused_ns >= alone_ns / 2 > 0:
        return "pauses"
    return "its rate or window" if share is not None and share < FULL else "nothing"
