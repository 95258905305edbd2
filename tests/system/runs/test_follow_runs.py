"""``uetemu follow`` on real runs: what it says is what the capture and the counters say."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from emulator.cli.reports.follow_verb import command
from emulator.pytest_plugin.runs import RunFactory
from emulator.report.follow.capture import CaptureStream
from emulator.report.follow.packet_view import PacketKind, view
from emulator.topology_file import from_record
from tests.harness.wire.tshark import TSHARK, tshark
from tests.scenarios.test_traffic_runs import run
from uet.wire.wireshark.dissector import dissector

SPEC = "rail_clos:hosts=5,gpus_per_host=1,spines=1,uplinks_per_spine=1"
pytestmark = pytest.mark.root


def incast(runs: RunFactory, *options: str) -> Path:
    folder: Path = run(
        runs,
        "incast",
        *("--topology", SPEC, "--capture", "all", *options),
        **{"senders": "4", "size": "128KiB", "iterations": "1", "warmups": "0"},
    )["folder"]
    return folder


def most_repeated(folder: Path) -> tuple[int, int]:
    """Return the PSN of the packet that left its sender most often, and how often it did."""
    counts: dict[tuple[object, int], int] = {}
    topology = from_record(json.loads((folder / "fabric.json").read_text()))
    for frame in CaptureStream(folder / "capture.pcapng", topology).frames():
        seen = view(frame.octets, frame.length)
        sent = frame.leaves and frame.end.port == "eth0"
        if sent and seen is not None and seen.kind is PacketKind.DATA:
            key = (seen.flow, seen.psn)
            counts[key] = counts.get(key, 0) + 1
    (_, psn), most = max(counts.items(), key=lambda item: item[1])
    return psn, most


def followed(folder: Path, psn: int, *options: str) -> dict[str, Any]:
    done = CliRunner().invoke(
        command, [str(folder), "--psn", str(psn), "--format", "json", *options]
    )
    assert done.exception is None, done.exception
    content: dict[str, Any] = json.loads(done.stdout)
    return content


def test_a_trimmed_packet_of_uet_is_followed_to_its_ack(
    tmp_path: Path, uetemu_run: RunFactory
) -> None:
    folder = incast(uetemu_run, "--event-log", "all")
    psn, times = most_repeated(folder)
    assert times > 1
    told = followed(folder, psn, "--svg", str(tmp_path / "ladder.svg"))
    sent = [one for one in told["journeys"] if one["kind"] == "data"]
    assert len(sent) == times
    assert all(one["cause"] for one in sent[1:])
    assert [one["fate"] for one in told["journeys"]] == ["delivered"] * len(told["journeys"])
    changed = [text for one in sent for step in one["steps"] for text in step["changes"]]
    assert any(text.startswith("trimmed by rail0:down0") for text in changed)
    assert told["journeys"][-1]["kind"] == "ACK"
    assert "waits" in (tmp_path / "ladder.svg").read_text()
    if TSHARK is not None:
        lua = tmp_path / "uet.lua"
        lua.write_text(dissector())
        shown = tshark(lua, folder / "capture.pcapng", "-Y", told["display_filter"])
        steps = sum(len(one["steps"]) for one in told["journeys"])
        assert len(shown.splitlines()) == steps


def test_a_dropped_packet_of_rocev2_is_followed_to_its_ack(uetemu_run: RunFactory) -> None:
    folder = incast(
        uetemu_run,
        *("--transport", "rocev2:pfc=off", "--switch", "shallow:untrimmed.limit_bytes=60KiB"),
    )
    psn, times = most_repeated(folder)
    told = followed(folder, psn)
    sent = [one for one in told["journeys"] if one["kind"] == "data"]
    assert len(sent) == times > 1
    assert {one["fate"] for one in sent} <= {"delivered", "dropped"}
    assert told["journeys"][-1]["kind"] == "ACK"
    if TSHARK is not None:
        capture = folder / "capture.pcapng"
        argv = [TSHARK, "-n", "-r", str(capture), "-Y", told["display_filter"]]
        shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        steps = sum(len(one["steps"]) for one in told["journeys"])
        assert len(shown.splitlines()) >= steps
