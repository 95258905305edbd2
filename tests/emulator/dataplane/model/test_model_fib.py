"""Routes of a modelled switch: longest prefix, carrier, and equal shares of the hashes."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

from emulator.dataplane.model import model_fib
from emulator.dataplane.model.model_fib import ForwardingTable, selected
from topologies.catalogue import load
from topologies.routing.static_routes import Hop, Route, static_routes

HOPS = tuple(Hop(f"up{place}", IPv4Address(f"172.16.0.{place}")) for place in range(3))
SOURCE, DESTINATION = IPv4Address("10.0.1.3").packed, IPv4Address("10.9.0.1").packed


def table(dead: set[str]) -> ForwardingTable:
    routes = [
        Route(destination=IPv4Network("10.9.0.0/24"), hops=HOPS),
        Route(destination=IPv4Network("10.9.0.0/16"), hops=HOPS[:1]),
    ]
    spine = load("rail_clos:hosts=2,gpus_per_host=2").node("spine0")
    return ForwardingTable(spine, routes, (), lambda name: name not in dead)


def test_hashes_are_divided_evenly() -> None:
    choices = table(set()).choices("down0", SOURCE, DESTINATION)
    middles = [((2 * place + 1) << 31) // 3 for place in range(3)]
    assert [selected(choices, one).interface for one in middles] == ["up0", "up1", "up2"]
    assert selected(choices, 0).interface == "up0"
    assert selected(choices, 2**32 - 1).interface == "up2"


def test_hops_without_carrier_do_not_count() -> None:
    choices = table({"up1"}).choices("down0", SOURCE, DESTINATION)
    assert [hop.interface for _, hop in choices] == ["up0", "up2"]


def test_a_route_without_any_hop_is_passed_over_for_a_shorter_prefix() -> None:
    dead = {"up1", "up2"}
    looked_up = table(dead)
    assert len(looked_up.choices("down0", SOURCE, DESTINATION)) == 1
    dead.add("up0")
    looked_up.forget()
    assert looked_up.choices("down0", SOURCE, DESTINATION) == ()


def test_a_default_route_and_a_host_route_are_found_by_their_lengths() -> None:
    routes = [
        Route(destination=IPv4Network("0.0.0.0/0"), hops=HOPS[2:]),
        Route(destination=IPv4Network("10.9.0.1/32"), hops=HOPS[:1]),
        Route(destination=IPv4Network("10.9.0.0/31"), hops=HOPS[1:2]),
    ]
    spine = load("rail_clos:hosts=2,gpus_per_host=2").node("spine0")
    looked_up = ForwardingTable(spine, routes, (), lambda _: True)
    found = [
        looked_up.choices("down0", SOURCE, IPv4Address(destination).packed)[0][1].interface
        for destination in ("10.9.0.1", "10.9.0.0", "10.9.0.2")
    ]
    assert found == ["up0", "up1", "up2"]


def test_destinations_behind_the_same_hops_share_their_division() -> None:
    looked_up = table(set())
    first = looked_up.choices("down0", SOURCE, DESTINATION)
    assert looked_up.choices("down0", SOURCE, IPv4Address("10.9.0.2").packed) is first


def test_destinations_behind_the_same_hops_have_them_once() -> None:
    topology = load("fat_tree:radix=8,gpus_per_host=4")
    routes = static_routes(topology)["leaf0"]
    looked_up = ForwardingTable(topology.node("leaf0"), routes, (), lambda _: True)
    others = [one for one in routes if len(one.hops) > 1]
    assert len(others) > 4
    assert len({id(one.hops) for one in others}) == 1
    own = len(topology.node("leaf0").bridges) + sum(
        port.address is not None for port in topology.node("leaf0").ports
    )
    assert looked_up.next_hops == len({id(one.hops) for one in routes}) + own


def test_what_a_switch_remembers_is_bounded() -> None:
    looked_up = table(set())
    for number in range(model_fib.MOST_KNOWN + 5):
        destination = (int(IPv4Address("10.9.0.0")) + number).to_bytes(4)
        assert looked_up.choices("down0", SOURCE, destination)
    assert looked_up.known == 5
