"""Victim: a flow that shares links with an incast, but not its destination.

::

                    spine0     spine1
                    /  \\       /  \\            two uplinks from rail0, two down to rail1:
                   /    \\     /    \\           the victim and the incast share them
                rail0 ------------- rail1
               /  |  \\              |   \\
            h0g0 h1g0 ... hNg0    h0g1   h1g1
           victim   senders       hot    victim's
           sends                  spot   receiver

Traffic: N GPUs on the first rail (and on the third and further, where it has fewer) send to one GPU
on the second, whose NIC is the bottleneck. The victim sends from the same rail to another GPU on
the second, whose NIC is free. The two uplinks of the rail carry two NICs' worth: enough for the
incast at the rate that its receiver takes (one NIC's) and for the victim at full rate. The first
row has the victim alone, one more for each N. Sizes are such that all flows would end together if
rates were max-min fair. Every octet is compared with what was sent.

Measured: the victim's rate while the incast lasts and its share of what is fair (``victim_share``:
its rate over its max-min fair rate), the incast's goodput and its share likewise, and the columns
of all traffic scenarios.

What should be seen, and why: the victim's fair rate is its NIC's, with or without the incast.
Without congestion control each sender keeps its window in the fabric. The uplinks carry N + 1
windows, of which N - 1 are trimmed at the last hop. The victim gets what share of the uplinks its
window is: far below fair. With ``--switch lossless`` it is worse: a pause for the hot spot stops
the victim (head-of-line blocking; that is what this pattern is known for, DCQCN, SIGCOMM 2015).
With NSCC the senders reduce their windows within a few round trips, and the uplinks run free again.
The victim gets back to at least 0.8 of what is fair.

Came out (N = 8, NSCC with REPS, median of seeds 1 to 4): 82 % of fair where the first collision
counts (``warmups=0``: 634 trimmed), 99 % alone.

RoCEv2 beside it (likewise, lossless, DCQCN): 21 %, which is 84 Gb/s.  The incast pauses the uplinks
that its hash shares with the victim, and DCQCN brings the victim's rate back in milliseconds: in
longer runs it has most of what its uplink leaves (``emulator/rocev2/README.md``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from emulator.errors import UserError
from emulator.result_rows import TableColumn
from emulator.run.report import traffic
from emulator.run.report.result_table import TRAFFIC_COLUMNS
from emulator.scenario import Outcome, Trial, parameter
from emulator.transports.wire_cost import WireCost
from scenarios.workloads.flows import (
    WARMUPS,
    Flow,
    Shares,
    Traffic,
    TrafficParameters,
    captured_ports,
    fair_shares,
    require_joined,
    scale_up_domains,
    switch_of,
)
from topologies.model import Topology
from topologies.parts.design_parameters import COUNT, SIZE

COLUMNS = (
    TableColumn("senders", "senders", "", 8),
    TableColumn("victim_gbps", "victim", "(GB/s)", 8),
    TableColumn(
        "victim_share",
        "of fair",
        "(%)",
        8,
        1,
        percent=True,
        words="the victim had {} % of its fair rate",
    ),
    TableColumn("incast_share", "incast", "(%)", 8, 1, percent=True),
    *TRAFFIC_COLUMNS,
)


@dataclass(frozen=True, kw_only=True)
class Parameters(TrafficParameters):
    size: int = parameter(2**20, SIZE, help="octets of each flow of the incast")
    senders: tuple[int, ...] = parameter((8,), COUNT, many=True, help="N, a row for each")
    alone: int = parameter(1, WARMUPS, help="0: no first row that has the victim alone")


def topology(parameters: Parameters) -> str:
    """Two rails; two uplinks, whatever N is."""
    hosts = max(parameters.senders) + 1
    return f"rail_clos:hosts={hosts},gpus_per_host=2,spines=2,uplinks_per_spine=1"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    rows = (0, *parameters.senders) if parameters.alone else parameters.senders
    return [_trial(parameters, topology, senders, seed) for senders in rows]


def cast(topology: Topology, senders: int) -> tuple[tuple[int, int], list[tuple[int, int]]]:
    """The victim and the flows of the incast, as pairs of ranks."""
    domains = scale_up_domains(topology)
    servers = set(domains)
    rails: dict[str, list[int]] = {}
    for rank in range(len(domains)):
        rails.setdefault(switch_of(topology, rank), []).append(rank)
    if len(rails) < 2 or len(servers) < 2:
        raise UserError(
            f"a victim needs two rail switches and two hosts, and topology {topology.name} has "
            f"{len(rails)} and {len(servers)}; take more hosts or gpus_per_host"
        )
    require_joined(topology, next(iter(rails)))
    first, second = list(rails.values())[:2]
    victim = first[0]
    hot = next((r for r in second if domains[r] == domains[victim]), second[0])
    apart = {domains[victim], domains[hot]}
    target = next((r for r in second if domains[r] not in apart), None)
    if target is None:
        raise UserError(
            "a victim sends to a second host of the switch that the incast goes to, and topology "
            f"{topology.name} has only one there; take more hosts"
        )
    able = [r for r in first if r != victim and domains[r] != domains[hot]]
    beyond = (rank for rail in list(rails.values())[2:] for rank in rail)
    able += [r for r in beyond if domains[r] not in {*apart, domains[target]}]
    if senders > len(able):
        raise UserError(
            f"an incast of {senders} senders beside the victim needs {senders + 1} hosts, and "
            f"topology {topology.name} has {len(servers)}; take fewer senders or more hosts"
        )
    return (victim, target), [(rank, hot) for rank in able[:senders]]


def _shares(
    topology: Topology, senders: int, wire: WireCost | None = None
) -> tuple[tuple[int, int], Shares]:
    victim, incast = cast(topology, senders)
    return victim, fair_shares(topology, [victim, *incast], wire)


def lengths(shares: Shares, size: int) -> Sequence[Flow]:
    """Flows that end together at fair rates, the slowest with ``size`` octets."""
    least = min(shares.rates.values())
    return [
        Flow(source=source, destination=destination, length=round(size * rate / least))
        for (source, destination), rate in shares.rates.items()
    ]


def _trial(parameters: Parameters, topology: Topology, senders: int, seed: int) -> Trial:
    _, shares = _shares(topology, senders)
    alone = senders == 0
    size = parameters.size * max(parameters.senders) if alone else parameters.size
    flows = tuple(lengths(shares, size))
    pattern = Traffic(topology, flows, parameters.message, parameters.in_flight, seed)
    return pattern.trial("victim", parameters, size_bytes=size, facts={"senders": senders})


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    victim, shares = _shares(topology, trial.facts["senders"], outcome.wire)
    row = traffic.measured(topology, outcome)
    if outcome.wire is None:
        return row
    fair = {pair: shares.payload_gbps(pair, outcome.wire) for pair in shares.rates}
    incast = [pair for pair in fair if pair != victim]
    expected = sum(fair[pair] for pair in incast)
    # Nobody else sends to either of the receivers, so their ports separate the two.
    rate = traffic.carried_gbps(topology, outcome, {victim[1]}, steady=False)
    got = traffic.carried_gbps(topology, outcome, {to for _, to in incast}, steady=False)
    return row | {
        "victim_gbps": rate,
        "victim_fair_gbps": fair[victim],
        "victim_share": rate / fair[victim] if rate is not None else None,
        "incast_share": got / expected if got is not None else None,
    }


def capture(parameters: Parameters, topology: Topology) -> str:
    """The port of the victim's receiver, and that of the hot spot."""
    victim, incast = cast(topology, max(parameters.senders))
    return captured_ports(topology, victim[1], incast[0][1])
