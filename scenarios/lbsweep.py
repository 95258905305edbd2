"""Lbsweep: the same permutation under every way to balance load, in switches and in endpoints.

::

                endpoints choose an entropy           switches choose a next hop
                (UDP source port) per packet          for it
       +-----------------------------------+   +----------------------------------+
       | reps oblivious round_robin bitmap | x | flow flowlet packet round-robin  |
       |                                   |   | least-loaded                     |
       +-----------------------------------+   +----------------------------------+

Traffic: the permutation of the scenario of that name; the seed is the run's, so every row has the
same flows.  One row for each pair of ``sprays`` and ``balances``.

Measured: completion against the ideal; max-mean ratio and Jain's index of the uplinks (worst
switch), Jain's index of the flows, the reordering that endpoints count, the deepest queue.

What should be seen, and why: with ``balance=flow`` a switch maps each entropy to a path, and the
endpoint decides by choosing entropies: spraying over many of them is even but for chance, and
REPS and the bitmap learn which are bad. With ``packet``, ``round-robin`` and ``least-loaded`` the
switch decides alone, an entropy stands for no path, and what endpoints learn of it is noise: all
policies look alike, ``round-robin`` and ``least-loaded`` being the most even. ``flowlet`` finds
no gaps in flows that never pause, so it behaves like ``flow``. Even load means short queues, and
short queues little reordering, whoever sprays. UES 3.6.16 therefore advises not to combine
path-aware spraying with switches that spray by themselves.

Came out (seed 1, defaults): round-robin and least-loaded switches 93.8 % of the ideal, whoever
sprays, with never more than a frame in a queue; the others 86 to 90 %, the worst uplink at 1.03 to
1.10 of the mean, REPS and oblivious spraying alike: four paths are few, and REPS had no bad one to
avoid.  With 4 MiB, of which start and end are a smaller part, 96.4 % and 87 to 93.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from emulator.dataplane.switch.balancing import METHODS
from emulator.result_rows import TableColumn
from emulator.run.report import traffic
from emulator.run.report.result_table import TRAFFIC_COLUMNS
from emulator.scenario import Outcome, Trial, parameter
from scenarios.linkfail import sprays
from scenarios.permutation import all_nics_gbps, permutation
from scenarios.workloads.flows import WARMUPS, TrafficParameters, captured_uplinks
from topologies.model import Topology
from topologies.parts.design_parameters import SIZE

_SUBJECT = ("links_max_mean", "reordered_packets")
COLUMNS = (
    TableColumn("spray", "spray", "", 11),
    TableColumn("balance", "balance", "", 12),
    *(replace(one, rank=0) if one.key in _SUBJECT else one for one in TRAFFIC_COLUMNS),
    TableColumn("links_jain", "Jain", "links", 6, 3),
)


@dataclass(frozen=True, kw_only=True)
class Parameters(TrafficParameters):
    size: int = parameter(2 * 2**20, SIZE, help="octets of each flow")
    warmups: int = parameter(0, WARMUPS, help="iterations before those that count")
    sprays: tuple[str, ...] = parameter(
        sprays()[:-1],
        choices=sprays,
        many=True,
        help="spraying policies of endpoints; default: that of --transport",
    )
    balances: tuple[str, ...] = parameter(
        tuple(name for name in METHODS if name != "kernel"),
        choices=METHODS.names,
        many=True,
        help="load balancing of switches",
    )


def topology(parameters: Parameters) -> str:
    """Two rails of four GPUs with four uplinks each, non-blocking."""
    return "rail_clos:hosts=4,gpus_per_host=2,spines=4,uplinks_per_spine=1"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    pattern = permutation(parameters, topology, parameters.size, seed)
    return [
        pattern.trial(
            "permutation",
            parameters,
            facts={"spray": spray, "balance": balance},
            transport="" if spray == "default" else f"spray={spray}",
            switch=f"balance={balance}",
        )
        for spray in parameters.sprays
        for balance in parameters.balances
    ]


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    return traffic.measured(topology, outcome, capacity_gbps=all_nics_gbps(topology, outcome))


def capture(parameters: Parameters, topology: Topology) -> str:
    """The uplinks of the first rail switch: how its traffic is spread."""
    return captured_uplinks(topology, 0)
