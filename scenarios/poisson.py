"""Poisson: flows begin at random times, of sizes from a distribution, at a stated load.

::

    load 0.3     h0g0  |--> h2g1 9 kB   |------------> h1g3 2 MB    |-> h3g0 31 kB
                 h0g1    |-> h1g2 14 kB        |--> h2g0 80 kB
                 ...   time ->           each begins when it begins, whatever became of others

Traffic: ``flows`` flows, or those that arrive in a ``duration`` (fabric time).  Their arrivals are
a Poisson process, so intervals are exponential; each begins at its time, whether or not earlier
ones have ended (an open loop).  A source is any GPU, ``pattern=random`` goes to any GPU of another
server, ``permutation`` from each GPU to its own partner across the fabric.  ``sizes`` is a
distribution: ``websearch`` (of the DCTCP paper), ``hadoop`` (Facebook's), or a file with lines of
octets and cumulative per cent.  ``load`` is the payload of all flows over their time, as a share of
what the NICs' links carry: intervals are the mean size over that.  A flow is one RDMA write of real
data, and every octet is compared.

With ``incast=N`` N GPUs at a time send ``incast_size`` to one, at random times too, as a share
``incast_load`` of the links beside the other load.

Measured: flow completion times and slowdowns (against the computed time of the flow alone), also by
size; the load that was drawn (``offered_share``) and what came to the GPUs until the last arrival,
or in the duration (``carried_share``), where a flow under way counts in part, as if it came evenly.
Few flows of a heavy-tailed distribution may be far from the load asked for: compare with the drawn
one, and take more flows or seeds.  What is under way at that time is drawn, and not carried yet.

What should be seen, and why: short flows wait behind packets of others, and take longer by what
queues hold; long ones share links, and take longer by what others take.  The tail of the slowdown
grows with the load, first that of short flows.  Flows between the same two GPUs share a connection,
where a short one waits behind a long one; in most simulators each has its own.

Expected from public work: the HPCC paper (SIGCOMM 2019) has these distributions at 30 and 50 % load
on 320 hosts.  DCQCN keeps queues, so its short flows have a long tail; what controls by windows and
less queueing has a shorter one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from emulator.errors import UserError
from emulator.result_rows import TableColumn
from emulator.run.measures import flow_times
from emulator.run.report import traffic
from emulator.run.report.result_table import FLOW_COLUMNS, TRAFFIC_COLUMNS
from emulator.scenario import Outcome, Trial, parameter, refuse_idle
from scenarios.traces.replay import Replay, ReplayChoice
from scenarios.traces.trace_loading import FACTOR, PATH
from scenarios.traces.trace_model import (
    Trace,
    TraceCompute,
    TraceOperation,
    TraceReceive,
    TraceSend,
)
from scenarios.workloads.flow_sizes import flow_sizes
from scenarios.workloads.flows import across_rails, captured_ports, scale_up_domains
from topologies.model import Topology
from topologies.parts.attachment import nic_rate_bps
from topologies.parts.design_parameters import COUNT, NUMBER, SIZE, TIME
from topologies.units import format_time

_SHOWN = ("fct_p50_us", "fct_p99_us", "slowdown_p50", "slowdown_p99")
COLUMNS = (
    TableColumn("load", "load", "", 6, digits=3),
    TableColumn("flows", "flows", "", 6),
    TableColumn("offered_share", "offered", "(%)", 8, 1, percent=True),
    TableColumn("carried_share", "carried", "(%)", 8, 1, percent=True),
    *(replace(one, rank=0 if one.key in _SHOWN else 30) for one in FLOW_COLUMNS),
    *TRAFFIC_COLUMNS[1:4],
    *TRAFFIC_COLUMNS[8:],
)
PATTERNS = (RANDOM, PERMUTATION) = ("random", "permutation")
_OF_INCAST = ("incast_size", "incast_load")
#: Flows that may arrive in a duration.
MOST_FLOWS = COUNT.maximum


@dataclass(frozen=True, kw_only=True)
class Parameters:
    load: tuple[float, ...] = parameter(
        (0.3,), FACTOR, many=True, help="share of the NICs' links, a row for each"
    )
    sizes: str = parameter(
        "websearch", PATH, help="websearch, hadoop, or a file: octets and per cent"
    )
    size_scale: float = parameter(1.0, FACTOR, help="factor of all sizes")
    flows: int = parameter(200, COUNT, help="flows that arrive")
    duration: int = parameter(0, TIME, help="in which flows arrive, in place of their number")
    pattern: str = parameter(RANDOM, choices=PATTERNS, help="whom a GPU sends to")
    incast: int = parameter(0, NUMBER, help="GPUs that send to one at a time besides; 0: none")
    incast_size: int = parameter(500_000, SIZE, help="octets from each of them")
    incast_load: float = parameter(0.02, FACTOR, help="share of the links that these take")

    def __post_init__(self) -> None:
        for name in ("load", "incast_load"):
            given = getattr(self, name)
            if not all(0 < one <= 1 for one in (given if name == "load" else (given,))):
                raise UserError(f"{name} is a share of the links: more than 0, and 1 at most")
        if not self.size_scale:
            raise UserError("size_scale is 0, which leaves nothing to send; take more")
        if self.duration:
            refuse_idle(self, ("flows",), "beside duration")
        if not self.incast:
            refuse_idle(self, _OF_INCAST, "beside incast=0")


@dataclass(frozen=True, kw_only=True)
class PoissonTrial(Trial):
    """A row of the table; flows arrive until ``until_ns`` after the start."""

    until_ns: int


@dataclass(frozen=True)
class Arrival:
    """A flow of ``octets`` between two ranks that begins at ``at_ns``."""

    at_ns: int
    source: int
    destination: int
    octets: int


def topology(parameters: Parameters) -> str:
    """Four hosts with four GPUs each, two spines, non-blocking."""
    return "rail_clos:hosts=4,gpus_per_host=4"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each load."""
    return [_trial(parameters, topology, load, seed) for load in parameters.load]


