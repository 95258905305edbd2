"""InfraGraph: fabrics come back as they were written, and files of others become fabrics."""

import copy
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from emulator.cli.graph.graph_verb import command as graph
from emulator.dataplane.fabric_choice import choose
from emulator.errors import UserError
from tests.harness.runs.processes import SMALL
from topologies import catalogue
from topologies.elements import ScaleUp, Server
from topologies.exports.infragraph_export import to_infragraph
from topologies.imports import infragraph_file
from topologies.imports.infragraph_file import read_infragraph
from topologies.model import Role, Topology, TopologyError

FILE = "x.infragraph.json"
#: Designs that have what InfraGraph or the import has no form for, and words of the refusal.
REFUSED_EXPORTS = {
    "dual_rail_switch": "bonds or standby",
    "host_segment": "bonds or standby",
    "shared_nic": "NICs that GPUs share",
    "cluster_storage": "joins machines and no GPUs",
}
REFUSED_IMPORTS = {"dragonfly_plus": "are joined and in the tiers"}
EXPORTED = [name for name in catalogue.DESIGNS if name not in REFUSED_EXPORTS]
Json = dict[str, Any]


def cables(topology: Topology) -> Counter[tuple[object, ...]]:
    return Counter(
        (
            tuple(sorted((link.a.node, link.b.node))),
            *(link.rate_bps, link.delay_ns, link.mtu, link.buffer_bytes),
        )
        for link in topology.links
    )


def as_infragraph_says(server: Server) -> Server:
    """``server`` without what InfraGraph lacks of its scale-up network."""
    usual = ScaleUp()
    known = replace(server.scale_up, links=usual.links, sums=usual.sums)
    return replace(server, scale_up=known)


@pytest.mark.parametrize("name", [name for name in EXPORTED if name not in REFUSED_IMPORTS])
def test_a_design_comes_back_with_the_same_cables_and_servers(name: str) -> None:
    topology = catalogue.load(name)
    back = read_infragraph(to_infragraph(topology), FILE)
    assert cables(back) == cables(topology)
    assert back.servers == tuple(map(as_infragraph_says, topology.servers))
    assert [gpu.name for gpu in back.gpus] == [gpu.name for gpu in topology.gpus]
    assert back.parameters["file"] == FILE


@pytest.mark.parametrize("shape", ["mesh", "ring", "switch"])
def test_scale_up_networks_and_sizes_come_back(shape: str) -> None:
    spec = f"rail_clos:scale_up={shape},scale_up_rate=1Tbps,scale_up_latency=300ns,mtu=4096"
    topology = catalogue.load(f"{spec},buffer=2MiB,nic_rate=100Gbps,uplink_delay=450ns")
    back = read_infragraph(to_infragraph(topology), FILE)
    assert back.servers == topology.servers
    assert cables(back) == cables(topology)
    assert {node.name: node.rail for node in back.nodes if node.role is Role.RAIL} == {
        "rail0": 0, "rail1": 1, "rail2": 2, "rail3": 3,
    }  # fmt: skip


@pytest.mark.parametrize("name", REFUSED_EXPORTS)
def test_what_has_no_form_is_refused(name: str) -> None:
    with pytest.raises(TopologyError, match=REFUSED_EXPORTS[name]):
        to_infragraph(catalogue.load(name))


@pytest.mark.parametrize("name", REFUSED_IMPORTS)
def test_what_cannot_be_routed_is_refused(name: str) -> None:
    with pytest.raises(TopologyError, match=REFUSED_IMPORTS[name]):
        read_infragraph(to_infragraph(catalogue.load(name)), FILE)


@pytest.mark.skipif(
    find_spec("infragraph") is None,
    reason="the package infragraph is not installed (pip install 'uetemu[test]')",
)
@pytest.mark.parametrize("name", EXPORTED)
def test_the_library_makes_the_same_graph(name: str) -> None:
    from infragraph.infragraph_service import InfraGraphService

    topology = catalogue.load(name)
    service = InfraGraphService()
    service.set_graph(to_infragraph(topology))
    edges = service.get_networkx_graph().edges(data=True)
    between = [data for one, other, data in edges if one.split(".")[:2] != other.split(".")[:2]]
    rates = Counter(data["bandwidth"] for data in between)
    expected = Counter(f"{link.rate_bps / 1e9:g} Gbps" for link in topology.links)
    assert rates == expected


def others() -> Json:
    """Two servers of two XPUs whose NICs are devices with two ports, one at each of two switches.

    Slices, both schemes and other units are used, and a name that no node can have.
    """
    rate = {"bandwidth": {"choice": "gigabytes_per_second", "gigabytes_per_second": 25}}

    def edge(one: tuple[str, str], other: tuple[str, str]) -> Json:
        ends = [{"instance": instance, "component": path} for instance, path in (one, other)]
        return {"ep1": ends[0], "ep2": ends[1], "scheme": "one2one", "link": "eth"}

    return {
        "name": "two planes",
        "devices": [
            {
                "name": "cx7",
                "components": [{"name": "port", "count": 2, "choice": "port"}],
                "links": [],
                "edges": [],
            },
            {
                "name": "host",
                "components": [
                    {"name": "xpu", "count": 2, "choice": "xpu"},
                    {"name": "cx7", "count": 2, "choice": "device"},
                ],
                "links": [{"name": "pcie"}],
                "edges": [],
            },
            {
                "name": "box",
                "components": [{"name": "port", "count": 8, "choice": "port"}],
                "links": [],
                "edges": [],
            },
        ],
        "links": [{"name": "eth", "physical": {**rate, "latency": {"choice": "us", "us": 0.5}}}],
        "instances": [
            {"name": "DGX", "device": "host", "count": 2},
            {"name": "tier_0", "device": "box", "count": 2},
        ],
        "edges": [
            edge(("DGX[:]", "cx7[0].port[0]"), ("tier_0[0]", "port[0:2]")),
            edge(("DGX[:]", "cx7[1].port[0]"), ("tier_0[0]", "port[2:4]")),
            edge(("DGX[0:2]", "cx7[0].port[1]"), ("tier_0[-1]", "port[0:4:2]")),
            edge(("DGX", "cx7[1].port[-1]"), ("tier_0[1]", "port[1:4:2]")),
        ],
    }


