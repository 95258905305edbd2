"""Permutation: every GPU sends to another one, across the fabric, and no two to the same.

::

              spine0          spine1                 every packet passes one of them
               |||              |||
          +----+++----+    +----+++----+
        rail0       rail1        . . .               as many uplinks as GPUs: non-blocking
        | | |       | | |
        a b c       d e f        . . .               a -> e, b -> d, d -> c, ...

Traffic: a permutation without fixed points, drawn with the run's seed. Every GPU sends ``size``
octets to a GPU of another server on another rail, and receives as much from a third.  So every NIC
is busy in both directions, and every flow needs a spine.  Where one switch has all rails and no
spines there is none to cross: partners are of another server, on any rail.  On a torus or a
dragonfly they are at another router.  Every octet is compared with what was sent.

Measured: completion time against the ideal, which on a non-blocking fabric is that of one flow
alone; goodput of all flows together and its share of what all NICs can carry (``goodput_share``);
the balance of the uplinks (max over mean, of the worst switch); queues, marks, trims.

What should be seen, and why: there is room for everything, so whatever is lost is lost to load
balancing.  Hashing each flow onto one path (``--transport uet:delivery=rod``, or
``uet:spray=single`` where the transport has it) puts two flows on one uplink while others stay
idle: with k uplinks and k flows the expected number of idle uplinks is k (1 - 1/k)^k, more than a
third. The last flow takes twice or three times as long.  Spraying packets over all paths fills all
uplinks alike, and completes close to the ideal.

Expected from public work: the REPS paper (arXiv 2407.21625) reports ECMP up to six times slower
than spraying. On symmetric fabrics oblivious spraying is up to 1.25 times slower than REPS.

Came out (seed 1, defaults): 66 % of the ideal with 256 KiB, where two round trips are most of it.
With 4 MiB 89 %, NICs 93 % busy, worst uplink at 1.06 of the mean.  With four hosts of two GPUs,
four spines and 2 MiB (medians of seeds 1 and 2): 87 %, on one path each (rod) 35; RoCEv2 42 % with
one queue pair, whose hash puts several flows on one uplink, and 65 % with eight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from emulator.result_rows import TableColumn
from emulator.run.measures import flow_times
from emulator.run.report import traffic
from emulator.run.report.result_table import FLOW_COLUMNS, TRAFFIC_COLUMNS
from emulator.scenario import Outcome, Trial, parameter
from scenarios.workloads.flows import (
    Flow,
    Traffic,
    WriteParameters,
    across_rails,
    captured_uplinks,
    nic_payload_gbps,
)
from topologies.model import Topology
from topologies.parts.design_parameters import SIZE

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


@dataclass(frozen=True, kw_only=True)
class Parameters(WriteParameters):
    sizes: tuple[int, ...] = parameter(
        (256 * 2**10, 4 * 2**20), SIZE, many=True, help="octets of each flow, a row for each"
    )


def topology(parameters: Parameters) -> str:
    """Four hosts with four GPUs each, two spines, non-blocking."""
    return "rail_clos:hosts=4,gpus_per_host=4"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    return [
        permutation(parameters, topology, size, seed).trial(
            "permutation", parameters, size_bytes=size
        )
        for size in parameters.sizes
    ]


def permutation(parameters: WriteParameters, topology: Topology, size: int, seed: int) -> Traffic:
    """The traffic drawn above, with ``size`` octets for each GPU."""
    flows = tuple(
        Flow(source=rank, destination=to, length=size)
        for rank, to in enumerate(across_rails(topology, seed))
    )
    return Traffic(topology, flows, parameters.message, parameters.in_flight, seed)


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    return {
        **traffic.measured(topology, outcome, capacity_gbps=all_nics_gbps(topology, outcome)),
        **flow_times.measured(topology, outcome),
    }


def all_nics_gbps(topology: Topology, outcome: Outcome) -> float | None:
    """Payload that all NICs together can send."""
    if outcome.wire is None:
        return None
    ranks = range(len(topology.gpus))
    return sum(nic_payload_gbps(topology, rank, outcome.wire) for rank in ranks)


def capture(parameters: Parameters, topology: Topology) -> str:
    """The uplinks of the first rail switch: how its traffic is spread."""
    return captured_uplinks(topology, 0)
