"""Drawings of fabrics: nothing is lost by drawing alike things as one, and Graphviz takes them."""

import dataclasses
import itertools
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable
from ipaddress import IPv4Interface
from xml.etree import ElementTree

import pytest

from topologies import catalogue
from topologies.exports import dot
from topologies.exports.heat import COLOURS, STEPS, Heat, number, round_above
from topologies.exports.picture import LONGEST_ROW, MOST_LINES, Parts, Picture, picture
from topologies.model import CableEnd, Link, Node, Port, Role, Server, Topology

SMALL = (
    "rail_clos",
    "rail_clos:hosts=1,gpus_per_host=1,spines=1",
    "clos:nic_ports=2,planes=own,hosts=3",
    "clos:nic_ports=4,planes=own,hosts=2,gpus_per_host=2",
    "clos:gpus_per_nic=2,gpus_per_host=8,hosts=3",
    "clos:pods=2,hosts=3,super_spines=2",
    "clos:spines=0",
)
LARGE = (
    "rail_clos:hosts=64,gpus_per_host=8",
    "rail_clos:hosts=64,gpus_per_host=8,spines=32",
    "clos:nic_ports=2",
    "clos:rails_per_switch=4,segments=2,hosts=16",
    "clos:rails_per_switch=8,gpus_per_host=8,segments=8,hosts=8",
    "clos:pods=4,segments=2,hosts=8,gpus_per_host=8,spines=8,super_spines=8",
)
needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="dot is not installed")


def fabric(cables: Iterable[tuple[str, str]], **pods: int) -> Topology:
    """Routers ``r...`` and GPUs ``g...``, each in a server of its own, cabled as told."""
    ports: dict[str, list[Port]] = {}
    links = []
    for count, names in enumerate(cables):
        ends = []
        for side, name in enumerate(names):
            own = ports.setdefault(name, [])
            mac = f"02:00:00:{count >> 8:02x}:{count & 255:02x}:{side:02x}"
            address = IPv4Interface(f"172.16.{count // 128}.{count % 128 * 2 + side}/31")
            own.append(Port(name=f"p{len(own)}", mac=mac, address=address))
            ends.append(CableEnd(name, own[-1].name))
        links.append(
            Link(
                a=ends[0],
                b=ends[1],
                rate_bps=400_000_000_000,
                delay_ns=600,
                mtu=9000,
                buffer_bytes=1 << 20,
            )
        )
    nodes = [
        Node(
            name=name,
            role=Role.GPU if name.startswith("g") else Role.ROUTER,
            ports=tuple(own),
            pod=pods.get(name),
        )
        for name, own in ports.items()
    ]
    gpus = [node.name for node in nodes if node.role is Role.GPU]
    return Topology(
        name="direct",
        parameters={},
        servers=tuple(Server(name=f"s{gpu[1:]}", gpus=(gpu,)) for gpu in gpus),
        nodes=tuple(nodes),
        links=tuple(links),
    )


def torus(side: int) -> Topology:
    cables = [(f"g{x}-{y}", f"r{x}-{y}") for x in range(side) for y in range(side)]
    for x in range(side):
        for y in range(side):
            cables.append((f"r{x}-{y}", f"r{(x + 1) % side}-{y}"))
            cables.append((f"r{x}-{y}", f"r{x}-{(y + 1) % side}"))
    return fabric(cables)


def check(drawing: Picture, topology: Topology) -> None:
    """Every node is in one box, and every cable that leaves a server in one line at most."""
    members = [name for box in drawing.boxes for name in box.members]
    drawn = set(members)
    assert len(members) == len(drawn)
    assert drawn >= {switch.name for switch in topology.switches}
    at = {name: box.key for box in drawing.boxes for name in box.members}
    seen = Counter(link for line in drawing.lines for link in line.links)
    assert set(seen.values()) <= {1}
    for line in drawing.lines:
        assert line.lower != line.upper
        for link in line.links:
            assert {at[link.a.node], at[link.b.node]} == {line.lower, line.upper}
    for link in topology.links:
        a, b = at.get(link.a.node), at.get(link.b.node)
        assert (link in seen) == (a is not None and b is not None and a != b)


@pytest.mark.parametrize("spec", SMALL + LARGE)
@pytest.mark.parametrize("full", [False, True])
def test_every_node_and_every_cable_is_in_the_picture(spec: str, full: bool) -> None:
    topology = catalogue.load(spec)
    drawing = picture(topology, full=full)
    check(drawing, topology)
    drawn = {name for box in drawing.boxes for name in box.members}
    assert drawn == {node.name for node in topology.nodes}
    if full or spec in SMALL:
        assert not drawing.collapsed