def _trial(parameters: Parameters, topology: Topology, load: float, seed: int) -> Trial:
    flows = arrivals(parameters, topology, load, seed)
    until_ns, octets = parameters.duration or flows[-1].at_ns, sum(flow.octets for flow in flows)
    choice = ReplayChoice(compute_scale=1, slice_bytes=1, seed=seed)
    replay = Replay(as_trace(flows, len(topology.gpus)), topology, choice)
    return PoissonTrial(
        until_ns=until_ns,
        collective="poisson",
        size_bytes=octets,
        compile=replay.compile,
        inputs=replay.inputs,
        expected=replay.expected,
        memory_bytes=replay.memory_octets,
        warmups=0,
        facts={
            "load": load,
            "flows": len(flows),
            "total_bytes": octets,
            "offered_share": octets * 8e9 / (until_ns * sum(_rates_bps(topology))),
        },
        fresh=True,
    )


def arrivals(parameters: Parameters, topology: Topology, load: float, seed: int) -> list[Arrival]:
    """Return all flows in the order of their arrivals; the seed of the run decides them."""
    rng, sizes = random.Random(f"poisson {seed}"), flow_sizes(parameters.sizes)
    rates = _rates_bps(topology)
    domains = scale_up_domains(topology)
    others = [[to for to, there in enumerate(domains) if there != own] for own in domains]
    if not all(others):
        raise UserError(
            f"topology {topology.name} has one server, and flows go to another; take more hosts"
        )
    if parameters.pattern == PERMUTATION:
        others = [[to] for to in across_rails(topology, seed)]
    mean_ns = sizes.mean * parameters.size_scale * 8e9 / (load * sum(rates))
    found, now = [], 0.0
    for _ in range(MOST_FLOWS + 1 if parameters.duration else parameters.flows):
        now += rng.expovariate(1 / mean_ns)
        if parameters.duration and now >= parameters.duration:
            now = parameters.duration
            break
        (source,) = rng.choices(range(len(rates)), rates)
        octets = max(1, round(sizes.draw(rng) * parameters.size_scale))
        found.append(Arrival(max(1, round(now)), source, rng.choice(others[source]), octets))
    if not found or len(found) > MOST_FLOWS:
        raise UserError(
            f"{'no flow arrives' if not found else f'more than {MOST_FLOWS} flows arrive'} within "
            f"the duration of {format_time(parameters.duration)}, at {format_time(round(mean_ns))} "
            "from one to the next; take another duration or load"
        )
    return sorted([*found, *_bursts(parameters, topology, now, seed)], key=lambda one: one.at_ns)


