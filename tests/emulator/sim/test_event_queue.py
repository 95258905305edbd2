"""The order of events, which is the same whoever asks for them first."""

import random
import weakref
from itertools import pairwise

import pytest

from emulator.sim.event_queue import (
    ARRIVING,
    LEAVING,
    PS,
    WAKING,
    EventHeap,
    EventQueue,
    Source,
    arriving,
    salt_of,
)

FRAME_PS = 84_360
INSTANTS = 4000


def test_events_of_one_instant_go_by_kind_and_source() -> None:
    events = EventQueue()
    seen: list[str] = []
    endpoint, run = Source(7), events.run_source
    asked = {
        "wakes": endpoint.next(),
        "arrives": arriving(salt_of(1, 2), 2, PS),
        "leaves": LEAVING | 2,
        "strikes": run.next(),
    }
    for name, order in asked.items():
        events.at(PS, order, seen.append, name)
    events.run()
    assert seen == ["strikes", "leaves", "arrives", "wakes"]
    assert max(LEAVING, ARRIVING) < WAKING < endpoint.next()


def test_what_is_over_cannot_be_asked_for() -> None:
    events = EventQueue()
    events.at(5, 0, lambda _: None, None)
    events.run()
    with pytest.raises(ValueError, match="it is 5 ps already"):
        events.at(4, 0, lambda _: None, None)


def test_a_heap_gives_the_first_whatever_comes_meanwhile() -> None:
    drawn = random.Random(7)
    heap = EventHeap()
    kept: list[tuple[int, int]] = []
    taken: list[object] = []
    for order in range(3000):
        if kept and drawn.random() < 0.45:
            assert heap.following == min(kept)[0]
            when, least, _, argument = heap.pop()
            taken.append((when, least))
            assert argument == f"of {least}"
            assert (when, least) == min(kept)
            kept.remove((when, least))
        when = drawn.randrange(40)
        heap.push(when, order, taken.append, f"of {order}")
        kept.append((when, order))
        assert len(heap) == len(kept)
    assert [heap.pop()[:2] for _ in range(len(heap))] == sorted(kept)
    with pytest.raises(IndexError):
        heap.pop()


def test_what_has_happened_is_kept_by_nobody() -> None:
    class Frame:
        pass

    events, frame = EventQueue(), Frame()
    gone = weakref.ref(frame)
    events.at(1, 0, lambda _: None, frame)
    del frame
    assert gone() is not None
    events.run()
    assert gone() is None


@pytest.mark.parametrize("ports", [2, 4, 8])
def test_whoever_came_first_has_no_advantage_the_next_time(ports: int) -> None:
    """Frames of ``ports`` meet at a switch again and again, as those of an incast do."""
    salts = [salt_of(1, number) for number in range(1, ports + 1)]
    winners = [
        min(range(ports), key=lambda port: arriving(salts[port], port + 1, when))
        for when in range(0, INSTANTS * FRAME_PS, FRAME_PS)
    ]
    again = sum(one == other for one, other in pairwise(winners)) / (INSTANTS - 1)
    assert again == pytest.approx(1 / ports, abs=0.04)
    for port in range(ports):
        assert winners.count(port) / INSTANTS == pytest.approx(1 / ports, abs=0.04)


def test_draws_follow_from_the_seed() -> None:
    draws = [[arriving(salt_of(seed, 3), 3, when) for when in range(99)] for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
