"""RoCEv2's retry timer in runs: it outlasts pauses, and what waiting for it took is told."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from emulator import scenario as scenarios
from emulator.cli.run_verb import command
from emulator.dataplane.switch.switch_choice import parse
from emulator.transports import fit
from tests.harness.runs.model_comparisons import ONE_PATH, SCENARIOS, TRACE, UET_ALONE
from topologies.catalogue import load

FABRIC = load("rail_clos:hosts=2,gpus_per_host=2,spines=1")
INCAST = ("incast", "--param", "senders=8", "--param", "size=256KiB", "--switch", "lossless")


def run(folder: Path, *words: str) -> tuple[dict[str, Any], str]:
    """Run on a model; return ``result.json`` and the table."""
    output = folder / "run"
    outcome = CliRunner().invoke(
        command, [*words, "--fabric", "model", "--capture", "none", "--output", str(output)]
    )
    if outcome.exception is not None:
        raise outcome.exception
    return json.loads((output / "result.json").read_text()), outcome.output


@pytest.mark.parametrize("name", [one for one in scenarios.names() if one not in UET_ALONE])
def test_nothing_is_sent_again_where_switches_pause_and_nothing_is_lost(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "step.csv").write_text(TRACE)
    words = (name, *ONE_PATH.get(name, SCENARIOS[name]))
    switch = () if name == "ccsweep" else ("--switch", "lossless")  # which has switches of its own
    result, _ = run(tmp_path, *words, "--transport", "rocev2", *switch)
    for row in result["rows"]:
        lost = row["frames_lost"] + sum(row.get("lost_packets", {}).values())
        assert row["retransmitted_packets"] == 0 or lost > 0, row


def test_the_timer_outlasts_pauses(tmp_path: Path) -> None:
    result, table = run(tmp_path, *INCAST, "--transport", "rocev2:cc=none")
    (row,) = result["rows"]
    assert row["pauses"] > 0
    assert (row["retransmitted_packets"], row["rto_wait_us"]) == (0, 0)
    assert "Sent again" not in table


def test_what_was_sent_again_in_vain_is_told(tmp_path: Path) -> None:
    given = ("size=256KiB", "storm_at=3us", "storm_for=20us", "rows=storm")
    storm = ("pfcstorm", *(word for one in given for word in ("--param", one)))
    result, table = run(tmp_path, *storm, "--transport", "rocev2:timeout=2")
    (row,) = result["rows"]
    assert row["frames_lost"] == 0
    again = row["retransmitted_packets"]
    assert again > 0
    assert f"{again} packets were sent again and 0 were lost" in table
    assert 0 < row["rto_wait_us"] <= row["time_us"]


@pytest.mark.parametrize(
    ("transport", "switch", "exponent"),
    [
        ("rocev2", "lossless", 14),
        ("rocev2", "lossless:cbfc=on", 14),
        ("rocev2", None, 5),
        ("rocev2:timeout=6", "lossless", 6),
        ("rocev2:rto=100us", "lossless", 5),
        ("rocev2", "lossless:pfc=off", 5),
        ("rocev2", "shallow", 5),
        ("rocev2:pfc=off", None, 5),
    ],
)
def test_the_default_is_short_only_where_switches_drop(
    transport: str, switch: str | None, exponent: int
) -> None:
    choice = fit(transport, FABRIC, switch=None if switch is None else parse(switch))
    assert {config["timeout"] for config in choice.configs.values()} == {exponent}


def test_a_wait_in_which_nothing_happens_is_told_and_costs_no_samples(tmp_path: Path) -> None:
    cut = "t=2us link rail0:down0 down; t=9us link rail0:down0 up"
    one = ("incast", "--param", "senders=1", "--param", "size=64KiB")
    result, table = run(tmp_path, *one, "--transport", "rocev2", "--fault", cut)
    (row,) = result["rows"]
    assert row["time_us"] > row["rto_wait_us"] > 67_000
    assert f"waited {row['rto_wait_us']:.1f} us for its retry timer, 100 % of" in table
    samples = (tmp_path / "run" / "telemetry.csv").read_text().splitlines()
    assert len({line.partition(",")[0] for line in samples}) < 1_000
