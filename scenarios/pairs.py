"""Pairs: GPUs of one half of the servers write to GPUs of the other half, each to its own.

::

       h0g0  h1g0 | h2g0  h3g0        h0g0 -> h2g0, h1g0 -> h3g0
         |     |  |   |     |         direction=both: and back at the same time
      +-------------------------+
      |          rail0          |
      +-------------------------+

Traffic: GPU g of server i writes ``size`` octets to GPU g of the server at the same place in the
other half.  Pairs share no NIC and no port of a switch, so that each has its links for itself.
Every octet is compared with what was sent.

Measured: completion time against the ideal, goodput of all pairs together and its share of what the
receiving NICs can carry (``goodput_share``), message times, and what the switches did.  With
``probes`` the times of small writes beside the bulk stand as those of victims.  With ``size`` equal
to ``message`` a row has the time of a single write: that of an endpoint that has no state for its
peer yet, or with ``--endpoints reused`` of one that has sent before.

What should be seen, and why: nothing is contended, so nothing is marked, trimmed or dropped.  Small
messages are bound by headers and by how many may be under way, large ones by the link.  A
transport's window must hold a bandwidth-delay product, or goodput falls short even so.

Came out (seed 1): over UET 512 KiB take 13.3 us, 90 % of the ideal, and 4 MiB in writes of 1 MiB
88.9 us, 98.5 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from emulator.errors import UserError
from emulator.result_rows import TableColumn
from emulator.run.measures import flow_times
from emulator.run.report import traffic
from emulator.run.report.result_table import FLOW_COLUMNS, TRAFFIC_COLUMNS
from emulator.scenario import Outcome, Trial, parameter
from scenarios.workloads.flows import (
    WARMUPS,
    Flow,
    Traffic,
    TrafficParameters,
    captured_ports,
    nic_payload_gbps,
    scale_up_domains,
)
from topologies.model import Topology
from topologies.parts.attachment import nic_rate_bps

COLUMNS = (
    TableColumn("flows", "flows", "", 6),
    *TRAFFIC_COLUMNS[:5],
    TableColumn(
        "goodput_share",
        "of NICs",
        "(%)",
        8,
        1,
        percent=True,
        words="goodput was {} % of what the NICs carry",
    ),
    *FLOW_COLUMNS,
    *TRAFFIC_COLUMNS[5:],
)
#: Octets of a probe.
PROBE_BYTES = 64
DIRECTIONS = (ONE, BOTH) = ("one", "both")


@dataclass(frozen=True, kw_only=True)
class Parameters(TrafficParameters):
    direction: str = parameter(ONE, choices=DIRECTIONS, help="who of a pair writes")
    pairs: int = parameter(0, WARMUPS, help="pairs that write, the first ones; 0: all")
    probes: int = parameter(0, WARMUPS, help="small writes meanwhile, from each pair to the next")


def topology(parameters: Parameters) -> str:
    """Return four servers of one GPU under one rail switch."""
    return "rail_clos:hosts=4,gpus_per_host=1,spines=1,uplinks_per_spine=1"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    flows, pairs = [], opposite(topology)
    if parameters.pairs > len(pairs):
        raise UserError(
            f"pairs is {parameters.pairs}, and topology {topology.name} has {len(pairs)}; take "
            "fewer, or more hosts"
        )
    pairs = pairs[: parameters.pairs or None]
    for low, high in pairs:
        ways = [(low, high)] if parameters.direction == ONE else [(low, high), (high, low)]
        flows += [Flow(source=a, destination=b, length=parameters.size) for a, b in ways]
    flows += probes(parameters, topology, pairs)
    pattern = Traffic(topology, tuple(flows), parameters.message, parameters.in_flight, seed)
    return [pattern.trial("pairs", parameters, facts={"direction": parameters.direction})]


def probes(
    parameters: Parameters, topology: Topology, pairs: Sequence[tuple[int, int]]
) -> list[Flow]:
    """Return small writes from the first of each pair to the second of the next.

    They leave by a NIC that is busy and arrive by another one, at fixed times while bulk lasts.
    """
    if not parameters.probes or len(pairs) < 2:
        return []
    domains = scale_up_domains(topology)
    found = []
    for (low, _), (_, high) in zip(pairs, [*pairs[1:], pairs[0]], strict=True):
        if domains[low] != domains[high]:
            busy_ns = parameters.size * 8e9 / nic_rate_bps(topology, topology.gpus[low].name)
            found.append(
                Flow(
                    source=low,
                    destination=high,
                    length=parameters.probes * PROBE_BYTES,
                    message=PROBE_BYTES,
                    every_ns=max(1, round(busy_ns / (parameters.probes + 1))),
                )
            )
    return found


def opposite(topology: Topology) -> list[tuple[int, int]]:
    """Return the ranks of each pair, the one in the lower half of the servers first."""
    domains: dict[str, list[int]] = {}
    for rank, domain in enumerate(scale_up_domains(topology)):
        domains.setdefault(domain, []).append(rank)
    groups = list(domains.values())
    half = len(groups) // 2
    if not half:
        raise UserError(
            f"topology {topology.name} has one server, and a pair needs two; take more hosts"
        )
    halves = zip(groups[:half], groups[half : 2 * half], strict=True)
    return [pair for low, high in halves for pair in zip(low, high, strict=False)]


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    capacity = None
    if outcome.wire is not None:
        wire = outcome.wire
        to = sorted(traffic.receivers(outcome))
        capacity = sum(nic_payload_gbps(topology, rank, wire) for rank in to) or None
    return {
        **traffic.measured(topology, outcome, capacity_gbps=capacity),
        **flow_times.measured(topology, outcome),
    }


def capture(parameters: Parameters, topology: Topology) -> str:
    """Return the ports of the first pair."""
    return captured_ports(topology, *opposite(topology)[0])
