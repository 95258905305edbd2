"""A replay buffer by itself: what ACKs and NACKs do to a replay that has begun."""

from emulator.sim.event_queue import NEVER, PS
from emulator.sim.link_layer.replay import ReplayBuffer
from tests.harness.engine.linked_cable import TIMER_NS, llr, numbered


def outstanding(count: int) -> ReplayBuffer:
    """A buffer with frames 0 to ``count``, which left at 0."""
    buffer = ReplayBuffer(llr())
    for number in range(count):
        assert buffer.keep(numbered(number), 1000, 0, 0) == number
    return buffer


def replayed(buffer: ReplayBuffer) -> list[int]:
    """The numbers of the frames that are sent again, each of them the frame of its number."""
    found = []
    while (one := buffer.replay()) is not None:
        number, frame, _, _ = one
        assert frame == numbered(number)
        found.append(number)
    return found


def test_an_ack_within_a_replay_skips_what_has_arrived() -> None:
    buffer = outstanding(6)
    assert buffer.expire()
    assert buffer.deadline == NEVER
    assert buffer.replay() is not None
    assert buffer.acknowledge(4, 10)
    assert replayed(buffer) == [4, 5]
    buffer.replayed(20)
    assert buffer.deadline == 20 + TIMER_NS * PS


def test_an_ack_of_all_ends_a_replay() -> None:
    buffer = outstanding(3)
    assert buffer.expire()
    assert buffer.acknowledge(3, 10)
    assert replayed(buffer) == []
    assert (buffer.outstanding, buffer.held, buffer.deadline) == (0, 0, NEVER)


def test_a_nack_begins_again_from_where_it_says() -> None:
    buffer = outstanding(5)
    assert buffer.refuse(1, 10)
    assert buffer.replay() is not None
    assert buffer.refuse(3, 20)
    assert replayed(buffer) == [3, 4]


def test_what_is_old_or_never_was_changes_nothing() -> None:
    buffer = outstanding(3)
    buffer.acknowledge(2, 10)
    for expected in (0, 2, 4, 100):
        assert not buffer.acknowledge(expected, 20)
    assert not buffer.refuse(1, 20)
    assert buffer.outstanding == 1
