"""One flow into a slow link, over a real switch: each moment of a pause, calculated by hand.

Frames leave the NIC each 84 ns and arrive at the switch from 284 ns on.  The link to the receiver
takes 448 ns for one.  So after n arrivals n - floor(84 (n - 1) / 448) frames are held.
"""

from collections.abc import Callable, Iterator

import pytest

from emulator.dataplane.switch.bpf.layout import DropReason
from emulator.dataplane.switch.pause import LONGEST
from emulator.dataplane.switch.switch_choice import parse
from emulator.sim.line_faults import LineFaults
from tests.harness.engine.paused_flow import (
    CABLE_NS,
    EGRESS,
    FRAME_NS,
    FRAME_OCTETS,
    INGRESS,
    PAUSE_NS,
    RECEIVER,
    SENDER,
    SLOW_NS,
    PausedFlow,
)
from tests.system.conftest import LabFactory

pytestmark = pytest.mark.root

#: Ten frames fill the buffer up to XOFF, five down to XON.
SWITCH = "lossless:xoff=42000,xon=21000"
FIRST_NS = FRAME_NS + CABLE_NS  # the first arrival at the switch
#: The 13th frame is the 11th that is held, as two have left.
XOFF_NS = FIRST_NS + 12 * FRAME_NS
TRAVEL_NS = PAUSE_NS + CABLE_NS

Flow = Callable[..., PausedFlow]


@pytest.fixture
def flow(lab: LabFactory) -> Iterator[Flow]:
    made: list[PausedFlow] = []

    def make(switch: str = SWITCH, frames: int = 40) -> PausedFlow:
        made.append(PausedFlow(lab, switch, frames))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_pause_leaves_arrives_stops_and_ends(flow: Flow) -> None:
    one = flow()
    one.run(1_000_000)
    stop_ns = XOFF_NS + TRAVEL_NS
    assert stop_ns == 1493.68
    # the 18th frame, begun at 1428 ns, still arrives; 13 of 18 have to leave down to XON
    xon_ns = FIRST_NS + 13 * SLOW_NS
    go_on_ns = xon_ns + TRAVEL_NS
    assert go_on_ns == 6309.68
    assert one.asked.pauses[:2] == [(XOFF_NS, LONGEST), (xon_ns, 0)]
    assert one.sent.data[:18] == [FRAME_NS * number for number in range(18)]
    assert one.sent.data[18] == go_on_ns
    assert one.out.data[:19] == [FIRST_NS + SLOW_NS * number for number in range(19)]
    assert one.received == 40
    counters = one.lab.asic.pauses.counters()  # type: ignore[union-attr]
    nic, switch = counters[str(SENDER)], counters[str(INGRESS)]
    assert switch.max_held_bytes == 15 * FRAME_OCTETS
    assert switch.xoff_sent == nic.xoff_received == nic.pauses == switch.xon_sent
    assert switch.xon_sent == nic.xon_received == len(one.asked.pauses) // 2
    assert one.network.pauses is not None
    assert {end.held for end in one.network.pauses.ends.values()} == {0}
    assert one.network.account.as_dict() == {
        "injected": 40,
        "delivered": 40,
        "dropped": {},
    }


def test_paused_time_is_that_between_stop_and_resumption(flow: Flow) -> None:
    one = flow(frames=19)
    one.run(3_000)
    assert one.lab.asic is not None
    assert one.lab.asic.pauses.counters()[str(SENDER)].paused_ns == 3_000 - 1_493
    one.run(1_000_000)
    nic = one.lab.asic.pauses.counters()[str(SENDER)]
    assert nic.paused_ns == nic.longest_pause_ns == 6_309 - 1_493
    one.lab.asic.pauses.restart()
    nic = one.lab.asic.pauses.counters()[str(SENDER)]
    assert (nic.paused_ns, nic.longest_pause_ns) == (6_309 - 1_493, 0)


def test_device_responds_later(flow: Flow) -> None:
    one = flow(f"{SWITCH},pfc_response=100ns")
    one.run(1_000_000)
    # a 19th frame begins at 1512 ns, before 1593.68; so 14 have to leave
    assert one.sent.data[:19] == [FRAME_NS * number for number in range(19)]
    assert one.sent.data[19] == FIRST_NS + 14 * SLOW_NS + TRAVEL_NS + 100
    assert one.received == 40