@pytest.mark.parametrize("spec", LARGE)
def test_a_large_fabric_keeps_a_readable_size(spec: str) -> None:
    drawing = picture(catalogue.load(spec))
    assert drawing.collapsed
    assert len(drawing.lines) <= MOST_LINES
    assert sum(len(box.cells) for box in drawing.rows[0].boxes) <= LONGEST_ROW[0]
    for row in drawing.rows[1:]:
        assert len(row.boxes) <= LONGEST_ROW[1]


def test_more_servers_make_no_more_strands_to_look_at() -> None:
    spec = "rail_clos:hosts={},gpus_per_host=8,rails_per_switch=8,uplinks_per_spine=4"
    small, large = (Parts(catalogue.load(spec.format(hosts))) for hosts in (65, 200))
    assert len(large.strands) == len(small.strands) == 8 + 2  # GPUs and spines


@pytest.mark.parametrize("spec", LARGE)
def test_what_is_drawn_as_one_has_the_same_cables(spec: str) -> None:
    topology = catalogue.load(spec)
    drawing = picture(topology)
    at = {name: box.key for box in drawing.boxes for name in box.members}
    for box in drawing.boxes:
        cables: dict[str, Counter[str]] = {}
        for name in box.members:
            node = topology.node(name)
            part = cables.setdefault(node.server or name, Counter())
            part.update(at[far.node] for _, _, far in topology.neighbours(name))
        assert len(cables) == box.count
        assert all(part == next(iter(cables.values())) for part in cables.values())


