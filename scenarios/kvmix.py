"""Kvmix: transfers of keys and values to decode servers, which dispatch to each other meanwhile.

::

        prefill                     decode
       h0g0  h1g0   h0g1  h1g1     h2g0  h3g0   h2g1  h3g1
         |     |      |     |        |     |      |     |
      rail0 --+     rail1 --+      rail0 --+    rail1 --+      h0g0 -> h2g1, h0g1 -> h2g0, ...
              |             |              |            |      across the spines
              +---- spine0 ---- spine1 ----+------------+      h2g* <-> h3g*: dispatches

Traffic: the first half of the servers is prefill, the second decode.  Each prefill GPU writes
messages of keys and values to a decode GPU on the next rail, at fixed times, ``load`` per cent of a
NIC's rate.  Each decode GPU sends ``dispatch`` octets to every decode GPU of another server, every
``period``, ``rounds`` times.  Keys and values last as long.  Either may be 0.  Every octet is
compared with what was sent.

Measured: message times of keys and values, and those of dispatches as times of victims; the balance
of links, marks, trims, drops, pauses, and the deepest queue.

What should be seen, and why: both arrive at the decode GPUs' NICs.  A dispatch that comes behind
a message of keys and values waits for it.  It is small, so its time grows by a multiple where that
of a transfer grows by a part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from emulator.errors import UserError
from emulator.result_rows import TableColumn
from emulator.run.report import traffic
from emulator.run.report.result_table import TRAFFIC_COLUMNS
from emulator.scenario import Outcome, Trial, parameter
from scenarios.kvload import LOAD, paced
from scenarios.workloads.flows import (
    WARMUPS,
    Flow,
    MessageParameters,
    Traffic,
    captured_uplinks,
    scale_up_domains,
)
from topologies.model import Topology
from topologies.parts.attachment import nic_rate_bps
from topologies.parts.design_parameters import COUNT, SIZE, TIME

COLUMNS = (
    TableColumn("load", "KV load", "(%)", 7),
    TableColumn("dispatch", "dispatch", "(B)", 8),
    TableColumn("victim_p50_us", "dispatch", "p50 us", 8, 2),
    TableColumn(
        "victim_p99_us",
        "dispatch",
        "p99 us",
        8,
        2,
        words="99 % of the dispatches took at most {} us",
    ),
    *TRAFFIC_COLUMNS,
)
_OCTETS = replace(SIZE, minimum=0)


@dataclass(frozen=True, kw_only=True)
class Parameters(MessageParameters):
    warmups: int = parameter(0, WARMUPS, help="iterations before those that count")
    load: tuple[int, ...] = parameter(
        (0, 50, 75), LOAD, many=True, help="keys and values in per cent of a NIC's rate, a row each"
    )
    dispatch: int = parameter(8 * 2**10, _OCTETS, help="octets of a dispatch to each peer")
    period: int = parameter(20_000, TIME, help="from one dispatch to the next")
    rounds: int = parameter(8, COUNT, help="dispatches of each decode GPU")

    def __post_init__(self) -> None:
        if not self.dispatch and 0 in self.load:
            raise UserError("load=0 with dispatch=0 sends nothing; take more of either")


def topology(parameters: Parameters) -> str:
    """Return four servers of two GPUs, two rail switches, two spines."""
    return "rail_clos:hosts=4,gpus_per_host=2,spines=2,uplinks_per_spine=1"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    return [_trial(parameters, topology, load, seed) for load in parameters.load]


def _trial(parameters: Parameters, topology: Topology, load: int, seed: int) -> Trial:
    prefill, decode = halves(topology)
    flows = [*_transfers(parameters, topology, load, prefill, decode)]
    if parameters.dispatch:
        flows += dispatches(parameters, topology, decode)
    pattern = Traffic(topology, tuple(flows), parameters.message, in_flight=1, seed=seed)
    facts = {"load": load, "dispatch": parameters.dispatch}
    return pattern.trial("kvmix", parameters, facts=facts)


def halves(topology: Topology) -> tuple[list[list[int]], list[list[int]]]:
    """Return the ranks of each prefill server and of each decode server."""
    servers: dict[str, list[int]] = {}
    for rank, domain in enumerate(scale_up_domains(topology)):
        servers.setdefault(domain, []).append(rank)
    half = len(servers) // 2
    if half < 2:
        raise UserError(
            f"topology {topology.name} has {len(servers)} servers, and two of prefill and two of "
            "decode are needed; take four hosts or more"
        )
    ranks = list(servers.values())
    return ranks[:half], ranks[half : 2 * half]


def _transfers(
    parameters: Parameters,
    topology: Topology,
    load: int,
    prefill: Sequence[Sequence[int]],
    decode: Sequence[Sequence[int]],
) -> Iterator[Flow]:
    lasting_ns = parameters.rounds * parameters.period
    for sources, targets in zip(prefill, decode, strict=True):
        for place, source in enumerate(sources):
            if load:
                rate_bps = load / 100 * nic_rate_bps(topology, topology.gpus[source].name)
                target = targets[(place + 1) % len(targets)]
                flow = paced(source, target, parameters.message, rate_bps, lasting_ns)
                yield replace(flow, bulk=True)


def dispatches(
    parameters: Parameters, topology: Topology, decode: Sequence[Sequence[int]]
) -> list[Flow]:
    """Return a flow from each decode GPU to each one of another server."""
    return [
        Flow(
            source=source,
            destination=target,
            length=parameters.rounds * parameters.dispatch,
            message=parameters.dispatch,
            every_ns=parameters.period,
        )
        for own in decode
        for source in own
        for others in decode
        if others is not own
        for target in others
    ]


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    return traffic.measured(topology, outcome)


def capture(parameters: Parameters, topology: Topology) -> str:
    """Return the uplinks of the first rail switch."""
    return captured_uplinks(topology, 0)
