"""Ccsweep: an incast under every congestion control, on shallow and deep switches, with trimming.

::

         transport                     switch
       +--------------------+        +---------------------------------------------+
       | none               |        | shallow  queue of about one BDP             |
       | nscc  sender       |   x    | deep     queue of five BDP                  |
       | rccc  receiver     |        |          each with trim=on and trim=off     |
       | both               |        +---------------------------------------------+
       +--------------------+

Traffic: N GPUs send to one, as in the scenario ``incast``, near and far with ``placement=any``;
with ``pattern=permutation`` the permutation of that scenario, which has no hot spot at the edge.
One row for each combination, and for each N of ``senders``.

Measured: as in the scenario ``incast``.

What should be seen, and why:

- ``none`` keeps one fixed window per sender in the fabric.  Shallow switches trim or drop what does
  not fit, again and again; deep ones hold it, so nothing is lost and every message waits behind
  N windows.
- ``nscc`` needs a round trip or more to find out. It then settles at a queue of about its target
  delay, on shallow and deep switches alike (0.75 base RTT with trimming, 1.0 without): it is the
  ECN thresholds and the delay that steer it, not the size of the buffer.
- ``rccc`` has the receiver hand out credit at the rate of its link: after the first window there is
  next to no queue at the last hop, and senders share evenly.  It does not see congestion inside the
  fabric, which is why ``pattern=permutation`` can look worse.
- ``both`` needs window and credit: the receiver handles the incast, NSCC the core.
- Without trimming losses are found by gaps and timers: completion of the unlucky messages grows by
  the timer (p99), most of all with shallow queues.

Came out (seed 1, defaults): with trimming completion is at 88 % of the ideal without control (6,627
packets trimmed). NSCC reaches 95 % (300), RCCC and both 98 % (217, 219); mean queue 91 KB with
NSCC, 120 and 124. Without trimming NSCC loses 272 packets of shallow queues and 174 of deep ones
(93 and 88 %), no control 942 and 288 (81 and 90). RCCC loses 190 and 92, and keeps the link busy
meanwhile (98 %, both: 98 and 97); probes find all of it, and no timer expires. With more senders,
near and far (``placement=any``), RCCC stays where it is: 97.8, 98.0 and 97.7 % for N = 16, 32 and
63, and on one rail 98.3, 97.9 and 97.3. uet-htsim on the same fabrics comes to 98.7, 98.9 and 98.6
% of its own ideal, and to 99.6, 99.2 and 98.9 on one rail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from emulator.result_rows import TableColumn
from emulator.run.report import traffic
from emulator.run.report.result_table import TRAFFIC_COLUMNS
from emulator.scenario import Outcome, Trial, parameter, refuse_idle
from scenarios.incast import PLACEMENTS, RECEIVER, incast_senders, incast_topology
from scenarios.permutation import all_nics_gbps, permutation
from scenarios.workloads.flows import (
    WARMUPS,
    Flow,
    Traffic,
    TrafficParameters,
    captured_ports,
    captured_uplinks,
    nic_payload_gbps,
    switch_port,
)
from topologies.model import Topology
from topologies.parts.design_parameters import COUNT
from uet.congestion.control_registry import CONTROLS

COLUMNS = (
    TableColumn("cc", "cc", "", 8),
    TableColumn("profile", "switch", "", 8),
    TableColumn("trim", "trim", "", 5),
    TableColumn("senders", "senders", "", 8),
    *TRAFFIC_COLUMNS[:5],
    TableColumn(
        "goodput_share", "of link", "(%)", 8, 1, percent=True, words="goodput was {} % of the link"
    ),
    TableColumn("steady_queue_bytes", "steady q", "(KB)", 8, 1, divisor=1000),
    *TRAFFIC_COLUMNS[5:],
)

#: With receivers that grant credit, which look after the last hop by themselves: its marks would be
#: heeded twice (UES 3.6.14).
LAST_HOP = ",last_hop_ecn=off"


@dataclass(frozen=True, kw_only=True)
class Parameters(TrafficParameters):
    warmups: int = parameter(0, WARMUPS, help="iterations before those that count")
    pattern: str = parameter("incast", choices=("incast", "permutation"), help="the traffic")
    senders: tuple[int, ...] = parameter((8,), COUNT, many=True, help="N of the incast, a row each")
    placement: str = parameter(
        "rail", choices=PLACEMENTS, help="senders on the receiver's rail, on others, or on both"
    )
    cc: tuple[str, ...] = parameter(
        ("none", "nscc", "rccc", "both"),
        choices=lambda: (*CONTROLS, "default"),
        many=True,
        help="congestion control; default: that of --transport",
    )
    profiles: tuple[str, ...] = parameter(
        ("shallow", "deep"), choices=("shallow", "deep"), many=True, help="of the switches"
    )
    trims: tuple[str, ...] = parameter(
        ("on", "off"), choices=("on", "off"), many=True, help="whether switches trim"
    )

    def __post_init__(self) -> None:
        if self.pattern == "permutation":
            refuse_idle(self, ("senders", "placement"), "beside pattern=permutation")


def topology(parameters: Parameters) -> str:
    """Return the topology of the incast, or four hosts with two rails."""
    if parameters.pattern == "permutation":
        return "rail_clos:hosts=4,gpus_per_host=2"
    return incast_topology(parameters.senders, parameters.placement)


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    patterns = _traffic(parameters, topology, seed)
    return [
        pattern.trial(
            parameters.pattern,
            parameters,
            facts={"cc": cc, "profile": profile, "trim": trim} | facts,
            transport="" if cc == "default" else f"cc={cc}",
            switch=f"{profile}:trim={trim}{LAST_HOP if _is_credited(cc) else ''}",
        )
        for cc in parameters.cc
        for profile in parameters.profiles
        for trim in parameters.trims
        for facts, pattern in patterns
    ]


def _is_credited(cc: str) -> bool:
    return cc in CONTROLS and CONTROLS[cc].credit is not None


def _traffic(
    parameters: Parameters, topology: Topology, seed: int
) -> list[tuple[dict[str, object], Traffic]]:
    """Return the traffic of each row, and the row's description of it."""
    if parameters.pattern == "permutation":
        return [({}, permutation(parameters, topology, parameters.size, seed))]
    found = []
    for count in parameters.senders:
        senders = incast_senders(topology, RECEIVER, count, parameters.placement)
        flows = tuple(Flow(source=r, destination=RECEIVER, length=parameters.size) for r in senders)
        made = Traffic(topology, flows, parameters.message, parameters.in_flight, seed)
        found.append(({"senders": count, "placement": parameters.placement}, made))
    return found


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    if parameters.pattern == "permutation":
        return traffic.measured(topology, outcome, capacity_gbps=all_nics_gbps(topology, outcome))
    capacity = nic_payload_gbps(topology, RECEIVER, outcome.wire) if outcome.wire else None
    hot = switch_port(topology, RECEIVER)
    return traffic.measured(topology, outcome, capacity_gbps=capacity, bottleneck=hot)


def capture(parameters: Parameters, topology: Topology) -> str:
    """The receiver's port, or the first rail's uplinks."""
    if parameters.pattern == "permutation":
        return captured_uplinks(topology, 0)
    return captured_ports(topology, RECEIVER)
