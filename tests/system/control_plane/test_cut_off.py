"""Test who is cut off from whom: as computed, and as the routes in the kernels have it."""

import random

import pytest

from emulator.dataplane.control_plane.control_plane_choice import chosen
from emulator.run.faults.condition import SOUND, element
from emulator.run.faults.fault_injector import FaultInjector
from emulator.run.faults.reach import reached
from tests.harness.lab.kernels import await_kernels
from tests.harness.lab.traffic import pings
from tests.harness.nightly import nightly
from tests.system.conftest import LabFactory
from topologies import catalogue
from topologies.addressing import gpu_address

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


@pytest.mark.parametrize("spec", STATIC)
def test_static_routes_lead_where_they_are_said_to(lab: LabFactory, spec: str) -> None:
    made = lab(spec)
    topology, injector, rng = made.topology, FaultInjector(made), random.Random(spec)
    cut = 0
    for _ in range(4):
        *dead, black = rng.sample(topology.links, 4)
        condition = SOUND
        for cable in dead:
            condition = condition.lowered(element("link", str(cable.a), topology))
        injector.apply(condition)
        expected = reached(topology, dead, [black])
        await_kernels(made, expected, [black])
        cut += sum(len(topology.gpus) - 1 - len(others) for others in expected.values())
        injector.apply(SOUND)
    assert cut


def test_a_pair_that_is_cut_off_does_not_ping_and_others_do(lab: LabFactory) -> None:
    """On rings of three there is one way for each pair, there and back."""
    made = lab("torus:x=3,y=3")
    topology = made.topology
    faulted = element("link", "r0-0:xplus0", topology)
    FaultInjector(made).apply(SOUND.lowered(faulted))
    left = reached(topology, faulted.links)
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
        # with it went the reflector
        nightly((TWO_PODS, "ibgp:bfd=off,hold=3s", ("switch super0",), False)),
        ("torus:x=3,y=2,routing=shortest", "ebgp:bfd=off", ("link r0-0:xplus0",), True),
    ],
)
def test_what_a_routing_protocol_finds_is_what_it_is_said_to(
    lab: LabFactory, spec: str, plane: str, down: tuple[str, ...], whole: bool
) -> None:
    made = lab(chosen(catalogue.load(spec), plane))
    topology = made.topology
    condition = SOUND
    for stated in down:
        kind, name = stated.split()
        condition = condition.lowered(element(kind, name, topology))
    FaultInjector(made).apply(condition)
    expected = reached(topology, condition.dead)
    assert whole is all(len(others) == len(topology.gpus) - 1 for others in expected.values())
    await_kernels(made, expected)
