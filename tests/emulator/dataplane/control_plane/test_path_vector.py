"""The choice of routes by BGP's speakers, computed."""

from __future__ import annotations

from functools import reduce

import pytest

from emulator.dataplane.control_plane.control_plane_choice import ControlPlane
from emulator.dataplane.control_plane.failure import without
from emulator.dataplane.control_plane.path_vector import PathVector
from emulator.dataplane.control_plane.speakers import as_numbers
from topologies import catalogue
from topologies.model import CableEnd, Topology

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
