"""Run folders that older versions wrote by the host's clock are read by every verb."""

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from emulator.cli.decode.decode_verb import command as decode
from emulator.cli.graph.graph_verb import command as graph
from emulator.cli.reports.compare_verb import command as compare
from emulator.cli.reports.follow_verb import command as follow
from emulator.cli.reports.report_verb import command as report
from emulator.cli.run_verb import command as run
from tests import DATA
from tests.harness.runs.written_folder import result, row, write_folder

FOLDERS = DATA / "host_clock_runs"
#: The verdict of each, and words of its reason.
TOLD = {
    "uet": ("OK", "this machine kept up"),
    "rocev2": ("OK", "this machine kept up"),
    "limited": ("host-limited", "a fault was applied 42638 ns of fabric time late"),
}
NO_DIGEST = "none: by the host's clock no run repeats to the bit"
ITS_TIMES = "Times are those of the host's clock divided by the run's dilation"


def said(verb: click.Command, *words: str | Path) -> str:
    outcome = CliRunner().invoke(verb, [str(word) for word in words])
    if outcome.exception is not None:
        raise outcome.exception
    return outcome.stdout


def compared(*folders: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(said(compare, *folders, "--format", "json"))
    return content


@pytest.mark.parametrize("name", TOLD)
def test_its_report_says_the_verdict_and_that_there_is_no_digest(tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(FOLDERS / name, tmp_path / name)
    page = html.unescape(Path(said(report, folder).strip()).read_text())
    word, sentence = TOLD[name]
    assert re.search(rf">\s*{word}\b", page)
    assert sentence in page
    assert "digest <code>none</code>" in page
    assert NO_DIGEST in page
    assert "Without <code>--clock host</code> and <code>--dilation</code>" in page
    figures = folder / "report-figures"
    for drawn in ("fabric", "ideal", "message-latency", "queues", "timeline"):
        content = json.loads((figures / f"{drawn}.json").read_text())
        assert content["reason"] is None
        assert content["data"]
    for refused in ("ladder", "packet-latency"):
        reason = json.loads((figures / f"{refused}.json").read_text())["reason"]
        assert "times of the host's clock" in reason


@pytest.mark.parametrize("name", TOLD)
def test_it_is_like_itself(name: str) -> None:
    (same,) = compared(FOLDERS / name, FOLDERS / name)["others"]
    assert same["inputs"] == []
    assert {value["judgement"] for value in same["values"]} == {"same"}


def test_it_is_compared_with_a_run_in_virtual_time(tmp_path: Path) -> None:
    old, new = FOLDERS / "uet", tmp_path / "new"
    fabric = ("--topology", "tor:radix=2,gpus_per_host=1", "--fabric", "model")
    sizes = ("--sizes", "8KiB", "--iterations", "1", "--param", "warmups=0", "--capture", "all")
    said(run, "permutation", *fabric, *sizes, "--output", new)
    (beside,) = compared(old, new)["others"]
    inputs = {one["name"]: (one["base"], one["other"]) for one in beside["inputs"]}
    assert inputs["clock"] == ("host, dilation 80000.0", "virtual")
    values = {value["key"]: value for value in beside["values"]}
    assert values["wrong"]["judgement"] == "same"
    assert values["time_us"]["base"] > values["time_us"]["other"]


@pytest.mark.parametrize(
    ("name", "words", "way"),
    [
        (
            "uet",
            ("--psn", "855344313"),
            "h0g0:eth0 leaf0:down0 leaf0:up0 spine0:down0 spine0:down1 leaf1:up0 leaf1:down0 "
            "h1g0:eth0",
        ),
        ("rocev2", ("--psn", "3406015"), "h0g0:eth0 rail0:down0 rail0:down1 h1g0:eth0"),
        (
            "limited",
            ("--message", "1", "--psn", "1722006119"),
            " ".join(2 * ["h1g0:eth0 rail0:down1 rail0:down0 h0g0:eth0"]),
        ),
    ],
)
def test_a_packet_is_followed_in_it(name: str, words: tuple[str, ...], way: str) -> None:
    told = said(follow, FOLDERS / name, *words)
    ports = re.findall(r"attempt \d +\| (\S+)", told)
    assert ports == way.split()
    assert ITS_TIMES in told


def test_its_event_log_is_named_and_not_asked_for_again(tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDERS / "limited", tmp_path / "limited")
    words = ("--psn", "1722006119")
    assert "repeat the run with --event-log h1g0" in said(follow, folder, *words)
    data = {"peer": "10.0.1.2", "pdc": 50186, "psn": 1722006119, "trigger": "rto"}
    event = {"time": 14.6, "name": "uet:packet_retransmitted", "data": data}
    (folder / "event-logs").mkdir()
    line = json.dumps(event, separators=(",", ":"))
    (folder / "event-logs" / "h1g0.sqlog").write_text(f"\x1e{line}\n")
    told = said(follow, folder, *words)
    assert "the event log of h1g0, whose times are not the capture's" in told
    assert "repeat the run" not in told


@pytest.mark.parametrize(("name", "lines"), [("uet", 8), ("rocev2", 4), ("limited", 4)])
def test_its_links_are_drawn(tmp_path: Path, name: str, lines: int) -> None:
    shown = said(graph, FOLDERS / name)
    used = re.findall(r"^\| \S+ +\| \S+ +\| +([\d.]+) \|", shown, re.M)
    assert len(used) == lines
    assert all(float(share) > 0 for share in used)
    drawing = tmp_path / "fabric.dot"
    said(graph, FOLDERS / name, "-o", drawing)
    assert drawing.read_text().startswith("graph")


def test_its_capture_is_decoded() -> None:
    told = said(decode, "--brief", FOLDERS / "uet" / "capture.pcapng").splitlines()
    assert sum("pds.rud_req psn=855344313" in line for line in told) == 8


def test_a_run_in_virtual_time_that_failed_is_not_taken_for_one(tmp_path: Path) -> None:
    """Neither has a digest."""
    unknown = {"verdict": "unknown", "reasons": []}
    changes = {"digest": None, "fidelity": unknown, "errors": ["cut off"]}
    folder = write_folder(tmp_path / "run", result(row(), **changes))
    assert "none: the run ended early" in Path(said(report, folder).strip()).read_text()
    (beside,) = compared(folder, FOLDERS / "rocev2")["others"]
    inputs = {one["name"]: (one["base"], one["other"]) for one in beside["inputs"]}
    assert inputs["clock"] == ("virtual", "host, dilation 100000.0")
