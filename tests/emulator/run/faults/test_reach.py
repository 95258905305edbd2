"""Test who is cut off by dead cables: by cables, by routes that know nothing of each other."""

import dataclasses

import pytest

from emulator.run.faults.grammar import timeline
from emulator.run.faults.reach import Reach, reached, ways_of
from topologies import catalogue
from topologies.model import CableEnd, FabricProfile, Link, Node, Topology

PLAIN = catalogue.load("rail_clos:hosts=3,gpus_per_host=2,spines=2,uplinks_per_spine=1")
DUAL = catalogue.load("rail_clos:hosts=2,gpus_per_host=2,nic_ports=2")
SHARED = catalogue.load("rail_clos:hosts=2,gpus_per_host=2,gpus_per_nic=2")


def lost(topology: Topology, *downs: str) -> list[str]:
    moments = timeline([f"t=0 {down} down" for down in downs], topology)
    return list(Reach(topology).cut(moments[-1].condition).gpus)


@pytest.mark.parametrize(
    ("downs", "gone"),
    [
        (["switch rail0"], ["h0g0", "h1g0", "h2g0"]),
        (["nic h1g1"], ["h1g1"]),
        (["switch spine0"], []),
        (["link rail0:up0"], []),
        (["link rail0:up0", "link rail0:up1"], 3),
        (["switch spine0", "switch spine1"], 3),
    ],
)
def test_in_a_rail_fabric(downs: list[str], gone: list[str] | int) -> None:
    found = lost(PLAIN, *downs)
    if isinstance(gone, int):  # halves of equal size: either is the other's loss
        assert len(found) == gone
        assert len({name[-1] for name in found}) == 1
    else:
        assert found == gone


@pytest.mark.parametrize(
    ("fault", "gone"),
    [
        ("gpu h1g1 dead", ["h1g1"]),
        ("server h1 dead", ["h1g0", "h1g1"]),
        ("gpu h0g0 dead; t=1 gpu h1g0 dead; t=2 gpu h2g0 dead", ["h0g0", "h1g0", "h2g0"]),
        ("gpu h0g0 dead; t=1 nic h2g1 down", ["h0g0", "h2g1"]),
    ],
)
def test_the_dead_reach_nobody_and_cut_off_nobody_else(fault: str, gone: list[str]) -> None:
    text = fault.replace("t=1 ", "t=1ns ").replace("t=2 ", "t=2ns ")
    condition = timeline([f"t=0 {text}"], PLAIN)[-1].condition
    reach = Reach(PLAIN)
    assert list(reach.cut(condition).gpus) == gone
    assert reach.cut(condition).pairs == ()
    for name, others in reach.left(condition).items():
        assert not others & set(gone)
        assert len(others) == (0 if name in gone else 5 - len(gone))


def test_of_two_gpus_that_had_each_other_the_dead_one_is_lost() -> None:
    pairs = catalogue.load("clos:spines=0,hosts=2,gpus_per_host=2")
    for name in ("h0g1", "h1g1"):
        condition = timeline([f"t=0 gpu {name} dead"], pairs)[-1].condition
        assert Reach(pairs).cut(condition).gpus == (name,)


def test_who_only_had_each_other() -> None:
    pairs = catalogue.load("clos:spines=0,hosts=2,gpus_per_host=2")
    assert lost(pairs, "nic h0g1") == ["h0g1"]
    assert lost(pairs, "nic h1g1") == ["h1g1"]
    assert lost(pairs, "switch rail1") == ["h0g1", "h1g1"]


def test_static_routes_do_not_go_around_what_they_do_not_see() -> None:
    """Each rail has lost another spine: no spine is left that leads from one to the other."""
    downs = ["t=0 link rail0:up0 down", "t=0 link rail1:up1 down"]
    third = catalogue.load("rail_clos:hosts=3,gpus_per_host=3,spines=2,uplinks_per_spine=1")
    dead = timeline(downs, third)[-1].condition.dead
    reported = dataclasses.replace(third, profile=FabricProfile(control_plane="ebgp"))
    assert not {"h0g1", "h1g1", "h2g1"} & reached(third, dead)["h0g0"]
    assert "h0g1" in reached(reported, dead)["h0g0"]  # over the third rail


def pairs(topology: Topology, *downs: str) -> set[tuple[str, str]]:
    moments = timeline([f"t=0 {down}" for down in downs], topology)
    cut = Reach(topology).cut(moments[-1].condition)
    assert cut.gpus == ()
    return set(cut.pairs)


def told_by(topology: Topology, plane: str) -> Topology:
    return dataclasses.replace(topology, profile=FabricProfile(control_plane=plane))


