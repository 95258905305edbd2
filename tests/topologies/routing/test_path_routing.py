"""The ways of routing: every way that packets take, and how long those are."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.examples import examples
from tests.harness.topologies.walks import Walk, all_walks, walks
from topologies import addressing
from topologies.analysis.deadlock import SwitchChannel, buffer_cycle
from topologies.analysis.round_trip import base_rtt_ns
from topologies.catalogue import load
from topologies.model import CableEnd, FabricProfile, Role, ScaleUp, Topology, TopologyError
from topologies.parts.assembly import Assembly
from topologies.routing.forwarding import forwarding_of
from topologies.routing.paths import longest_paths_from, octet_times, path_delays, paths_from

TORUS = "torus:x=4,y=3,z=2"
DRAGONFLY = "dragonfly:gpus_per_host=1,routers=3,global_links=1"
TWO_LINKS = "dragonfly:gpus_per_host=1,routers=4,global_links=1,groups=3"
PLUS = "dragonfly_plus:gpus_per_host=2,groups=3"


def around(topology: Topology, a: str, b: str) -> int:
    """Hops between two routers of a torus."""
    ends = zip(topology.node(a).position, topology.node(b).position, strict=True)
    sizes = forwarding_of(topology).graph.sizes
    return sum(min((u - v) % n, (v - u) % n) for (u, v), n in zip(ends, sizes, strict=True))


def pods(topology: Topology, source: str, walk: Walk) -> list[int | None]:
    """The groups that a way leads through, each time it gets to another one."""
    seen = [topology.node(source).pod]
    for step in walk:
        pod = topology.node(step.node).pod
        if pod != seen[-1]:
            seen.append(pod)
    return seen


@pytest.mark.parametrize("routing", ["dimension-order", "shortest"])
def test_ways_through_a_torus_are_as_short_as_can_be(routing: str) -> None:
    topology = load(f"{TORUS},routing={routing}")
    for source, owner, walk in all_walks(topology):
        assert len(walk) == around(topology, source, owner)


def test_dimension_order_turns_from_x_to_y_to_z_and_never_back() -> None:
    topology = load(TORUS)
    for source, _, walk in all_walks(topology):
        axes = [step.port[0] for step in walk]
        assert axes == sorted(axes), (source, walk)


def test_dimension_order_goes_both_ways_round_where_they_are_equal() -> None:
    topology = load("torus:x=4,y=3")
    ways = {tuple(s.node for s in w) for w in walks(topology, "r0-0", "r2-1")}
    assert ways == {("r1-0", "r2-0", "r2-1"), ("r3-0", "r2-0", "r2-1")}


@pytest.mark.parametrize("spec", [DRAGONFLY, TWO_LINKS, PLUS])
def test_minimal_takes_one_global_link_between_groups_and_none_within(spec: str) -> None:
    topology = load(spec)
    for source, owner, walk in all_walks(topology):
        apart = topology.node(source).pod != topology.node(owner).pod
        assert len(pods(topology, source, walk)) == 1 + apart
        assert len(walk) <= 3


@pytest.mark.parametrize("spec", [DRAGONFLY, TWO_LINKS, PLUS, "dragonfly:groups=5"])
def test_valiant_goes_over_every_other_group_and_over_one_at_most(spec: str) -> None:
    topology = load(f"{spec},routing=valiant")
    through: dict[tuple[str, str], set[int | None]] = {}
    for source, owner, walk in all_walks(topology):
        seen = pods(topology, source, walk)
        assert len(set(seen)) == len(seen) <= 3, (source, owner, walk)
        through.setdefault((source, owner), set()).update(seen[1:-1])
    groups = {switch.pod for switch in topology.switches}
    for (source, owner), between in through.items():
        ends = {topology.node(source).pod, topology.node(owner).pod}
        assert between == (groups - ends if len(ends) == 2 else set())


def test_valiant_beside_its_tables_routes_minimally() -> None:
    minimal, valiant = load(DRAGONFLY), load(f"{DRAGONFLY},routing=valiant")
    for owner in forwarding_of(minimal).graph.hosts:
        (main,) = forwarding_of(minimal).tables(owner).values()
        assert main == next(iter(forwarding_of(valiant).tables(owner).values()))


def goes_up(topology: Topology, name: str, walk: Iterable[str]) -> list[bool]:
    order = forwarding_of(topology).graph.order
    ups = []
    for following in walk:
        ups.append(order[following] < order[name])
        name = following
    return ups


@pytest.mark.parametrize("spec", [TORUS, "torus:x=5,y=5", DRAGONFLY, PLUS])
def test_up_down_never_goes_up_after_down(spec: str) -> None:
    topology = load(f"{spec},routing=up-down")
    pairs = set()
    for source, owner, walk in all_walks(topology):
        pairs.add((source, owner))
        ups = goes_up(topology, source, [step.node for step in walk])
        assert ups == sorted(ups, reverse=True), (source, owner, walk)
    hosts = forwarding_of(topology).graph.hosts
    assert len(pairs) == len(hosts) * (len(hosts) - 1)


# --- any graph -----------------------------------------------------------------------------------


def fabric(routers: int, cables: Iterable[tuple[int, int]], routing: str) -> Topology:
    made = Assembly(mtu=1500, buffer_bytes=1 << 20)
    for number in range(routers):
        made.switch(Role.ROUTER, f"r{number}")
        subnet = addressing.leaf_subnet(number, 1)
        made.bridge(f"r{number}", "gpus", rail=0, subnet=subnet)
        (gpu,) = made.server(f"h{number}", 1, scale_up=ScaleUp())
        made.attach(gpu, f"r{number}", "gpus", rate_bps=10**9, delay_ns=100)
    for a, b in cables:
        made.join(f"r{a}", f"r{b}", rate_bps=10**9, delay_ns=100)
    return made.topology("any", {}, profile=FabricProfile(routing=routing))


@st.composite
def connected(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    """Routers and cables: a tree that joins them all, and any others, parallel ones too."""
    routers = draw(st.integers(2, 9))
    tree = [(draw(st.integers(0, n - 1)), n) for n in range(1, routers)]
    ends = st.tuples(st.integers(0, routers - 1), st.integers(0, routers - 1))
    more = draw(st.lists(ends.filter(lambda pair: pair[0] != pair[1]), max_size=12))
    return routers, tree + more


@examples(60)
@given(connected())
def test_up_down_reaches_everyone_without_a_circle_in_any_graph(
    graph: tuple[int, list[tuple[int, int]]],
) -> None:
    topology = fabric(*graph, "up-down")
    assert buffer_cycle(topology) == ()
    reached = {(source, owner) for source, owner, _ in all_walks(topology)}
    assert len(reached) == graph[0] * (graph[0] - 1)


@examples(40)
@given(connected())
def test_shortest_paths_are_those_of_the_graph(graph: tuple[int, list[tuple[int, int]]]) -> None:
    topology = fabric(*graph, "shortest")
    for source, owner, walk in all_walks(topology):
        paths = paths_from(topology, f"h{source[1:]}g0")
        assert len(paths[f"h{owner[1:]}g0"]) == len(walk) + 2


# --- lengths -------------------------------------------------------------------------------------


@pytest.mark.parametrize("routing", ["minimal", "valiant", "shortest", "up-down"])
def test_lengths_are_those_of_the_ways(routing: str) -> None:
    spec = f"{DRAGONFLY},uplink_delay=100ns,global_delay=1us,nic_delay=10ns,routing={routing}"
    topology = load(spec)
    at = {far.node: gpu for gpu in topology.gpus for _, _, far in topology.neighbours(gpu.name)}
    ways: dict[tuple[str, str], list[int]] = {}
    for source, owner, walk in all_walks(topology):
        ways.setdefault((source, owner), []).append(len(walk))
    for (source, owner), lengths in ways.items():
        near, far = at[source].name, at[owner].name
        assert len(paths_from(topology, near)[far]) == min(lengths) + 2
        assert len(longest_paths_from(topology, near)[far]) == max(lengths) + 2
        delay = path_delays(topology, far)[str(addressing.gpu_address(at[source]).ip)]
        delays = [
            20 + sum(step.link.delay_ns for step in walk) for walk in walks(topology, source, owner)
        ]
        assert min(delays) <= delay <= max(delays)


def test_the_mean_of_valiants_ways_counts_each_choice_alike() -> None:
    """Hosts of g0-r0 take its own global link, to g1, or go to g0-r1, whose link leads to g2."""
    spec = "dragonfly:gpus_per_host=1,uplink_delay=100ns,global_delay=1us,nic_delay=10ns"
    topology = load(f"{spec},routing=valiant")
    ways = {
        tuple(step.node for step in walk): sum(step.link.delay_ns for step in walk)
        for walk in walks(topology, "g0-r0", "g1-r0")
    }
    assert ways == {
        ("g1-r0",): 1000,
        ("g0-r1", "g2-r0", "g2-r1", "g1-r1", "g1-r0"): 100 + 1000 + 100 + 1000 + 100,
    }
    source = str(addressing.gpu_address(topology.node("h0g0")).ip)
    delay = path_delays(topology, "h2g0")[source]
    assert delay == 20 + mean(ways.values())
    per_octet = octet_times(topology, "h2g0")[source]
    assert per_octet == pytest.approx(mean([3, 7]) * 8e9 / (400 * 10**9))


def test_longer_ways_make_a_longer_base_rtt() -> None:
    by = {r: base_rtt_ns(load(f"dragonfly:routing={r}"), 9038) for r in ("minimal", "valiant")}
    assert by["valiant"] > by["minimal"]
    ring = {
        r: base_rtt_ns(load(f"torus:x=9,y=1,routing={r}"), 9038) for r in ("shortest", "up-down")
    }
    assert ring["up-down"] > ring["shortest"]


# --- circles -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "links"),
    [
        ("torus", 4),
        ("torus:x=5,y=1", 5),
        ("torus:x=3,y=3,routing=shortest", 4),
        ("dragonfly", 6),
        ("dragonfly:routing=valiant", 5),
        ("dragonfly_plus:routing=valiant", 4),
    ],
)
def test_a_cycle_is_found_and_is_one(spec: str, links: int) -> None:
    topology = load(spec)
    cycle = buffer_cycle(topology)
    assert len(cycle) == links
    cables = {frozenset(link.ends) for link in topology.links}
    taken: set[tuple[CableEnd, CableEnd]] = set()
    for source, _, walk in all_walks(topology):
        names = [source, *(step.node for step in walk)]
        outs = [CableEnd(name, step.port) for name, step in zip(names, walk, strict=False)]
        taken.update(pairwise(outs))
    for one, following in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
        assert isinstance(one, SwitchChannel)
        assert frozenset((one.sender, one.receiver)) in cables
        assert one.receiver.node == following.sender.node
        assert (one.sender, following.sender) in taken  # some packet does take one after the other


@pytest.mark.parametrize(
    "spec",
    [
        "rail_clos",
        "rail_clos:super_spines=2",
        "clos:pods=2,hosts=2,super_spines=2,nic_ports=2",
        "clos:hosts=2,nic_ports=4",
        "fat_tree",
        "tor",
        "fat_tree:radix=4,levels=3,gpus_per_host=2",
        "torus:x=3,y=3,z=3",  # no ring is long enough for a packet to go on in it
        "torus:routing=up-down",
        "torus:x=2,y=3,z=5,routing=up-down",
        "dragonfly:routing=up-down",
        "dragonfly_plus",
        "dragonfly_plus:routing=up-down",
    ],
)
def test_no_circle_is_seen_where_there_is_none(spec: str) -> None:
    assert buffer_cycle(load(spec)) == ()


# --- refusals ------------------------------------------------------------------------------------


def test_a_routing_that_the_topology_cannot_have_is_refused() -> None:
    clos = load("rail_clos:hosts=2,gpus_per_host=2")
    with pytest.raises(TopologyError, match=r"routing is 'best'; it is one of shortest, "):
        replace(clos, profile=FabricProfile(routing="best"))
    with pytest.raises(TopologyError, match=r"rail0 has no position: that is for a torus"):
        _ = forwarding_of(replace(clos, profile=FabricProfile(routing="dimension-order")))
    with pytest.raises(TopologyError, match=r"routing is up-down and control_plane ebgp"):
        replace(clos, profile=FabricProfile(routing="up-down", control_plane="ebgp"))
    dragonfly = load("dragonfly:groups=3")
    cut = [link for link in dragonfly.links if {link.a.node[:2], link.b.node[:2]} != {"g0", "g2"}]
    ends = {end for link in cut for end in link.ends}
    nodes = [
        replace(node, ports=tuple(p for p in node.ports if CableEnd(node.name, p.name) in ends))
        for node in dragonfly.nodes
    ]
    apart = replace(dragonfly, links=tuple(cut), nodes=tuple(nodes))
    with pytest.raises(TopologyError, match=r"has no way to g\d-r\d with one global link"):
        forwarding_of(apart).tables("g0-r0")
