"""How much of a flow is under way: no window of the scenario's decides for the transport."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from emulator import scenario as scenarios
from emulator.cli.run_verb import command

#: Scenarios in which what is under way is the subject.
ONE_AT_A_TIME = {"kvload"}
FLOWING = [
    name
    for name in scenarios.names()
    if scenarios.load(name).takes("in_flight") and name not in ONE_AT_A_TIME
]


def test_traffic_scenarios_are_found() -> None:
    assert {"incast", "victim", "permutation", "linkfail", "fairness"} <= set(FLOWING)


@pytest.mark.parametrize("name", FLOWING)
def test_a_flow_may_have_128_writes_of_64_kib_under_way(name: str) -> None:
    defaults = scenarios.load(name).parameters({})
    assert (defaults.in_flight, defaults.message) == (128, 65536)


@pytest.mark.parametrize(("in_flight", "binds"), [("2", True), ("4", False)])
def test_a_window_of_the_scenario_is_told(tmp_path: Path, in_flight: str, binds: bool) -> None:
    words = ["pairs", "--param", "size=256KiB", "--param", f"in_flight={in_flight}"]
    output = tmp_path / "run"
    run = CliRunner().invoke(
        command, [*words, "--fabric", "model", "--capture", "none", "--output", str(output)]
    )
    assert run.exception is None
    assert ("in_flight binds" in run.output) is binds
    (row,) = json.loads((output / "result.json").read_text())["rows"]
    assert row["held_writes"] == (2 * 2 if binds else 0)


@pytest.mark.parametrize("transport", ["rocev2", "rocev2:nccl", "rocev2:qps=8"])
def test_a_victim_has_a_rate_whatever_the_queue_pairs(tmp_path: Path, transport: str) -> None:
    output = tmp_path / "run"
    words = ["victim", "--param", "size=128KiB", "--param", "warmups=0", "--transport", transport]
    run = CliRunner().invoke(
        command, [*words, "--fabric", "model", "--capture", "none", "--output", str(output)]
    )
    assert run.exception is None
    for row in json.loads((output / "result.json").read_text())["rows"]:
        assert 0 < row["victim_gbps"] <= row["victim_fair_gbps"]
        assert row["senders"] == 0 or 0 < row["incast_share"] <= 1