def test_dimension_order_has_one_way_for_whoever_is_near() -> None:
    """On rings of three: whoever goes from column 0 to 1 in row 0, or back."""
    torus = catalogue.load("torus:x=3,y=2")
    assert pairs(torus, "link r0-0:xplus0 down") == {
        ("h0g0", "h1g0"),
        ("h0g0", "h4g0"),  # r0-0 to r1-1; the way back is in row 1
        ("h1g0", "h3g0"),  # r1-0 to r0-1
    }


def test_who_has_two_ways_keeps_the_pair_though_half_is_lost() -> None:
    """Two columns apart on a ring of four: r3-0 goes on sending both ways."""
    ring = catalogue.load("torus:x=4,y=1")
    assert pairs(ring, "link r0-0:xplus0 down") == {("h0g0", "h1g0")}


def test_valiants_table_gives_way_to_the_minimal_one_where_its_hops_have_no_carrier() -> None:
    """A router without a global link sends what comes from its group on to one that has the link
    which minimal routing takes; one whose link swallows everything goes on using that."""
    fabric = catalogue.load("dragonfly:gpus_per_host=1,routers=3,global_links=1,routing=valiant")

    def cable(a: str, b: str) -> Link:
        return next(link for link in fabric.links if {link.a.node, link.b.node} == {a, b})

    def outwards(router: str) -> Link:
        return fabric.link_at(CableEnd(router, "global0"))

    def leads(gpu: Node, dead: list[Link], black: list[Link]) -> bool:
        router = next(far.node for _, _, far in fabric.neighbours(gpu.name))
        return "g0-r0" in ways_of(fabric, dead, black).leading(gpu.name, frozenset({router}))

    only_over_r1 = [outwards("g0-r0"), cable("g0-r0", "g0-r2")]
    beyond_r2 = fabric.node(fabric.far_end(CableEnd("g0-r2", "global0")).node).pod
    for gpu in fabric.gpus[3:]:
        assert leads(gpu, [*only_over_r1, outwards("g0-r1")], []) is (gpu.pod == beyond_r2)
        assert not leads(gpu, only_over_r1, [outwards("g0-r1")])


def test_two_dead_uplinks_part_two_rails_and_not_the_third() -> None:
    third = catalogue.load("rail_clos:hosts=2,gpus_per_host=3,spines=2,uplinks_per_spine=1")
    downs = ("link rail0:up0 down", "link rail1:up1 down")
    apart = {("h0g0", "h0g1"), ("h0g0", "h1g1"), ("h0g1", "h1g0"), ("h1g0", "h1g1")}
    assert pairs(third, *downs) == apart
    assert pairs(told_by(third, "ebgp"), *downs) == set()
    assert pairs(told_by(third, "ibgp"), *downs) == set()
    assert pairs(told_by(third, "ebgp:as=tier"), *downs) == apart


@pytest.mark.parametrize(("plane", "whole"), [("ibgp", "0"), ("ebgp", "01")])
def test_without_a_reflector_ibgp_knows_no_other_switch(plane: str, whole: str) -> None:
    pods = catalogue.load("clos:pods=2,hosts=2,gpus_per_host=2,spines=1,super_spines=1")
    reported = told_by(pods, plane)
    dead = timeline(["t=0 switch super0 down"], reported)[-1].condition.dead
    left = {"h0g0", *reached(reported, dead)["h0g0"]}
    assert left == {f"h{host}g{rail}" for host in (0, 1) for rail in whole}


def test_causes_are_what_it_takes() -> None:
    third = catalogue.load("rail_clos:hosts=2,gpus_per_host=3,spines=2,uplinks_per_spine=1")
    downs = (
        "link rail2:up0 down",
        "link rail0:up0 blackhole",
        "link rail1:up1 down",
        "nic h1g2 down",
    )
    moments = timeline([f"t=0 {one}" for one in downs], third)
    found = Reach(third).causes("h0g0", "h0g1", moments[-1].condition)
    assert {str(link.a) for links in found for link in links} == {"rail0:up0", "rail1:up1"}


def test_a_second_port_keeps_a_gpu_in() -> None:
    first, second = DUAL.gpus[0].ports
    assert lost(DUAL, f"nic h0g0:{first.name}") == []
    assert lost(DUAL, f"nic h0g0:{first.name}", f"nic h0g0:{second.name}") == ["h0g0"]


def test_gpus_behind_one_nic_go_together() -> None:
    nic = next(node for node in SHARED.nodes if node.forwards and not node.is_switch)
    found = lost(SHARED, f"nic {nic.name}")
    assert found
    assert all(SHARED.node(name).server == nic.server for name in found)
