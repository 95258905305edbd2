"""Drawings and data of a topology, and the command that shows them."""

import json
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from emulator.cli.graph import graph_tables, graph_verb
from emulator.dataplane import lab_record
from emulator.errors import UserError
from emulator.topology_file import to_json
from topologies import catalogue
from topologies.analysis.one_way_delay import one_way_delays
from topologies.bill_of_materials import NIC, bill_of
from topologies.designs.rail_clos import rail_clos
from topologies.exports import mermaid as export
from topologies.exports.dot import source, to_dot
from topologies.exports.picture import MOST_LINES, picture
from topologies.model import Topology, TopologyError


@pytest.fixture(scope="module")
def topology() -> Topology:
    return rail_clos()


def _graph(*arguments: str) -> Result:
    return CliRunner().invoke(graph_verb.command, arguments, catch_exceptions=True)


def test_tables_have_the_longest_one_way_delays_and_their_bounds() -> None:
    assert "3.123 us, bound 10 us (h0g0 - rail0" in _graph("rail_clos").stdout
    assert "3.123 us, 123 ns above" in _graph("rail_clos", "--delay-bound", "3us").stdout


def test_mermaid_has_every_node_and_every_bundle_of_links(topology: Topology) -> None:
    source = export.to_mermaid(topology)
    assert source.startswith("flowchart TB\n")
    assert source.count("---|") == 24 + 4 * 2
    assert source.count("subgraph") == source.count("  end\n") == 6
    names = set(re.findall(r"\bn_\w+", source))
    assert len(names) == 24 + 6 + 6


def test_mermaid_puts_a_shared_nic_into_its_server() -> None:
    source = export.to_mermaid(catalogue.load("shared_nic"))
    servers = re.findall(r"subgraph \w+\[(.*?)\n  end", source, re.DOTALL)
    for number, inside in enumerate(servers):
        assert f'n_h{number}n0["h{number}n0"]' in inside
        assert f'n_h{number}n1["h{number}n1"]' in inside
    assert len(servers) == 2


def test_a_standby_link_is_drawn_as_one() -> None:
    bonded = catalogue.load("clos:hosts=2,gpus_per_host=1,nic_ports=2,homing=bond,spines=0")
    assert 'n_rail1 -.-|"400 Gbps"| n_rail0' in export.to_mermaid(bonded)
    drawn = to_dot(bonded)
    assert drawn.count("style=dashed") == 1
    assert "standby 400 Gbps" in drawn
    assert "standby" not in to_dot(catalogue.load("torus"))
    assert "1 GPU in 1 server, 1 link<" in to_dot(
        catalogue.load("clos:hosts=1,gpus_per_host=1,spines=0")
    )
    spec = "clos:hosts=2,gpus_per_host=1,nic_ports=2,homing=bond,spines=0"
    assert re.search(r"rail0:peer0 +\| rail1:peer0 +\| standby 400 Gbps", _graph(spec).stdout)


def test_json_says_everything_that_the_model_says(topology: Topology) -> None:
    data = json.loads(json.dumps(export.as_data(topology)))
    assert data["schema"] == "uetemu.topology/1"
    assert [node["name"] for node in data["nodes"]] == [node.name for node in topology.nodes]
    assert len(data["links"]) == len(topology.links)
    assert data["parameters"] == dict(topology.parameters)
    assert data["capacity"]["oversubscription"] == {"rail": "1:1"}
    assert data["capacity"]["bisection_bps"]["rails"] == 4_800_000_000_000


def test_text_is_the_default_and_shows_the_computed_numbers() -> None:
    text = _graph("rail_clos:uplinks_per_spine=1").stdout
    assert re.search(r"rail +\| 4 +\| 6 x 400 Gbps +\| 2 x 400 Gbps +\| 3:1", text)
    assert re.search(r"bisection, rails +1\.6 Tbps", text)
    assert "10.0.1.2 .. 10.0.1.7" in text
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 120


def test_text_does_not_hide_that_ports_of_other_rails_lie_between() -> None:
    text = _graph("single_rail_switch").stdout
    assert re.search(r"\| 1 +\| 102 .* down1, down9, down17 +\|", text)
    text = _graph("single_rail_switch:hosts=9").stdout
    assert re.search(r"\| 1 +\| 102 .* down1, down9 \.\. down65 +\|", text)


def test_text_names_the_switch_that_a_profile_chooses(tmp_path: Path) -> None:
    profile = tmp_path / "linked.yaml"
    profile.write_text("global:\n  switch: lossless\n  llr: on\n  cbfc: on\n")
    assert re.search(r"switch +lossless:llr=on,cbfc=on\n", _graph(str(profile)).stdout)
    assert not re.search(r"^switch  ", _graph("clos").stdout, re.M)


def test_text_has_the_port_map_of_a_host_segment() -> None:
    """Rail 5 of the figure has interfaces 2, 5, 8 and 11."""
    text = _graph("host_segment").stdout
    assert re.search(r"\| 4 +\| 105 .* down1, down4, down7, down10 +\|", text)
    assert "bond, drawn here; paths where the kernel has no bonds" in text


def test_text_has_the_parts_of_workers() -> None:
    text = _graph("rail_clos:hosts=2,gpus_per_host=2,spines=1", "--workers", "3").stdout
    assert "2 workers, windows of 600 ns" in text
    assert re.search(r"\| 0 +\| rail0, spine0 +\| h0g0, h1g0 +\| 2 +\|", text)
    assert re.search(r"\| 1 +\| rail1 +\| h0g1, h1g1 +\| 2 +\|", text)
    assert "across cuts" not in text
    refused = _graph("rail_clos", "--workers", "2", "--format", "dot")
    assert "--workers is for tables" in str(refused.exception)


