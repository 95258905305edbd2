"""Test who is cut off where tunnels join rails: computed, as the kernels have it, by ping.

::

    spine0   spine1          of PODS: below two super-spines, beside spine2 and spine3
     |    \\/    |
     |    /\\    |
    rail0    rail1          rail2    rail3      up0 to the first spine, up1 to the second
    h0g0     h0g1           h1g0     h1g1       rail 0, rail 1; rail 0, rail 1
"""

from collections.abc import Mapping
from functools import reduce

import pytest
from click.testing import CliRunner

from emulator.cli.labs import inject_verb
from emulator.dataplane import cleanup
from emulator.dataplane.control_plane.control_plane_choice import chosen
from emulator.dataplane.control_plane.convergence import ConvergedState
from emulator.dataplane.control_plane.failure import without
from emulator.dataplane.lab import Lab
from emulator.dataplane.settings import FabricSettings
from emulator.dataplane.switch import switch_choice as choice
from emulator.run.faults.fault_injector import recorded
from emulator.run.faults.reach import reached
from tests.harness.lab.kernels import await_kernels
from tests.harness.lab.traffic import pings, within
from tests.harness.nightly import nightly
from tests.system.control_plane.test_control_plane import address, routing_of
from topologies import catalogue

pytestmark = pytest.mark.root

ONE_LINK = "uplinks_per_spine=1,subnets=stretched"
SEGMENTS = f"clos:segments=2,hosts=1,gpus_per_host=2,spines=2,{ONE_LINK}"
PODS = "clos:pods=2,hosts=1,gpus_per_host=2,spines=2,super_spines=2,uplinks_per_super=1," + ONE_LINK
TWO_RAILS = f"clos:segments=2,hosts=1,gpus_per_host=4,rails_per_switch=2,spines=2,{ONE_LINK}"
VTEP = "link rail0:up0 down; link rail0:up1 down"
#: rail0 has spine1 left and rail2 spine0: from one to the other by a switch that is neither
DOWN_AND_UP = "link rail0:up0 down; link rail2:up1 down"
STRUCK: Mapping[str, Mapping[str, int]] = {  # how many pairs are left
    SEGMENTS: {
        VTEP: 3,
        DOWN_AND_UP: 6,
        "switch rail0 down": 3,
        "link rail0:up0 blackhole; link rail0:up1 blackhole": 3,
        "nic h0g0 down; link rail1:up0 blackhole": 3,
    },
    PODS: {
        VTEP: 3,  # h0g1's way to the rest of rail 0 leads to the other pod
        "switch super0 down; switch super1 down": 2,
        "switch spine0 down; switch spine1 down": 1,
        # what rail0 has left leads to the other pod by rail1 and spine1
        "link rail0:up1 down; link spine0:up0 down; link spine0:up1 down": 6,
    },
    TWO_RAILS: {VTEP: 16, DOWN_AND_UP: 28},
}


@pytest.mark.parametrize(
    "spec", [nightly(SEGMENTS), nightly(PODS), TWO_RAILS], ids=["segments", "pods", "rails"]
)
def test_tunnels_lead_where_they_are_said_to(spec: str, lab_name: str) -> None:
    black = any(
        "blackhole" in apply_fault for apply_fault in STRUCK[spec]
    )  # found when the time is over
    topology = chosen(catalogue.load(spec), f"evpn:bfd=off,hold={3 if black else 60}s")
    try:
        with Lab.create(
            lab_name,
            topology,
            FabricSettings(
                dilation=1000, seed=1, spec=spec, switch=choice.parse("shallow"), persistent=True
            ),
        ) as made:
            for apply_fault, pairs in STRUCK[spec].items():
                inject(lab_name, apply_fault)
                assert joined(made) == 2 * pairs
                inject(lab_name, "heal")
                routing_of(made).await_convergence()
    finally:
        cleanup.take_down(lab_name)


def inject(lab: str, fault: str) -> None:
    reported = CliRunner().invoke(inject_verb.command, [lab, fault], catch_exceptions=False)
    assert reported.exit_code == 0


def joined(lab: Lab) -> int:
    """How many GPUs reach another, once every switch knows what is struck: those that should."""
    topology, condition = lab.topology, recorded(lab.name, lab.topology)
    black = condition.impassable - condition.dead
    between = [
        link
        for link in condition.impassable
        if all(topology.node(end.node).is_switch for end in link.ends)
    ]
    routing = routing_of(lab)
    left = ConvergedState(reduce(without, between, topology), routing.plane)
    within(60, lambda: not routing.differences(None, left), f"routes without {condition.words()}")
    expected = reached(topology, condition.dead, black)
    await_kernels(lab, expected, black)
    names = [gpu.name for gpu in topology.gpus]
    pairs = {(a, address(topology, b)): b in expected[a] for a in names for b in names if a != b}
    reaching = [pair for pair, reaches in pairs.items() if reaches]
    assert set(pings(lab, reaching).values()) == {0}
    assert 0 not in pings(lab, pairs.keys() - reaching, wait_s=1).values()
    return len(reaching)
