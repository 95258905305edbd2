"""Fabric time, and the delay line that stands for cables: exact, because time is an argument."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.dataplane.clock import Clock
from emulator.sim.endpoint.nic.delay_line import DelayLine, PathDelay


def test_clock_is_linear_in_host_time() -> None:
    clock = Clock(dilation=1000.0, epoch_ns=5_000)
    assert clock.from_host(5_000) == 0
    assert clock.from_host(5_000 + 7_000_000) == 7_000
    assert clock.host_seconds(50_000) == pytest.approx(0.05)
    assert clock.fabric_duration(1_000_000_000) == 1_000_000


def test_clock_refuses_a_dilation_of_zero() -> None:
    with pytest.raises(ValueError, match="above 0"):
        Clock(dilation=0, epoch_ns=0)


def test_frame_is_held_exactly_for_its_path() -> None:
    line: DelayLine[str, str] = DelayLine({"near": PathDelay(1200), "far": PathDelay(2400)})
    line.hold("near", 100, 100, "frame")
    assert line.next_due() == 1300
    assert line.release(1299, 10) == []
    assert line.release(1300, 10) == ["frame"]
    assert line.next_due() is None
    assert line.held == 0


def test_near_frame_overtakes_far_frame() -> None:
    line: DelayLine[str, str] = DelayLine({"near": PathDelay(1200), "far": PathDelay(2400)})
    line.hold("far", 0, 100, "far")
    line.hold("near", 10, 100, "near")
    line.hold("near", 1300, 100, "later")
    assert line.release(2399, 10) == ["near"]
    assert line.release(5000, 10) == ["far", "later"]


def test_serialisation_counts_the_octets_on_the_wire() -> None:
    line: DelayLine[str, str] = DelayLine({"near": PathDelay(1200, 0.04)})
    line.hold("near", 0, 4194, "long")
    line.hold("near", 1, 76, "short")
    assert line.next_due() == 1200 + 168
    # A short frame right behind a long one of the same path cannot be there before it.
    assert line.release(1367, 10) == []
    assert line.release(1368, 10) == ["long", "short"]


def test_unknown_source_is_not_delayed_but_counted() -> None:
    line: DelayLine[str, str] = DelayLine({"near": PathDelay(1200)})
    line.hold("stranger", 50, 100, "frame")
    assert line.release(50, 10) == ["frame"]
    assert line.unknown_sources == 1


def test_clock_step_back_does_not_reorder_a_source() -> None:
    line: DelayLine[str, str] = DelayLine({"a": PathDelay(100)})
    line.hold("a", 1000, 100, "first")
    line.hold("a", 900, 100, "second")
    assert line.release(1100, 10) == ["first", "second"]


@given(
    delays=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 5), min_size=1),
    gaps=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3)), max_size=60),
    limit=st.integers(1, 5),
)
def test_order_and_time_hold_for_any_arrivals(
    delays: dict[str, int], gaps: list[tuple[str, int]], limit: int
) -> None:
    line: DelayLine[str, tuple[str, int, int]] = DelayLine(
        {source: PathDelay(delay) for source, delay in delays.items()}
    )
    now = 0
    released: list[tuple[int, tuple[str, int, int]]] = []
    for number, (source, gap) in enumerate(gaps):
        now += gap
        line.hold(source, now, 100, (source, now, number))
        released += [(now, item) for item in line.release(now, limit)]
    while line.held:
        due = line.next_due()
        assert due is not None
        now = max(now, due)
        released += [(now, item) for item in line.release(now, limit)]
    assert len(released) == len(gaps)
    for when, (source, arrival, _) in released:
        assert when >= arrival + delays.get(source, 0)
    for source in "abcd":
        numbers = [number for _, (origin, _, number) in released if origin == source]
        assert numbers == sorted(numbers)
