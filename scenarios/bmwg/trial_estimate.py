"""Estimate the time of a trial from the octets that its schedules send over the fabric."""

from __future__ import annotations

from functools import cache

from emulator import scenario
from emulator.errors import UserError
from emulator.fabric_choice import choose
from emulator.run.plan.variants import variants
from emulator.suite.suite_trial import SuiteTrial
from scenarios.collectives.collective import fabric_octets
from topologies.elements import TopologyError

#: Seconds of a trial on two processors, two trials at a time: to start and end it, and for each
#: megabyte of payload.  They are rough: chosen from trials of the training suite beside other work.
#: A packet has 4096 octets, and passes two to four namespaces with its acknowledgement.
START_S, MEGABYTE_S = 3.0, 0.1


def estimated_s(trial: SuiteTrial) -> float:
    """Return about how many seconds ``trial`` takes; one that cannot be run takes ``START_S``."""
    try:
        octets = _octets(trial.scenario, trial.fabric, trial.parameters)
    except (UserError, TopologyError):
        octets = 0
    runs = trial.seeds * len(variants(trial.transport))
    return START_S + MEGABYTE_S * runs * octets / 1e6


@cache
def _octets(name: str, fabric: str, given: tuple[tuple[str, str], ...]) -> int:
    """Return the octets that all rows of one seed and transport send."""
    loaded = scenario.load(name)
    parameters = loaded.parameters(dict(given))
    topology = choose(fabric).topology
    return sum(
        fabric_octets(one.compile()) * (one.warmups + one.iterations)
        for one in loaded.schedules(parameters, topology, 1)
    )
