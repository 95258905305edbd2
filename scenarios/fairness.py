"""Fairness: as many flows again join those that share a link, and all must come to a fair share.

::

       h1g0  h2g0   h3g0  h4g0
         |     |      |     |         h1, h2 begin at once; h3, h4 at ``joined_at``
      +-------------------------+
      |          rail0          |
      +-------------------------+
         |
       h0g0                           everything goes to it

Traffic: ``flows`` GPUs write to one receiver; after ``joined_at`` as many others begin.  A flow
has ``size`` octets, in writes of ``message``.  Every octet is compared with what was sent.

Measured: ``converged_us``, the time from then until the first moment after which each flow,
in every window of ``window``, is within ``tolerance`` per cent of its fair share, until the first
flow has ended.  It is empty where that moment never comes.  Beside it Jain's index, marks, drops,
pauses and the deepest queue.

What should be seen, and why: the newcomers bring a window or a line rate each, and the queue grows
by that at once.  Rate control by marks (DCQCN) cuts everybody, then climbs back over hundreds of
microseconds, so that fairness takes longer than the flows of this scenario may last.  A window by
delay and marks (NSCC) takes tens of round trips.  Credit (``uet:cc=rccc``) is divided by the
receiver, which makes shares equal within a round trip or two.  Windows of a few packets move in
steps: with 16 senders a share is three packets, and no rate is within 10 % of it for long.  So read
the value with its window.

Came out (seed 1, defaults): RCCC has fair shares after 10 us.  NSCC (Jain's index 0.98) and DCQCN
do not within the 174 to 245 us that the transfer takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from emulator.arithmetic import convergence
from emulator.errors import UserError
from emulator.result_rows import TableColumn
from emulator.run.report import traffic
from emulator.run.report.result_table import TRAFFIC_COLUMNS
from emulator.scenario import Outcome, Trial, parameter
from scenarios.incast import RECEIVER, incast_senders, incast_topology
from scenarios.workloads.flows import (
    WARMUPS,
    Flow,
    Traffic,
    TrafficParameters,
    captured_ports,
    nic_payload_gbps,
    switch_port,
)
from topologies.model import Topology
from topologies.parts.design_parameters import COUNT, SIZE, TIME

COLUMNS = (
    TableColumn("senders", "flows", "", 6),
    TableColumn("converged_us", "fair in", "(us)", 8, words="shares were fair after {} us"),
    *TRAFFIC_COLUMNS,
)


@dataclass(frozen=True, kw_only=True)
class Parameters(TrafficParameters):
    size: int = parameter(2 * 2**20, SIZE, help="octets of each flow")
    warmups: int = parameter(0, WARMUPS, help="iterations before those that count")
    flows: tuple[int, ...] = parameter((2,), COUNT, many=True, help="M, a row for each")
    joined_at: int = parameter(50_000, TIME, help="when M more begin")
    window: int = parameter(20_000, TIME, help="over which rates are taken")
    tolerance: int = parameter(10, COUNT, help="per cent of the mean rate that is still fair")

    def __post_init__(self) -> None:
        if self.tolerance >= 100:
            raise UserError(f"tolerance is {self.tolerance} %; take less than 100")


def topology(parameters: Parameters) -> str:
    """Return a rail with a GPU more than there are senders."""
    return incast_topology([2 * most for most in parameters.flows], "rail")


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    return [_trial(parameters, topology, flows, seed) for flows in parameters.flows]


def _trial(parameters: Parameters, topology: Topology, flows: int, seed: int) -> Trial:
    senders = incast_senders(topology, RECEIVER, 2 * flows, "rail")
    pattern = Traffic(
        topology,
        tuple(
            Flow(
                source=rank,
                destination=RECEIVER,
                length=parameters.size,
                start_ns=0 if number < flows else parameters.joined_at,
            )
            for number, rank in enumerate(senders)
        ),
        parameters.message,
        parameters.in_flight,
        seed,
    )
    return pattern.trial("fairness", parameters, facts={"senders": len(senders)})


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    capacity = nic_payload_gbps(topology, RECEIVER, outcome.wire) if outcome.wire else None
    hot = switch_port(topology, RECEIVER)
    row = traffic.measured(topology, outcome, capacity_gbps=capacity, bottleneck=hot)
    return {"converged_us": _converged_us(parameters, outcome), **row}


def _converged_us(parameters: Parameters, outcome: Outcome) -> float | None:
    """Return the longest of the iterations, None if one of them does not come there."""
    times = [
        convergence(
            list(iteration.flows().values()),
            parameters.joined_at,
            parameters.window,
            parameters.tolerance / 100,
        )
        for iteration in outcome.iterations
    ]
    found = [time for time in times if time is not None]
    return max(found) / 1000 if found and len(found) == len(times) else None


def capture(parameters: Parameters, topology: Topology) -> str:
    """Return the receiver's port: everything passes it."""
    return captured_ports(topology, RECEIVER)