def test_a_pause_waits_for_the_frame_that_is_being_sent(flow: Flow) -> None:
    one = flow()
    begun_ns = XOFF_NS - 2
    one.at(begun_ns - FIRST_NS, lambda: one.line(RECEIVER).enqueue(one.back, 3))
    one.run(1_000_000)
    assert one.asked.data == [begun_ns]
    assert one.asked.pauses[0] == (begun_ns + FRAME_NS, LONGEST)
    assert begun_ns + FRAME_NS + TRAVEL_NS == 1575.68  # so the 19th leaves, at 1512 ns
    assert one.sent.data[:19] == [FRAME_NS * number for number in range(19)]
    assert one.sent.data[19] == FIRST_NS + 14 * SLOW_NS + TRAVEL_NS


def test_headroom_as_computed_loses_nothing(flow: Flow) -> None:
    one = flow(frames=400)
    assert one.lab.asic is not None
    assert one.lab.asic.fitted.warnings == ()
    one.run(10_000_000)
    assert one.received == 400
    assert one.drops(EGRESS, DropReason.HEADROOM) == 0


def test_a_pause_is_asked_for_behind_the_pipeline(flow: Flow) -> None:
    """Frames count once they are admitted; a PAUSE frame is obeyed as soon as it is there."""
    latency_ns = 5 * FRAME_NS  # each frame leaves the pipeline as another arrives
    one = flow(f"{SWITCH},latency={latency_ns}ns")
    one.run(1_000_000)
    stop_ns = XOFF_NS + latency_ns + TRAVEL_NS
    sent = int(stop_ns // FRAME_NS) + 1
    xon_ns = FIRST_NS + latency_ns + (sent - 5) * SLOW_NS
    assert one.asked.pauses[:2] == [(XOFF_NS + latency_ns, LONGEST), (xon_ns, 0)]
    assert one.sent.data[sent - 1 : sent + 1] == [FRAME_NS * (sent - 1), xon_ns + TRAVEL_NS]
    assert one.out.data[0] == FIRST_NS + latency_ns
    assert one.received == 40


@pytest.mark.parametrize(("headroom", "lost"), [("", False), (",headroom=150KB", True)])
def test_headroom_holds_what_is_in_the_pipeline(flow: Flow, headroom: str, lost: bool) -> None:
    """In 10 us 500 kB come at 400 Gb/s, of which 408 kB are more than leave."""
    one = flow(f"{SWITCH},latency=10us{headroom}", frames=400)
    one.run(10_000_000)
    assert (one.received < 400) is lost
    assert (one.drops(EGRESS, DropReason.HEADROOM) > 0) is lost


def test_two_frames_of_headroom_lose_three(flow: Flow) -> None:
    one = flow(f"{SWITCH},headroom=8400", frames=18)
    assert one.lab.asic is not None
    assert "may be dropped" in one.lab.asic.fitted.warnings[0]
    one.run(1_000_000)
    # twelve fit: the 15th and 16th would be the 13th; one leaves as the 17th comes, the 18th is
    # one too many again; down to XON of 15 frames ten leave
    assert one.drops(EGRESS, DropReason.HEADROOM) == 3
    assert one.received == 15
    assert one.asked.pauses == [(XOFF_NS, LONGEST), (FIRST_NS + 10 * SLOW_NS, 0)]
    counters = one.lab.asic.pauses.counters()[str(INGRESS)]
    assert counters.max_held_bytes == 12 * FRAME_OCTETS
    assert one.network.account.as_dict() == {
        "injected": 18,
        "delivered": 15,
        "dropped": {"rail0: switch": 3},
    }


def test_a_pulled_cable_frees_what_waited_for_it(flow: Flow) -> None:
    one = flow(frames=18)
    lines = LineFaults(one.fabric)
    one.at(2_000, lambda: lines.pull([one.lab.topology.link_at(EGRESS)]))
    one.run(1_000_000)
    # three of 18 have left by then, and the fourth is lost as it leaves
    assert one.out.data == [FIRST_NS + SLOW_NS * number for number in range(4)]
    assert one.received == 3
    assert one.asked.pauses == [(XOFF_NS, LONGEST), (2_000, 0)]
    assert one.lab.asic is not None
    assert one.lab.asic.pauses.counters()[str(INGRESS)].freed_bytes == 15 * FRAME_OCTETS
    assert one.network.pauses is not None
    assert one.network.pauses.ends[INGRESS].held == 0


def test_switches_that_no_longer_pause_let_go(flow: Flow) -> None:
    one = flow()
    one.run(2_000)
    assert one.line(SENDER).low_stopped
    assert one.lab.asic is not None
    one.lab.asic.apply(parse("deep"))
    one.network.reconfigure()
    assert not one.line(SENDER).low_stopped
    one.run(1_000_000)
    assert one.received == 40
    assert one.sent.data[18] == 2_000
    assert len(one.asked.pauses) == 1
