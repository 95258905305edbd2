"""A ``.topo`` file, wired as htsim wires it, is the fabric that it was made from.

The rules are those of its reader: FatTreeTopologyCfg::read_cfg and set_custom_params of uet-htsim,
FatTreeTopology::load of csg-htsim.
"""

import dataclasses
import re
from collections import Counter
from typing import Any

import pytest

from emulator import transports
from emulator.dataplane.switch.switch_choice import parse
from emulator.dataplane.switch.switch_fitting import fit
from topologies import catalogue
from topologies.exports.htsim import to_htsim
from topologies.model import Role, Topology, TopologyError
from uet.congestion.spraying.paths import EV_SET_SIZE

Graph = dict[str, Counter[str]]
#: What uet-htsim knows in a tier, less the sizes of queues: those end it beside -q, and csg-htsim
#: always has a -q.
KEYS = {
    "Downlink_speed_Gbps",
    "Radix_Down",
    "Radix_Up",
    "Bundle",
    "Oversubscribed",
    "Switch_Latency_ns",
    "Downlink_Latency_ns",
}
TOPMOST = KEYS - {"Radix_Up", "Oversubscribed"}


def wired(text: str) -> tuple[Graph, list[str]]:
    """Return what htsim makes of ``text``: neighbours of everything, and the GPU of each node."""
    words = [line.split(" ") for line in text.splitlines() if line and not line.startswith("#")]
    assert all(len(pair) == 2 and 0 <= int(pair[1]) < 2**31 for pair in words)
    head = {key: int(value) for key, value in words[:3]}
    assert list(head) == ["Nodes", "Tiers", "Podsize"]
    assert head["Nodes"] % head["Podsize"] == 0
    tiers: list[dict[str, int]] = []
    for key, value in words[3:]:
        if key == "Tier":
            assert int(value) == len(tiers)
            tiers.append({})
        else:
            assert key not in tiers[-1]
            tiers[-1][key] = int(value)
    assert head["Tiers"] == len(tiers)
    assert all(set(tier) == KEYS for tier in tiers[:-1])
    assert set(tiers[-1]) == TOPMOST
    assert all(tier["Downlink_Latency_ns"] > 0 for tier in tiers)
    assert all(tier["Radix_Down"] % tier["Bundle"] == 0 for tier in tiers)
    tor, agg, *core = tiers
    assert tor["Bundle"] == 1
    assert head["Podsize"] % tor["Radix_Down"] == 0
    pods = head["Nodes"] // head["Podsize"]
    tors = head["Podsize"] // tor["Radix_Down"]
    uplinks = head["Nodes"] * tor["Downlink_speed_Gbps"]
    uplinks //= agg["Downlink_speed_Gbps"] * tor["Oversubscribed"]
    aggs = uplinks // (pods * agg["Radix_Down"])
    assert aggs * agg["Bundle"] == tor["Radix_Up"]
    assert tor["Radix_Down"] // tor["Radix_Up"] == tor["Oversubscribed"]
    graph: Graph = {}

    def cable(low: str, high: str, times: int) -> None:
        graph.setdefault(low, Counter())[high] += times
        graph.setdefault(high, Counter())[low] += times

    for node in range(head["Nodes"]):
        cable(f"node{node}", f"tor{node // tor['Radix_Down']}", 1)
    for one in range(pods * tors):
        for other in range(aggs):
            cable(f"tor{one}", f"agg{one // tors * aggs + other}", agg["Bundle"])
    for top in core:
        cores = uplinks * agg["Downlink_speed_Gbps"]
        cores //= top["Downlink_speed_Gbps"] * agg["Oversubscribed"] * top["Radix_Down"]
        for one in range(pods * aggs):
            assert cores * top["Bundle"] // aggs == agg["Radix_Up"]
            for step in range(agg["Radix_Up"] // top["Bundle"]):
                number = one % aggs + aggs * step
                assert number < cores
                cable(f"agg{one}", f"core{number}", top["Bundle"])
    gpus: list[str] = []
    for first, last, names in re.findall(r"# Nodes (\d+)\.\.(\d+) \S+: (.*)", text):
        assert int(first) == len(gpus)
        gpus += names.split()
        assert int(last) == len(gpus) - 1
    assert len(gpus) == head["Nodes"]
    return graph, gpus


def ours(topology: Topology) -> Graph:
    graph: Graph = {node.name: Counter() for node in topology.nodes}
    for link in topology.links:
        graph[link.a.node][link.b.node] += 1
        graph[link.b.node][link.a.node] += 1
    return graph


def paths(graph: Graph, source: str) -> dict[str, tuple[int, int]]:
    """Hops to everything, and over how many shortest paths (parallel links apart)."""
    found = {source: (0, 1)}
    front = [source]
    while front:
        reached: dict[str, tuple[int, int]] = {}
        for name in front:
            hops, ways = found[name]
            for far, times in graph[name].items():
                if far not in found:
                    so_far = reached.get(far, (0, 0))[1]
                    reached[far] = (hops + 1, so_far + ways * times)
        found |= reached
        front = list(reached)
    return found


def test_gpus_of_a_large_switch_are_not_named_one_by_one() -> None:
    text = to_htsim(catalogue.load("rail_clos:hosts=24,gpus_per_host=1,uplinks_per_spine=2"))
    assert "# Nodes 0..23 rail0: h0g0 h1g0 ... h23g0\n" in text


def three_tiers() -> Topology:
    """Two pods of two spines; the n-th spine of each pod has the super-spines of plane n."""
    whole = catalogue.load(
        "clos:pods=2,hosts=4,gpus_per_host=2,spines=2,super_spines=4,uplinks_per_super=1"
    )

    def plane(name: str) -> int:
        return int(name.removeprefix("spine").removeprefix("super")) % 2

    kept = [
        link
        for link in whole.links
        if whole.node(link.b.node).role is not Role.SUPER_SPINE
        or plane(link.a.node) == plane(link.b.node)
    ]
    plugged = {str(end) for link in kept for end in link.ends}
    nodes = [
        dataclasses.replace(
            node, ports=tuple(p for p in node.ports if f"{node.name}:{p.name}" in plugged)
        )
        for node in whole.nodes
    ]
    return dataclasses.replace(whole, nodes=tuple(nodes), links=tuple(kept))


@pytest.mark.parametrize(
    "spec",
    [
        "rail_clos",
        "rail_clos:uplinks_per_spine=1",
        "rail_clos:hosts=4,gpus_per_host=3,spines=4,uplinks_per_spine=1",
        "clos:rails_per_switch=2,segments=3,hosts=2",
        "clos:pods=2,spines=1,super_spines=2,hosts=4",
        "fat_tree:radix=6,oversubscription=2,gpus_per_host=3",
        "fat_tree:radix=8",
        "tor:radix=6,oversubscription=2",
        "pod:nic_ports=1,nic_rate=200G,rails_per_switch=4,uplink_rate=200G",
        "fat_tree:radix=4,levels=3,gpus_per_host=2",
        None,
    ],
)
def test_it_is_wired_as_ours(spec: str | None) -> None:
    topology = catalogue.load(spec) if spec else three_tiers()
    theirs, gpus = wired(to_htsim(topology))
    own = ours(topology)
    assert sorted(gpus) == sorted(gpu.name for gpu in topology.gpus)
    assert sorted(map(sorted, (c.values() for c in theirs.values()))) == sorted(
        map(sorted, (c.values() for c in own.values()))
    )
    for source in range(len(gpus)):
        here, there = paths(theirs, f"node{source}"), paths(own, gpus[source])
        for other in range(len(gpus)):
            assert here[f"node{other}"] == there[gpus[other]], (gpus[source], gpus[other])


def test_quantities_are_those_of_the_links() -> None:
    spec = "rail_clos:spines=6,uplinks_per_spine=1,nic_delay=500ns,uplink_delay=1us,buffer=2MiB"
    tor, agg = to_htsim(catalogue.load(spec)).split("Tier 1\n")
    assert "Downlink_Latency_ns 500\n" in tor
    assert "Downlink_Latency_ns 1000\n" in agg
    for part, queues in ((tor, ("Down", "Up")), (agg, ("Down",))):
        assert re.findall(r"^# Queue_(\w+) 2097152$", part, re.MULTILINE) == list(queues)
        assert "Downlink_speed_Gbps 400\n" in part


GIVEN = re.compile(
    r"# Give htsim -linkspeed (\d+) -mtu (\d+) -q (\d+) -ecn (\d+) (\d+)\n# -paths (\d+): "
)


@pytest.mark.parametrize(
    "spec",
    [
        "rail_clos",
        "rail_clos:nic_rate=800G,uplink_rate=800G",
        "rail_clos:mtu=2500",
        "rail_clos:mtu=1500",
        "rail_clos:hosts=9,gpus_per_host=1,spines=1,uplinks_per_spine=1",
    ],
)
def test_what_htsim_takes_on_its_command_line_is_what_a_run_has(spec: str) -> None:
    """NICs, the length of full packets, where switches trim, and entropy values."""
    topology = catalogue.load(spec)
    found = GIVEN.search(to_htsim(topology))
    assert found is not None
    mbps, mtu, queue, low, high, paths = map(int, found.groups())
    run = transports.fit("uet", topology, seed=1)
    assert mbps * 10**6 == topology.links[0].rate_bps
    assert mtu == run.wire.payload_mtu + run.wire.around_bytes
    switch = fit(parse("shallow"), topology, 1000).profile(topology.links[-1])
    assert switch.data.trim_bytes is not None
    assert abs(queue - switch.data.trim_bytes / mtu) <= 0.5
    for packets, octets in ((low, switch.data.kmin_bytes), (high, switch.data.kmax_bytes)):
        assert octets is not None
        assert abs(packets - octets / mtu) <= 0.5
    assert high <= queue  # else htsim stops
    assert paths == EV_SET_SIZE


def test_switches_with_many_ports_are_told_of() -> None:
    assert "ports" not in to_htsim(catalogue.load("rail_clos"))
    text = to_htsim(catalogue.load("fat_tree:radix=96,leaves=4"))
    assert "# Switches have up to 96 ports; some versions stop at 64 or 96.\n" in text


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("rail_clos:uplinks_per_spine=2", r"tier 0 is oversubscribed 1\.5:1"),
        ("rail_clos:uplink_rate=800G,uplinks_per_spine=3", r"tier 0 is oversubscribed 0\.5:1"),
        (
            "rail_clos:uplink_rate=800G,spines=3,uplinks_per_spine=1",
            "computes that from the numbers alone",
        ),
        ("rail_clos:nic_rate=2500Mbps,uplink_rate=2500Mbps", "no whole number of Gbps"),
        ("rail_clos:nic_delay=0", "delay of links below tier 0 is 0"),
        ("clos:nic_ports=2", "GPUs have 2 links each"),
        ("clos:nic_ports=4,spines=3", "GPUs have 4 links each"),
        ("pod", "GPUs have 2 links each"),
        ("clos:gpus_per_nic=2", "does not join a tier to the next above"),
        ("clos:spines=0", "it takes 2 or 3 tiers of switches, and here is 1"),
        ("clos:pods=2,hosts=4,super_spines=2", "not one in each pod"),
    ],
)
def test_what_it_cannot_express_is_said(spec: str, why: str) -> None:
    with pytest.raises(TopologyError, match=why) as refused:
        to_htsim(catalogue.load(spec))
    assert "\n" not in str(refused.value)
    assert "cannot express" in str(refused.value)


def test_unequal_links_are_named() -> None:
    whole = catalogue.load("rail_clos")
    (odd,) = (link for link in whole.links if str(link.a) == "h3g1:eth0")
    changes: tuple[dict[str, Any], ...] = (
        {"rate_bps": 10**11},
        {"delay_ns": 700},
        {"buffer_bytes": 1 << 21},
    )
    for change in changes:
        other = dataclasses.replace(odd, **change)
        links = tuple(other if link is odd else link for link in whole.links)
        with pytest.raises(TopologyError, match=r"differ \(\d+ at h0g0:eth0, \d+ at h3g1:eth0\)"):
            to_htsim(dataclasses.replace(whole, links=links))


def test_the_comparison_sees_a_difference() -> None:
    one, other = (
        paths(wired(to_htsim(catalogue.load(spec)))[0], "node0")["node7"]
        for spec in ("rail_clos", "rail_clos:uplinks_per_spine=1")
    )
    assert one != other
