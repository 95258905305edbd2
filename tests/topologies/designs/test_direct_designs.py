"""Fat tree, torus, dragonfly and dragonfly+: what they are made of, and what they refuse."""

from collections import Counter
from ipaddress import IPv4Interface
from itertools import combinations

import pytest

from emulator.topology_file import from_json, to_json
from topologies import addressing
from topologies.analysis.capacity import (
    bisection_bandwidth,
    max_flow,
    oversubscription,
    rates_by_kind,
)
from topologies.catalogue import load, spec_of
from topologies.designs.dragonfly import ARRANGEMENTS, global_links, rounds
from topologies.model import CableEnd, Role, Topology, TopologyError
from topologies.routing.forwarding import forwarding_of
from topologies.routing.paths import paths_from

GBPS = 10**9


def census(topology: Topology) -> dict[Role, int]:
    return dict(Counter(node.role for node in topology.nodes))


def between_switches(topology: Topology) -> list[tuple[str, str]]:
    switches = {switch.name for switch in topology.switches}
    return [
        (link.a.node, link.b.node)
        for link in topology.links
        if {link.a.node, link.b.node} <= switches
    ]


def joined(topology: Topology) -> Counter[frozenset[int | None]]:
    """How many global links there are between every two groups."""
    pods = ((topology.node(a).pod, topology.node(b).pod) for a, b in between_switches(topology))
    return Counter(frozenset(pair) for pair in pods if pair[0] != pair[1])


