"""The columns of traffic scenarios beside time and ideal.

``goodput_gbps``
    payload that all flows together delivered while all of them were under way, which is the steady
    state: from when each has delivered its first message until the first of them ends.  None if
    that was too short (:func:`emulator.run.measures.metrics.steady_interval`).  It is what the
    ports that the receivers are plugged into sent of data by the telemetry, without headers;
    without an ASIC it comes from the ends of messages, which come in bunches after losses and so
    show up to a tenth too much.  ``goodput_at`` is where it was observed: at those ports, the
    ``fabric boundary``, or at the ``endpoint``.  ``goodput_share`` is its share of what the links
    could carry.
``message_p50_us``, ``message_p99_us``
    from a message's start until its receiver has verified it, over all messages (nearest rank).
``victim_p50_us``, ``victim_p99_us``
    likewise, over the messages of the trial's victims; only where it has some.
``jain``
    Jain's fairness index of the flows' rates in the same interval, or over their lives.
``marked_packets``, ``trimmed_packets``, ``dropped_packets``
    by the switches (ECN; trimming; drops of any reason, which ``drops`` has by name; among them
    ``nic``, what did not fit into a shared NIC in front of its PCIe).
``pauses``, ``paused_us``
    frames that requested a pause (PFC), by switches and NICs, and how long ports were not let
    send data, all ports added up; None where the switches do not pause. ``paused_nics_us`` is the
    part of the NICs.
``timeouts``
    retransmission timers of endpoints that expired.
``max_queue_bytes``
    the deepest queue of data at any switch port, octets on the wire; ``max_queue_port`` is where.
``steady_queue_bytes``
    mean depth, by the telemetry, of the queue at the port that a scenario calls its bottleneck,
    in the same interval as goodput.
``links_max_mean``, ``links_jain``
    balance of parallel uplinks (:func:`emulator.run.measures.port_record.balance`).
``last_flow``, ``last_flow_us`` and more
    which flow ended last, and why (:mod:`emulator.run.report.last_flow`).
``reordered_packets``
    packets that arrived after one that was sent later; None where endpoints do not count them.
    Packets of RoCEv2 do not show whether they were sent before, so there it is those that came
    before an earlier one, which is all behind a loss as well: not to be held against UET's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from statistics import fmean

from emulator.run.measures.message_times import Iteration
from emulator.run.measures.metrics import jain, percentile, rates_between, steady_interval, together
from emulator.run.measures.port_record import balance
from emulator.run.measures.queue_depths import QueueSeries
from emulator.run.report.last_flow import last_flow
from emulator.scenario import Outcome
from topologies.model import Role, Topology
from topologies.parts.attachment import nic_rate_bps, switch_ends

#: A flow: ranks of source and destination.
Pair = tuple[int, int]

#: Where goodput is observed.
BOUNDARY, ENDPOINT = "fabric boundary", "endpoint"
#: Names under which endpoints count these.
TIMEOUTS = ("rto_expirations",)
REORDERED = ("rx_reordered", "rx_out_of_order")


def measured(
    topology: Topology,
    outcome: Outcome,
    *,
    capacity_gbps: float | None = None,
    bottleneck: str | None = None,
) -> dict[str, object]:
    """Return the values described above.

    ``capacity_gbps`` is the payload that goodput is compared with, ``bottleneck`` the port whose
    queue is reported in the steady state.
    """
    goodput = carried_gbps(topology, outcome, receivers(outcome))
    observed = BOUNDARY
    if goodput is None:
        goodput, observed = steady_goodput(outcome), ENDPOINT
    durations = _durations(outcome.iterations)
    row: dict[str, object] = {
        "goodput_gbps": goodput,
        "goodput_at": observed if goodput is not None else None,
        # Samples know octets to a frame: a link that is never idle may seem to carry 0.1 % more.
        "goodput_share": min(1.0, goodput / capacity_gbps) if goodput and capacity_gbps else None,
        "message_p50_us": _us(percentile(durations, 0.5)),
        "message_p99_us": _us(percentile(durations, 0.99)),
        "jain": fairness(outcome),
        "timeouts": _counted(outcome, TIMEOUTS) or 0,
        "reordered_packets": _counted(outcome, REORDERED),
    }
    if outcome.victims:
        waited = _durations(outcome.victims)
        row["victim_p50_us"] = _us(percentile(waited, 0.5))
        row["victim_p99_us"] = _us(percentile(waited, 0.99))
    if bottleneck is not None:
        row["steady_queue_bytes"] = _steady(outcome, bottleneck, QueueSeries.mean)
    return {**row, **last_flow(topology, outcome), **_ports(topology, outcome)}


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


def _ports(topology: Topology, outcome: Outcome) -> dict[str, object]:
    ports = outcome.ports
    drops: dict[str, int] = {}
    for port in ports.values():
        for reason, count in port.drops.items():
            drops[reason] = drops.get(reason, 0) + count
    drops["nic"] = sum(
        ports[name].kernel.data.drops + ports[name].kernel.control.drops
        for node in topology.nodes
        if node.role is Role.NIC
        for port in node.ports
        if (name := f"{node.name}:{port.name}") in ports
    )
    deepest = max(ports, key=lambda name: ports[name].max_queue_bytes, default=None)
    even = balance(topology, ports) if ports else None
    modelled = any(port.asic is not None for port in ports.values())
    return {
        "marked_packets": sum(port.marked for port in ports.values()) if modelled else None,
        "trimmed_packets": sum(port.trimmed for port in ports.values()) if modelled else None,
        "dropped_packets": sum(drops.values()) if modelled else None,
        **_pauses(topology, outcome),
        **_links(topology, outcome),
        "drops": {reason: count for reason, count in drops.items() if count},
        "max_queue_bytes": ports[deepest].max_queue_bytes if modelled and deepest else None,
        "max_queue_port": deepest if modelled else None,
        "links_max_mean": even.max_mean if even else None,
        "links_jain": even.jain if even else None,
    }


def _pauses(topology: Topology, outcome: Outcome) -> dict[str, object]:
    pausing = {name: port.pause for name, port in outcome.ports.items() if port.pause is not None}
    if not pausing:
        return {"pauses": None, "paused_us": None, "paused_nics_us": None}
    nics = {node.name for node in topology.nodes if not node.is_switch}
    return {
        "pauses": sum(pause.xoff_sent for pause in pausing.values()),
        "paused_us": sum(pause.paused_ns for pause in pausing.values()) / 1000,
        "paused_nics_us": sum(
            pause.paused_ns for name, pause in pausing.items() if name.split(":")[0] in nics
        )
        / 1000,
    }


def _links(topology: Topology, outcome: Outcome) -> dict[str, object]:
    """Return what the link layer of cables did, and the buffers that keep data from loss."""
    linked = {name: port.link for name, port in outcome.ports.items() if port.link is not None}
    reserved = [
        port.reserved_bytes for port in outcome.ports.values() if port.reserved_bytes is not None
    ]
    found: dict[str, object] = {}
    if reserved:
        held = [port.pause.max_held_bytes for port in outcome.ports.values() if port.pause]
        held += [link.max_held_bytes for link in linked.values()]
        found |= {
            "lossless_buffer_bytes": max(reserved),
            "lossless_held_bytes": max(held, default=0),
        }
    if not linked:
        return found
    links = list(linked.values())
    recovered = sum(link.recovered_frames for link in links)
    nics = {node.name for node in topology.nodes if not node.is_switch}
    return found | {
        "replays": sum(link.replays for link in links),
        "replayed_packets": sum(link.replayed_frames for link in links),
        "replay_timeouts": sum(link.replay_timer_expiries for link in links),
        "link_recovery_us": sum(link.recovery_ns for link in links) / recovered / 1000
        if recovered
        else None,
        "link_recovery_max_us": max(link.longest_recovery_ns for link in links) / 1000
        if recovered
        else None,
        "link_lost_packets": sum(link.lost_frames for link in links),
        "replay_full_us": sum(link.buffer_full_ns for link in links) / 1000,
        "credit_stalled_us": sum(link.credit_stalled_ns for link in links) / 1000,
        "credit_stalled_nics_us": sum(
            link.credit_stalled_ns for name, link in linked.items() if name.split(":")[0] in nics
        )
        / 1000,
    }


def _counted(outcome: Outcome, names: Collection[str]) -> int | None:
    """The counter of all endpoints under one of ``names``; None if they have none of them."""
    for name in names:
        if name in outcome.counters:
            return outcome.counters[name]
    return None


def _us(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / 1000
