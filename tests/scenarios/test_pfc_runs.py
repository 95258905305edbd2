"""Priority flow control in whole runs: an incast that loses nothing, and a storm."""

import csv
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from emulator.dataplane import lab_record
from emulator.pytest_plugin.runs import RunFactory
from emulator.sim import line_telemetry
from tests.scenarios.test_traffic_runs import run

INCAST = {"senders": "8", "size": "256KiB", "warmups": "0"}
NO_CONTROL = ("--transport", "uet:cc=none")


def pause_frames(capture: Path) -> list[dict[str, str]]:
    """Return what tshark says of every MAC control frame."""
    names = ["frame.interface_name", "frame.len", "macc.opcode", "macc.cbfc.enbv", "eth.dst"]
    names += ["macc.cbfc.pause_time.c0", "_ws.expert.message", "_ws.malformed"]
    arguments = [part for name in names for part in ("-e", name)]
    shown = subprocess.run(
        ["tshark", "-r", str(capture), "-Y", "macc", "-T", "fields", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split("\t") for line in shown.stdout.splitlines()]
    return [dict(zip(names, row, strict=True)) for row in rows]


def check_little_headroom(content: dict[str, Any]) -> None:
    """With less headroom than a cable needs, some is lost and sent again, and a warning says so."""
    (row,) = content["rows"]
    assert row["drops"]["headroom"] == row["dropped_packets"] > 0
    assert row["retransmitted_packets"] > 0
    (warning,) = content["warnings"]
    assert "the headroom of 10 KiB is less than" in warning


def check_storm(content: dict[str, Any]) -> None:
    """A storm stops those that share its queue, and no others, until a watchdog drops for them."""
    none, storm, guarded = content["rows"]
    end_us = 210
    for kind in ("feeders_us", "same_nic_us", "crossing_us"):
        assert storm[kind] > end_us > none[kind]
    for kind in ("opposite_us", "local_us"):
        assert storm[kind] < 100
    assert storm["dropped_packets"] == none["dropped_packets"] == 0
    assert storm["longest_pause_us"] > 100 > none["longest_pause_us"]
    assert none["watchdog_storms"] == storm["watchdog_storms"] == 0
    assert guarded["watchdog_storms"] == 1
    assert guarded["drops"] == {"watchdog": guarded["dropped_packets"]}
    assert guarded["crossing_us"] < end_us
    assert guarded["same_nic_us"] < end_us
    assert guarded["feeders_us"] > end_us


@pytest.mark.conformance("R-045")
def test_an_incast_loses_nothing(uetemu_run: RunFactory) -> None:
    content = run(
        uetemu_run,
        "incast",
        *(*NO_CONTROL, "--switch", "lossless:xoff=40KiB", "--capture", "rail0:down1,h1g0"),
        **INCAST,
    )
    (row,) = content["rows"]
    assert row["dropped_packets"] == row["trimmed_packets"] == row["retransmitted_packets"] == 0
    assert row["pauses"] > 8
    assert row["paused_us"] == row["paused_nics_us"] > 0
    assert content["warnings"] == []
    sent = received = 0
    for name, port in content["ports"].items():
        if "pfc" not in port:
            continue
        assert port["data"]["drops"] == port["control"]["drops"] == 0
        sent += port["pfc"]["xoff_sent"]
        received += port["pfc"]["xoff_received"]
        assert port["pfc"]["malformed"] == port["pfc"]["unsent"] == 0
        if name in [f"h{host}g0:eth0" for host in range(1, 9)]:
            assert port["pfc"]["paused_ns"] > 0
            assert port["pfc"]["xoff_received"] >= port["pfc"]["xon_received"] > 0
    assert sent == received >= row["pauses"]
    with (content["folder"] / line_telemetry.FILE).open() as samples:
        sampled = {one["port"]: one for one in csv.DictReader(samples)}
    for name, port in content["ports"].items():
        paused_ns = port["pfc"]["paused_ns"] if "pfc" in port else 0
        # each pause is rounded to the ns
        assert int(sampled[name]["paused_ns"]) == pytest.approx(paused_ns, abs=1 + row["pauses"])
        if name.endswith(":eth0"):
            assert int(sampled[name]["sent_bytes"]) >= port["tx_bytes"] - 64 * port["tx_packets"]
    if shutil.which("tshark"):
        frames = pause_frames(content["folder"] / "capture.pcapng")
        assert {frame["frame.interface_name"] for frame in frames} == {"rail0:down1", "h1g0:eth0"}
        for frame in frames:
            assert frame["frame.len"] == "60"
            assert frame["eth.dst"] == "01:80:c2:00:00:01"
            assert int(frame["macc.opcode"], 0) == 0x0101
            assert int(frame["macc.cbfc.enbv"], 0) == 1
            assert frame["macc.cbfc.pause_time.c0"] in ("65535", "0")
            assert frame["_ws.expert.message"] == frame["_ws.malformed"] == ""
        times = [frame["macc.cbfc.pause_time.c0"] for frame in frames]
        counted = content["ports"]["rail0:down1"]["pfc"]
        assert times.count("65535") == 2 * counted["xoff_sent"]  # at both ends of the cable
        assert times.count("0") == 2 * counted["xon_sent"]
    assert not lab_record.directory_of(content["folder"].name).exists()


@pytest.mark.conformance("R-045")
def test_with_next_to_no_headroom_it_loses_some(uetemu_run: RunFactory) -> None:
    content = run(
        uetemu_run,
        "incast",
        *(*NO_CONTROL, "--switch", "lossless:xoff=40KiB,headroom=10KiB", "--capture", "none"),
        **INCAST,
    )
    check_little_headroom(content)


def test_without_pfc_nothing_is_paused(uetemu_run: RunFactory) -> None:
    content = run(
        uetemu_run,
        "incast",
        *(*NO_CONTROL, "--switch", "lossless:pfc=off", "--capture", "none"),
        **INCAST | {"senders": "2"},
    )
    (row,) = content["rows"]
    assert row["pauses"] is row["paused_us"] is None
    assert not any("pfc" in port for port in content["ports"].values())


def test_a_storm_stops_whoever_shares_a_queue_with_it(uetemu_run: RunFactory) -> None:
    content = run(
        uetemu_run,
        "pfcstorm",
        *("--capture", "none"),
        size="512KiB",
        storm_for="200us",
        watchdog="30us",
    )
    rows = {row["storm"]: row for row in content["rows"]}
    assert list(rows) == ["none", "storm", "watchdog"]
    check_storm(content)
    faults = [
        event
        for line in (content["folder"] / "events.jsonl").read_text().splitlines()
        if (event := json.loads(line))["event"] == "fault"
    ]
    assert [event["faults"] for event in faults] == [{"pause_storm": True}, {}] * 2