# --- fat tree ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "leaves", "spines", "cores", "gpus"),
    [
        ("radix=8", 8, 4, 0, 32),
        ("radix=128,leaves=8", 8, 64, 0, 512),
        ("radix=4,levels=3,gpus_per_host=2", 8, 8, 4, 16),
        ("radix=8,levels=3", 32, 32, 16, 128),
        ("radix=8,levels=3,leaves=8", 8, 8, 16, 32),
        ("radix=8,levels=3,leaves=8,core_links=4", 8, 8, 4, 32),
        ("radix=8,oversubscription=3,gpus_per_host=2", 8, 2, 0, 48),
        pytest.param(
            *(
                "radix=128,levels=3,gpus_per_host=8,leaves=1568,core_links=4",
                1568,
                1600,
                1024,
                100_352,
            ),
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_fat_tree_numbers(spec: str, leaves: int, spines: int, cores: int, gpus: int) -> None:
    topology = load(f"fat_tree:{spec}")
    found = census(topology)
    assert (found[Role.LEAF], found[Role.SPINE]) == (leaves, spines)
    assert found.get(Role.SUPER_SPINE, 0) == cores
    assert len(topology.gpus) == gpus


@pytest.mark.parametrize(
    "spec",
    ["radix=8", "radix=128,leaves=8,gpus_per_host=8", "radix=8,levels=3", "radix=8,leaves=4"],
)
def test_each_gpu_of_a_server_is_at_a_leaf_of_its_own(spec: str) -> None:
    topology = load(f"fat_tree:{spec}")
    each = len(topology.servers[0].gpus)
    for server in topology.servers:
        leaves = [topology.far_end(CableEnd(gpu, "eth0")).node for gpu in server.gpus]
        numbers = [int(leaf.removeprefix("leaf")) for leaf in leaves]
        assert numbers == list(range(numbers[0], numbers[0] + each))
        assert numbers[0] % each == 0
        assert len({topology.node(name).pod for name in (*server.gpus, *leaves)}) == 1


@pytest.mark.parametrize("spec", ["radix=8", "radix=8,levels=3,leaves=5"])
def test_at_the_top_of_a_rack_all_gpus_of_a_server_are_at_one_leaf(spec: str) -> None:
    topology = load(f"tor:{spec}")
    for server in topology.servers:
        assert len({topology.far_end(CableEnd(gpu, "eth0")).node for gpu in server.gpus}) == 1
    if "leaves" not in spec:
        assert census(topology) == census(load(f"fat_tree:{spec}"))


def test_128_port_leaves_give_64_ports_to_gpus_and_reach_64_spines() -> None:
    topology = load("fat_tree:radix=128,gpus_per_host=8")
    assert census(topology) == {Role.GPU: 8192, Role.LEAF: 128, Role.SPINE: 64}
    for switch in topology.switches:
        assert len(switch.ports) == 128
        peers = Counter(
            topology.node(far.node).role for _, _, far in topology.neighbours(switch.name)
        )
        requested = {Role.GPU: 64, Role.SPINE: 64} if switch.role is Role.LEAF else {Role.LEAF: 128}
        assert peers == requested
    assert oversubscription(topology) == {Role.LEAF: 1}


def test_every_switch_of_a_full_three_level_tree_has_all_its_ports_in_use() -> None:
    topology = load("fat_tree:radix=6,levels=3,gpus_per_host=3")
    assert {len(switch.ports) for switch in topology.switches} == {6}
    assert oversubscription(topology) == {Role.LEAF: 1, Role.SPINE: 1}
    whole = len(topology.gpus) // 2 * 400 * GBPS
    assert bisection_bandwidth(topology) == {"servers": whole}
    for core in (switch for switch in topology.switches if switch.role is Role.SUPER_SPINE):
        pods = [topology.node(far.node).pod for _, _, far in topology.neighbours(core.name)]
        assert set(pods) == set(range(6))
        assert len(pods) == 6


def test_gpus_of_a_leaf_share_its_subnet() -> None:
    topology = load("fat_tree:radix=4,gpus_per_host=1")
    addresses = [str(addressing.gpu_address(gpu)) for gpu in topology.gpus[:3]]
    assert addresses == ["10.0.1.2/24", "10.0.1.3/24", "10.0.2.2/24"]
    assert topology.node("leaf1").bridges[0].gateway == IPv4Interface("10.0.2.1/24")


# --- torus ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "routers", "cables", "neighbours", "diameter"),
    [
        ("x=4,y=4", 16, 32, 4, 4),
        ("x=3,y=3", 9, 18, 4, 2),
        ("x=4,y=4,z=4", 64, 192, 6, 6),
        ("x=8,y=8,z=8", 512, 1536, 6, 12),
        ("x=2,y=2,z=2", 8, 12, 3, 3),
        ("x=2,y=2,z=2,pair_cables=2", 8, 24, 6, 3),
        ("x=3,y=1", 3, 3, 2, 1),
    ],
)
def test_torus_numbers(
    spec: str, routers: int, cables: int, neighbours: int, diameter: int
) -> None:
    topology = load(f"torus:{spec},routing=shortest")
    assert census(topology) == {Role.GPU: routers, Role.ROUTER: routers}
    cabled = between_switches(topology)
    assert len(cabled) == cables
    assert set(Counter(name for pair in cabled for name in pair).values()) == {neighbours}
    paths = paths_from(topology, topology.gpus[0].name)
    assert max(len(paths[gpu.name]) for gpu in topology.gpus) == diameter + 2


def test_neighbours_in_a_torus_differ_by_one_in_one_dimension() -> None:
    topology = load("torus:x=4,y=3,z=2")
    sizes = (4, 3, 2)
    for a, b in between_switches(topology):
        steps = [
            (v - u) % size
            for u, v, size in zip(
                topology.node(a).position, topology.node(b).position, sizes, strict=True
            )
        ]
        assert sorted(steps) == [0, 0, 1]


@pytest.mark.parametrize(
    ("spec", "cables"), [("x=4,y=4", 8), ("x=4,y=4,z=4", 32), ("x=8,y=8,z=8", 128), ("x=4,y=2", 4)]
)
def test_half_a_torus_is_joined_to_the_other_by_two_cables_a_ring(spec: str, cables: int) -> None:
    topology = load(f"torus:{spec}")
    middle = forwarding_of(topology).graph.sizes[0] // 2
    places = ([topology.node(n).position[0] for n in pair] for pair in between_switches(topology))
    assert sum((a < middle) != (b < middle) for a, b in places) == cables


def test_the_flow_between_halves_of_a_torus_is_what_their_cables_carry() -> None:
    topology = load("torus:x=4,y=4,gpus_per_host=4")
    assert set(bisection_bandwidth(topology).values()) == {8 * 400 * GBPS}
    router = {
        gpu.name: far.node for gpu in topology.gpus for _, _, far in topology.neighbours(gpu.name)
    }
    left = {gpu for gpu in router if topology.node(router[gpu]).position[0] < 2}
    assert max_flow(topology, left, router.keys() - left) == 8 * 400 * GBPS


def test_a_long_torus_has_its_narrowest_cut_across_its_length() -> None:
    topology = load("torus:x=8,y=2,gpus_per_host=4")
    assert bisection_bandwidth(topology) == {
        "servers": 8 * 400 * GBPS,
        "along x": 2 * 2 * 400 * GBPS,
        "along y": 8 * 400 * GBPS,
    }


def test_links_of_a_torus_lead_across() -> None:
    topology = load("torus:x=3,y=3,gpus_per_host=2,link_rate=800G")
    sides = {node.name: sides for node, _, sides in rates_by_kind(topology)}
    down, across, up = sides["r0-0"]
    assert (down, across, up) == ({400 * GBPS: 2}, {800 * GBPS: 4}, {})
    assert oversubscription(topology) == {}


# --- dragonfly -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "groups", "routers", "gpus", "local", "across"),
    [
        ("gpus_per_host=1", 3, 6, 6, 3, 3),
        ("gpus_per_host=2", 9, 36, 72, 54, 36),
        ("gpus_per_host=4", 33, 264, 1056, 924, 528),
        ("gpus_per_host=2,groups=4", 4, 16, 32, 24, 12),
        ("routers=2,gpus_per_host=1,hosts=2,global_links=1", 3, 6, 12, 3, 3),
    ],
)
def test_dragonfly_numbers(
    spec: str, groups: int, routers: int, gpus: int, local: int, across: int
) -> None:
    topology = load(f"dragonfly:{spec}")
    assert census(topology) == {Role.GPU: gpus, Role.ROUTER: routers}
    assert {switch.pod for switch in topology.switches} == set(range(groups))
    pods = [(topology.node(a).pod, topology.node(b).pod) for a, b in between_switches(topology)]
    assert sum(a == b for a, b in pods) == local
    assert sum(a != b for a, b in pods) == across


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize(("groups", "ports"), [(2, 5), (3, 2), (5, 4), (4, 8), (9, 8)])
def test_every_two_groups_have_equally_many_links_and_no_port_is_used_twice(
    arrangement: str, groups: int, ports: int
) -> None:
    links = list(global_links(groups, ports, arrangement))
    used = [end for ends in links for end in ends]
    assert len(set(used)) == len(used)
    assert all(0 <= end.port < ports for end in used)
    between = Counter(frozenset((a.group, b.group)) for a, b in links)
    assert between == {
        frozenset(pair): rounds(groups, ports) for pair in combinations(range(groups), 2)
    }
    assert rounds(groups, ports) == ports // (groups - 1)


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_groups_of_a_dragonfly_are_joined_alike(arrangement: str) -> None:
    topology = load(f"dragonfly:gpus_per_host=2,groups=5,arrangement={arrangement}")
    assert set(joined(topology).values()) == {2}
    assert len(joined(topology)) == 10
    full = load(f"dragonfly:arrangement={arrangement}")
    assert set(joined(full).values()) == {1}
    assert {len(switch.ports) for switch in full.switches} == {4 * 2 - 1}  # p + a - 1 + h


