"""The machines' networks of a cluster, and the tenants of its frontend."""

import dataclasses
from ipaddress import IPv4Network
from typing import Any

import pytest

from emulator.cluster import isolation
from emulator.errors import UserError
from emulator.topology_file import from_json, to_json
from topologies import catalogue
from topologies.interface_indices import interface_indices
from topologies.model import FRONTEND, MANAGEMENT, STORAGE, Bridge, Role, Topology, TopologyError
from topologies.profile import fabric_file
from topologies.profile.yaml_lines import TextError
from topologies.routing.static_routes import static_routes
from topologies.validation import members_of, subnets_in, vrf_named

CLUSTER = catalogue.load("cluster")


def machines(network: Topology) -> set[str]:
    return {node.name for node in network.gpus}


def test_each_network_has_its_machines() -> None:
    servers = {"h0", "h1", "h2", "h3"}
    by_name = {one.network: machines(one) for one in CLUSTER.networks}
    assert by_name == {
        FRONTEND: servers | {"head0", "user0"},
        STORAGE: servers | {"head0", "storage0", "storage1"},
        MANAGEMENT: servers | {"head0", "storage0", "storage1", "telemetry0"},
    }
    assert all(node.role is Role.SERVER for one in CLUSTER.networks for node in one.gpus)


def test_only_the_frontend_leads_everywhere() -> None:
    reached = {
        one.network: {str(route.destination) for route in static_routes(one)["h0"]}
        for one in CLUSTER.networks
    }
    assert reached == {
        FRONTEND: {"0.0.0.0/0"},
        STORAGE: {"100.72.0.0/13"},
        MANAGEMENT: {"100.80.0.0/13"},
    }


@pytest.mark.parametrize(
    ("tenants", "subnet"),
    [("tenants=0", "100.64.1.0/24"), ("tenants=2,isolation=filter", "100.66.1.0/24")],
)
def test_users_and_servers_have_two_ways_to_each_other(tenants: str, subnet: str) -> None:
    frontend = catalogue.load(f"cluster:{tenants}").network_named(FRONTEND)
    leaf_subnet = IPv4Network(subnet)
    (route,) = (r for r in static_routes(frontend)["border0"] if r.destination == leaf_subnet)
    assert len(route.hops) == 2


def test_no_interface_of_a_machine_has_the_number_of_another() -> None:
    numbers = [
        index
        for one in CLUSTER.networks
        for end, index in interface_indices(one).items()
        if end.node == "h0"
    ]
    assert len(numbers) == len(set(numbers)) == 3


def test_a_lab_keeps_all_networks() -> None:
    assert from_json(to_json(CLUSTER)) == CLUSTER


@pytest.mark.parametrize(
    ("names", "networks"),
    [("none", []), ("storage", [STORAGE]), ("management+frontend", [FRONTEND, MANAGEMENT])],
)
def test_networks_can_be_left_out(names: str, networks: list[str]) -> None:
    cluster = catalogue.load(f"cluster:networks={names}")
    assert [one.network for one in cluster.networks] == networks
    assert catalogue.load(catalogue.spec_of(cluster)) == cluster


def test_a_network_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TopologyError, match="networks is 'front'; it is none, or of frontend"):
        catalogue.load("cluster:networks=front")


def test_tenants_need_a_spine() -> None:
    with pytest.raises(TopologyError, match="tunnels between leaves need a spine"):
        catalogue.load("cluster:frontend_leaves=1,frontend_spines=0")


def test_leaves_that_nothing_joins_are_refused() -> None:
    with pytest.raises(TopologyError, match="storage_spines is 0 and storage_leaves 2"):
        catalogue.load("cluster:storage_spines=0")


def test_two_networks_with_one_subnet_are_refused() -> None:
    storage = CLUSTER.network_named(STORAGE)
    posing = dataclasses.replace(storage, network=FRONTEND)
    with pytest.raises(TopologyError, match="two networks of the cluster are named frontend"):
        dataclasses.replace(CLUSTER, networks=(*CLUSTER.networks, posing))
    again = dataclasses.replace(CLUSTER.network_named(FRONTEND), network=MANAGEMENT)
    users = dataclasses.replace(CLUSTER, networks=(CLUSTER.network_named(FRONTEND),))
    with pytest.raises(TopologyError, match="in the networks frontend and management"):
        dataclasses.replace(users, networks=(*users.networks, again))


