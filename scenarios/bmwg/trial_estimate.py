"""Estimate the time of a trial from the octets that its schedules send, and the way these take."""

from __future__ import annotations

from functools import cache

import numpy as np

from emulator import scenario
from emulator.dataplane.fabric_choice import choose
from emulator.errors import UserError
from emulator.run.plan.variants import variants
from emulator.sim.endpoint.operations.operation_table import WRITE, OperationTable
from emulator.suite.trials import SuiteTrial
from topologies.elements import TopologyError
from topologies.model import Topology

#: Seconds of a trial on two processors, two trials at a time: to start and end it, for each
#: megabyte of payload and cable that it crosses, and what a control plane takes to start.  Chosen
#: by least squares from 139 trials of the training suite, which ran alone.  UET acknowledges more
#: packets than RoCEv2, and a trial with faults has an iteration without them first.
START_S, CABLE_MEGABYTE_S, CONTROL_PLANE_S = 3.0, 0.013, 6.5
UET_FACTOR = 1.5
#: And how much less without namespaces: all points of the hardware suite took 318 s of 1088.
MODEL_FACTOR = 0.3


def estimated_s(trial: SuiteTrial) -> float:
    """Return about how many seconds ``trial`` takes; one that cannot be run takes ``START_S``."""
    try:
        crossed = _crossed(trial.scenario, trial.fabric, trial.parameters)
        kinds = [one.transport or "uet" for one in variants(trial.transport)]
    except (UserError, TopologyError):
        return START_S
    weight = sum(UET_FACTOR if one.startswith("uet") else 1.0 for one in kinds)
    runs = trial.seeds * weight * (2 if trial.faults else 1)
    plane = CONTROL_PLANE_S if "--control-plane" in trial.options else 0.0
    where = MODEL_FACTOR if "model" in trial.options else 1.0
    return where * (START_S + plane + CABLE_MEGABYTE_S * runs * crossed / 1e6)


@cache
def _crossed(name: str, fabric: str, given: tuple[tuple[str, str], ...]) -> float:
    """Return octets times the cables that they cross, of all rows of one seed and transport."""
    loaded = scenario.load(name)
    parameters = loaded.parameters(dict(given))
    topology = choose(fabric).topology
    cables = _cables(topology)
    total = 0.0
    for one in loaded.schedules(parameters, topology, 1):
        sent = np.zeros(cables.shape)
        for schedule in one.compile():
            table = OperationTable.of(schedule.operations)
            chosen = table.where(WRITE)
            peers = table.columns["peer"][chosen]
            np.add.at(sent[schedule.rank], peers, table.columns["near_octets"][chosen])
        total += float((sent * cables).sum()) * (one.warmups + one.iterations)
    return total


def _cables(topology: Topology) -> np.ndarray:
    """Return the cables of the shortest path between any two GPUs, by their ranks."""
    rank = {gpu.name: number for number, gpu in enumerate(topology.gpus)}
    found = np.zeros((len(rank), len(rank)))
    for name, number in rank.items():
        reached, front, distance = {name}, [name], 0
        while front:
            distance += 1
            beyond = {
                theirs.node
                for node in front
                for _, _, theirs in topology.neighbours(node)
                if theirs.node not in reached
            }
            reached |= beyond
            for node in beyond & rank.keys():
                found[number, rank[node]] = distance
            front = [node for node in beyond if node not in rank]
    return found
