"""What the metrics of traffic are computed of, beside time and ideal.

The metrics themselves are entries of :mod:`emulator.run.measures.row_metrics`.  Goodput is what all
flows together delivered in the steady state: from when each has delivered its first message until
the first of them ends (:func:`emulator.arithmetic.steady_interval`).  It is what the
ports that the receivers are plugged into sent of data by the telemetry, without headers; without an
ASIC it comes from the ends of messages, which come in bunches after losses and so show up to a
tenth too much.  Of the flow that ended last: how long it was by itself, and what held it back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import TypeVar

from emulator.arithmetic import (
    jain,
    percentile,
    rates_between,
    steady_interval,
    together,
)
from emulator.dataplane.switch.cable_counters import LinkCounters, PauseCounters
from emulator.dataplane.switch.switch_counters import PoolUse
from emulator.metrics import BOUNDARY, ENDPOINT, computed
from emulator.run.measures.message_times import Iteration
from emulator.run.measures.port_record import Balance, PortRecord, balance
from emulator.run.measures.queue_depths import QueueSeries
from emulator.scenario import Outcome
from topologies.model import Role, Topology
from topologies.parts.attachment import nic_rate_bps, switch_ends

#: Below this share of its rate a flow by itself is held back.
FULL = 0.9
#: A flow: ranks of source and destination.
Pair = tuple[int, int]
C = TypeVar("C")


def measured(
    topology: Topology,
    outcome: Outcome,
    *,
    capacity_gbps: float | None = None,
    bottleneck: str | None = None,
) -> dict[str, object]:
    """Return the metrics of traffic.

    ``capacity_gbps`` is the payload that goodput is compared with, ``bottleneck`` the port whose
    queue is reported in the steady state.
    """
    return computed(
        "traffic",
        MeasuredTraffic(topology, outcome, capacity_gbps=capacity_gbps, bottleneck=bottleneck),
    )


@dataclass(frozen=True)
class MeasuredTraffic:
    """An outcome as the metrics of traffic read it.

    A counter that no endpoint has is ``absent``: endpoints count what has happened.
    """

    topology: Topology
    outcome: Outcome
    capacity_gbps: float | None = None
    bottleneck: str | None = None
    absent: int | None = None

    @cached_property
    def goodput(self) -> tuple[float | None, str | None]:
        """Goodput (GB/s), and where it was observed."""
        carried = carried_gbps(self.topology, self.outcome, receivers(self.outcome))
        if carried is not None:
            return carried, BOUNDARY
        by_messages = steady_goodput(self.outcome)
        return by_messages, None if by_messages is None else ENDPOINT

    @property
    def goodput_share(self) -> float | None:
        """Goodput over the capacity."""
        goodput, _ = self.goodput
        # Samples know octets to a frame: a link that is never idle may seem to carry 0.1 % more.
        return min(1.0, goodput / self.capacity_gbps) if goodput and self.capacity_gbps else None

    def message_us(self, share: float) -> float | None:
        """Return the time that ``share`` (0..1) of the messages took at most (nearest rank)."""
        return _us(percentile(self._durations, share))

    def victim_us(self, share: float) -> float | None:
        """Return the same of the victims' messages."""
        return _us(percentile(_durations(self.outcome.victims), share))

    def counted(self, *names: str) -> int | None:
        """Return the counter of all endpoints under the first of ``names`` that they have."""
        found = (self.outcome.counters[name] for name in names if name in self.outcome.counters)
        return next(found, self.absent)

    @property
    def steady_queue_bytes(self) -> float | None:
        """Mean depth of the bottleneck's queue in the steady state."""
        return _steady(self.outcome, self.bottleneck or "", QueueSeries.mean)

    @cached_property
    def last_flow(self) -> LastFlow | None:
        """The flow that ended last; None of fewer than two."""
        return last_flow(self.topology, self.outcome)

    @property
    def modelled(self) -> bool:
        """Whether any port has the ASIC."""
        return any(port.asic is not None for port in self.outcome.ports.values())

    def at_switches(self, count: Callable[[PortRecord], int]) -> int | None:
        """Return the sum of a count over all ports; None without the ASIC."""
        ports = self.outcome.ports.values()
        return sum(count(port) for port in ports) if self.modelled else None

    @cached_property
    def drops(self) -> Mapping[str, int]:
        """Packets that were dropped, by reason; ``nic``: at a shared NIC, in front of its PCIe."""
        ports = self.outcome.ports
        drops: dict[str, int] = {}
        for port in ports.values():
            for reason, count in port.drops.items():
                drops[reason] = drops.get(reason, 0) + count
        drops["nic"] = sum(
            ports[name].kernel.data.drops + ports[name].kernel.control.drops
            for node in self.topology.nodes
            if node.role is Role.NIC
            for port in node.ports
            if (name := f"{node.name}:{port.name}") in ports
        )
        return drops

    @property
    def deepest(self) -> str | None:
        """The port whose queue of data was the deepest."""
        ports = self.outcome.ports
        return max(ports, key=lambda name: ports[name].max_queue_bytes) if self.modelled else None

    @cached_property
    def balance(self) -> Balance | None:
        """The balance of parallel uplinks."""
        return balance(self.topology, self.outcome.ports) if self.outcome.ports else None

    def paused(self, count: Callable[[PauseCounters], int], *, nics: bool = False) -> int | None:
        """Return the sum of a count of PFC, at NICs or everywhere; None where nothing pauses."""
        pauses = {
            name: port.pause for name, port in self.outcome.ports.items() if port.pause is not None
        }
        return self._sum(pauses, count, nics) if pauses else None

    @cached_property
    def links(self) -> Mapping[str, LinkCounters]:
        """What the link layers of cables counted, by port."""
        return {name: port.link for name, port in self.outcome.ports.items() if port.link}

    def linked(self, count: Callable[[LinkCounters], int], *, nics: bool = False) -> int:
        """Return the sum of a count of the link layers, at NICs or everywhere."""
        return self._sum(self.links, count, nics)

    @property
    def reserved(self) -> list[int]:
        """What each port keeps for data that is never lost (octets)."""
        ports = self.outcome.ports.values()
        return [port.reserved_bytes for port in ports if port.reserved_bytes is not None]

    @property
    def held_bytes(self) -> int:
        """The most that a port held of what it keeps."""
        held = [port.pause.max_held_bytes for port in self.outcome.ports.values() if port.pause]
        return max([*held, *(link.max_held_bytes for link in self.links.values())], default=0)

    @cached_property
    def pools(self) -> list[PoolUse]:
        """What is used of the pool of each port's switch; empty where ports share none."""
        models = [port.asic for port in self.outcome.ports.values() if port.asic is not None]
        return [model.pool for model in models if model.pool is not None]

    @cached_property
    def _durations(self) -> list[int]:
        return _durations(self.outcome.iterations)

    @cached_property
    def _nics(self) -> set[str]:
        return {node.name for node in self.topology.nodes if not node.is_switch}

    def _sum(self, ports: Mapping[str, C], count: Callable[[C], int], nics: bool) -> int:
        return sum(
            count(one)
            for name, one in ports.items()
            if not nics or name.split(":")[0] in self._nics
        )


