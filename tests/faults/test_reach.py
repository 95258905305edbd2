"""Who is cut off by dead cables: by cables, by routes that know nothing of each other."""

from __future__ import annotations

import dataclasses

import pytest

from emulator.faults.grammar import timeline
from emulator.faults.reach import cut_off, reached
from topologies import catalogue
from topologies.model import FabricProfile, Topology

PLAIN = catalogue.load("rail_clos:hosts=3,gpus_per_host=2,spines=2,uplinks_per_spine=1")
DUAL = catalogue.load("rail_clos:hosts=2,gpus_per_host=2,nic_ports=2")
SHARED = catalogue.load("rail_clos:hosts=2,gpus_per_host=2,gpus_per_nic=2")


def lost(topology: Topology, *downs: str) -> list[str]:
    moments = timeline([f"t=0 {down} down" for down in downs], topology)
    return cut_off(topology, moments[-1].condition.dead)


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
    told = dataclasses.replace(third, profile=FabricProfile(control_plane="ebgp"))
    assert not {"h0g1", "h1g1", "h2g1"} & reached(third, dead)["h0g0"]
    assert "h0g1" in reached(told, dead)["h0g0"]  # over the third rail


def test_a_second_port_keeps_a_gpu_in() -> None:
    first, second = DUAL.gpus[0].ports
    assert lost(DUAL, f"nic h0g0:{first.name}") == []
    assert lost(DUAL, f"nic h0g0:{first.name}", f"nic h0g0:{second.name}") == ["h0g0"]


def test_gpus_behind_one_nic_go_together() -> None:
    nic = next(node for node in SHARED.nodes if node.forwards and not node.is_switch)
    found = lost(SHARED, f"nic {nic.name}")
    assert found
    assert all(SHARED.node(name).server == nic.server for name in found)
