"""Outcast: one GPU sends to many, and one of its receivers is the target of an incast as well.

::

                        spines
                         |  |   <- the incast arrives through the uplinks,
      h0g0 ---+----------+--+----------+           many flows on few ports
      sends   |         rail0          |
      to all  +--+--------+--------+---+
                 |        |        |
               h1g0     h2g0     h3g0 ...
               hot      free     free

Traffic: the sender writes to M receivers on its own rail, so they share its NIC. The first of
them, the hot one, also receives from N GPUs of another rail. Sizes are such that all flows would
end together if rates were max-min fair: at the hot receiver N + 1 flows share a NIC, and what
that leaves of the sender's NIC is for its other flows. Every octet is compared with what was
sent.

Measured: the rate over the fair rate, while all flows are under way: ``hot_share`` of the flow to
the hot receiver, ``free_share`` of the sender's other flows together, ``incast_share`` of the
incast; and the columns of all traffic scenarios.

What should be seen, and why: two things can go wrong here.

- *Port blackout* ("The TCP Outcast Problem", Prakash et al., NSDI 2012): where a full queue drops
  what arrives, a port that delivers packets back to back can lose a run of them while another gets
  through.  The sender's one flow comes through a port of its own and competes with N that share the
  uplinks; with synchronised losses the few lose against the many.  Trimming reports every loss at
  once, and marking begins long before the queue is full: ``hot_share`` should be near 1.
- *Collateral damage inside the sender*: if all its flows shared one window, congestion towards the
  hot receiver would hold back the others.  UET has a congestion control context for each
  destination, so ``free_share`` should stay near 1 whatever N is.

Came out (seed 1, NSCC with REPS): ``hot_share`` 0.98, 0.83 and 0.77, ``free_share`` 0.98, 1.04 and
1.03 for N = 1, 4 and 8: no blackout, no collateral damage. From N = 4 on the one flow gets less
than those that share the uplinks. With a fixed window of one BDP (``uet:cc=none``) it gets half at
N = 4, and ``free_share`` falls to 0.94.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from emulator.errors import UserError
from emulator.result_rows import TableColumn
from emulator.run.report import traffic
from emulator.run.report.result_table import TRAFFIC_COLUMNS
from emulator.scenario import Outcome, Trial, parameter
from scenarios.victim import lengths
from scenarios.workloads.flows import (
    Traffic,
    TrafficParameters,
    captured_ports,
    fair_shares,
    scale_up_domains,
    switch_of,
)
from topologies.model import Topology
from topologies.parts.design_parameters import COUNT, SIZE

COLUMNS = (
    TableColumn("senders", "senders", "", 8),
    TableColumn(
        "hot_share",
        "hot",
        "(%)",
        8,
        1,
        percent=True,
        words="the flow to the hot receiver had {} % of its fair rate",
    ),
    TableColumn("free_share", "free", "(%)", 8, 1, percent=True),
    TableColumn("incast_share", "incast", "(%)", 8, 1, percent=True),
    *TRAFFIC_COLUMNS,
)
SENDER = 0

Pair = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Parameters(TrafficParameters):
    size: int = parameter(2**20, SIZE, help="octets of the smallest flow")
    senders: tuple[int, ...] = parameter((1, 4, 8), COUNT, many=True, help="N, a row for each")
    receivers: int = parameter(4, COUNT, help="M, GPUs that the one sender sends to")


def topology(parameters: Parameters) -> str:
    """Two rails, non-blocking."""
    hosts = max(2 + max(parameters.senders), 1 + parameters.receivers)
    return f"rail_clos:hosts={hosts},gpus_per_host=2"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    return [_trial(parameters, topology, senders, seed) for senders in parameters.senders]


def cast(parameters: Parameters, topology: Topology, senders: int) -> tuple[list[Pair], list[Pair]]:
    """The flows of the one sender, the hot one first, and those of the incast."""
    gpus, domains = topology.gpus, scale_up_domains(topology)
    rail = switch_of(topology, SENDER)
    beside = [
        rank
        for rank, domain in enumerate(domains)
        if switch_of(topology, rank) == rail and domain != domains[SENDER]
    ]
    if len(beside) < parameters.receivers:
        raise UserError(
            f"{parameters.receivers} receivers beside the sender need as many GPUs of other "
            f"servers on its rail switch, and topology {topology.name} has {len(beside)}; take "
            "fewer receivers, or more hosts on a rail"
        )
    receivers = beside[: parameters.receivers]
    hot = receivers[0]
    taken = {domains[SENDER], domains[hot]}
    others = [
        rank
        for rank, domain in enumerate(domains)
        if switch_of(topology, rank) != rail and domain not in taken
    ]
    if len(others) < senders:
        raise UserError(
            f"an incast of {senders} senders on other rails than {rail} needs as many GPUs beside "
            f"the servers of {gpus[SENDER].name} and {gpus[hot].name}, and topology "
            f"{topology.name} has {len(others)}; take fewer senders, more hosts or gpus_per_host"
        )
    return [(SENDER, to) for to in receivers], [(rank, hot) for rank in others[:senders]]


def _trial(parameters: Parameters, topology: Topology, senders: int, seed: int) -> Trial:
    own, incast = cast(parameters, topology, senders)
    flows = tuple(lengths(fair_shares(topology, [*own, *incast]), parameters.size))
    pattern = Traffic(topology, flows, parameters.message, parameters.in_flight, seed)
    facts = {"senders": senders, "receivers": parameters.receivers}
    return pattern.trial("outcast", parameters, facts=facts)


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    own, incast = cast(parameters, topology, trial.facts["senders"])
    wire = outcome.wire
    shares = fair_shares(topology, [*own, *incast], wire)

    def share(pairs: list[Pair]) -> float | None:
        """Return what the receivers' ports carried, split as the messages of their flows came."""
        got = traffic.carried_gbps(topology, outcome, {to for _, to in pairs})
        part = traffic.steady_part(outcome, pairs)
        if got is None or part is None or wire is None:
            return None
        return got * part / sum(shares.payload_gbps(pair, wire) for pair in pairs)

    return traffic.measured(topology, outcome) | {
        "hot_share": share(own[:1]),
        "free_share": share(own[1:]),
        "incast_share": share(incast),
    }


def capture(parameters: Parameters, topology: Topology) -> str:
    """The ports of the sender and of the hot receiver."""
    own, _ = cast(parameters, topology, max(parameters.senders))
    return captured_ports(topology, SENDER, own[0][1])