def test_a_profile_has_the_networks_that_it_names() -> None:
    text = "networks:\n  frontend: {users: 2}\n  management:\n"
    read = fabric_file.read(text, "f.yaml")
    assert [one.network for one in read.topology.networks] == [FRONTEND, MANAGEMENT]
    assert {"user0", "user1"} < machines(read.topology.network_named(FRONTEND))
    assert len(read.topology.gpus) == 24  # as without networks
    assert fabric_file.read("segment: {hosts: 6}\n", "f.yaml").topology.networks == ()


def test_a_profile_is_refused_with_the_line() -> None:
    text = "networks:\n  frontend: {}\n  storage: {storage_leaves: 2, storage_spines: 0}\n"
    with pytest.raises(TextError) as refused:
        fabric_file.read(text, "f.yaml")
    (problem,) = refused.value.problems
    assert problem.line == 3
    assert "nothing joins the leaves" in problem.stated


def frontend(parameters: str = "") -> Topology:
    return catalogue.load(f"cluster:{parameters}".rstrip(":")).network_named(FRONTEND)


def test_a_vrf_is_in_every_leaf_and_the_border_router() -> None:
    members = ("front-leaf0", "front-leaf1", "border0")
    assert members_of(frontend()) == {"tenant0": members, "tenant1": members}
    assert members_of(frontend("isolation=filter")) == {}
    assert members_of(frontend("tenants=0")) == {}


def test_a_leaf_has_one_of_the_subnets_of_a_tenant() -> None:
    topology = frontend("tenant_subnets=2")
    found = {
        (leaf, vrf): [str(subnet) for subnet in subnets_in(topology.node(leaf), vrf)]
        for leaf in ("front-leaf0", "front-leaf1")
        for vrf in ("tenant0", "tenant1")
    }
    assert found == {
        ("front-leaf0", "tenant0"): ["100.66.0.0/24"],
        ("front-leaf1", "tenant0"): ["100.66.1.0/24"],
        ("front-leaf0", "tenant1"): ["100.66.2.0/24"],
        ("front-leaf1", "tenant1"): ["100.66.3.0/24"],
    }
    vnis = [b.vni for s in topology.switches for b in s.bridges if b.vni is not None]
    assert sorted(vnis) == [20000, 20001, 20002, 20003]


def test_router_macs_differ_between_switches_and_l3_vnis_between_tenants() -> None:
    topology = frontend()
    switches = [topology.node(name) for name in members_of(topology)["tenant0"]]
    assert len({vrf_named(switch, "tenant0").mac for switch in switches}) == len(switches)
    assert {vrf_named(switch, "tenant0").vni for switch in switches} == {30000}
    assert {vrf_named(switch, "tenant1").vni for switch in switches} == {30001}


def test_only_the_border_router_leads_to_tenants_with_vrfs() -> None:
    topology = frontend()
    subnet = IPv4Network("100.66.0.0/24")
    routes = static_routes(topology)
    by_switch = {
        switch.name: [
            hop.port
            for route in routes[switch.name]
            for hop in route.hops
            if route.destination == subnet
        ]
        for switch in topology.switches
    }
    assert by_switch["front-spine0"] == [
        topology.far_end(end).port
        for link in topology.links
        for end in link.ends
        if end.node == "border0" and topology.far_end(end).node == "front-spine0"
    ]
    assert by_switch["border0"] == []


def test_tenants_may_have_equal_addresses() -> None:
    topology = frontend("tenant_addresses=equal,users=0")
    addresses = {node.name: str(node.ports[0].address) for node in topology.gpus}
    assert addresses["h0"] == addresses["h1"] == "100.66.0.2/24"
    assert from_json(to_json(topology)) == topology


