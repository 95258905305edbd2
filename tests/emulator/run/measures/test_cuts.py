"""The bound of the fabric's cuts, computed by hand, with and without faults."""

from collections.abc import Iterator

import pytest

from emulator.dataplane.switch.port_faults import NONE, Faults
from emulator.errors import UserError
from emulator.run.faults.fault_timeline import link_changes
from emulator.run.measures.cuts import Change, Crossing, crossed_by, cut_bound_ns
from emulator.run.measures.ideal import ideal_ns
from emulator.run.plan.trial_load import TrialLoad
from emulator.scenario import FaultAt
from emulator.transports.wire_cost import WireCost
from scenarios.workloads.flows import Flow, Traffic, TrafficParameters
from topologies.catalogue import load
from topologies.model import CableEnd, Topology

WIRE = WireCost(around_bytes=104, payload_mtu=4096)
ONE = 4096  # octets of a message that take 84 ns at 400 Gb/s
#: Two rails of two GPUs; one uplink of 400 Gb/s for the two NICs of a rail: 2:1.
NARROW = load("rail_clos:hosts=4,gpus_per_host=2,spines=1,uplinks_per_spine=2")
DELAY = 4 * 600  # NIC, uplink, downlink, NIC

#: Ranks: host h has 2h on rail 0 and 2h + 1 on rail 1.
CROSSING = [(0, 3), (2, 1), (4, 7), (6, 5)]


def traffic(topology: Topology, pairs: list[tuple[int, int]], length: int) -> Traffic:
    flows = tuple(Flow(source=a, destination=b, length=length) for a, b in pairs)
    return Traffic(topology, flows, ONE, 1000, 1)


def bound(pairs: list[tuple[int, int]], length: int, changes: list[Change] | None = None) -> float:
    return ideal_ns(NARROW, traffic(NARROW, pairs, length).schedules(), WIRE, changes or [])


def test_what_stays_on_a_rail_is_bound_by_nics() -> None:
    assert bound([(0, 2), (4, 6)], 10 * ONE) == pytest.approx(10 * 84 + 1200)


class _Counting(list[Crossing]):
    """Messages that count how often somebody goes through all of them."""

    passes = 0

    def __iter__(self) -> Iterator[Crossing]:
        self.passes += 1
        return super().__iter__()


def test_all_messages_are_gone_through_once_and_not_for_each_gpu() -> None:
    names = [gpu.name for gpu in NARROW.gpus]
    messages = _Counting(
        Crossing(names[one], names[other], 10 * ONE, 0.0, 0.0) for one, other in CROSSING
    )
    assert cut_bound_ns(NARROW, messages) > 0
    assert messages.passes == 1


def test_uplinks_bound_what_crosses() -> None:
    """Four NICs' worth through two uplinks takes twice as long as one NIC's."""
    assert bound(CROSSING, 10 * ONE) == pytest.approx(4 * 10 * 84 / 2 + DELAY)
    assert bound(CROSSING[:2], 10 * ONE) == pytest.approx(10 * 84 + DELAY)


#: Two pods of two rails, ranks 0 to 3 and 4 to 7; one link of 400 Gb/s up for the NICs of a rail.
PODS = load(
    "clos:pods=2,hosts=2,gpus_per_host=2,spines=1,super_spines=1,subnets=stretched,"
    "uplink_rate=400G,uplinks_per_spine=1,uplinks_per_super=2"
)
LARGE = 84 + 1  # ns that a message takes on a link in a tunnel
MANY = 2000  # messages, so that the links bind and not the delays


@pytest.mark.parametrize(
    ("pairs", "each", "cables"),
    [
        ([(0, 4)], LARGE, 6),  # along a rail, from pod to pod
        ([(0, 4), (1, 5)], LARGE, 6),
        ([(0, 3)], 84, 4),  # to the other rail of the pod: routed
        ([(0, 5)], LARGE, 8),  # routed there, and then in a tunnel from pod to pod
    ],
)
def test_what_can_only_go_by_a_tunnel_takes_more_of_the_links(
    pairs: list[tuple[int, int]], each: int, cables: int
) -> None:
    """The first message takes 84 ns to the tunnel, the others follow as fast as that lets them."""
    schedules = traffic(PODS, pairs, MANY * ONE).schedules()
    shortest = cables if pairs != [(0, 5)] else 6  # of any path, by which cuts reckon
    least = max(MANY * each + shortest * 600, MANY * 84 + cables * 600)
    assert ideal_ns(PODS, schedules, WIRE) == pytest.approx(least)


