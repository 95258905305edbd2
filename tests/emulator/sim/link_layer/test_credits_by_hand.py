"""Credits on one cable: stops and repairs to the nanosecond.

T = 1000 ns for a frame of 16 cells, c = 8 ns for an ordered set, d = 500 ns for the cable.
"""

from functools import partial

from emulator.dataplane.switch.cable_fitting import LinkRules
from emulator.sim.line import HIGH, LOW
from emulator.sim.link_layer.credits import CreditReceiver, CreditSender
from tests.harness.engine.linked_cable import (
    DELAY_NS,
    FRAME_NS,
    SET_NS,
    TIMER_NS,
    LinkedCable,
    SlowSwitch,
    cbfc,
    llr,
    numbered,
)

OF_FRAME = 16


def rules(cells: int) -> LinkRules:
    return LinkRules(llr=None, cbfc=cbfc(cells), longest_bytes=FRAME_NS)


def test_a_frame_takes_cells_without_its_check_sequence() -> None:
    """976 octets from the Ethernet header on; the overhead takes off those of the FCS."""
    assert cbfc(1).cells_of(FRAME_NS) == -(-976 // 64) == OF_FRAME
    assert cbfc(1).cells_of(64 + 24) == 1
    assert cbfc(1).cells_of(65 + 24) == 2


def test_a_sender_stops_without_credits_and_goes_on_as_they_come() -> None:
    """Room for two frames, of which the switch behind holds each for 3000 ns.

    The first is there at T + d, and leaves 3000 ns later; its credits are back after c + d, and the
    third frame begins.
    """
    switch = SlowSwitch(hold_ns=3000)
    cable = LinkedCable(rules(2 * OF_FRAME), take=switch.take)
    switch.cable = cable
    cable.send(4)
    cable.events.run()
    third = FRAME_NS + DELAY_NS + 3000 + SET_NS + DELAY_NS
    assert [when for when, _ in cable.arrived] == [
        FRAME_NS + DELAY_NS,
        2 * FRAME_NS + DELAY_NS,
        third + FRAME_NS + DELAY_NS,
        third + 3000 + FRAME_NS + DELAY_NS,
    ]
    near, far = cable.near.settle(), cable.far.settle()
    assert near.credit_stalls == 3  # behind the second, the third and the fourth frame
    assert far.max_held_bytes == 2 * OF_FRAME * 64
    assert near.credit_stalled_ns == (third - 2 * FRAME_NS) + 2 * (3000 - FRAME_NS)
    assert cable.near.credits is not None
    assert cable.near.credits.outstanding == 0


def test_control_needs_no_credits() -> None:
    switch = SlowSwitch(hold_ns=50_000)
    cable = LinkedCable(rules(OF_FRAME), take=lambda f: None if f[0] else switch.take(f))
    switch.cable = cable
    cable.line.enqueue(numbered(0), LOW)
    cable.line.enqueue(numbered(1), LOW)
    cable.line.enqueue(numbered(1 << 24), HIGH)
    cable.events.run(20_000_000)
    assert cable.numbers == [0, 1 << 24]


def test_what_a_switch_does_not_hold_is_free_at_once() -> None:
    cable = LinkedCable(rules(OF_FRAME))
    cable.send(2)
    cable.events.run()
    second = FRAME_NS + DELAY_NS + SET_NS + DELAY_NS
    assert [when for when, _ in cable.arrived] == [1500, second + FRAME_NS + DELAY_NS]


def test_credits_of_a_lost_frame_are_repaired_by_the_timer() -> None:
    """The first frame is lost, and all credits with it, until the sender reports what it consumed.

    Its timer runs from when the frame has left; the receiver answers with what is free.
    """
    cable = LinkedCable(rules(OF_FRAME), losses=[0])
    cable.send(2)
    cable.events.run()
    reported = FRAME_NS + TIMER_NS + SET_NS + DELAY_NS
    second = reported + SET_NS + DELAY_NS
    assert cable.arrived == [(second + FRAME_NS + DELAY_NS, numbered(1))]
    near, far = cable.near.settle(), cable.far.settle()
    assert (near.consumed_updates_sent, far.consumed_updates_received) == (1, 1)
    assert far.repaired_cells == OF_FRAME
    assert far.lost_frames == cable.line.counts.in_flight == 1


def test_a_lost_update_of_credits_is_made_good_by_the_next() -> None:
    """Two frames are freed; of the two counts that tell so, the second suffices."""
    cable = LinkedCable(rules(2 * OF_FRAME), losses_back=[0])
    cable.send(3)
    cable.events.run()
    second_there = 2 * FRAME_NS + DELAY_NS
    third = second_there + SET_NS + DELAY_NS
    assert [when for when, _ in cable.arrived] == [1500, 2500, third + FRAME_NS + DELAY_NS]
    assert cable.near.counters.consumed_updates_sent == 0


def test_retry_keeps_credits_from_leaking() -> None:
    """A frame that is still to be replayed has not been lost, and its cells are not repaired."""
    both = LinkRules(llr=llr(), cbfc=cbfc(2 * OF_FRAME), longest_bytes=FRAME_NS)
    cable = LinkedCable(both, losses=[0], losses_back=[0, 1])
    cable.send(6)
    cable.events.run()
    assert cable.numbers == list(range(6))
    assert cable.far.counters.repaired_cells == 0
    assert cable.near.credits is not None
    assert cable.near.credits.outstanding == 0


def test_a_report_that_waits_for_a_frame_is_put_off_for_it() -> None:
    """The timer comes while a frame leaves that has an error, and is replayed: nothing is lost."""
    both = LinkRules(llr=llr(), cbfc=cbfc(4 * OF_FRAME), longest_bytes=FRAME_NS)
    switch = SlowSwitch(hold_ns=30_000)
    cable = LinkedCable(both, losses=[1], take=switch.take)
    switch.cable = cable
    cable.send(1)
    report = FRAME_NS + TIMER_NS
    cable.at(report - 300, lambda: cable.line.enqueue(numbered(1), LOW))
    cable.events.run(2 * report * 1000)
    assert cable.numbers == [0, 1]
    assert cable.far.counters.repaired_cells == 0
    assert cable.far.cells is not None
    assert cable.far.cells.receiver.held == 2 * OF_FRAME


def test_counts_are_cyclic() -> None:
    """With counts modulo 64 everything goes on over the end of the cycle."""
    sender = CreditSender(cbfc(24), FRAME_NS, cycle=64)
    receiver = CreditReceiver(cycle=64)
    for turn in range(20):
        sender.consume(OF_FRAME)
        if turn % 3:
            receiver.receive(OF_FRAME)
            receiver.free(OF_FRAME)
        else:
            assert receiver.repair(sender.consumed) == OF_FRAME
        assert sender.stopped
        old = sender.freed
        sender.update(receiver.freed)
        assert not sender.stopped
        sender.update(old)  # an older one, late
        assert sender.outstanding == 0


def test_cells_of_before_a_pull_are_no_credits_of_after() -> None:
    """The third new frame waits until a new one has left the switch, behind both old ones."""
    switch = SlowSwitch(hold_ns=30_000)
    cable = LinkedCable(rules(2 * OF_FRAME), take=switch.take)
    switch.cable = cable
    cable.send(2)
    cable.at(5000, cable.pull)
    cable.at(6000, cable.plug)
    for number in (5, 6, 7):
        cable.at(6000, partial(cable.line.enqueue, numbered(number), LOW))
    cable.events.run()
    assert cable.numbers == [0, 1, 5, 6, 7]
    freed = FRAME_NS + DELAY_NS + 3 * 30_000
    assert cable.arrived[-1][0] == freed + SET_NS + DELAY_NS + FRAME_NS + DELAY_NS
    assert cable.far.cells is not None
    assert cable.far.cells.receiver.held == 0
    assert cable.near.credits is not None
    assert cable.near.credits.outstanding == 0
