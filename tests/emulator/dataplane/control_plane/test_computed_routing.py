"""Routes that modelled switches get, against small graphs whose routes are worked out by hand.

::

    rail0 (10.0.1.0/24) -- up0 172.16.0.1 -- spine0 -- 172.16.0.5 up0 -- rail1 (10.0.2.0/24)
                        -- up1 172.16.0.3 -- spine1 -- 172.16.0.7 up1 --
"""

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from emulator.dataplane.control_plane import control_plane_choice as control_plane
from emulator.dataplane.control_plane.advertised_members import AdvertisedMembers
from emulator.dataplane.control_plane.charged_time import Broken
from emulator.dataplane.control_plane.computed_routing import ComputedRouting
from topologies.catalogue import load
from topologies.model import CableEnd, Link, Topology
from topologies.routing.static_routes import Route

SQUARE = "rail_clos:hosts=2,gpus_per_host=2,spines=2,uplinks_per_spine=1"
Ports = list[str]


class Routed:
    """Switches of ``spec`` under ``plane``: the routes that they were given last."""

    def __init__(self, spec: str = SQUARE, plane: str = "ebgp") -> None:
        self.topology: Topology = control_plane.chosen(load(spec), plane)
        chosen = control_plane.of(self.topology)
        assert chosen is not None
        self.given: dict[str, Sequence[Route]] = {}
        self.advertised: list[AdvertisedMembers] = []
        self.routing = ComputedRouting(
            chosen, self.topology, self.given.__setitem__, members=self.advertised.append
        )

    def to(self, switch: str, destination: str) -> Ports | None:
        """Return the ports of ``switch`` to ``destination`` in order; None: it has no route."""
        routes = {route.destination: route.hops for route in self.given[switch]}
        hops = routes.get(IPv4Network(destination))
        return None if hops is None else [hop.port for hop in hops]

    def link(self, port: str) -> Link:
        """Return the cable of ``port``, such as ``rail0:up0``."""
        (link,) = [one for one in self.topology.links if port in map(str, one.ends)]
        return link

    def lose(self, *ports: str, black: bool = False) -> None:
        """Settle without the cables of ``ports``."""
        links = frozenset(map(self.link, ports))
        self.routing.settle(Broken(black=links) if black else Broken(dead=links))


def routes_of(given: Mapping[str, Sequence[Route]], switch: str) -> dict[str, list[str]]:
    """Return destination -> port and neighbour of each hop."""
    return {
        str(route.destination): [f"{hop.port} {hop.via}" for hop in route.hops]
        for route in given[switch]
    }


def test_every_switch_has_all_shortest_paths_from_the_start() -> None:
    given = Routed().given
    assert set(given) == {"rail0", "rail1", "spine0", "spine1"}
    both = ["up0 172.16.0.1", "up1 172.16.0.3"]
    assert (
        routes_of(given, "rail0")
        == {
            "10.0.2.0/24": both,
            "10.255.0.2/32": both,  # the loopback of rail1
            "10.255.64.1/32": both[:1],  # those of the spines
            "10.255.64.2/32": both[1:],
        }
    )
    assert routes_of(given, "spine0") == {
        "10.0.1.0/24": ["down0 172.16.0.0"],
        "10.0.2.0/24": ["down1 172.16.0.4"],
        "10.255.0.1/32": ["down0 172.16.0.0"],
        "10.255.0.2/32": ["down1 172.16.0.4"],
        "10.255.64.2/32": ["down0 172.16.0.0", "down1 172.16.0.4"],
    }


@pytest.mark.parametrize("plane", ["ebgp", "ibgp"])
def test_hops_of_equal_length_are_in_the_order_of_addresses_not_of_their_text(plane: str) -> None:
    wide = Routed("rail_clos:hosts=2,gpus_per_host=2,spines=6,uplinks_per_spine=1", plane)
    ports = [f"up{place}" for place in range(6)]
    assert wide.to("rail0", "10.0.2.0/24") == ports
    hops = routes_of(wide.given, "rail0")["10.0.2.0/24"]
    assert hops != sorted(hops, key=lambda hop: hop.split()[1])  # 172.16.0.11 is before .3 as text


def test_parallel_cables_are_paths_of_their_own() -> None:
    doubled = Routed("rail_clos:hosts=2,gpus_per_host=2,spines=1,uplinks_per_spine=2")
    assert doubled.to("rail0", "10.0.2.0/24") == ["up0", "up1"]
    assert doubled.to("spine0", "10.0.1.0/24") == ["down0", "down1"]
    doubled.lose("rail0:up0")
    assert doubled.to("rail0", "10.0.2.0/24") == ["up1"]
    assert doubled.to("spine0", "10.0.1.0/24") == ["down1"]
    assert doubled.to("rail1", "10.0.1.0/24") == ["up0", "up1"]


