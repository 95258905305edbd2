"""Incast: N GPUs send to one at the same time.

::

       h1g0  h2g0  h3g0  . . .  hNg0          senders
         |     |     |            |
      +-----------------------------+
      |            rail0            |
      +-----------------------------+
         |  <- the one queue where all of it meets
       h0g0                                   receiver

Traffic: each of N senders writes ``size`` octets of random data to the same receiver. They are RDMA
writes of ``message`` octets, ``in_flight`` of them under way. All begin at once; one row for each N
of ``senders``. ``placement=rail`` takes senders on the receiver's own rail, with one switch in
between. ``spines`` takes them on other rails: the incast crosses the spines, and still meets at the
last hop. ``any`` takes both. Every octet is compared with what was sent.

Meanwhile the first sender writes 1 KiB to the last one ``victim`` times, at fixed times: a message
that does not go where the incast goes, but shares NICs and the switch with it.

Measured: completion time against the ideal (N flows through one NIC); goodput of the receiver's
link while all senders are active, and its share of the payload that link can carry
(``goodput_share``); message times; fairness between senders; marks, trims and drops by the switch;
retransmissions and timeouts; the deepest queue, and its course in the telemetry of the run folder.

What should be seen, and why: the ideal is the same for any N at equal total volume, because one
link carries everything.  At the start no sender detects the others, and each sends its whole
window: N - 1 windows have to wait, or are trimmed.  Then

- with NSCC each sender reduces its window by ECN and delay until the queue stays around the target
  delay (0.75 base RTT with trimming); goodput stays near the link's payload capacity and fair;
- with a fixed window (``cc=none``) the queue stays as deep as the switch allows for as long as the
  incast lasts. What exceeds it is trimmed again and again, and the share of wasted packets grows
  with N;
- with trimming a packet that finds no room comes back as a NACK within an RTT: no retransmission
  timer should expire.  Without (``--switch shallow:trim=off``) losses are found by timers or gaps.

Expected from public work: the UEC's simulator and the SMaRTT paper (arXiv 2404.01630) show incasts
finishing close to the ideal. Completion times of the flows are close to each other; the order of
algorithms is to be compared, not the numbers, which are of their fabrics.

Came out (seed 1, defaults, NSCC with REPS): completion at 75, 91, 93 and 94 % of the ideal for N =
2, 4, 8 and 16, no timer expired, nothing dropped; for 16 the link full, mean queue 97 KB where the
target delay is 96 KB.  Fairness takes its time: windows are three packets and become alike by a
seventh of a packet in each round trip.  Jain's index is 0.86, 0.96, 0.97 and 0.96: the flows have
all their writes under way, and those with the smaller windows end last, for N = 2 alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from emulator.errors import UserError
from emulator.result_rows import TableColumn
from emulator.run.measures import flow_times
from emulator.run.report import traffic
from emulator.run.report.result_table import FLOW_COLUMNS, TRAFFIC_COLUMNS
from emulator.scenario import Outcome, Trial, parameter, refuse_idle
from scenarios.workloads.flows import (
    Flow,
    Traffic,
    TrafficParameters,
    captured_ports,
    nic_payload_gbps,
    scale_up_domains,
    switch_of,
    switch_port,
)
from topologies.model import Topology
from topologies.parts.attachment import nic_rate_bps
from topologies.parts.design_parameters import COUNT

COLUMNS = (
    TableColumn("senders", "senders", "", 8),
    TableColumn("victim_p99_us", "victim", "p99 us", 8, 2),
    *TRAFFIC_COLUMNS[:5],
    TableColumn(
        "goodput_share", "of link", "(%)", 8, 1, percent=True, words="goodput was {} % of the link"
    ),
    TableColumn("steady_queue_bytes", "steady q", "(KB)", 8, 1, divisor=1000),
    *FLOW_COLUMNS,
    *TRAFFIC_COLUMNS[5:],
)
RECEIVER = 0
#: Of each write of the victim.
VICTIM_BYTES = 1024
PROBES = replace(COUNT, minimum=0)
RAILS_ACROSS = 4
PLACEMENTS = ("rail", "spines", "any")


@dataclass(frozen=True, kw_only=True)
class Parameters(TrafficParameters):
    senders: tuple[int, ...] = parameter((2, 4, 8, 16), COUNT, many=True, help="N, a row for each")
    victim: int = parameter(
        16, PROBES, help="small writes meanwhile from the first sender to the last one"
    )
    placement: str = parameter(
        "rail", choices=PLACEMENTS, help="senders on the receiver's rail, on others, or on both"
    )


def topology(parameters: Parameters) -> str:
    """Just large enough."""
    return incast_topology(parameters.senders, parameters.placement)


def incast_topology(senders: Sequence[int], placement: str) -> str:
    """One rail with a GPU more than there are ``senders``, or four of which these have three."""
    most = max(senders)
    if placement == "rail":
        return f"rail_clos:hosts={most + 1},gpus_per_host=1,spines=1,uplinks_per_spine=1"
    hosts = 1 + -(-most // (RAILS_ACROSS - 1))
    return f"rail_clos:hosts={hosts},gpus_per_host={RAILS_ACROSS}"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    trials = [_trial(parameters, topology, senders, seed) for senders in parameters.senders]
    if parameters.victim and not any(trial.victims for trial in trials):
        refuse_idle(parameters, ("victim",), "where all senders share a server")
    return trials


def _trial(parameters: Parameters, topology: Topology, senders: int, seed: int) -> Trial:
    chosen = incast_senders(topology, RECEIVER, senders, parameters.placement)
    flows = tuple(
        Flow(source=rank, destination=RECEIVER, length=parameters.size) for rank in chosen
    )
    flows += _victim(parameters, topology, chosen)
    pattern = Traffic(topology, flows, parameters.message, parameters.in_flight, seed)
    facts = {"senders": senders, "placement": parameters.placement}
    return pattern.trial("incast", parameters, facts=facts)


def _victim(parameters: Parameters, topology: Topology, senders: Sequence[int]) -> tuple[Flow, ...]:
    """Small writes between two senders at fixed times, as long as the receiver's link is busy."""
    gpus, domains = topology.gpus, scale_up_domains(topology)
    first = senders[0]
    last = next((rank for rank in reversed(senders) if domains[rank] != domains[first]), 0)
    if not parameters.victim or not last:
        return ()
    busy_ns = parameters.size * len(senders) * 8e9 / nic_rate_bps(topology, gpus[RECEIVER].name)
    return (
        Flow(
            source=first,
            destination=last,
            length=parameters.victim * VICTIM_BYTES,
            message=VICTIM_BYTES,
            every_ns=max(1, round(busy_ns / (parameters.victim + 1))),
        ),
    )


