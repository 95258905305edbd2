"""Any pattern of errors: each frame arrives exactly once and in order while the link lives."""

from collections.abc import Collection
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from emulator.dataplane.switch.cable_fitting import LinkRules
from emulator.sim.line import LOW
from tests.harness.engine.linked_cable import (
    FRAME_NS,
    LinkedCable,
    SlowSwitch,
    cbfc,
    llr,
    numbered,
)
from tests.harness.examples import examples

RETRY = LinkRules(llr=llr(buffer_bytes=4 * FRAME_NS), cbfc=None, longest_bytes=FRAME_NS)
CREDITS = LinkRules(llr=None, cbfc=cbfc(40), longest_bytes=FRAME_NS)
PATTERN = st.sets(st.integers(0, 30), max_size=20)
#: When frames come (ns), and of how many octets.
FRAMES = st.lists(
    st.tuples(st.integers(0, 30_000), st.sampled_from((60, 300, FRAME_NS - 24))),
    min_size=1,
    max_size=14,
)
Frames = list[tuple[int, int]]


def carried(
    rules: LinkRules, frames: Frames, there: Collection[int], back: Collection[int], hold_ns: int
) -> LinkedCable:
    """Send ``frames`` both ways over a cable with these errors, until nothing is left to do."""
    switch = SlowSwitch(hold_ns)
    cable = LinkedCable(rules, there, back, take=switch.take if hold_ns else None)
    switch.cable = cable
    for number, (when, octets) in enumerate(sorted(frames)):
        frame = numbered(number, octets)

        def enqueue(frame: bytes = frame) -> None:
            cable.line.enqueue(frame, LOW)
            cable.back.enqueue(frame, LOW)

        cable.at(when, enqueue)
    cable.events.run()
    assert rules.cbfc is None or switch.most <= rules.cbfc.cells
    return cable


def balanced(cable: LinkedCable) -> None:
    """Every frame that has left is accounted for, and nothing is owed."""
    for line, end in ((cable.line, cable.near), (cable.back, cable.far)):
        assert line.counts.frames == line.counts.arrived + line.counts.in_flight
        assert line.flying == line.queued == 0
        assert not line.busy
        assert not end.under_way
        if end.credits is not None:
            assert end.credits.outstanding == 0
        if end.cells is not None:
            assert end.cells.receiver.held == 0
            assert end.rules is not None
            assert end.rules.cbfc is not None
            assert end.counters.max_held_bytes <= end.rules.cbfc.buffer_bytes


@given(frames=FRAMES, there=PATTERN, back=PATTERN)
@examples(150)
def test_retry(frames: Frames, there: set[int], back: set[int]) -> None:
    cable = carried(RETRY, frames, there, back, 0)
    assert cable.numbers == list(range(len(frames)))
    assert [frame for _, frame in cable.returned] == [frame for _, frame in cable.arrived]
    balanced(cable)
    assert cable.line.counts.in_flight == 0


@given(frames=FRAMES, there=PATTERN, back=PATTERN, hold_ns=st.sampled_from((0, 700, 2500)))
@examples(150)
def test_retry_and_credits(frames: Frames, there: set[int], back: set[int], hold_ns: int) -> None:
    cable = carried(replace(RETRY, cbfc=CREDITS.cbfc), frames, there, back, hold_ns)
    assert cable.numbers == list(range(len(frames)))
    balanced(cable)
    assert cable.line.counts.in_flight == 0


@given(frames=FRAMES, there=PATTERN, back=PATTERN, hold_ns=st.sampled_from((0, 700, 2500)))
@examples(150)
def test_credits_alone(frames: Frames, there: set[int], back: set[int], hold_ns: int) -> None:
    """Frames with errors are lost, the others keep their order, and no credit is lost for good."""
    cable = carried(CREDITS, frames, there, back, hold_ns)
    assert cable.numbers == sorted(set(cable.numbers))
    assert len(cable.numbers) + cable.far.counters.lost_frames == len(frames)
    balanced(cable)


@given(frames=FRAMES, there=PATTERN, back=PATTERN, limit=st.integers(1, 3))
@examples(150)
def test_retry_with_a_limit(frames: Frames, there: set[int], back: set[int], limit: int) -> None:
    """A link counts frames that it gives up as lost; none comes twice or out of order."""
    assert RETRY.llr is not None
    rules = replace(RETRY, llr=replace(RETRY.llr, replays=limit))
    cable = carried(rules, frames, there, back, 0)
    assert cable.numbers == sorted(set(cable.numbers))
    assert len(cable.numbers) + cable.far.counters.lost_frames == len(frames)
    balanced(cable)