def _durations(iterations: Iterable[Iteration]) -> list[int]:
    """Return how long each message took (ns)."""
    return [
        duration
        for iteration in iterations
        for duration in (iteration.end_ns - iteration.start_ns).tolist()
    ]


def receivers(outcome: Outcome) -> set[int]:
    """The ranks that flows go to."""
    return {to for iteration in outcome.iterations for _, to in iteration.flows()}


def carried_gbps(
    topology: Topology, outcome: Outcome, ranks: Collection[int], *, steady: bool = True
) -> float | None:
    """Payload (GB/s) that the switch ports of ``ranks`` sent to them together, in steady state.

    Unless it must be ``steady``, what lacks such a state counts from when all flows have begun
    until one ends: several queue pairs bring the first messages of a flow late. It is counted where
    it leaves the fabric, so that it never exceeds what the links carry. None where the telemetry
    has no samples of it, or where PCIe behind a shared NIC takes in less than that.
    """
    if outcome.wire is None or not ranks:
        return None
    rates = []
    names = [topology.gpus[rank].name for rank in ranks]
    ends = {end for name in names for end in switch_ends(topology, name)}
    taken = sum(nic_rate_bps(topology, name) for name in names)
    if taken < sum(topology.link_at(end).rate_bps for end in ends):
        return None
    for end in sorted(ends):
        rate = _steady(outcome, str(end), QueueSeries.rate, brief=not steady)
        if rate is None:
            return None
        rates.append(rate)
    return sum(rates) * outcome.wire.payload_share


def _steady(
    outcome: Outcome,
    port: str,
    of: Callable[[QueueSeries, float, float], float | None],
    *,
    brief: bool = False,
) -> float | None:
    """Return the mean over iterations of ``of`` at ``port`` while all flows were under way.

    With ``brief`` that need not be a steady state.
    """
    series = outcome.queues.get(port)
    if series is None:
        return None
    found = []
    for iteration in outcome.iterations:
        flows = list(iteration.flows().values())
        interval = steady_interval(flows) or (together(flows) if brief else None)
        if interval is not None:
            begin, end = (iteration.origin_ns + moment for moment in interval)
            found.append(of(series, begin, end))
    values = [value for value in found if value is not None]
    return fmean(values) if values else None


def steady_goodput(outcome: Outcome) -> float | None:
    """Mean over the iterations of the rate (GB/s) of all flows, in steady state, by messages."""
    found = [sum(rates.values()) for rates in steady_rates(outcome)]
    return fmean(found) if found else None


def steady_rates(outcome: Outcome) -> list[Mapping[Pair, float]]:
    """The rate of each flow while all are under way, for each iteration, by messages.

    Iterations in which that never was are left out.
    """
    found: list[Mapping[Pair, float]] = []
    for iteration in outcome.iterations:
        progress = iteration.flows()
        interval = steady_interval(list(progress.values()))
        if interval is not None:
            rates = rates_between(list(progress.values()), *interval)
            found.append(dict(zip(progress, rates, strict=True)))
    return found


def steady_part(outcome: Outcome, flows: Collection[Pair]) -> float | None:
    """The share (0..1) that ``flows`` had of all that their receivers got in steady state."""
    steady = steady_rates(outcome)
    to = {destination for _, destination in flows}
    own = sum(rate for rates in steady for pair, rate in rates.items() if pair in flows)
    whole = sum(rate for rates in steady for pair, rate in rates.items() if pair[1] in to)
    return own / whole if whole else None


def fairness(outcome: Outcome) -> float | None:
    """Mean over the iterations of Jain's index of the flows."""
    each = [list(rates.values()) for rates in steady_rates(outcome)] or [
        [progress.rate for progress in iteration.flows().values()]
        for iteration in outcome.iterations
    ]
    indices = [index for rates in each if (index := jain(rates)) is not None]
    return fmean(indices) if indices else None


def _us(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / 1000


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
