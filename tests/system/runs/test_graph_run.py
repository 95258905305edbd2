"""``uetemu graph RUN``: a real run, then its folder drawn, listed and refused."""

import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from emulator.cli.graph import graph_verb
from emulator.errors import UserError
from emulator.pytest_plugin.runs import RunFactory
from emulator.report.row_heat import MEASURES, busiest, heat
from emulator.report.run_folder import RunRecord
from emulator.run_files import PAUSES
from emulator.topology_file import from_record
from tests.scenarios.test_traffic_runs import TINY, run
from topologies import catalogue
from topologies.exports.heat import COLOURS
from topologies.exports.mermaid import as_data

SPEC = "rail_clos:hosts=3,gpus_per_host=2,spines=1,uplinks_per_spine=1"
pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def folder(uetemu_run_factory: RunFactory) -> Path:
    """An incast of 1, then 2 senders on rail 0, whose switches pause."""
    options = ("--topology", SPEC, "--switch", "lossless")
    given = {"senders": "1,2", "victim": "0", "iterations": "1", **TINY}
    path: Path = run(uetemu_run_factory, "incast", *options, **given)["folder"]
    return path


def graph(*arguments: str | Path) -> Result:
    words = list(map(str, arguments))
    return CliRunner().invoke(graph_verb.command, words, catch_exceptions=True)


def test_rows_have_what_their_own_iterations_sent(folder: Path) -> None:
    recorded = RunRecord.read(folder)
    assert recorded.topology == catalogue.load(SPEC)
    assert [recorded.ports_of(n).row for n in (1, 2, -1, None)] == [1, 2, 2, 2]
    into = "rail0:down0"
    payload = [row["total_bytes"] for row in recorded.rows]
    for number, row in enumerate(recorded.rows, start=1):
        ports = recorded.ports_of(number)
        assert PAUSES in ports.observes
        assert ports.span_us == pytest.approx(row["time_us"] * row["iterations"])
        sent = ports.ports[into]["tx_bytes"]
        assert payload[number - 1] < sent < 1.2 * payload[number - 1]
        rate = recorded.topology.links[0].rate_bps
        assert 0 < ports.utilisation(into, rate) <= 1.02
        assert ports.utilisation("rail0:up0", rate) < ports.utilisation(into, rate)
        assert "tx_bytes" not in ports.ports["h0g1:eth0"]
    first, second = busiest(recorded, 1, "utilisation"), busiest(recorded, 2, "utilisation")
    assert str(first[0].port) in (into, "h1g0:eth0")
    assert str(second[0].port) == into


def test_the_drawing_has_the_colours_of_the_row(folder: Path) -> None:
    recorded = RunRecord.read(folder)
    for colour in MEASURES:
        done = graph(folder, "--colour", colour, "--format", "dot")
        assert done.exit_code == 0, done.exception
        shown = heat(recorded, None, colour)
        (title,) = re.findall(r"<TD>([^<]*row 2 of 2[^<]*)</TD>", done.stdout)
        assert "incast" in title
        for shade, words in shown.legend():
            assert f'BGCOLOR="{shade}"' in done.stdout
            assert words in done.stdout
        hottest = shown.colour(max(shown.values.values()))
        assert f'-- "rail0":s [color="{hottest}"' in done.stdout
        assert f'-- "rail1":s [color="{COLOURS[0]}"' in done.stdout
    assert graph(folder, "--row", "1", "-f", "dot").stdout != graph(folder, "-f", "dot").stdout


@pytest.mark.skipif(shutil.which("dot") is None, reason="the program dot is not installed")
def test_the_svg_is_well_formed(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "run.svg"
    assert graph(folder, "-o", target).exit_code == 0
    text = " ".join(ElementTree.fromstring(target.read_text()).itertext())
    for node in catalogue.load(SPEC).nodes:
        assert node.name in text
    assert "80 - 100 %" in text


def test_the_text_lists_the_busiest_links(folder: Path) -> None:
    lines = graph(folder).stdout.splitlines()
    assert "row 2 of 2" in lines[0]
    assert lines[2].split("|")[1:4] == [" from        ", " to          ", " used (%) "]
    first = [cell.strip() for cell in lines[4].split("|")]
    assert first[1:3] == ["rail0:down0", "h0g0:eth0"]
    assert 0 < float(first[3]) <= 102


def test_other_formats_are_those_of_its_fabric(folder: Path) -> None:
    done = graph(folder, "-f", "json")
    assert json.loads(done.stdout)["links"] == json.loads(graph(SPEC, "-f", "json").stdout)["links"]
    assert graph(folder, "-f", "htsim").stdout == graph(SPEC, "-f", "htsim").stdout


def test_what_a_folder_does_not_tell_is_said(folder: Path, tmp_path: Path) -> None:
    for arguments, words in (
        ((folder, "--row", "3"), "has rows 1 to 2"),
        ((folder, "--row", "0"), "has rows 1 to 2"),
        ((folder, "--row", "1", "-f", "json"), "does not show what links saw"),
        ((SPEC, "--full", "-f", "csv"), "--full is for drawings"),
        ((SPEC, "--colour", "marks"), "need the folder of a run"),
        ((tmp_path,), "neither a topology nor a running lab nor the folder of a run"),
    ):
        done = graph(*arguments)
        assert isinstance(done.exception, UserError)
        assert words in str(done.exception)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    events = (copy / "events.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in events if json.loads(line)["event"] != "ports"]
    (copy / "events.jsonl").write_text("".join(kept) + '{"event": "po')  # killed while writing
    assert "older version" in str(graph(copy).exception)
    result = json.loads((copy / "result.json").read_text())
    (copy / "result.json").write_text(json.dumps(result | {"rows": []}))
    assert "has no row" in str(graph(copy).exception)
    (copy / "fabric.json").write_text('{"name": "x"}')
    assert "of another version" in str(graph(copy).exception)
    (copy / "result.json").write_text("{")
    assert "cannot be read" in str(graph(copy).exception)


def test_without_a_model_of_switches_there_are_no_marks(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    text = (copy / "events.jsonl").read_text()
    (copy / "events.jsonl").write_text(text.replace('"switch", "pauses"]', "]").replace(", ]", "]"))
    for colour, why in (("marks", "--switch none"), ("pauses", "do not pause")):
        done = graph(copy, "--colour", colour)
        assert isinstance(done.exception, UserError)
        assert why in str(done.exception)
    assert graph(copy).exit_code == 0


@pytest.mark.parametrize(
    "spec", ["rail_clos", "clos:nic_ports=2", "clos:gpus_per_nic=2", "fabric_planes"]
)
def test_a_recorded_fabric_reads_back(spec: str) -> None:
    topology = catalogue.load(spec)
    assert from_record(json.loads(json.dumps(as_data(topology)))) == topology