def test_text_has_the_traffic_of_a_scenario_across_the_parts(tmp_path: Path) -> None:
    asked = ("--scenario", "allreduce", "--param", "sizes=64KiB")
    text = _graph("rail_clos", "--workers", "2", *asked).stdout
    by_traffic = re.search(r"2 workers, windows of 600 ns, (\S+) KiB across cuts", text)
    assert re.search(r"\| 0 +\| rail1, rail3, spine0 .*\| 50% +\|", text)
    parts = tmp_path / "parts"
    parts.write_text("rail0 rail1 spine0\nrail2 rail3 spine1\n")
    text = _graph("rail_clos", "--parts", str(parts), *asked).stdout
    by_hand = re.search(r"2 workers, windows of 600 ns, (\S+) KiB across cuts", text)
    assert by_traffic
    assert by_hand
    assert float(by_traffic[1]) < float(by_hand[1])


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--scenario", "allreduce"), "--scenario and --param are for parts"),
        (("--workers", "2", "--param", "sizes=1"), "--param is of a scenario"),
        (("--workers", "2", "--parts", "PARTS"), "leave --workers 2 out"),
        (("--parts", "PARTS"), "part 1 has no GPU"),
        (("--parts", "PARTS", "--format", "dot"), "--parts is for tables"),
        (("--parts", "NONE"), "cannot be read"),
    ],
)
def test_parts_that_cannot_be_shown_are_refused(
    options: tuple[str, ...], complaint: str, tmp_path: Path
) -> None:
    parts = tmp_path / "parts"
    parts.write_text("rail0 rail1 rail2 rail3\nspine0\n")
    places = {"PARTS": str(parts), "NONE": str(tmp_path / "none")}
    refused = _graph("rail_clos", *(places.get(one, one) for one in options))
    assert complaint in str(refused.exception)


@pytest.mark.nightly
def test_131072_gpus_are_shown_counted_and_drawn() -> None:
    topology = catalogue.load("mrc:scale=1")
    shown = graph_tables.text(topology, one_way_delays(topology, 10_000, 1_000))
    assert "Switch - switch links: 1048576 rows, see --format json" in shown
    assert bill_of(topology).count(NIC) == 131_072
    drawing = picture(topology)
    assert sum(len(box.members) for box in drawing.boxes) == 131_072 + 4096 + 2048
    assert sum(len(line.links) for line in drawing.lines) == 2_097_152
    assert len(drawing.lines) <= MOST_LINES
    assert len(graph_verb.svg(source(drawing, topology.name), topology.name)) < 1 << 20


@pytest.mark.parametrize(("suffix", "start"), [("dot", "graph "), ("mmd", "flow"), ("json", "{")])
def test_the_suffix_of_the_output_file_decides(tmp_path: Path, suffix: str, start: str) -> None:
    target = tmp_path / f"fabric.{suffix}"
    run = _graph("rail_clos", "-o", str(target))
    assert (run.exit_code, run.stdout) == (0, "")
    assert target.read_text().startswith(start)


def test_a_running_lab_is_found_by_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab_record, "STATE", tmp_path)
    (tmp_path / "mylab").mkdir()
    record = tmp_path / "mylab" / "topology.json"
    record.write_text(to_json(rail_clos(hosts=3)))
    assert len(graph_verb.find_topology("mylab").servers) == 3
    with pytest.raises(UserError, match=r"did you mean mylab\?.*running labs are mylab"):
        graph_verb.find_topology("mylb")
    with pytest.raises(UserError, match="neither a topology nor a running lab"):
        graph_verb.find_topology("../mylab")
    for broken in ("{", "[]", "{}"):
        record.write_text(broken)
        with pytest.raises(UserError, match=r"topology of lab mylab cannot be read"):
            graph_verb.find_topology("mylab")


def test_bad_requests_are_user_errors(tmp_path: Path) -> None:
    assert isinstance(_graph("rail_clos:hosts=0").exception, TopologyError)
    nowhere = _graph("rail_clos", "-o", str(tmp_path / "no" / "such.dot")).exception
    assert isinstance(nowhere, UserError)
    assert "cannot write" in str(nowhere)


def test_an_svg_is_as_wide_as_a_page_at_most(topology: Topology) -> None:
    (root,) = re.findall(r"<svg [^>]*>", graph_verb.render(topology, "svg"))
    assert 'style="max-width:100%;height:auto"' in root
    assert "viewBox=" in root


def test_without_graphviz_svg_names_the_command(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UserError, match=r"run vagrant/provision\.sh --with drawings"):
        graph_verb.render(topology, "svg")


def graph(*arguments: str | Path) -> Result:
    words = ["rail_clos:hosts=2", *map(str, arguments)]
    return CliRunner().invoke(graph_verb.command, words, catch_exceptions=True)


@pytest.mark.parametrize("name", ["c.png", "c.bmp", "a.b/c.PNG"])
def test_an_unknown_suffix_is_refused_and_the_known_are_named(tmp_path: Path, name: str) -> None:
    done = graph("-o", tmp_path / name)
    assert isinstance(done.exception, UserError | click.ClickException)
    sentence = str(done.exception)
    assert "\n" not in sentence
    for suffix in graph_verb.suffixes():
        assert suffix in sentence
    assert not (tmp_path / name).exists()


def test_a_suffix_or_an_option_says_the_format(tmp_path: Path) -> None:
    for name, more, start in (
        ("c.JSON", (), "{"),
        ("c.png", ("--format", "dot"), "graph"),
        ("c", (), "topology"),
        ("c.txt", (), "topology"),
    ):
        assert graph("-o", tmp_path / name, *more).exit_code == 0
        assert (tmp_path / name).read_text().lstrip("/* \n").startswith(start)