def incast_senders(topology: Topology, receiver: int, count: int, placement: str) -> list[int]:
    """Ranks on other servers than ``receiver``, on its rail switch, on others, or on any."""
    gpus, domains = topology.gpus, scale_up_domains(topology)
    rail = switch_of(topology, receiver)
    able = [
        rank
        for rank, domain in enumerate(domains)
        if domain != domains[receiver]
        and (placement == "any" or (switch_of(topology, rank) == rail) is (placement == "rail"))
    ]
    if count > len(able):
        where = {"rail": "on the rail switch of", "spines": "on other rails than", "any": "beside"}
        raise UserError(
            f"an incast of {count} senders needs as many GPUs {where[placement]} "
            f"{gpus[receiver].name} on other servers, and topology {topology.name} has "
            f"{len(able)}; take fewer senders, another placement or more hosts"
        )
    return able[:count]


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    capacity = nic_payload_gbps(topology, RECEIVER, outcome.wire) if outcome.wire else None
    hot = switch_port(topology, RECEIVER)
    return {
        **traffic.measured(topology, outcome, capacity_gbps=capacity, bottleneck=hot),
        **flow_times.measured(topology, outcome),
    }


def capture(parameters: Parameters, topology: Topology) -> str:
    """The receiver's port: everything passes it."""
    return captured_ports(topology, RECEIVER)
