"""Kvload: transfers of keys and values, one at a time, beside a background of a known load.

::

       h0g0  h1g0             h2g1  h3g1
         |     |                |     |        h0g0 -> h2g1, one transfer at a time
      +-----------+          +-----------+     h1g0 -> h3g1, messages at fixed times
      |   rail0   |          |   rail1   |
      +-----------+          +-----------+
            |                      |
            +------- spine0 -------+           the uplink that both of them need

Traffic: one GPU writes ``transfers`` times ``message`` octets to a GPU of another server on another
rail; the next transfer starts when the one before is acknowledged (``in_flight`` counts transfers
here, which are whole messages: it is the load, not a window).  Meanwhile another pair of the
same two rail switches gets ``background`` octets at fixed times, ``load`` per cent of a NIC's rate.
Its messages leave whatever became of those before, and last for three times as long as the
transfers take on an idle fabric.  Every octet is compared with what was sent.

Measured: message times of the transfers, and those of the background as times of victims; marks,
trims, drops, pauses, and the deepest queue.

What should be seen, and why: on an idle fabric all transfers take the same time.  With a load their
packets wait behind the background's, and congestion control gives way: the tail grows long before
the mean.  Beyond half of the link both cannot have what they ask for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from emulator.errors import UserError
from emulator.result_rows import TableColumn
from emulator.run.report import traffic
from emulator.run.report.result_table import TRAFFIC_COLUMNS
from emulator.scenario import Outcome, Trial, parameter
from scenarios.workloads.flows import (
    WARMUPS,
    Flow,
    Traffic,
    WriteParameters,
    captured_uplinks,
    scale_up_domains,
    switch_of,
)
from topologies.model import Topology
from topologies.parts.attachment import nic_rate_bps
from topologies.parts.design_parameters import COUNT, NUMBER, SIZE

COLUMNS = (
    TableColumn("load", "load", "(%)", 5),
    TableColumn("victim_p99_us", "backgr.", "p99 us", 8, 2),
    *TRAFFIC_COLUMNS,
)
#: Per cent of a NIC's rate.
LOAD = replace(NUMBER, maximum=100)
#: How much longer than the transfers the background lasts.
LONGER = 3
#: What a transfer takes beside its octets on the link, at most (ns).
OVERHEAD_NS = 20_000


@dataclass(frozen=True, kw_only=True)
class Parameters(WriteParameters):
    message: int = parameter(256 * 2**10, SIZE, help="octets of each transfer")
    in_flight: int = parameter(1, COUNT, help="transfers that may be under way")
    warmups: int = parameter(0, WARMUPS, help="iterations before those that count")
    transfers: int = parameter(8, COUNT, help="transfers, one after the other")
    load: tuple[int, ...] = parameter(
        (0, 50, 90), LOAD, many=True, help="background in per cent of a NIC's rate, a row each"
    )
    background: int = parameter(64 * 2**10, SIZE, help="octets of a message of the background")


def topology(parameters: Parameters) -> str:
    """Return two rail switches of four servers, which share one uplink."""
    return "rail_clos:hosts=4,gpus_per_host=2,spines=1,uplinks_per_spine=1"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    return [_trial(parameters, topology, load, seed) for load in parameters.load]


def _trial(parameters: Parameters, topology: Topology, load: int, seed: int) -> Trial:
    (source, destination), (other, target) = crossing_pairs(topology)
    length = parameters.transfers * parameters.message
    flows = [Flow(source=source, destination=destination, length=length)]
    if load:
        rate_bps = nic_rate_bps(topology, topology.gpus[other].name)
        lasting_ns = LONGER * (length * 8e9 / rate_bps + parameters.transfers * OVERHEAD_NS)
        flows.append(paced(other, target, parameters.background, load / 100 * rate_bps, lasting_ns))
    pattern = Traffic(topology, tuple(flows), parameters.message, parameters.in_flight, seed)
    return pattern.trial("kvload", parameters, size_bytes=parameters.message, facts={"load": load})


def paced(source: int, destination: int, message: int, rate_bps: float, lasting_ns: float) -> Flow:
    """Return a flow of messages at fixed times that carries ``rate_bps`` for ``lasting_ns``."""
    every_ns = max(1, round(message * 8e9 / rate_bps))
    return Flow(
        source=source,
        destination=destination,
        length=message * max(1, round(lasting_ns / every_ns)),
        message=message,
        every_ns=every_ns,
    )


def crossing_pairs(topology: Topology) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return two pairs of ranks of four servers that join the same two switches.

    UserError where the topology has none.
    """
    domains = scale_up_domains(topology)
    switches = [switch_of(topology, rank) for rank in range(len(topology.gpus))]
    for pair in _pairs(domains, switches):
        for other in _pairs(domains, switches):
            alike = all(switches[a] == switches[b] for a, b in zip(pair, other, strict=True))
            if alike and len({domains[rank] for rank in (*pair, *other)}) == 4:
                return pair, other
    raise UserError(
        f"two pairs of GPUs on four servers that join the same two switches are needed, and "
        f"topology {topology.name} has none; take rail_clos with four hosts and two rails"
    )


def _pairs(domains: list[str], switches: list[str]) -> Iterator[tuple[int, int]]:
    for source, domain in enumerate(domains):
        for destination, other in enumerate(domains):
            if domain != other and switches[source] != switches[destination]:
                yield source, destination


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    return traffic.measured(topology, outcome)


def capture(parameters: Parameters, topology: Topology) -> str:
    """Return the uplinks of the first rail switch, which the transfers cross."""
    return captured_uplinks(topology, 0)