@pytest.mark.parametrize(
    ("spec", "groups", "leaves", "gpus", "local", "across"),
    [
        ("gpus_per_host=1", 2, 2, 2, 2, 1),
        ("gpus_per_host=2", 5, 10, 20, 20, 10),
        ("gpus_per_host=4", 17, 68, 272, 272, 136),
        ("leaves=3,spines=2,gpus_per_host=1,groups=3", 3, 9, 9, 18, 3),
    ],
)
def test_dragonfly_plus_numbers(
    spec: str, groups: int, leaves: int, gpus: int, local: int, across: int
) -> None:
    topology = load(f"dragonfly_plus:{spec}")
    assert (census(topology)[Role.LEAF], len(topology.gpus)) == (leaves, gpus)
    assert len({switch.pod for switch in topology.switches}) == groups
    assert sum(joined(topology).values()) == across
    assert len(between_switches(topology)) == local + across
    for a, b in between_switches(topology):
        roles = {topology.node(a).role, topology.node(b).role}
        same = topology.node(a).pod == topology.node(b).pod
        assert roles == ({Role.LEAF, Role.SPINE} if same else {Role.SPINE})


def test_half_the_groups_of_a_dragonfly_are_joined_to_the_others_by_their_global_links() -> None:
    topology = load("dragonfly:gpus_per_host=2,routers=4,groups=4")  # two links between two groups
    assert bisection_bandwidth(topology) == {"servers": 2 * 2 * 2 * 400 * GBPS}