def test_routes_that_may_change_leave_only_tunnels_that_begin_at_once() -> None:
    """Were the rail's own switch in the pod cut off, packets would go to the other pod's plain."""
    later = [Change(10**9, CableEnd("rail0", "up0"), 0.5)]
    for pair, each, shortest in (((0, 4), LARGE, 6), ((0, 5), 84, 8)):
        schedules = traffic(PODS, [pair], MANY * ONE).schedules()
        least = MANY * each + shortest * 600
        assert ideal_ns(PODS, schedules, WIRE, later) == pytest.approx(least)


def test_other_directions_have_capacities_of_their_own() -> None:
    both = [*CROSSING[:2], (3, 0), (1, 2)]
    assert bound(both, 10 * ONE) == pytest.approx(10 * 84 + DELAY)


def test_a_fault_takes_capacity_from_its_time_on() -> None:
    (up0, up1) = (CableEnd("rail0", "up0"), CableEnd("rail0", "up1"))
    # 40 messages of 84 ns; they reach the uplinks at 600. From 1000 on only one is left.
    black = [Change(1000, up0, 0.0)]
    crossed = 2 * 400 / 84
    assert bound(CROSSING, 10 * ONE, black) == pytest.approx(
        1000 + (40 - crossed) * 84 + DELAY - 600
    )
    # ... at a quarter, and all of it again from 2000 on
    slow = [Change(0, up0, 0.25), Change(0, up1, 0.25), Change(2000, up0, 1), Change(2000, up1, 1)]
    crossed = 0.5 * 1400 / 84
    assert bound(CROSSING, 10 * ONE, slow) == pytest.approx(
        2000 + (40 - crossed) * 84 / 2 + DELAY - 600
    )


def test_pipelines_delay_what_reaches_the_uplinks() -> None:
    latency = 1000
    slower = NARROW.with_switch_latency(latency)
    up0 = CableEnd("rail0", "up0")

    def least(changes: list[Change]) -> float:
        return ideal_ns(slower, traffic(slower, CROSSING, 10 * ONE).schedules(), WIRE, changes)

    assert least([]) == pytest.approx(4 * 10 * 84 / 2 + DELAY + 3 * latency)
    # until 1600 nothing has come to an uplink; from then on there is one
    rest = 40 * 84 + DELAY - 600 + 2 * latency
    assert least([Change(1600, up0, 0.0)]) == pytest.approx(1600 + rest)
    # what uplinks could have carried before does not count either
    assert least([Change(1500, up0, 0.0)]) == pytest.approx(1600 + rest)


def test_a_fault_at_a_gpus_own_cable() -> None:
    slow = [Change(0, CableEnd("rail0", "down1"), 0.5)]
    assert bound([(0, 2)], 10 * ONE, slow) == pytest.approx(2 * 10 * 84 + 1200)
    assert bound([(2, 0)], 10 * ONE, slow) == pytest.approx(10 * 84 + 1200)  # the other way


def test_capacity_over_time() -> None:
    assert crossed_by(100, 10, [(0, 2)]) == 60
    assert crossed_by(100, 10, [(0, 2), (20, 0), (50, 1)]) == 130
    assert crossed_by(1, 0, [(0, 0)]) == float("inf")


def test_a_timeline_strikes_both_ends_of_a_cable() -> None:
    fault = FaultAt(at_ns=5, port="rail0:up0", faults=Faults(black_hole=True), both_ways=True)
    faulted = link_changes([fault], NARROW)
    assert [str(change.end) for change in faulted] == ["rail0:up0", "spine0:down0"]
    assert {change.share for change in faulted} == {0.0}
    healed = FaultAt(at_ns=9, port="rail0:up0", faults=NONE)
    assert link_changes([healed], NARROW) == [Change(9, CableEnd("rail0", "up0"), 1.0)]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (FaultAt(at_ns=0, port="rail0:up9", faults=NONE), "no port 'up9'"),
        (FaultAt(at_ns=0, port="rail7:up0", faults=NONE), "no node 'rail7'"),
        (FaultAt(at_ns=0, port="h0g0:eth0", faults=NONE), "the port of a NIC"),
    ],
)
def test_faults_that_cannot_be_are_refused(fault: FaultAt, words: str) -> None:
    with pytest.raises(UserError, match=words):
        link_changes([fault], NARROW)


def test_faults_that_leave_no_way_are_refused() -> None:
    dead = [
        FaultAt(at_ns=0, port=f"rail0:up{number}", faults=Faults(black_hole=True))
        for number in range(2)
    ]
    pattern = traffic(NARROW, CROSSING, ONE)
    trial = pattern.trial("p", TrafficParameters(), faults=dead)
    with pytest.raises(UserError, match="without any link"):
        TrialLoad.of(trial, NARROW, WIRE)