def test_a_file_of_another_tool_becomes_a_fabric() -> None:
    topology = read_infragraph(json.dumps(others()), FILE)
    assert [gpu.name for gpu in topology.gpus] == ["dgx0g0", "dgx0g1", "dgx1g0", "dgx1g1"]
    assert [switch.name for switch in topology.switches] == ["tier-0-0", "tier-0-1"]
    joined = {(link.a.node, link.b.node, link.rate_bps, link.delay_ns) for link in topology.links}
    assert joined == {
        (gpu.name, switch, 200 * 10**9, 500)
        for gpu in topology.gpus
        for switch in ("tier-0-0", "tier-0-1")
    }
    assert {link.mtu for link in topology.links} == {9000}


def test_yaml_is_read_and_the_older_wrapper_is_taken_off() -> None:
    text = json.dumps({"infrastructure": others()})  # JSON is YAML
    assert len(read_infragraph(text, "x.infragraph.yaml").gpus) == 4


def without(*path: str | int) -> Callable[[Json], None]:
    def change(content: Any) -> None:
        for step in path[:-1]:
            content = content[step]
        del content[path[-1]]

    return change


def put(value: object, *path: str | int) -> Callable[[Json], None]:
    def change(content: Any) -> None:
        for step in path[:-1]:
            content = content[step]
        content[path[-1]] = value

    return change


#: A NIC that contains the server that contains it.
CIRCLE = [
    {"name": "port", "count": 2, "choice": "port"},
    {"name": "host", "count": 2, "choice": "device"},
]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("edges"), "needs servers"),
        (without("links"), "no link 'eth'"),
        (without("links", 0, "physical"), "no physical.bandwidth"),
        (without("edges", 0, "ep1"), "no 'ep1'"),
        (put("ring", "edges", 0, "scheme"), "scheme 'ring'"),
        (put("DGX[0:2", "edges", 0, "ep1", "instance"), "no name with a slice"),
        (put("DGX[x]", "edges", 0, "ep1", "instance"), "slice"),
        (put("DGX[5]", "edges", 0, "ep1", "instance"), "no number 5"),
        (put("nic[0]", "edges", 0, "ep1", "component"), "no component 'nic'"),
        (put("tier_0[0]", "edges", 0, "ep1", "instance"), "no component 'cx7'"),
        (put("port[2:4]", "edges", 0, "ep2", "component"), "two cables"),
        (put(10**9, "instances", 0, "count"), "the count 1000000000"),
        (put(10**9, "devices", 1, "components", 0, "count"), "the count 1000000000"),
        (put(CIRCLE, "devices", 0, "components"), "contains itself"),
        (put("Tier-0", "instances", 0, "name"), "one name in lower case"),
        (put("none", "instances", 0, "device"), "no device 'none'"),
        (put([1], "edges"), "no list of objects"),
        (put(3, "devices", 1, "components", 0, "count"), "3 XPUs and 4 cables"),
    ],
)
def test_wrong_files_get_one_sentence(change: Callable[[Json], None], words: str) -> None:
    content = copy.deepcopy(others())
    change(content)
    with pytest.raises(TopologyError, match=r"^x\.infragraph\.json: ") as refusal:
        read_infragraph(json.dumps(content), FILE)
    assert words in str(refusal.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": NaN', "[" * 100_000, "\0"])
@pytest.mark.parametrize("name", [FILE, "x.infragraph.yaml"])
def test_what_is_no_infrastructure_is_refused(text: str, name: str) -> None:
    with pytest.raises(TopologyError, match=f"^{name}: "):
        read_infragraph(text, name)


def test_files_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infragraph_file, "LARGEST_YAML", 100)
    with pytest.raises(TopologyError, match="longer than 100"):
        read_infragraph("#" * 101, "x.infragraph.yaml")
    monkeypatch.setattr(infragraph_file, "MOST_EDGES", 2)
    with pytest.raises(TopologyError, match="more than 2"):
        read_infragraph(json.dumps(others()), FILE)


def test_the_command_line_takes_such_files(tmp_path: Path) -> None:
    from click.testing import CliRunner

    spec = SMALL[1]
    out = tmp_path / "Small.infragraph.json"
    assert CliRunner().invoke(graph, [spec, "-o", str(out)]).exception is None
    chosen = choose(str(out))
    assert (chosen.label, len(chosen.topology.gpus)) == ("small", 4)
    with pytest.raises(UserError, match="cannot be read"):
        choose(str(tmp_path / "none.infragraph.yaml"))
