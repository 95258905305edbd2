"""Control planes in virtual time: old routes hold for the time that convergence is charged with."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from emulator.dataplane.control_plane.charged_time import HOP_NS, Broken, ChargedTime, Convergence
from emulator.dataplane.control_plane.control_plane_choice import chosen
from emulator.dataplane.control_plane.control_plane_choice import of as plane_of
from emulator.dataplane.control_plane.held_routes import HeldRoutes
from emulator.dataplane.switch.switch_choice import parse as parse_switch
from emulator.errors import UserError
from emulator.run.faults.condition import SOUND
from emulator.sim.event_queue import PS, EventQueue
from emulator.sim.network import Network
from tests.system.conftest import LabFactory
from tests.system.engine.test_faults_in_labs import Bench
from topologies import catalogue
from topologies.model import CableEnd, Topology

#: With 200 ms of detection by BFD.
BGP = "ebgp:interval=50ms,multiplier=4"
SPINES = "rail_clos:hosts=1,gpus_per_host=2,spines=2,uplinks_per_spine=1,nic_rate=8Gbps"


def speaking(plane: str = BGP) -> Topology:
    return chosen(catalogue.load(SPINES), plane)


def broken(topology: Topology, port: str, *, black: bool = False) -> Broken:
    links = frozenset({topology.link_at(CableEnd(*port.split(":")))})
    return Broken(black=links) if black else Broken(dead=links)


@pytest.mark.parametrize(
    ("plane", "black", "charged_ns"),
    [
        # The other rail switch hears of it from the spine at the end of the cable.
        (BGP, False, 1 * HOP_NS),
        (BGP, True, 200_000_000 + 1 * HOP_NS),
        ("ebgp:bfd=off,hold=9s", True, 9_000_000_000 + 1 * HOP_NS),
    ],
)
def test_charged_time_is_detection_and_hops(plane: str, black: bool, charged_ns: int) -> None:
    topology = speaking(plane)
    spoken = plane_of(topology)
    assert spoken is not None
    charged = ChargedTime(topology, spoken)
    after = broken(topology, "rail0:up0", black=black)
    assert charged.of(Broken(), after) == charged_ns
    assert charged.of(after, Broken()) == charged_ns
    assert charged.of(after, after) == 0


@pytest.mark.parametrize("text", ["", "soon", "10", "-1ms"])
def test_convergence_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="computed, measured, or a time"):
        Convergence.parse(text)


def test_convergence_is_computed_measured_or_given() -> None:
    plane = plane_of(speaking())
    assert plane is not None
    assert Convergence.parse("10ms").given_ns == 10_000_000
    assert "10 ms" in Convergence.parse("10ms").words(plane)
    assert "BFD 200 ms" in Convergence.parse("computed").words(plane)
    assert Convergence.parse("computed").repeatable
    assert not Convergence.parse("measured").repeatable


@contextmanager
def routed(lab: LabFactory) -> Iterator[tuple[Bench, HeldRoutes]]:
    made = lab(
        speaking(), dilation=1, clock="virtual", switch=parse_switch("shallow:balance=packet")
    )
    network = Network(made, EventQueue())
    assert made.routing is not None
    routes = HeldRoutes(made.routing, pytest.fail)
    try:
        routes.hold()
        yield Bench(made, network), routes
    finally:
        routes.release()
        network.close()


@pytest.mark.root
def test_far_switch_sends_on_old_routes_until_new_ones_are_due(lab: LabFactory) -> None:
    with routed(lab) as (bench, routes):
        topology = bench.lab.topology
        cut = SOUND.lowered(bench.element("link", "rail0:up0"))
        bench.injector.apply(cut)
        # rail1 knows nothing: what it sends to spine0 has no way there any more.
        bench.send("h0g1", "h0g0", 100)
        bench.events.run()
        lost = bench.dropped["spine0: no route"]
        assert 20 < lost < 80
        assert len(bench.arrived) == 100 - lost
        # rail0 does without its own dead port at once.
        bench.send("h0g0", "h0g1", 100)
        bench.events.run()
        due_ns = routes.charged.of(Broken(), bench.injector.broken)
        when = bench.events.now + due_ns * PS
        bench.events.at(when, 0, lambda _: routes.settle(broken(topology, "rail0:up0")), None)
        bench.events.at(when, 1, lambda _: bench.send("h0g1", "h0g0", 100), None)
        bench.events.run()
        bench.injector.apply(SOUND)
        routes.settle(Broken())
        bench.send("h0g1", "h0g0", 100)
        bench.events.run()
        assert bench.dropped == {"spine0: no route": lost}
        assert len(bench.arrived) == 400 - lost


@pytest.mark.root
def test_bfd_notices_a_black_hole_in_the_kernel(lab: LabFactory) -> None:
    with routed(lab) as (bench, routes):
        links = bench.element("link", "rail0:up0").links
        bench.injector.apply(SOUND.faulted(links, black_hole=True))
        bench.send("h0g0", "h0g1", 100)
        bench.events.run()
        lost = bench.dropped["rail0: switch"]
        assert 20 < lost < 80
        routes.settle(bench.injector.broken)
        bench.send("h0g0", "h0g1", 100)
        bench.send("h0g1", "h0g0", 100)
        bench.events.run()
        assert bench.dropped == {"rail0: switch": lost}
        assert len(bench.arrived) == 300 - lost
