"""Static routes and neighbours, computed from topologies alone."""

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest

from topologies import catalogue
from topologies.model import Bridge, Topology, TopologyError
from topologies.routing.static_routes import Hop, Route, static_neighbours, static_routes


@pytest.fixture
def two_by_two() -> Topology:
    return catalogue.load("rail_clos:hosts=2,gpus_per_host=2,uplinks_per_spine=2")


def test_gpu_has_a_default_route_and_nothing_else(two_by_two: Topology) -> None:
    assert static_routes(two_by_two)["h1g1"] == (
        Route(destination=IPv4Network("0.0.0.0/0"), hops=(Hop("eth0", IPv4Address("10.0.2.1")),)),
    )


def test_rail_switch_reaches_the_other_rail_over_every_parallel_link(two_by_two: Topology) -> None:
    routes = {str(r.destination): r for r in static_routes(two_by_two)["rail0"]}
    assert sorted(hop.port for hop in routes["10.0.2.0/24"].hops) == ["up0", "up1", "up2", "up3"]
    assert "10.0.1.0/24" not in routes  # its own
    spines = {n.name: n.loopback for n in two_by_two.switches if n.name.startswith("spine")}
    to_spine0 = routes[f"{spines['spine0']}/32"]
    far = {ours.port: theirs.node for _, ours, theirs in two_by_two.neighbours("rail0")}
    assert {far[hop.port] for hop in to_spine0.hops} == {"spine0"}
    assert len(to_spine0.hops) == 2


def test_spine_goes_straight_down(two_by_two: Topology) -> None:
    routes = {str(r.destination): r for r in static_routes(two_by_two)["spine1"]}
    far = {ours.port: theirs.node for _, ours, theirs in two_by_two.neighbours("spine1")}
    assert {far[hop.port] for hop in routes["10.0.1.0/24"].hops} == {"rail0"}
    assert {far[hop.port] for hop in routes["10.0.2.0/24"].hops} == {"rail1"}


def test_every_next_hop_is_the_address_at_the_other_end_of_its_cable(two_by_two: Topology) -> None:
    for name, routes in static_routes(two_by_two).items():
        if not two_by_two.node(name).is_switch:
            continue
        far = {ours.port: theirs for _, ours, theirs in two_by_two.neighbours(name)}
        for route in routes:
            for hop in route.hops:
                end = far[hop.port]
                address = two_by_two.node(end.node).port(end.port).address
                assert address is not None
                assert address.ip == hop.via


def test_nobody_has_to_ask_for_an_address(two_by_two: Topology) -> None:
    neighbours = static_neighbours(two_by_two)
    assert {(n.interface, str(n.address)) for n in neighbours["h0g0"]} == {
        ("eth0", "10.0.1.1"),
        ("eth0", "10.0.1.3"),
    }
    assert {n.interface for n in neighbours["rail0"]} == {"rail0", "up0", "up1", "up2", "up3"}
    for name, routes in static_routes(two_by_two).items():
        known = {n.address for n in neighbours[name]}
        assert {hop.via for route in routes for hop in route.hops} <= known


def test_rails_that_no_spine_joins_do_not_know_each_other(two_by_two: Topology) -> None:
    cut = {"rail1"}
    links = tuple(
        link
        for link in two_by_two.links
        if not ({link.a.node, link.b.node} & cut and {link.a.node, link.b.node} & SPINES)
    )
    plugged = {end for link in links for end in link.ends}
    nodes = tuple(
        replace(
            node,
            ports=tuple(
                p
                for p in node.ports
                if any(e.node == node.name and e.port == p.name for e in plugged)
            ),
        )
        for node in two_by_two.nodes
    )
    routes = static_routes(replace(two_by_two, nodes=nodes, links=links))
    assert routes["rail1"] == ()
    assert "10.0.2.0/24" not in {str(route.destination) for route in routes["rail0"]}
    assert routes["h0g1"] == static_routes(two_by_two)["h0g1"]


def test_a_cable_without_addresses_between_switches_is_refused(two_by_two: Topology) -> None:
    link = next(link for link in two_by_two.links if link.b.node in SPINES)
    bare = {
        end.node: replace(
            node := two_by_two.node(end.node),
            bridges=(*node.bridges, Bridge(name="l2", rail=9, mac=f"02:aa:00:00:00:0{number}")),
            ports=tuple(
                replace(p, address=None, bridge="l2") if p.name == end.port else p
                for p in node.ports
            ),
        )
        for number, end in enumerate(link.ends)
    }
    nodes = tuple(bare.get(node.name, node) for node in two_by_two.nodes)
    with pytest.raises(TopologyError, match=r"link rail0:up0 - spine0:down0: .* has no address"):
        static_routes(replace(two_by_two, nodes=nodes))


SPINES = {"spine0", "spine1"}
