"""Which flow ended last, how much later, and why, in runs of a model."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from emulator.cli.run_verb import command


def run(folder: Path, *words: str) -> tuple[list[dict[str, Any]], str]:
    output = folder / "run"
    run = CliRunner().invoke(
        command, [*words, "--fabric", "model", "--capture", "none", "--output", str(output)]
    )
    assert run.exception is None, run.output
    return json.loads((output / "result.json").read_text())["rows"], run.output


def test_a_flow_that_dcqcn_slows_down_waits_for_its_rate(tmp_path: Path) -> None:
    """A short window has the last write paced by a rate that many marks have halved."""
    words = ("incast", "--param", "senders=16", "--param", "message=16KiB")
    given = ("--param", "in_flight=8", "--transport", "rocev2:adaptive")
    (row,), table = run(tmp_path, *words, *given)
    assert row["last_flow_alone_us"] > 0.1 * row["time_us"]
    assert row["last_flow_share"] < 0.1
    assert row["last_flow_waited_for"] == "its rate or window"
    assert row["last_flow_us"] <= row["time_us"]
    assert "after all others" in table
    assert row["goodput_share"] <= 1


def test_a_flow_whose_last_packets_are_lost_waits_for_its_timer(tmp_path: Path) -> None:
    words = ("pairs", "--param", "size=64KiB", "--param", "warmups=0", "--transport", "rocev2")
    cut = ("--fault", "t=1us link h0g0:eth0 down; t=9us up")
    (row,), table = run(tmp_path, *words, *cut)
    assert row["last_flow"].startswith("h0g0 to ")
    assert row["last_flow_waited_for"] == "retransmission timers"
    assert "of 2 flows h0g0 to" in table


def test_flows_that_end_together_have_no_line(tmp_path: Path) -> None:
    (row,), table = run(tmp_path, "pairs", "--transport", "rocev2")
    assert row["last_flow_alone_us"] == 0
    assert "Last flow" not in table


@pytest.mark.parametrize(("more", "seeds"), [((), 3), (("--seeds", "1"), 1)])
def test_a_comparison_has_three_seeds_unless_told(
    tmp_path: Path, more: tuple[str, ...], seeds: int
) -> None:
    rows, table = run(tmp_path, "pairs", "--transport", "uet,rocev2", *more)
    assert sorted({row["seed"] for row in rows}) == list(range(1, 1 + seeds))
    assert ("who is faster" in table or "is fastest" in table) is True