def _bursts(
    parameters: Parameters, topology: Topology, until_ns: float, seed: int
) -> list[Arrival]:
    """Return the flows of all incasts until then."""
    if not parameters.incast:
        return []
    rng, domains = random.Random(f"poisson incast {seed}"), scale_up_domains(topology)
    octets = parameters.incast * parameters.incast_size
    mean_ns = octets * 8e9 / (parameters.incast_load * sum(_rates_bps(topology)))
    fewest = len(domains) - max(Counter(domains).values())
    if parameters.incast > fewest:
        raise UserError(
            f"incast is {parameters.incast}, and {fewest} GPUs of {topology.name} are on other "
            "servers than a receiver; take fewer, or more hosts"
        )
    found: list[Arrival] = []
    now = rng.expovariate(1 / mean_ns)
    if now >= until_ns:
        raise UserError(
            f"incasts come every {format_time(round(mean_ns))} on average, and flows arrive for "
            f"{format_time(round(until_ns))}, in which seed {seed} has none: take more flows, a "
            "larger incast_load or a smaller incast_size"
        )
    while now < until_ns:
        receiver = rng.randrange(len(domains))
        able = [rank for rank, one in enumerate(domains) if one != domains[receiver]]
        for source in rng.sample(able, parameters.incast):
            found.append(Arrival(max(1, round(now)), source, receiver, parameters.incast_size))
        now += rng.expovariate(1 / mean_ns)
    return found


def as_trace(flows: list[Arrival], ranks: int) -> Trace:
    """Return ``flows`` as a trace: each is a delay, a send and a receive."""
    lists: list[list[TraceOperation]] = [[] for _ in range(ranks)]
    for number, flow in enumerate(flows):
        where, own = f"flow {number}", lists[flow.source]
        own.append(TraceCompute(where=where, duration_ns=flow.at_ns, stream=None))
        after = (len(own) - 1,)
        own.append(
            TraceSend(
                where=where, peer=flow.destination, octets=flow.octets, tag=number, after=after
            )
        )
        lists[flow.destination].append(
            TraceReceive(where=where, peer=flow.source, octets=flow.octets, tag=number)
        )
    return Trace("poisson", tuple(lists))


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    assert isinstance(trial, PoissonTrial)
    return {
        **traffic.measured(topology, outcome),
        **flow_times.measured(topology, outcome, each_message=True),
        "carried_share": carried(topology, outcome, trial.until_ns),
    }


def carried(topology: Topology, outcome: Outcome, until_ns: int) -> float | None:
    """Return the payload that came to the GPUs until then, as a share of their links.

    Of a flow under way a part has come, as if all of it came evenly.
    """
    if not outcome.iterations:
        return None
    flows = outcome.iterations[-1].delivered()
    times = np.maximum(flows.end_ns - flows.start_ns, 1)
    octets = float(np.dot(np.clip((until_ns - flows.start_ns) / times, 0.0, 1.0), flows.length))
    return octets * 8e9 / (until_ns * sum(_rates_bps(topology)))


def _rates_bps(topology: Topology) -> list[float]:
    return [nic_rate_bps(topology, gpu.name) for gpu in topology.gpus]


def capture(parameters: Parameters, topology: Topology) -> str:
    """The port down to the first GPU."""
    return captured_ports(topology, 0)