@pytest.mark.parametrize("black", [False, True], ids=["without carrier", "black"])
def test_a_lost_cable_between_switches_leaves_the_other_spine(black: bool) -> None:
    square = Routed()
    square.lose("rail0:up0", black=black)
    assert square.to("rail0", "10.0.2.0/24") == ["up1"]
    assert square.to("rail1", "10.0.1.0/24") == ["up1"]  # three systems by spine0, two by spine1
    assert square.to("spine0", "10.0.1.0/24") == ["down1"]  # rail1, spine1, rail0
    assert square.to("spine1", "10.0.1.0/24") == ["down0"]
    assert square.to("spine0", "10.0.2.0/24") == ["down1"]


def test_a_switch_without_any_cable_left_has_no_route_and_nobody_one_to_it() -> None:
    square = Routed()
    square.lose("rail0:up0", "rail0:up1")
    assert square.given["rail0"] == []
    assert square.to("rail1", "10.0.1.0/24") is None
    assert square.to("spine0", "10.0.1.0/24") is None
    assert square.to("spine0", "10.0.2.0/24") == ["down1"]


def test_a_subnet_is_withdrawn_with_its_last_carrier() -> None:
    square = Routed()
    square.lose("rail0:down0")
    assert square.to("rail1", "10.0.1.0/24") == ["up0", "up1"]
    square.lose("rail0:down0", "rail0:down1")
    assert square.to("rail1", "10.0.1.0/24") is None
    assert square.to("rail1", "10.255.0.1/32") == ["up0", "up1"]  # rail0 itself is there


def test_no_switch_notices_a_gpu_whose_cable_keeps_carrier() -> None:
    square = Routed()
    before = dict(square.given)
    square.lose("rail0:down0", "rail0:down1", black=True)
    assert square.given == before


@pytest.mark.parametrize("how", ["healed", "converged again"])
def test_healing_brings_the_first_routes_back(how: str) -> None:
    square = Routed()
    before = dict(square.given)
    square.lose("rail0:up0", "rail1:up1")
    assert square.given != before
    if how == "healed":
        square.routing.settle(Broken())
    else:
        square.routing.await_convergence()
    assert square.given == before


@pytest.mark.parametrize(
    ("unnumbered", "ports"),
    [
        ("off", ["down0", "down1", "up0", "up1"]),  # 172.16.0.0 and .4, 172.24.0.1 and .3
        ("on", ["up0", "up1", "down0", "down1"]),  # MACs of super-spines, then of rail switches
    ],
)
def test_neighbours_without_addresses_are_in_the_order_of_their_macs(
    unnumbered: str, ports: Ports
) -> None:
    tree = Routed("fat_tree:radix=4,gpus_per_host=2,levels=3", f"ebgp:unnumbered={unnumbered}")
    assert tree.to("spine0", "10.255.64.4/32") == ports
    ends = [tree.topology.far_end(CableEnd("spine0", port)) for port in ports]
    macs = [tree.topology.node(end.node).port(end.port).mac for end in ends]
    assert (macs == sorted(macs)) == (unnumbered == "on")


def test_the_record_says_that_nothing_had_to_converge(tmp_path: Path) -> None:
    routing = Routed().routing
    routing.save(tmp_path)
    assert not list(tmp_path.iterdir())
    assert routing.facts() == {
        "spec": routing.plane.spec,
        "converged_s": 0.0,
        "detection_s": routing.plane.detection_s,
    }
    assert routing.neighbours_lost() == 0
    assert not routing.judged_by_silence


def test_members_of_stretched_rails_come_with_the_routes() -> None:
    routed = Routed("clos:segments=2,hosts=1,gpus_per_host=2,spines=2,subnets=stretched", "evpn")
    routed.lose("rail2:up0", "rail2:up1")
    whole, left = routed.advertised
    assert list(whole.others("rail0", 10_101)) == ["rail2"]
    assert list(whole.elsewhere("rail0", 10_101)) == [("h1g0", ("rail2",))]
    assert list(left.others("rail0", 10_101)) == []
    assert list(left.elsewhere("rail0", 10_101)) == [("h1g0", ())]


def test_there_are_no_members_without_stretched_rails() -> None:
    assert Routed().advertised == []
