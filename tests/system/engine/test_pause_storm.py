"""A NIC that asks for pauses without a reason, over a real switch, and the watchdog against it.

The longest pause is 65,535 quanta of 512 bits, 83,885 ns at 400 Gb/s; it is asked for again at half
of that.  A PAUSE frame is at the switch 201.68 ns after it began to leave the NIC.
"""

from collections.abc import Callable, Iterator

import pytest

from emulator.dataplane.switch.bpf.layout import DropReason
from emulator.dataplane.switch.pause import LONGEST
from emulator.dataplane.switch.port_faults import NONE, Faults
from tests.harness.engine.paused_flow import (
    CABLE_NS,
    EGRESS,
    FRAME_NS,
    PAUSE_NS,
    RECEIVER,
    SENDER,
    SLOW_NS,
    PausedFlow,
    Recorder,
)
from tests.system.conftest import LabFactory

pytestmark = pytest.mark.root

REFRESH_NS, LONGEST_NS = 41_942, 83_885
TRAVEL_NS = PAUSE_NS + CABLE_NS
FIRST_NS = FRAME_NS + CABLE_NS
START_NS = 1_000.0  # of the flow; the storm is there already
FRAMES = 5

Flow = Callable[..., PausedFlow]


@pytest.fixture
def flow(lab: LabFactory) -> Iterator[Flow]:
    made: list[PausedFlow] = []

    def make(switch: str, storm_until_ns: float, frames: int = FRAMES) -> PausedFlow:
        one = PausedFlow(lab, switch, frames, START_NS)
        made.append(one)
        assert one.lab.asic is not None
        one.at(0, lambda: one.apply_fault(EGRESS, Faults(pause_storm=True)))
        one.at(storm_until_ns, lambda: one.apply_fault(EGRESS, NONE))
        return one

    yield make
    for one in made:
        one.close()


def test_a_storm_ends_when_its_last_pause_runs_out(flow: Flow) -> None:
    one = flow("lossless", storm_until_ns=100_000)
    asking = Recorder()
    one.line(RECEIVER).departing = asking
    one.run(1_000_000)
    assert asking.pauses == [(REFRESH_NS * number, LONGEST) for number in range(3)]
    over_ns = 2 * REFRESH_NS + TRAVEL_NS + LONGEST_NS
    assert one.out.data == [over_ns + SLOW_NS * number for number in range(FRAMES)]
    assert one.received == FRAMES
    assert one.lab.asic is not None
    counters = one.lab.asic.pauses.counters()
    assert counters[str(RECEIVER)].xoff_sent == counters[str(EGRESS)].xoff_received == 3
    assert counters[str(EGRESS)].paused_ns == 2 * REFRESH_NS + LONGEST_NS
    assert counters[str(EGRESS)].pauses == 1
    assert counters[str(SENDER)].paused_ns == 0  # five frames fill nobody's buffer


def test_a_storm_spreads_to_the_sender(flow: Flow) -> None:
    one = flow("lossless:xoff=42000,xon=21000", storm_until_ns=100_000, frames=30)
    one.run(1_000_000)
    over_ns = 2 * REFRESH_NS + TRAVEL_NS + LONGEST_NS
    assert one.out.data[0] == over_ns
    # the eleventh frame exceeds XOFF as it comes, and nothing leaves
    xoff_ns = START_NS + FIRST_NS + 10 * FRAME_NS
    assert one.asked.pauses[0] == (xoff_ns, LONGEST)
    assert one.asked.pauses[1] == (xoff_ns + REFRESH_NS, LONGEST)
    held = 1 + int((10 * FRAME_NS + 2 * CABLE_NS + FRAME_NS + PAUSE_NS) // FRAME_NS)
    assert one.sent.data[held - 1] == START_NS + FRAME_NS * (held - 1)
    xon_ns = over_ns + SLOW_NS * (held - 5)
    assert (xon_ns, 0) in one.asked.pauses
    assert one.sent.data[held] == xon_ns + TRAVEL_NS
    assert not one.fabric.deadlocked  # a chain that a storm holds up is no circle
    assert one.received == 30


@pytest.mark.parametrize("action", ["drop", "forward"])
def test_watchdog_takes_the_queue_out_until_the_storm_is_over(flow: Flow, action: str) -> None:
    switch = f"lossless:pfc_watchdog=50us,pfc_watchdog_action={action}"
    one = flow(switch, storm_until_ns=60_000)
    assert one.lab.asic is not None
    found_ns = TRAVEL_NS + 50_000
    last_ns = REFRESH_NS + TRAVEL_NS
    over_ns = last_ns + 2 * 50_000
    line = one.line(SENDER)
    # the last of these leaves the NIC, and comes, a frame's time after the one before
    for when_ns in (found_ns + 100, over_ns - FIRST_NS - 10, over_ns - FIRST_NS):
        one.at(when_ns, lambda: line.enqueue(one.forth, 3))
    one.run(found_ns - 0.01)
    assert one.line(EGRESS).low_stopped
    assert one.out.data == []
    one.run(1_000_000)
    # what waited leaves as the watchdog steps in; of what comes while it is there "drop" is true
    waited = [found_ns + SLOW_NS * number for number in range(FRAMES)]
    ignored = [found_ns + SLOW_NS * FRAMES, over_ns - 10] if action == "forward" else []
    after_ns = over_ns - 10 + (SLOW_NS if action == "forward" else FRAME_NS)
    assert one.out.data == pytest.approx([*waited, *ignored, after_ns], abs=1e-6)
    assert one.drops(EGRESS, DropReason.WATCHDOG) == (2 if action == "drop" else 0)
    counters = one.lab.asic.pauses.counters()[str(EGRESS)]
    assert counters.watchdog_storms == 1
    assert counters.paused_ns == 50_000
    assert counters.watchdog_ns == int(over_ns) - int(found_ns)


def test_uplinks_have_no_watchdog(flow: Flow) -> None:
    one = flow("lossless:pfc_watchdog=50us", storm_until_ns=60_000)
    assert one.network.pauses is not None
    rules = {str(end): one.network.pauses.ends[end].rules for end in one.network.pauses.ends}
    guarded = {name for name, rule in rules.items() if rule is not None and rule.watchdog_ns}
    assert guarded == {"rail0:down0", "rail0:down1"}


def test_a_black_hole_swallows_pauses(flow: Flow) -> None:
    one = flow("lossless", storm_until_ns=100_000)
    assert one.lab.asic is not None
    black = Faults(black_hole=True, arriving=True, pause_storm=True)
    one.at(-0.0, lambda: one.apply_fault(EGRESS, black))
    one.run(50_000)
    counters = one.lab.asic.pauses.counters()
    assert counters[str(RECEIVER)].xoff_sent == 2
    assert counters[str(EGRESS)].xoff_received == 0
    assert not one.line(EGRESS).low_stopped


def test_a_port_without_carrier_sends_no_pause(flow: Flow) -> None:
    one = flow("lossless", storm_until_ns=100_000)
    one.line(RECEIVER).pull()
    one.run(50_000)
    assert one.lab.asic is not None
    counters = one.lab.asic.pauses.counters()
    assert (counters[str(RECEIVER)].xoff_sent, counters[str(RECEIVER)].unsent) == (2, 2)
    assert counters[str(EGRESS)].xoff_received == 0
