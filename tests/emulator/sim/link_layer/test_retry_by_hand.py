"""Link layer retry on one cable: times to the nanosecond, and what is counted.

On a link of 8 Gb/s an octet lasts 1 ns: a frame takes T = 1000 ns, an ordered set c = 8 ns, and the
cable d = 500 ns.
"""

import pytest

from emulator.dataplane.switch.cable_fitting import LinkRules
from emulator.sim.line import LOW
from tests.harness.engine.linked_cable import (
    DELAY_NS,
    FRAME_NS,
    SET_NS,
    TIMER_NS,
    LinkedCable,
    llr,
    numbered,
)

RETRY = LinkRules(llr=llr(), cbfc=None, longest_bytes=FRAME_NS)


def test_a_sound_cable_delays_nothing() -> None:
    cable = LinkedCable(RETRY)
    cable.send(3)
    cable.events.run()
    assert [when for when, _ in cable.arrived] == [
        number * FRAME_NS + DELAY_NS for number in (1, 2, 3)
    ]
    assert cable.far.counters.acks_sent == cable.near.counters.acks_received == 3
    assert cable.near.counters.replayed_frames == 0
    assert not cable.near.under_way


def test_a_lone_frame_with_an_error_is_replayed_by_a_nack() -> None:
    """T + d to the receiver, c + d back with the NACK, T + d again."""
    cable = LinkedCable(RETRY, losses=[0])
    frames = cable.send(1)
    cable.events.run()
    took = 2 * FRAME_NS + 3 * DELAY_NS + SET_NS
    assert cable.arrived == [(took, frames[0])] == [(3508, frames[0])]
    near, far = cable.near.settle(), cable.far.settle()
    assert (far.errored_frames, far.nacks_sent, near.nacks_received) == (1, 1, 1)
    assert (near.replays, near.replayed_frames, near.replay_timer_expiries) == (1, 1, 0)
    assert near.replayed_bytes == FRAME_NS
    # From when the error was seen until the frame was there.
    assert far.recovery_ns == far.longest_recovery_ns == FRAME_NS + 2 * DELAY_NS + SET_NS


def test_a_lone_frame_whose_nack_is_lost_waits_for_the_timer() -> None:
    """The timer runs from when the frame has left."""
    cable = LinkedCable(RETRY, losses=[0], losses_back=[0])
    cable.send(1)
    cable.events.run()
    took = FRAME_NS + TIMER_NS + FRAME_NS + DELAY_NS
    assert [when for when, _ in cable.arrived] == [took] == [12_500]
    near, far = cable.near.settle(), cable.far.settle()
    assert (far.nacks_sent, near.nacks_received, near.errored_sets) == (1, 0, 1)
    assert (near.replay_timer_expiries, near.replays, near.replayed_frames) == (1, 1, 1)


def test_answers_to_the_other_direction_do_not_hold_up_the_timer() -> None:
    """ACKs leave all the time, for frames that come; the frame that was lost has its own timer."""
    cable = LinkedCable(RETRY, losses=[0], losses_back=[0, 1])
    cable.send(1)
    for number in range(12):
        cable.at(1600 + number * 1100, lambda: cable.back.enqueue(numbered(9), LOW))
    cable.events.run()
    assert cable.near.settle().replay_timer_expiries == 1
    assert cable.arrived[0][0] < FRAME_NS + TIMER_NS + 2 * FRAME_NS + DELAY_NS


def test_a_lost_ack_costs_a_duplicate() -> None:
    cable = LinkedCable(RETRY, losses_back=[0])
    cable.send(1)
    cable.events.run()
    assert [when for when, _ in cable.arrived] == [FRAME_NS + DELAY_NS]
    assert cable.near.counters.replay_timer_expiries == 1
    assert cable.far.counters.duplicates == 1
    assert not cable.near.under_way


def test_frames_behind_an_error_come_after_it() -> None:
    """Five frames leave; those behind the first are on their way when its NACK is, and come again.

    The NACK is at the sender at T + d + c + d = 2008, within the third frame; the replay of all
    three begins when that has left.
    """
    cable = LinkedCable(RETRY, losses=[0])
    cable.send(5)
    cable.events.run()
    assert cable.numbers == [0, 1, 2, 3, 4]
    assert [when for when, _ in cable.arrived] == [
        (3 + number) * FRAME_NS + DELAY_NS for number in range(1, 6)
    ]
    assert cable.far.counters.out_of_sequence == 2
    assert cable.near.counters.replayed_frames == 3
    assert cable.near.counters.replays == 1


