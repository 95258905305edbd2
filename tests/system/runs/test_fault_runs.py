"""Whole runs whose cables are pulled: one that goes on, one that cannot, and refusals."""

import json
import re
import secrets
from pathlib import Path

import pytest

from emulator.dataplane import lab_record
from emulator.pytest_plugin.runs import RunFactory
from tests.harness.runs.processes import completed, without_progress
from tests.scenarios.test_traffic_runs import events, run

FABRIC = ("--topology", "rail_clos:hosts=2,gpus_per_host=2,spines=2,uplinks_per_spine=1")
FLOWS = {"sizes": "512KiB", "message": "16KiB", "in_flight": "8", "warmups": "0"}


def refused(*arguments: str) -> str:
    """Return what a run that must fail says on standard error."""
    done = completed("run", *arguments)
    assert done.returncode == 1
    errors = without_progress(done.stderr)
    assert errors.count("\n") == 1
    return errors


@pytest.mark.root
def test_a_pulled_uplink_costs_time_and_packets_and_no_octet(uetemu_run: RunFactory) -> None:
    timeline = "t=4us link rail0:up0 down; t=90us up"
    content = run(uetemu_run, "permutation", *FABRIC, "--fault", timeline, **FLOWS)
    (row,) = content["rows"]
    down, up = row["faults"]
    assert down["said"] == "t=4us link rail0:up0 down"
    assert up["said"] == "t=90us link rail0:up0 up"
    assert down["at_us"] >= 4
    assert row["cut_off_gpus"] == down["cut_off_gpus"] == []
    assert row["ideal_us"] > 10.5  # 512 KiB at 400 Gb/s; half the links of a rail are left
    assert row["undisturbed_us"] * row["slowdown"] == pytest.approx(row["time_us"])
    lost = row["lost_packets"]
    assert set(lost) <= {"link_down", "in_queue", "in_flight", "no_route"}
    assert lost["no_route"] > 0  # the other rail switch does not know
    assert row["retransmitted_packets"] > 0
    reported = [event["struck"] for event in events(content, "fault")]
    assert reported[0] == ["link rail0:up0 down"]
    assert content["errors"] == []
    assert content["unfinished"] is None


@pytest.mark.root
def test_all_that_a_dead_nic_costs_is_told(uetemu_run: RunFactory) -> None:
    """A dead NIC costs its own frames, which never leave, and those that wait for it."""
    timeline = "t=5us nic h0g0 down; t=30us up"
    flows = {**FLOWS, "in_flight": "32"}  # more than the NIC has sent by then
    content = run(uetemu_run, "permutation", *FABRIC, "--fault", timeline, **flows)
    (row,) = content["rows"]
    lost = row["lost_packets"]
    assert lost["dead_port"] > 0
    unsent = {name: row["nic.link_down"] for name, row in content["endpoints"].items()}
    assert lost["no_carrier"] == unsent["h0g0"] == sum(unsent.values()) > 0
    down, up = row["faults"]
    assert down["cut_off_gpus"] == ["h0g0"]
    without = down["goodput_without"]
    assert without["count"] == 2  # to it and from it
    assert all("h0g0" in pair for pair in without["named"])
    assert "has no way" not in down["goodput"]  # the others have
    assert up["goodput_without"] == {"count": 0, "named": []}
    frames = [
        sum(counters[f"nic.frames_{way}"] for counters in content["endpoints"].values())
        for way in ("out", "in")
    ]
    assert lost.get("link_down", 0) == row["drops"].get("link_down", 0)
    assert "black_hole" not in row["drops"]
    in_queues = sum(row["drops"].values()) - row["drops"].get("link_down", 0)
    assert sum(lost.values()) - lost["no_carrier"] == frames[0] - frames[1] - in_queues


@pytest.mark.root
def test_a_job_without_its_rail_ends_and_names_the_ranks(tmp_path: Path) -> None:
    lab = f"t-{secrets.token_hex(5)}"
    folder = tmp_path / lab
    given = [part for name, value in FLOWS.items() for part in ("--param", f"{name}={value}")]
    words = refused(
        *("permutation", *FABRIC, *given, "--name", lab, "--format", "json"),
        *("--output", str(folder), "--fault", "t=5us switch rail0 down"),
    )
    expected = "ranks 0, 2 (h0g0, h1g0) are cut off for good by 't=5us switch rail0 down'"
    assert expected in words
    content = json.loads((folder / "result.json").read_text())
    assert content["errors"][0] in words
    left = content["unfinished"]
    assert left["cut_off_gpus"] == ["h0g0", "h1g0"]
    assert 0 <= left["delivered_messages"] < left["messages"] == 4 * 32
    assert left["undisturbed_us"] > 0
    assert sum(left["lost_packets"].values()) > 0
    assert content["endpoints"]
    assert not lab_record.directory_of(lab).exists()


@pytest.mark.root
def test_a_job_whose_pairs_are_cut_off_ends_and_names_pairs_and_cable(tmp_path: Path) -> None:
    """In dimension order each pair of neighbours has one way; every GPU still reaches others."""
    lab = f"t-{secrets.token_hex(5)}"
    folder = tmp_path / lab
    flows = {**FLOWS, "sizes": "128KiB"}
    given = [part for name, value in flows.items() for part in ("--param", f"{name}={value}")]
    words = refused(
        *("permutation", "--topology", "torus:x=3,y=2", *given),
        *("--name", lab, "--output", str(folder)),
        *("--fault", "t=1us link r0-0:xplus0 down; t=1us link r0-1:xplus0 down"),
    )
    content = json.loads((folder / "result.json").read_text())
    assert content["errors"][0] in words
    left = content["unfinished"]
    assert left["cut_off_gpus"] == []
    pairs = left["cut_off_pairs"]
    assert pairs["count"] == len(pairs["named"]) == 4
    needed = [pair for pair in pairs["named"] if f"{pair[0]} - {pair[1]}" in words]
    assert needed
    assert needed == pairs["named"][: len(needed)]
    assert re.search(r"cut off for good by 't=1us link r0-[01]:xplus0 down'", words)
    assert left["delivered_messages"] <= left["messages"]  # all, where only answers are lost
    assert {gpu for pair in needed for gpu in pair} & set(left["unfinished_gpus"])
    assert not lab_record.directory_of(lab).exists()


def test_a_timeline_is_checked_before_anything_is_built(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fault = ("--switch", "none", "--fault", "t=1us link rail0:up0 loss=1%")
    words = refused("permutation", *FABRIC, *fault, "--output", str(folder))
    assert "'t=1us link rail0:up0 loss=1%' is the switch's to inject" in words
    assert not folder.exists()


@pytest.mark.root
def test_faults_of_the_start_come_before_it(uetemu_run: RunFactory) -> None:
    """In every iteration, however many events the run has had by then."""
    rates = "t=0us link rail0:up0 rate=100Gbps; t=1us link rail0:up0 rate=200Gbps"
    flows = {**FLOWS, "iterations": "3"}
    content = run(uetemu_run, "permutation", *FABRIC, "--fault", rates, **flows)
    faulted = events(content, "fault")
    assert [event["at_us"] for event in faulted] == [0, 1] * 3
    assert {event["late_us"] for event in faulted} == {0}