@pytest.mark.parametrize(
    ("parameters", "stated"),
    [
        ("tenant_subnets=3", "tenant_subnets is 3 and frontend_leaves 2"),
        ("tenant_addresses=equal", "tenant_addresses is equal and users 1"),
        (
            "tenant_addresses=equal,users=0,isolation=filter",
            "tenant_addresses is equal and isolation filter",
        ),
        ("router_vni=20001", "VNI 20001 is used twice, for subnet 0 of tenant1 and as the L3 VNI"),
        ("subnet_vni=16777215", "subnet_vni is 16777215 and the last of them would be 16777216"),
        ("isolation=moon", "isolation is 'moon'; it is one of auto, vrf, netns, filter"),
        ("frontend_homes=2", "frontend_homes is 2 and tenants 2"),
        ("frontend_homes=2,tenants=0,frontend_leaves=1", "each port of a server has a leaf"),
    ],
)
def test_what_cannot_be_is_refused(parameters: str, stated: str) -> None:
    with pytest.raises(TopologyError, match=stated):
        frontend(parameters)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("networks:\n  frontend:\n    users: 2\n    router_vni: 20000\n", 4),
        ("networks:\n  frontend:\n    subnet_vni: 29999\n    router_vni: 30000\n", 4),
    ],
)
def test_a_vni_that_is_used_twice_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(TextError) as refused:
        fabric_file.read(text, "f.yaml")
    (problem,) = refused.value.problems
    assert problem.line == line
    assert "is used twice" in problem.stated


def edited(topology: Topology, switch: str, **changes: Any) -> Topology:
    nodes = [
        dataclasses.replace(node, **changes) if node.name == switch else node
        for node in topology.nodes
    ]
    return dataclasses.replace(topology, nodes=tuple(nodes))


def test_a_vni_stands_for_one_network_in_every_switch() -> None:
    topology = frontend("tenant_subnets=2")
    leaf = topology.node("front-leaf0")

    def with_vni(bridge: Bridge, vni: int) -> tuple[Bridge, ...]:
        other = dataclasses.replace(bridge, vni=vni)
        return tuple(other if each == bridge else each for each in leaf.bridges)

    with pytest.raises(TopologyError, match="VNI 20001 is used twice, for the subnet of"):
        edited(topology, "front-leaf0", bridges=with_vni(leaf.bridges[0], 20001))
    with pytest.raises(TopologyError, match=r"VNI 30001 is used twice, .* tenant1 \(L3 VNI\)"):
        edited(topology, "front-leaf0", bridges=with_vni(leaf.bridges[0], 30001))
    first, second = leaf.vrfs
    with pytest.raises(TopologyError, match="VNI 30001 is used twice"):
        edited(topology, "front-leaf0", vrfs=(dataclasses.replace(first, vni=30001), second))
    with pytest.raises(TopologyError, match="has the L3 VNI 30000 at front-leaf1 and 31000"):
        edited(topology, "front-leaf0", vrfs=(dataclasses.replace(first, vni=31000), second))


def test_vrfs_and_bridges_agree() -> None:
    topology = frontend()
    leaf = topology.node("front-leaf0")
    with pytest.raises(TopologyError, match="front-leaf0 has no VRF 'tenant0'"):
        edited(topology, "front-leaf0", vrfs=leaf.vrfs[1:])
    profile = dataclasses.replace(topology.profile, isolation="filter")
    with pytest.raises(TopologyError, match="isolation is filter and switches have VRFs"):
        dataclasses.replace(topology, profile=profile)


@pytest.mark.parametrize(
    ("asked", "capable", "taken"),
    [
        ("auto", True, "vrf"),
        ("auto", False, "netns"),
        ("netns", True, "netns"),
        ("vrf", True, "vrf"),
        ("filter", True, "filter"),
    ],
)
def test_the_machine_chooses_what_a_vrf_is(asked: str, capable: bool, taken: str) -> None:
    topology = frontend(f"isolation={asked}")
    resolved = isolation.resolved(topology, has=lambda _: capable)
    assert resolved.profile.isolation == taken
    assert isolation.stated(resolved).startswith("2 tenants: ")


def test_devices_that_the_kernel_has_not_are_refused() -> None:
    with pytest.raises(UserError, match="take isolation=netns"):
        isolation.resolved(frontend("isolation=vrf"), has=lambda _: False)