# --- of all --------------------------------------------------------------------------------------

SPECS = (
    "fat_tree:radix=4,levels=3,gpus_per_host=2",
    "tor",
    "torus:x=3,y=2,z=2,gpus_per_host=2",
    "dragonfly:groups=4",
    "dragonfly_plus",
)


@pytest.mark.parametrize("spec", SPECS)
def test_addresses_are_unique_and_a_spec_builds_the_same_again(spec: str) -> None:
    topology = load(spec)  # which is validated: names, MACs, addresses, subnets
    assert load(spec_of(topology)) == topology
    assert from_json(to_json(topology)) == topology
    assert len({switch.hash_seed for switch in topology.switches}) == len(topology.switches)


def test_subnets_go_on_in_the_next_second_octet() -> None:
    assert str(addressing.leaf_subnet(0, 1)) == "10.0.1.0/24"
    assert str(addressing.leaf_subnet(254, 1)) == "10.0.255.0/24"
    assert str(addressing.leaf_subnet(255, 1)) == "10.1.1.0/24"
    assert str(addressing.leaf_subnet(1, 256)) == "10.0.4.0/23"
    numbers = range(0, 65_000, 97)
    assert len({addressing.leaf_subnet(number, 1) for number in numbers}) == len(numbers)
    with pytest.raises(TopologyError, match="room for 65025 bottom switches"):
        addressing.leaf_subnet(65_025, 1)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("fat_tree:radix=7", r"radix is 7, an odd number; .* take 8"),
        ("fat_tree:levels=4", r"levels is 4; a fat tree here has 2 or 3"),
        ("fat_tree:radix=8,oversubscription=2", r"divide into 3 equal parts.* take a radix of 12"),
        ("tor:gpus_per_host=3", r"gpus_per_host is 3 and a leaf has 4 ports for GPUs"),
        ("fat_tree:gpus_per_host=3", r"3, which does not divide 8 leaves; .* the design tor"),
        ("fat_tree:leaves=6", r"gpus_per_host is 4, which does not divide leaves=6"),
        ("fat_tree:radix=12,levels=3,gpus_per_host=4", r"does not divide 6 leaves of a pod"),
        ("fat_tree:leaves=9", r"leaves is 9, and 2 levels of radix 8 join 8; .*levels=3"),
        ("fat_tree:radix=102,levels=3,gpus_per_host=3", r"be 265302 GPUs, above 262144"),
        ("fat_tree:core_links=2", r"core_links is of levels=3"),
        ("fat_tree:levels=3,core_links=3", r"core_links is 3; a spine has 4 ports up"),
        ("fat_tree:levels=3,core_links=2", r"a super-spine 8 for the spines of 8 pods"),
        ("torus:pair_cables=3", r"pair_cables is 3; it is 1 or 2"),
        ("torus:x=130", r"up to 67 hops .* live for 60"),
        ("torus:x=5,gpus_per_host=16384", r"327680 GPUs, above 262144; take fewer .*gpus_per_host"),
        ("torus:routing=minimal", r"routing is 'minimal'; it is one of dimension-order"),
        ("dragonfly:groups=10", r"groups is 10, and a group has 8 global links.* at most 9"),
        ("dragonfly:gpus_per_host=300,groups=2,routers=1", r"room for 253 GPUs at a switch"),
        (
            "dragonfly:routers=1,gpus_per_host=1,global_links=255",
            r"for 255 groups, and not for 256",
        ),
    ],
)
def test_bad_parameters_are_named(spec: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        load(spec)
