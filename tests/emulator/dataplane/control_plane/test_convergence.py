"""The kernel's routes against those that the topology asks for, and sentences about the rest."""

from collections.abc import Mapping
from functools import reduce
from ipaddress import IPv4Network

import pytest

from emulator.dataplane.control_plane.control_plane_choice import ControlPlane, parse
from emulator.dataplane.control_plane.convergence import ConvergedState, PathVector
from emulator.dataplane.control_plane.failure import expected_without, without
from emulator.dataplane.control_plane.kernel_routes import Hops, NextHop
from emulator.dataplane.control_plane.speakers import as_numbers
from topologies import catalogue
from topologies.model import CableEnd, Topology
from topologies.routing.static_routes import static_routes

SMALL = catalogue.load("rail_clos:hosts=2,gpus_per_host=2")
DIVIDED = catalogue.load(
    "clos:hosts=2,gpus_per_host=4,rails_per_switch=2,subnets=divided,subnet_prefix=25"
)
EBGP = ControlPlane(name="ebgp")
TARGET = IPv4Network("10.0.2.0/24")


def as_static(switch: str) -> dict[IPv4Network, Hops]:
    return {
        route.destination: tuple(sorted(NextHop(hop.port, str(hop.via)) for hop in route.hops))
        for route in static_routes(SMALL)[switch]
    }


def reported(switch: str, routes: Mapping[IPv4Network, Hops]) -> list[str]:
    return [str(one) for one in ConvergedState(SMALL, EBGP).differences(switch, routes)]


@pytest.mark.parametrize("switch", ["rail0", "rail1", "spine0", "spine1"])
def test_static_routes_are_what_is_expected(switch: str) -> None:
    assert reported(switch, as_static(switch)) == []


def test_a_missing_route_is_named() -> None:
    routes = as_static("rail0")
    del routes[TARGET]
    assert reported("rail0", routes) == ["rail0 has no route to 10.0.2.0/24"]


def test_a_missing_path_is_named() -> None:
    routes = as_static("rail0")
    routes[TARGET] = routes[TARGET][1:]
    assert reported("rail0", routes) == ["the route of rail0 to 10.0.2.0/24 lacks up0 (172.16.0.1)"]


def test_a_wrong_path_is_named() -> None:
    routes = as_static("rail0")
    routes[TARGET] = (routes[TARGET][0], NextHop("up1", "172.16.0.9"))
    assert reported("rail0", routes) == [
        "the route of rail0 to 10.0.2.0/24 lacks up1 (172.16.0.3) and has also up1 (172.16.0.9)"
    ]


def test_a_route_that_nobody_asked_for_is_named() -> None:
    routes = as_static("rail0")
    routes[IPv4Network("10.0.9.0/24")] = (NextHop("up0", "172.16.0.1"),)
    assert reported("rail0", routes) == [
        "rail0 has a route to 10.0.9.0/24 that it should not have, over up0 (172.16.0.1)"
    ]


def test_a_path_that_counts_twice_is_named() -> None:
    routes = as_static("rail0")
    routes[TARGET] = (routes[TARGET][0], *routes[TARGET])
    assert reported("rail0", routes) == [
        "the route of rail0 to 10.0.2.0/24 has also up0 (172.16.0.1)"
    ]


def test_a_summary_stands_for_what_it_holds() -> None:
    """With summaries the halves are reached by the whole; without them they are asked for."""
    summed = {
        route.destination: tuple(sorted(NextHop(hop.port, str(hop.via)) for hop in route.hops))
        for route in static_routes(DIVIDED)["spine0"]
    }
    assert IPv4Network("10.0.1.0/24") in summed
    assert not list(ConvergedState(DIVIDED, EBGP).differences("spine0", summed))
    plain = ControlPlane(name="ebgp", summaries=False)
    lacking = {d.destination for d in ConvergedState(DIVIDED, plain).differences("spine0", summed)}
    assert IPv4Network("10.0.1.128/25") in lacking


def test_switches_of_one_as_do_not_hear_of_each_other() -> None:
    plane = parse("ebgp:as=tier")
    assert plane is not None
    requested = ConvergedState(SMALL, plane).requested
    spines = {s.name: s.loopback for s in SMALL.switches if s.role.value == "spine"}
    for name in spines:
        for other, loopback in spines.items():
            assert loopback is not None
            assert IPv4Network(loopback) not in requested[name], other
    assert TARGET in requested["spine0"]
    assert requested["rail0"] == ConvergedState(SMALL, EBGP).requested["rail0"]


def test_a_spine_that_lost_a_rail_does_not_go_down_and_up_for_it() -> None:
    """With an AS per tier; with one per switch it does, as the topology allows."""
    broken = without(SMALL, SMALL.link_at(CableEnd("rail1", "up0")))
    plane = parse("ebgp:as=tier")
    assert plane is not None
    assert TARGET not in ConvergedState(broken, plane).requested["spine0"]
    valley = ConvergedState(broken, EBGP).requested["spine0"][TARGET]
    assert [hop.port for hop in valley] == ["down0"]
    only = ConvergedState(broken, plane).requested["rail0"][TARGET]
    assert [hop.port for hop in only] == ["up1"]


