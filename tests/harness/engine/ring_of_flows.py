"""Flows of a ring that all go two links in the same direction: a circle of full buffers.

A scenario for ``uetemu run PATH``.  Each link carries two flows at the rate of one, so that packets
on their way fill the buffers behind those that begin there.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from emulator.result_rows import TableColumn
from emulator.run.report import traffic
from emulator.run.report.result_table import TRAFFIC_COLUMNS
from emulator.scenario import Outcome, Trial, parameter
from scenarios.workloads.flows import Flow, Traffic, TrafficParameters
from topologies.model import Topology
from topologies.parts.design_parameters import SIZE

COLUMNS = (TableColumn("flows", "flows", "", 6), *TRAFFIC_COLUMNS)


@dataclass(frozen=True, kw_only=True)
class Parameters(TrafficParameters):
    size: int = parameter(4 * 2**20, SIZE, help="octets of each flow")


def topology(parameters: Parameters) -> str:
    return "torus:x=5,y=1"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    ranks = len(topology.gpus)
    flows = tuple(
        Flow(source=rank, destination=(rank + 2) % ranks, length=parameters.size)
        for rank in range(ranks)
    )
    pattern = Traffic(topology, flows, parameters.message, parameters.in_flight, seed)
    return [pattern.trial("ring", parameters, facts={"flows": ranks})]


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    return traffic.measured(topology, outcome)
