"""Test what a cable that is pulled takes with it, to the nanosecond; no kernel is needed."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from emulator.sim.event_queue import PS, EventQueue
from emulator.sim.line import HIGH, LOW, DeparturesTold, Line
from topologies.model import CableEnd

GBPS = 10**9
#: On a link of 8 Gb/s an octet lasts 1 ns; the frame is 1000 octets on the wire.
RATE, DELAY_NS, FRAME_NS = 8 * GBPS, 500, 1000
FRAME = bytes(FRAME_NS - 24)


@dataclass
class Cable:
    """A line under test, and the times (ns) at which frames arrive and leave their queue."""

    events: EventQueue = field(default_factory=EventQueue)
    arrived: list[int] = field(default_factory=list)
    left: list[tuple[int, int, int]] = field(default_factory=list)
    asked: int = 0

    def __post_init__(self) -> None:
        self.line = Line(self.events, 1, CableEnd("s0", "p0"), rate_bps=RATE, delay_ns=DELAY_NS)
        self.line.far = lambda frame: self.arrived.append(self.events.now // PS)
        self.line.leaves = DeparturesTold(lambda *item: self.left.append(item))

    def at(self, ns: int, act: Callable[[], object]) -> None:
        self.asked += 1
        self.events.at(ns * PS, self.asked, lambda _: act(), None)


@pytest.fixture
def cable() -> Cable:
    return Cable()


@pytest.mark.parametrize(("cut_ns", "arrives"), [(1501, True), (1500, False), (1499, False)])
def test_frame_on_the_cable_is_lost_unless_it_has_arrived(
    cable: Cable, cut_ns: int, arrives: bool
) -> None:
    cable.at(0, lambda: cable.line.enqueue(FRAME, LOW))
    cable.at(cut_ns, cable.line.pull)
    cable.events.run()
    assert cable.arrived == ([1500] if arrives else [])
    assert cable.line.counts.in_flight == (not arrives)
    assert cable.line.under_way == 0


def test_what_waits_is_lost_and_leaves_its_queue(cable: Cable) -> None:
    for _ in range(3):
        cable.line.enqueue(FRAME, LOW, 7)
    cable.line.enqueue(FRAME, HIGH, 9)
    lost: list[int] = []
    cable.at(400, lambda: lost.append(cable.line.pull()))
    cable.at(450, lambda: cable.left.append((-1, cable.line.queued, 0)))
    cable.events.run()
    assert lost == [3 * FRAME_NS]
    waited = [(HIGH, FRAME_NS, 9), (LOW, FRAME_NS, 7), (LOW, FRAME_NS, 7)]
    # The first is still being sent when the cable goes, and leaves its queue when it would have.
    assert cable.left == [*waited, (-1, 0, 0), (LOW, FRAME_NS, 7)]
    assert cable.line.counts.in_queue == 3
    assert cable.line.counts.in_flight == 1
    assert cable.arrived == []
    assert cable.line.under_way == 0


def test_frames_after_the_cable_is_plugged_in_arrive(cable: Cable) -> None:
    cable.line.enqueue(FRAME, LOW)
    cable.at(1100, cable.line.pull)
    cable.at(1200, lambda: cable.line.enqueue(FRAME, LOW))
    cable.at(1300, cable.line.plug)
    cable.at(1300, lambda: cable.line.enqueue(FRAME, LOW))
    cable.events.run()
    assert cable.arrived == [2800]
    assert (cable.line.counts.in_flight, cable.line.counts.in_queue) == (1, 1)


def test_cut_strikes_what_began_before_it_at_another_rate(cable: Cable) -> None:
    cable.line.enqueue(FRAME, LOW)
    cable.at(100, lambda: cable.line.change_rate(RATE // 4))
    cable.at(1400, cable.line.pull)
    cable.at(1401, cable.line.plug)
    cable.at(1402, lambda: cable.line.enqueue(FRAME, LOW))
    cable.events.run()
    assert cable.arrived == [1402 + 4 * FRAME_NS + DELAY_NS]
    assert cable.line.counts.in_flight == 1


def test_rate_holds_from_the_next_frame_on(cable: Cable) -> None:
    cable.line.enqueue(FRAME, LOW)
    cable.line.enqueue(FRAME, LOW)
    cable.line.enqueue(FRAME, LOW)
    cable.at(300, lambda: cable.line.change_rate(RATE // 4))
    cable.at(4999, lambda: cable.line.change_rate(RATE))
    cable.events.run()
    assert cable.arrived == [1500, 5500, 6500]


def test_frames_that_overtake_keep_their_own_order(cable: Cable) -> None:
    order: list[bytes] = []
    cable.line.far = order.append
    for place, ahead in enumerate((False, False, False, True, True)):
        cable.line.enqueue(bytes([place]) * 976, LOW, ahead=ahead)
    cable.events.run()
    assert [frame[0] for frame in order] == [0, 3, 4, 1, 2]
