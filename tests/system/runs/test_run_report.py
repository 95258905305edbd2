"""``uetemu run --report`` and ``uetemu compare``: real runs, their reports and their captures."""

import csv
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from emulator.cli.reports import compare_verb
from emulator.pytest_plugin.runs import RunFactory
from emulator.report.run.page import FIGURES, PAGE
from tests.harness.runs.browser import needs_chromium, opened
from tests.harness.wire.tshark import TSHARK
from tests.scenarios.test_traffic_runs import TINY, run

SPEC = "rail_clos:hosts=3,gpus_per_host=1,spines=1,uplinks_per_spine=1"
pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def folder(uetemu_run_factory: RunFactory) -> Path:
    """An incast of two over UET and RoCEv2, with a fault, captured before and behind the switch."""
    path: Path = run(
        uetemu_run_factory,
        "incast",
        *("--topology", SPEC, "--transport", "uet,rocev2:classic", "--seeds", "1", "--report"),
        *("--capture", "h1g0:eth0,rail0:down0", "--fault", "t=3us link rail0:up0 down"),
        **{"senders": "2", "iterations": "2", **TINY},
    )["folder"]
    return path


def figure(folder: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / FIGURES / f"{name}.json").read_text())
    return content


def test_what_a_run_measured_is_in_its_figures(folder: Path) -> None:
    result = json.loads((folder / "result.json").read_text())
    for number, row in enumerate(result["rows"], 1):
        latency = [
            one
            for one in figure(folder, "message-latency")["data"]
            if one["row"] == number and one["messages_of"] != "victims"
        ]
        at = {one["share"]: one["latency_us"] for one in latency}
        assert at[0.5] == pytest.approx(row["message_p50_us"])
        assert at[0.99] == pytest.approx(row["message_p99_us"])
        flows = [one for one in figure(folder, "flows")["data"] if one["row"] == number]
        into = [one for one in flows if one["flow"].endswith("to h0g0")]
        assert sum(one["bytes"] for one in into) <= row["iterations"] * row["total_bytes"]
        assert len(into) == row["senders"]
        assert all(0 < one["goodput_gbps"] < 50 for one in into)
    loads = figure(folder, "link-load")["data"]
    assert max(one["load_percent"] for one in loads if one["port"] == "rail0:down0") > 80
    assert all(one["load_percent"] < 103 for one in loads)
    assert figure(folder, "busbw")["reason"] is not None


def test_a_packet_needs_at_least_the_wire_between_two_ports(folder: Path) -> None:
    data = figure(folder, "packet-latency")["data"]
    ways = {one["way"] for one in data}
    assert "h1g0:eth0 to rail0:down0" in ways
    times = [one["latency_us"] for one in data if one["way"] == "h1g0:eth0 to rail0:down0"]
    assert 0 < min(times) < max(times) < 1000


@pytest.mark.skipif(TSHARK is None, reason="tshark is not installed")
def test_the_display_filter_shows_the_ladder_s_packets(folder: Path) -> None:
    page = (folder / PAGE).read_text()
    ladder = page[page.index('id="figure-ladder"') :]
    shown = ladder[: ladder.index("</figure>")].split("<code>")[1:]
    assert len(shown) == 2
    for row, text in enumerate(shown, 1):
        words = text.partition("</code>")[0].replace("&amp;", "&").replace("&gt;", ">")
        words = words.replace("&lt;", "<")
        records = [one for one in figure(folder, "ladder")["data"] if one["row"] == row]
        condition = f'({words}) && frame.interface_name == "{records[0]["port"]}"'
        fields = ["-T", "fields", "-e", "frame.len"]
        found = subprocess.run(
            [str(TSHARK), "-r", str(folder / "capture.pcapng"), "-Y", condition, *fields],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        lengths = [str(one["bytes"]) for one in records]
        assert found[: len(lengths)] == lengths


def test_the_csv_has_what_the_json_has(folder: Path) -> None:
    for path in (folder / FIGURES).glob("*.json"):
        data = json.loads(path.read_text())["data"]
        lines = path.with_suffix(".csv").read_text().splitlines()
        records = list(csv.DictReader(line for line in lines if not line.startswith("#")))
        assert len(records) == len(data), path.name


@needs_chromium
def test_a_browser_draws_the_report(folder: Path, tmp_path: Path) -> None:
    document = opened(folder / PAGE, tmp_path)
    assert "could not be drawn" not in document
    for name in ("ideal", "link-load", "queues", "message-latency", "flows", "timeline", "ladder"):
        place = document.index(f'id="plot-{name}"')
        assert "<svg" in document[place : place + 600], name
    assert "link rail0:up0 down" in document


def test_runs_beside_each_other(folder: Path, uetemu_run: RunFactory) -> None:
    given = {"senders": "2", "iterations": "2", **TINY}
    options = ("--topology", SPEC, "--transport", "uet", "--capture", "none")
    other = run(uetemu_run, "incast", *options, **given)["folder"]
    runner = CliRunner()
    same = runner.invoke(compare_verb.command, [str(folder), str(folder), "--fail-if", "time>0"])
    assert same.exit_code == 0, same.output
    assert "packet by packet" in same.output
    done = runner.invoke(compare_verb.command, [str(folder), str(other), "--format", "json"])
    assert done.exit_code == 0, done.output
    content = json.loads(done.stdout)["others"][0]
    changed = [change["name"] for change in content["inputs"] if change["asked"]]
    assert changed == ["transport", "switch", "faults", "--capture"]
    keys = {one["key"] for one in content["values"]}
    assert {"time_us", "goodput_gbps", "marked_packets"} <= keys
    assert len(content["only_in_base"]) == 1