def test_a_switch_that_differs_is_not_drawn_with_the_others() -> None:
    whole = catalogue.load("rail_clos:hosts=64,gpus_per_host=8,spines=32")
    cut = next(link for link in whole.links if link.b.node == "spine5")
    slower = dataclasses.replace(cut, rate_bps=cut.rate_bps // 2)
    links = tuple(slower if link is cut else link for link in whole.links)
    drawing = picture(dataclasses.replace(whole, links=links))
    (alone,) = [box for box in drawing.boxes if "spine5" in box.members]
    assert alone.members == ("spine5",)
    assert [box.count for box in drawing.rows[-1].boxes] == [31, 1]


def test_the_512_gpu_picture_says_what_an_architect_asks() -> None:
    source = dot.to_dot(catalogue.load("rail_clos:hosts=64,gpus_per_host=8"))
    for words in (
        "512 GPUs in 64 servers, 1024 links",
        "64 servers, alike",
        "h0g7 .. h63g7",
        "10.0.8.2 .. 10.0.8.65",
        "64 x 400 Gbps",
        "32 x 400 Gbps",
        "8 rail switches",
        "1:1 down : up",
    ):
        assert words in source


@needs_dot
@pytest.mark.parametrize("spec", SMALL)
def test_graphviz_draws_every_node(spec: str) -> None:
    topology = catalogue.load(spec)
    root = ElementTree.fromstring(drawn(dot.to_dot(topology)))
    text = " ".join(
        [*root.itertext(), *(value for item in root.iter() for value in item.attrib.values())]
    )
    for node in topology.nodes:
        assert re.search(rf"\b{node.name}\b", text), node.name


@needs_dot
@pytest.mark.parametrize("spec", [LARGE[0], LARGE[-1]])
def test_graphviz_draws_large_fabrics(spec: str) -> None:
    topology = catalogue.load(spec)
    ElementTree.fromstring(drawn(dot.to_dot(topology)))
    heat = Heat(title="x & <y>", unit="%", values={str(x.a): 7.0 for x in topology.links})
    ElementTree.fromstring(drawn(dot.to_dot(topology, heat=heat)))


def drawn(source: str) -> str:
    done = subprocess.run(["dot", "-Tsvg"], input=source, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@needs_dot
def test_a_shared_nic_tells_the_rate_of_its_pcie_side() -> None:
    drawn = dot.to_dot(catalogue.load("shared_nic"))
    assert drawn.count("PCIe 4 x 256 Gbps") == 4
    assert "PCIe" not in dot.to_dot(catalogue.load("nic_per_gpu"))


def test_a_torus_has_no_rows_and_its_switches_tell_of_their_gpus() -> None:
    topology = torus(4)
    drawing = picture(topology)
    check(drawing, topology)
    assert drawing.direct
    assert len(drawing.boxes) == 16
    assert len(drawing.lines) == 32
    assert all("g" in "".join(box.title[1:]) for box in drawing.boxes)
    source = dot.to_dot(topology)
    assert "layout=neato" in source
    assert source.count("400 Gbps per line") == 1
    ElementTree.fromstring(drawn(source))


@needs_dot
@pytest.mark.parametrize(
    "spec",
    [
        "multi_pod:pods=3,nic_ports=1,rails_per_switch=4",
        "clos:pods=2,segments=2,hosts=2,gpus_per_host=2,super_spines=2",
    ],
)
def test_pods_stand_in_their_order_beside_the_titles_of_rows(spec: str) -> None:
    source = dot.to_dot(catalogue.load(spec))
    plain = subprocess.run(
        ["dot", "-Tplain"], input=source, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    places = re.findall(r'^node (?:"([^"]+)"|(\S+)) (\S+)', plain, re.MULTILINE)
    x = {quoted or bare: float(place) for quoted, bare, place in places}
    rails = sorted((name for name in x if name.startswith("rail")), key=lambda n: int(n[4:]))
    assert len(rails) > 2
    order = [x["row 4"], *(x[name] for name in rails)]
    assert order == sorted(order)


def test_switches_that_look_like_one_stand_side_by_side() -> None:
    bonded = catalogue.load("clos:hosts=2,gpus_per_host=2,nic_ports=2,homing=bond,spines=0")
    _, row = picture(bonded).rows
    assert [box.key for box in row.boxes] == ["rail0", "rail2", "rail1", "rail3"]


def test_a_large_dragonfly_is_drawn_by_its_groups() -> None:
    groups, routers = 6, 12
    cables = []
    pods: dict[str, int] = {}
    for group in range(groups):
        names = [f"r{group}-{number}" for number in range(routers)]
        pods |= dict.fromkeys(names, group)
        for name in names:
            cables.append((f"g{name[1:]}", name))
        cables += [(a, b) for a in names for b in names if a < b]
        for other in range(group):
            cables.append((names[other], f"r{other}-{group}"))
    drawing = picture(fabric(cables, **pods))
    assert [box.count for box in drawing.boxes] == [routers] * groups
    assert [box.pod for box in drawing.boxes] == list(range(groups))
    assert len(drawing.lines) == groups * (groups - 1) / 2
    values = {"g2-3:p0": 40.0, "r2-3:p0": 10.0, "r2-0:p1": 70.0}
    hot = picture(fabric(cables, **pods), heat=Heat(title="", unit="%", most=100, values=values))
    assert hot.boxes[2].title[-4:] == ("↑ 40 %", "↓ 10 %", "66 x 400 Gbps among them", "70 %")


def test_colours_tell_values_apart_by_brightness_alone() -> None:
    def brightness(colour: str) -> float:
        red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    shades = [brightness(colour) for colour in COLOURS[1:]]
    assert shades == sorted(shades, reverse=True)
    assert min(a - b for a, b in itertools.pairwise(shades)) > 20


def test_values_find_their_step() -> None:
    heat = Heat(title="", unit="packets", values={"a:b": 1344.0})
    assert heat.end == 2000
    assert [heat.step(value) for value in (0, 1, 400, 401, 2000, 9999)] == [0, 1, 1, 2, 5, STEPS]
    assert heat.legend()[0] == (COLOURS[0], "0")
    assert heat.legend()[-1] == (COLOURS[-1], "1600 - 2000 packets")
    assert Heat(title="", unit="%", values={}, most=100).legend()[1][1] == "0 - 20 %"
    assert [number(x) for x in (0, 0.004, 0.25, 37.62, 1344, 2.5e6)] == [
        "0",
        "<0.01",
        "0.25",
        "37.6",
        "1344",
        "2.5e+06",
    ]
    assert [round_above(x) for x in (0, 1, 3, 7, 21, 99)] == [5, 1, 5, 10, 25, 100]


def test_heat_replaces_the_colours_of_rails_and_says_both_directions() -> None:
    topology = catalogue.load("rail_clos:hosts=2,gpus_per_host=2,spines=1")
    heat = Heat(title="t", unit="%", most=100, values={"h0g0:eth0": 90.0, "rail0:down0": 10.0})
    drawing = picture(topology, heat=heat)
    (line,) = [line for line in drawing.lines if line.cell == "h0g0.rail0"]
    assert line.colour == COLOURS[STEPS]
    (cell,) = [cell for box in drawing.boxes for cell in box.cells if cell.key == line.cell]
    assert cell.text[-2:] == ("↑ 90 %", "↓ 10 %")
    others = {line.colour for line in drawing.lines} - {COLOURS[STEPS]}
    assert others == {COLOURS[0]}
