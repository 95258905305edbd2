"""Runs with several seeds, and what their iterations begin with, as they are planned."""

import os
from typing import Any

import pytest
from click.testing import CliRunner

from emulator import scenario as scenarios
from emulator.cli import rank_runs, run_verb
from emulator.errors import UserError
from emulator.run.measurement import Start
from emulator.run.plan.run_plan import RunPlan, RunRequest, prepare

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="capabilities are tried as root")


def planned(transport: str, **changes: Any) -> RunPlan:
    scenario = scenarios.load("incast")
    parameters = scenario.parameters({"senders": "2,3", "size": "64KiB"})
    return prepare(
        RunRequest(scenario=scenario, parameters=parameters, transport=transport, **changes)
    )


@needs_root
def test_every_transport_runs_with_every_seed() -> None:
    plan = planned("uet,rocev2:nccl", seed=7, seeds=3)
    found = [(stage.stage.label, stage.seed, stage.stage.trials) for stage in plan.stages]
    assert found == [
        (label, seed, (place,))
        for label in ("uet", "rocev2:nccl")
        for seed in (7, 8, 9)
        for place in (0, 1)
    ]
    meshes = {
        stage.seed: next(iter(stage.transport.configs.values()))["mesh"]
        for stage in plan.stages
        if stage.stage.label == "rocev2:nccl"
    }
    assert [mesh["seed"] for mesh in meshes.values()] == [7, 8, 9]
    # Payloads differ, too: a seed is all that is random.
    first, second = plan.stages[0].trials[0], plan.stages[2].trials[0]
    assert (first.inputs(1)["to0"] != second.inputs(1)["to0"]).any()


def test_a_start_in_words() -> None:
    assert str(Start()) == "each iteration with fresh endpoints"
    assert str(Start(gap_ns=2_000)) == (
        "each iteration with fresh endpoints, 2 us after the one before"
    )
    assert str(Start(fresh=False)).endswith("of the one before, at once")
    assert Start(fresh=False, gap_ns=1_500).as_dict() == {"endpoints": "kept", "gap_us": 1.5}


@pytest.mark.parametrize(
    ("arguments", "start", "seeds"),
    [
        ((), Start(), 1),
        (("--endpoints", "reused"), Start(fresh=False), 1),
        (("--endpoints", "kept"), Start(fresh=False), 1),
        (("--gap", "1ms", "--seeds", "5"), Start(gap_ns=1_000_000), 5),
    ],
)
def test_options(
    arguments: tuple[str, ...], start: Start, seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[RunRequest] = []

    def stop(request: RunRequest) -> None:
        asked.append(request)
        raise UserError("that is all")

    monkeypatch.setattr(rank_runs, "prepare", stop)
    CliRunner().invoke(run_verb.command, ["incast", *arguments])
    assert [(request.start, request.seeds) for request in asked] == [(start, seeds)]


def test_a_gap_is_a_time() -> None:
    done = CliRunner().invoke(run_verb.command, ["incast", "--gap", "soon"])
    assert done.exit_code != 0
    assert "--gap: " in str(done.exception)
