"""The networks of a cluster's machines: who is in which, by which address, and what cannot be."""

from __future__ import annotations

import dataclasses
from ipaddress import IPv4Network

import pytest

from emulator.topology_file import from_json, to_json
from topologies import catalogue
from topologies.interface_indices import interface_indices
from topologies.model import FRONTEND, MANAGEMENT, STORAGE, Role, Topology, TopologyError
from topologies.profile import fabric_file
from topologies.profile.yaml_lines import TextError
from topologies.routing.static_routes import static_routes

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
