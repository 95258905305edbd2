"""Runs time their frames from NIC to NIC: sums by hand to the picosecond, waits, true counts."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from emulator.cli.run_verb import command
from emulator.run.measures.frame_latency import FILE, frames_by_row
from topologies.ethernet import FRAMING_OCTETS

#: Two leaves: a frame passes four cables of 600 ns at 400 Gb/s, and three switches.
TWO_LEAVES = "clos:segments=2,hosts=2,gpus_per_host=1,spines=1"
ONE_LEAF = "rail_clos:hosts=3,gpus_per_host=1,spines=1,uplinks_per_spine=1"
CABLE_PS, PS_PER_OCTET = 600_000, 20


def run(
    folder: Path, scenario: str, fabric: str, *options: str, **parameters: Any
) -> dict[str, Any]:
    """Run a scenario on a model of ``fabric`` and return ``result.json``."""
    words = [scenario, "--topology", fabric, "--fabric", "model", "--output", str(folder)]
    for name, value in {"warmups": 0, **parameters}.items():
        words += ["--param", f"{name}={value}"]
    words += ["--capture", "none", *options]
    outcome = CliRunner().invoke(command, words)
    if outcome.exception is not None:
        raise outcome.exception
    content: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return content


def alone(folder: Path, *options: str, **parameters: Any) -> dict[str, Any]:
    """Run one pair of an idle fabric, 20 messages of a frame each, one at a time."""
    given = {"pairs": 1, "message": 4096, "size": 20 * 4096, "in_flight": 1, **parameters}
    return run(folder, "pairs", TWO_LEAVES, *options, **given)


@pytest.mark.parametrize("transport", ["uet", "rocev2"])
@pytest.mark.parametrize("pipeline_ns", [0, 350])
def test_an_idle_fabric_takes_the_sum_by_hand(
    tmp_path: Path, transport: str, pipeline_ns: int
) -> None:
    switch = f"deep:latency={pipeline_ns}ns"
    found = alone(
        tmp_path / "run", "--transport", transport, "--switch", switch, "--frame-latency", "1"
    )
    (row,) = found["rows"]
    assert (row["frames_tagged"], row["frames_timed"], row["frames_ambiguous"]) == (20, 20, 0)
    frames = frames_by_row(tmp_path / "run" / FILE)[1]
    assert len(frames) == 20
    for one in frames:
        serialisation = (one.octets + FRAMING_OCTETS) * PS_PER_OCTET
        assert one.latency_ps == 4 * (serialisation + CABLE_PS) + 3 * pipeline_ns * 1000
    assert row["frame_min_us"] == row["frame_max_us"] == frames[0].latency_ps / 1e6


def test_a_frame_behind_another_one_waits_for_its_last_octet(tmp_path: Path) -> None:
    given = {"senders": 2, "victim": 0, "message": 4096, "size": 4096}
    run(tmp_path / "run", "incast", ONE_LEAF, "--frame-latency", "1", **given)
    first, second = sorted(frames_by_row(tmp_path / "run" / FILE)[1])
    serialisation = (first.octets + FRAMING_OCTETS) * PS_PER_OCTET
    assert first.latency_ps == 2 * (serialisation + CABLE_PS)
    assert second.latency_ps == first.latency_ps + serialisation


def test_warm_ups_are_no_samples_and_rows_have_their_own(tmp_path: Path) -> None:
    words = ["--transport", "uet,rocev2", "--seeds", "2", "--frame-latency", "1"]
    found = alone(tmp_path / "run", *words, warmups=1)
    by_row = frames_by_row(tmp_path / "run" / FILE)
    assert {number: len(frames) for number, frames in by_row.items()} == dict.fromkeys(
        (1, 2, 3, 4), 20
    )
    assert [row["frames_timed"] for row in found["rows"]] == [20] * 4


def test_some_of_the_frames_are_those_of_all(tmp_path: Path) -> None:
    more = {"size": "4MiB", "in_flight": 16}
    every = alone(tmp_path / "all", "--frame-latency", "1", **more)
    some = alone(tmp_path / "some", "--frame-latency", "8", **more)
    assert every["rows"][0]["frames_timed"] == 1024
    assert 64 < some["rows"][0]["frames_timed"] < 256
    lines = set((tmp_path / "all" / FILE).read_text().splitlines())
    assert set((tmp_path / "some" / FILE).read_text().splitlines()) <= lines


def test_frames_and_digest_are_those_of_a_run_that_times_none(tmp_path: Path) -> None:
    timed = alone(tmp_path / "timed", "--frame-latency", "1", "--capture", "all")
    plain = alone(tmp_path / "plain")
    assert timed["digest"] == plain["digest"]
    assert not (tmp_path / "plain" / FILE).exists()
    assert "frames_timed" not in plain["rows"][0]
    assert (tmp_path / "timed" / "capture.pcapng").stat().st_size > 20 * 8 * 100