def test_an_ack_waits_for_the_frame_that_is_being_sent() -> None:
    """A frame of the other direction holds up the answer, which then takes its own time."""
    cable = LinkedCable(RETRY, losses=[0])
    cable.send(1)
    cable.at(FRAME_NS + DELAY_NS - 400, lambda: cable.back.enqueue(numbered(9), LOW))
    cable.events.run()
    assert [when for when, _ in cable.arrived] == [
        (FRAME_NS + DELAY_NS) + 600 + SET_NS + DELAY_NS + FRAME_NS + DELAY_NS
    ]


def test_ordered_sets_take_the_time_of_frames() -> None:
    """A frame that comes while an ACK leaves begins when that has left."""
    cable = LinkedCable(RETRY)
    cable.send(1)
    cable.at(FRAME_NS + DELAY_NS + 3, lambda: cable.back.enqueue(numbered(9), LOW))
    cable.events.run()
    begun = FRAME_NS + DELAY_NS + SET_NS
    assert [when for when, _ in cable.returned] == [begun + FRAME_NS + DELAY_NS]


def test_a_full_replay_buffer_stops_the_line_until_an_ack() -> None:
    """Room for two frames: the third begins when the first is acknowledged, at T + 2d + c.

    When the third has left, the second is acknowledged at that instant.
    """
    rules = LinkRules(llr=llr(buffer_bytes=2 * FRAME_NS), cbfc=None, longest_bytes=FRAME_NS)
    cable = LinkedCable(rules)
    cable.send(3)
    cable.events.run()
    acked = FRAME_NS + 2 * DELAY_NS + SET_NS
    assert [when for when, _ in cable.arrived] == [1500, 2500, acked + FRAME_NS + DELAY_NS]
    counters = cable.near.settle()
    assert (counters.buffer_full_stalls, counters.buffer_full_ns) == (2, SET_NS)
    assert counters.max_replay_bytes == 2 * FRAME_NS


def test_a_limit_of_frames_is_one_too() -> None:
    rules = LinkRules(llr=llr(frames=1), cbfc=None, longest_bytes=FRAME_NS)
    cable = LinkedCable(rules)
    cable.send(2)
    cable.events.run()
    acked = FRAME_NS + 2 * DELAY_NS + SET_NS
    assert [when for when, _ in cable.arrived] == [1500, acked + FRAME_NS + DELAY_NS]


def test_a_replay_that_is_lost_too_is_refused_again() -> None:
    """Numbers go back without the frame: the receiver need not wait for the timer."""
    # The first transmission, two more behind it, then the replay of the first again.
    cable = LinkedCable(RETRY, losses=[0, 3])
    cable.send(4)
    cable.events.run()
    assert cable.numbers == [0, 1, 2, 3]
    assert cable.near.counters.replay_timer_expiries == 0
    assert cable.far.counters.nacks_sent == 2


def test_a_link_that_replays_too_often_sends_without_retry() -> None:
    """After the limit what is outstanding is lost, and counted; later frames still come."""
    rules = LinkRules(llr=llr(replays=2), cbfc=None, longest_bytes=FRAME_NS)
    cable = LinkedCable(rules, losses=[0, 1, 2])
    cable.send(1)
    cable.at(200_000, lambda: cable.line.enqueue(numbered(7), LOW))
    cable.events.run()
    assert cable.numbers == [7]
    assert cable.near.counters.link_failures == 1
    assert cable.near.counters.replays == 2
    assert cable.far.counters.lost_frames == 1
    assert (cable.line.counts.frames, cable.line.counts.in_flight) == (2, 1)
    assert cable.line.flying == 0
    assert not cable.near.under_way


@pytest.mark.parametrize("pulled_ns", [400, 1200, 1600, 2300, 3000])
def test_a_pulled_cable_loses_what_has_not_arrived(pulled_ns: int) -> None:
    """Whatever state the retry is in: each frame has arrived, or is counted as lost."""
    cable = LinkedCable(RETRY, losses=[0])
    cable.send(4)
    waited: list[int] = []

    def pull() -> None:
        waited.append(cable.line.queued)
        cable.pull()

    cable.at(pulled_ns, pull)
    cable.at(20_000, cable.plug)
    cable.at(20_100, lambda: cable.line.enqueue(numbered(8), LOW))
    cable.events.run()
    counts = cable.line.counts
    assert cable.numbers == [8]
    assert counts.frames == 4 - waited[0] + 1
    assert (counts.arrived, counts.in_flight, counts.in_queue) == (1, 4 - waited[0], waited[0])
    assert cable.line.flying == 0
    assert cable.arrived[0][0] == 20_100 + FRAME_NS + DELAY_NS
