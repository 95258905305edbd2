"""Linkfail: an uplink goes black in mid-transfer, or falls to a quarter of its rate.

::

      spine0   spine1   spine2   spine3
         X        :        |        |           X  black from ``black_at`` on, both ways
         +------+ +---+ +--+ +------+           :  a quarter of its rate from ``slow_at`` on
                | |   | |
              +-----------+    +-----------+
              |   rail0   |    |   rail1   |
              +-----------+    +-----------+
               |  |  |  |       |  |  |  |
              h0 h1 h2 h3      h0 h1 h2 h3      each sends to another host on the other rail

Traffic: the permutation of the scenario of that name, on a fabric where each rail has four uplinks
for four NICs. ``fail`` chooses what befalls the first rail switch: ``black`` its first uplink,
``slow`` its second, ``both``, or ``none`` to compare with; one row for each of these and each
spraying policy of ``sprays``. The endpoints get no notice, and routing does not react: they only
see packets that never arrive, or that are marked. The link heals after the iteration. Every octet
is compared with what was sent.

Measured: completion time against the ideal *of the remaining capacity*: each rail has three of four
links left, or 3.25 (``emulator.run.measures.cuts``); timeouts, retransmissions, what the black port
swallowed (``drops``), and the balance of the uplinks.  When the faults really came is in
``events.jsonl``.

What should be seen, and why: oblivious spraying goes on sending a quarter of all packets into the
black link until the transfer is over. A quarter of the repeats goes there, too, and a timer or a
gap finds each one missing. REPS reuses entropies whose packets were acknowledged: after the first
timeouts it sends only on paths that work, so it ends close to what the remaining links allow. With
a slowed link the same happens by marks instead of losses: oblivious spraying is bound by the slow
link, REPS spreads by what each link returns.

Expected from public work: REPS (arXiv 2407.21625) reports reroutes within 100 us. It reports up to
5 times (ECMP) and 2 times (oblivious) shorter completion on asymmetric fabrics, and much more with
failures.

Came out (4 MiB): with the black link REPS needs 1.23 times the ideal of the remaining capacity
(seed 1). Four round trips of silence go by before anybody detects it, and again where the last
packets were lost. With the slow link it needs 1.49 to 1.65 times the ideal (seeds 1 to 8, median
1.52): the queue before the slow link is trimmed, windows shrink there, and the flow with the most
trimmed packets ends last. A few packets decide which flow that is. Oblivious spraying needs 2.7
times the ideal with the slow link and 3.9 with the black one (seed 1): a quarter of all repeats is
lost again, and what is lost several times over waits for timers that double. The order is that of
the papers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from emulator.dataplane.switch.port_faults import Faults
from emulator.errors import UserError
from emulator.result_rows import TableColumn
from emulator.run.report import traffic
from emulator.run.report.result_table import TRAFFIC_COLUMNS
from emulator.scenario import FaultAt, Outcome, Trial, parameter, refuse_idle
from scenarios.permutation import all_nics_gbps, permutation
from scenarios.workloads import flows
from topologies.model import Topology
from topologies.parts.design_parameters import COUNT, SIZE, TIME
from uet.congestion.spraying.policies import SPRAYING

COLUMNS = (
    TableColumn("fail", "fail", "", 6),
    TableColumn("spray", "spray", "", 11),
    *TRAFFIC_COLUMNS,
)


def sprays() -> tuple[str, ...]:
    """Return the ways of spraying, and that of ``--transport``."""
    return (*SPRAYING.names("reps"), "default")


@dataclass(frozen=True, kw_only=True)
class Parameters(flows.TrafficParameters):
    size: int = parameter(4 * 2**20, SIZE, help="octets of each flow")
    warmups: int = parameter(0, flows.WARMUPS, help="iterations before, without any fault")
    fail: tuple[str, ...] = parameter(
        ("black", "slow"),
        choices=("none", "black", "slow", "both"),
        many=True,
        help="what befalls the uplinks",
    )
    sprays: tuple[str, ...] = parameter(
        ("reps", "oblivious"),
        choices=sprays,
        many=True,
        help="spraying policies; default: that of --transport",
    )
    black_at: int = parameter(20_000, TIME, help="when the first uplink goes black")
    slow_at: int = parameter(20_000, TIME, help="when the second becomes slow")
    slow_to: int = parameter(4, COUNT, help="what it is divided by")

    def __post_init__(self) -> None:
        beside = f"beside fail={','.join(self.fail)}"
        if not {"black", "both"} & set(self.fail):
            refuse_idle(self, ("black_at",), beside)
        if not {"slow", "both"} & set(self.fail):
            refuse_idle(self, ("slow_at", "slow_to"), beside)
        if self.slow_to < 2:
            raise UserError("slow_to is 1, which leaves the link as it is; take 2 or more")


def topology(parameters: Parameters) -> str:
    """Two rails of four GPUs with four uplinks each."""
    return "rail_clos:hosts=4,gpus_per_host=2,spines=4,uplinks_per_spine=1"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    ports = list(map(str, flows.uplinks(topology, flows.switch_of(topology, 0))))
    if len(ports) < 3:
        raise UserError(
            f"two uplinks may fail and one has to remain, and the rail switches of "
            f"{topology.name} have {len(ports)}; take more spines or uplinks_per_spine"
        )
    black = FaultAt(
        at_ns=parameters.black_at, port=ports[0], faults=Faults(black_hole=True), both_ways=True
    )
    slow = FaultAt(
        at_ns=parameters.slow_at,
        port=ports[1],
        faults=Faults(rate=1 / parameters.slow_to),
        both_ways=True,
    )
    kinds = {"none": (), "black": (black,), "slow": (slow,), "both": (black, slow)}
    pattern = permutation(parameters, topology, parameters.size, seed)
    return [
        pattern.trial(
            "linkfail",
            parameters,
            facts={"fail": fail, "spray": spray},
            transport="" if spray == "default" else f"spray={spray}",
            faults=kinds[fail],
        )
        for spray in parameters.sprays
        for fail in parameters.fail
    ]


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    return traffic.measured(topology, outcome, capacity_gbps=all_nics_gbps(topology, outcome))


def capture(parameters: Parameters, topology: Topology) -> str:
    """Return the uplinks of the switch with the fault."""
    return flows.captured_uplinks(topology, 0)