def test_spines_keep_their_as_when_a_failure_parts_them() -> None:
    """No super-spine tells a spine of a rail that only the other spine of its AS has left."""
    pods = catalogue.load("clos:pods=2,super_spines=1,hosts=1,gpus_per_host=1,spines=2")
    plane = parse("ebgp:as=tier")
    assert plane is not None
    rail = next(switch for switch in pods.switches if switch.bridges)
    cable = next(
        link for link, _, far in pods.neighbours(rail.name) if pods.node(far.node).is_switch
    )
    spine = next(end.node for end in cable.ends if end.node != rail.name)
    assert rail.bridges[0].gateway is not None
    network = rail.bridges[0].gateway.network
    assert network in ConvergedState(without(pods, cable), plane).requested[spine]
    assert network not in expected_without(pods, cable, plane).requested[spine]


def left_of(topology: Topology, *cut: str) -> Topology:
    """``topology`` without the cables at the ports ``cut``."""
    links = [topology.link_at(CableEnd(*port.split(":"))) for port in cut]
    return reduce(without, links, topology)


@pytest.mark.parametrize(("vlans", "advertised"), [(False, False), (True, True)])
def test_subnet_goes_with_the_last_port_of_its_bridge(vlans: bool, advertised: bool) -> None:
    two_rails = catalogue.load("clos:hosts=1,gpus_per_host=4,rails_per_switch=2,spines=1")
    bridge = two_rails.node("rail0").bridges[0]
    gone = [
        str(theirs)
        for _, theirs, end in two_rails.neighbours("rail0")
        if two_rails.bridge_of(theirs) == bridge
    ]
    assert bridge.gateway is not None
    network = bridge.gateway.network
    assert network in ConvergedState(two_rails, EBGP).requested["spine0"]
    for plane in (EBGP, ControlPlane(name="ibgp")):
        state = ConvergedState(left_of(two_rails, *gone), plane, two_rails, vlans=vlans)
        assert (network in state.requested["spine0"]) is advertised


def test_summary_goes_with_its_last_subnet() -> None:
    divided = catalogue.load(
        "clos:hosts=1,gpus_per_host=4,rails_per_switch=2,subnets=divided,subnet_prefix=25"
    )
    (block,) = divided.node("rail0").summaries
    ports = [str(near) for _, near, _ in divided.neighbours("rail0") if divided.bridge_of(near)]
    one = ConvergedState(left_of(divided, ports[0]), EBGP, divided)
    assert block in one.requested["spine0"]
    none = ConvergedState(left_of(divided, *ports), EBGP, divided)
    assert block not in none.requested["spine0"]


@pytest.mark.parametrize("name", ["ebgp", "ibgp"])
def test_address_of_a_gpu_stays_behind_a_dead_port(name: str) -> None:
    homed = catalogue.load("clos:hosts=2,gpus_per_host=2,nic_ports=2")
    plane = ControlPlane(name=name)
    state = ConvergedState(left_of(homed, "h0g0:eth0"), plane, homed)
    assert state.requested == ConvergedState(homed, plane).requested


def test_routes_of_a_part_without_reflector_are_those_of_ospf() -> None:
    pods = catalogue.load("clos:pods=2,hosts=1,gpus_per_host=2,spines=1,super_spines=1")
    ibgp = ControlPlane(name="ibgp")
    ups = [str(end) for _, _, end in pods.neighbours("super0")]
    requested = ConvergedState(left_of(pods, *ups), ibgp, pods).requested
    assert {network.prefixlen for network in requested["rail0"]} == {32}
    assert len(requested["rail0"]) == 2  # the loopbacks of the other rail and of the spine
    assert {24, 32} <= {n.prefixlen for n in ConvergedState(pods, ibgp).requested["rail0"]}


RAILS = catalogue.load("rail_clos:hosts=1,gpus_per_host=3,spines=2,uplinks_per_spine=2")
PODS = catalogue.load("clos:pods=2,hosts=1,gpus_per_host=1,spines=2,super_spines=1")


def learned(
    topology: Topology, owner: str, *cut: str, systems: str = "switch"
) -> dict[str, list[str]]:
    """By switch, the ports to what ``owner`` has, without the cables at the ports ``cut``."""
    numbers = as_numbers(topology, ControlPlane(name="ebgp", systems=systems))
    links = [topology.link_at(CableEnd(*port.split(":"))) for port in cut]
    vector = PathVector(reduce(without, links, topology), numbers)
    return {name: [hop.port for hop in hops] for name, hops in vector.hops([owner]).items()}


def test_every_cable_of_the_shortest_paths_is_used() -> None:
    found = learned(RAILS, "rail0")
    assert found["spine0"] == ["down0", "down1"]
    assert sorted(found["rail2"]) == ["up0", "up1", "up2", "up3"]
    assert "rail0" not in found


@pytest.mark.parametrize(("systems", "valley"), [("switch", True), ("tier", False)])
def test_switch_refuses_what_has_passed_its_own_system(systems: str, valley: bool) -> None:
    """A spine without a cable to a rail goes down and up for it, unless spines share an AS."""
    found = learned(RAILS, "rail0", "rail0:up0", "rail0:up1", systems=systems)
    assert ("spine0" in found) is valley
    assert sorted(found["rail1"]) == ["up2", "up3"]


def test_what_is_parted_learns_nothing() -> None:
    up = [f"rail0:{port.name}" for port in RAILS.node("rail0").ports if port.address is not None]
    assert learned(RAILS, "rail0", *up) == {}


def test_longer_way_is_taken_where_no_other_is_left() -> None:
    rail = next(switch.name for switch in PODS.switches if switch.bridges)
    far = [switch.name for switch in PODS.switches if switch.bridges][-1]
    found = learned(PODS, far, f"{rail}:up0")
    assert found[rail] == ["up1"]
