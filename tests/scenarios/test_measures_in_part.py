"""All scenarios: what rank 0 measures needs the operations of no more GPUs than its own."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from emulator import scenario
from emulator.scenario import Outcome
from emulator.sim.endpoint.operations.schedule import Schedule
from emulator.transports.wire_cost import WireCost
from scenarios.collectives.program import Program
from tests.harness.runs.observed_messages import iteration_of, observed_in
from tests.scenarios.test_scenarios_in_part import made, of_default

WIRE = WireCost(around_bytes=122, payload_mtu=4096)


def refused() -> Sequence[Schedule]:
    """Compile nothing."""
    raise AssertionError("measures compiles")


def nobody_is_wanted(program: Program) -> Sequence[Schedule]:
    """Return no schedules of a program that only counts; refuse any other one."""
    assert not program.wants(*range(program.ranks)), "measures keeps operations"
    return ()


@pytest.mark.parametrize("name", scenario.names())
def test_measures_compile_nothing_whole(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = of_default(name, tmp_path)
    if name == "trace":  # files of what ran have the operations of all GPUs
        given = {**given, "write": str(tmp_path / "ran.goal")}
    chosen = scenario.load(name)
    parameters = chosen.parameters(given)
    topology, trials = made(name, given)
    trial = trials[0]
    if trial.recover is not None:
        return  # all ranks keep the schedules of all GPUs
    compiled = trial.compile()
    iteration = iteration_of(compiled, 0, 1000)
    outcome = Outcome(
        times_ns=(1000,),
        ideal_ns=1.0,
        wrong=0,
        counters={},
        iterations=[iteration],
        observed=[observed_in(trial, compiled, iteration)] if trial.observe else [],
        wire=WIRE,
    )
    monkeypatch.setattr(Program, "schedules", nobody_is_wanted)
    row = chosen.measures(
        parameters, topology, dataclasses.replace(trial, compile=refused), outcome
    )
    assert row
