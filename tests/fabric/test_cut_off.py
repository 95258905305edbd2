"""Who is cut off from whom, computed, and as the routes say that are in the kernels by then."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

import pytest

from emulator.control_plane.choice import chosen
from emulator.faults.condition import SOUND
from emulator.faults.elements import element
from emulator.faults.reach import reached
from emulator.faults.striker import Striker
from emulator.lab import Lab
from tests.fabric.conftest import LabFactory
from tests.fabric.traffic import pings, within
from topologies import catalogue
from topologies.addressing import gpu_address
from topologies.model import End, Link

pytestmark = pytest.mark.root

STATIC = (
    "rail_clos:hosts=2,gpus_per_host=3,spines=2,uplinks_per_spine=1",
    "clos:hosts=2,gpus_per_host=2,nic_ports=2",
    "fat_tree:radix=4,levels=3,leaves=4,gpus_per_host=2",
    "torus:x=4,y=3",
    "torus:x=3,y=3,routing=shortest",
    "dragonfly:gpus_per_host=1,routers=3,global_links=1,routing=valiant",
    "dragonfly_plus:gpus_per_host=1,leaves=2,spines=2,groups=3,routing=valiant",
)
THREE_RAILS = "rail_clos:hosts=2,gpus_per_host=3,spines=2,uplinks_per_spine=1"
TWO_PODS = "clos:pods=2,hosts=2,gpus_per_host=2,spines=1,super_spines=1"
#: No spine is left that leads from the first rail to the second.
APART = ("link rail0:up0", "link rail1:up1")
BUDGET_S = 60.0


@dataclass(frozen=True)
class Route:
    """``hops`` are interfaces that can be used; none: packets end here."""

    table: str
    destination: IPv4Network
    hops: tuple[str, ...]


class Kernels:
    """The rules and routes of every switch of ``lab``, and where packets get by them."""

    def __init__(self, lab: Lab, black: Collection[Link]) -> None:
        self._topology, self._black = lab.topology, black
        self._rules: dict[str, list[Mapping[str, object]]] = {}
        self._routes: dict[str, list[Route]] = {}
        self._down: dict[str, set[str]] = {}
        for switch in lab.topology.switches:
            ask = ["sh", "-c", "ip -4 -j rule; ip -4 -j route show table all; ip -j link"]
            parts = lab.exec(switch.name, ask).stdout.splitlines()
            rules, routes, links = (json.loads(part) for part in parts)
            self._rules[switch.name] = rules
            self._routes[switch.name] = list(_routes(routes))
            self._down[switch.name] = {
                link["ifname"] for link in links if "LOWER_UP" not in link["flags"]
            }

    def reached(self) -> dict[str, set[str]]:
        names = [gpu.name for gpu in self._topology.gpus]
        one_way = {(a, b) for a in names for b in names if a != b and self._arrives(a, b)}
        return {a: {b for b in names if {(a, b), (b, a)} <= one_way} for a in names}

    def _arrives(self, source: str, destination: str) -> bool:
        nodes = self._topology.node(source), self._topology.node(destination)
        here, there = (gpu_address(node).ip for node in nodes)
        front = [far for _, far in self._cables(source)]
        seen = set(front)
        for end in front:  # which grows
            bridge = self._topology.bridge_of(end)
            if bridge is not None and any(
                far.node == destination and self._topology.bridge_of(ours) == bridge
                for ours, far in self._cables(end.node)
            ):
                return True  # a frame to a neighbour on the same bridge, or routed back to it
            for hop in self._hops(end.node, bridge.name if bridge else end.port, here, there):
                for ours, far in self._cables(end.node):
                    leaves = self._topology.bridge_of(ours)
                    if hop not in (ours.port, leaves.name if leaves else None):
                        continue
                    if far.node == destination:
                        return True
                    if hop == ours.port and far not in seen:
                        seen.add(far)
                        front.append(far)
        return False

    def _cables(self, node: str) -> Iterator[tuple[End, End]]:
        """Our and their ends of cables that carry."""
        for link, ours, theirs in self._topology.neighbours(node):
            ends = {ours.node: ours.port, theirs.node: theirs.port}
            if link not in self._black and all(
                port not in self._down.get(name, ()) for name, port in ends.items()
            ):
                yield ours, theirs

    def _hops(
        self, switch: str, interface: str, here: IPv4Address, there: IPv4Address
    ) -> tuple[str, ...]:
        """The interfaces that packets leave by, as fib_lookup() has it."""
        for rule in self._rules[switch]:
            source = f"{rule['src']}/{rule.get('srclen', 32)}" if rule["src"] != "all" else None
            if rule.get("iif", interface) != interface or (
                source is not None and here not in IPv4Network(source)
            ):
                continue
            fitting = [
                route
                for route in self._routes[switch]
                if route.table == rule["table"] and there in route.destination
            ]
            if fitting:
                return max(fitting, key=lambda route: route.destination.prefixlen).hops
        return ()


def _routes(rows: Collection[Mapping[str, object]]) -> Iterator[Route]:
    """Those that a lookup would not pass over."""
    for row in rows:
        kind, dst = row.get("type", "unicast"), str(row["dst"])
        hops = row.get("nexthops") or [row]
        assert isinstance(hops, list)
        usable = [hop["dev"] for hop in hops if not {"dead", "linkdown"} & set(hop["flags"])]
        if kind == "blackhole" or (kind == "unicast" and usable):
            network = IPv4Network("0.0.0.0/0" if dst == "default" else dst)
            yield Route(str(row.get("table", "main")), network, tuple(usable))


def await_kernels(lab: Lab, expected: Mapping[str, Set[str]], black: Collection[Link] = ()) -> None:
    within(BUDGET_S, lambda: Kernels(lab, black).reached() == expected, f"reached {expected}")


@pytest.mark.parametrize("spec", STATIC)
def test_static_routes_lead_where_they_are_said_to(lab: LabFactory, spec: str) -> None:
    made = lab(spec)
    topology, striker, rng = made.topology, Striker(made), random.Random(spec)
    cut = 0
    for _ in range(4):
        *dead, black = rng.sample(topology.links, 4)
        condition = SOUND
        for cable in dead:
            condition = condition.lowered(element("link", str(cable.a), topology))
        striker.apply(condition)
        expected = reached(topology, dead, [black])
        await_kernels(made, expected, [black])
        cut += sum(len(topology.gpus) - 1 - len(others) for others in expected.values())
        striker.apply(SOUND)
    assert cut


def test_a_pair_that_is_cut_off_does_not_ping_and_others_do(lab: LabFactory) -> None:
    """On rings of three there is one way for each pair, there and back."""
    made = lab("torus:x=3,y=3")
    topology = made.topology
    struck = element("link", "r0-0:xplus0", topology)
    Striker(made).apply(SOUND.lowered(struck))
    left = reached(topology, struck.links)
    names = [gpu.name for gpu in topology.gpus]
    assert {len(others) for others in left.values()} > {len(names) - 1}
    address = {name: str(gpu_address(topology.node(name)).ip) for name in names}
    answers = pings(made, [(a, address[b]) for a in names for b in names if a != b])
    for a in names:
        assert left[a] == {b for b in names if answers.get((a, address[b])) == 0}


@pytest.mark.parametrize(
    ("spec", "plane", "down", "whole"),
    [
        (THREE_RAILS, "ebgp:bfd=off", APART, True),  # over the third rail
        (THREE_RAILS, "ebgp:bfd=off,as=tier", APART, False),  # a spine refuses its own AS
        (THREE_RAILS, "ibgp:bfd=off", APART, True),
        (TWO_PODS, "ibgp:bfd=off,hold=3s", ("switch super0",), False),  # with it went the reflector
        ("torus:x=3,y=2,routing=shortest", "ebgp:bfd=off", ("link r0-0:xplus0",), True),
    ],
)
def test_what_a_routing_protocol_finds_is_what_it_is_said_to(
    lab: LabFactory, spec: str, plane: str, down: tuple[str, ...], whole: bool
) -> None:
    made = lab(chosen(catalogue.load(spec), plane))
    topology = made.topology
    condition = SOUND
    for said in down:
        condition = condition.lowered(element(*said.split(), topology))
    Striker(made).apply(condition)
    expected = reached(topology, condition.dead)
    assert whole is all(len(others) == len(topology.gpus) - 1 for others in expected.values())
    await_kernels(made, expected)
