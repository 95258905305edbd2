"""Measures of frames against values worked out by hand."""

import numpy as np
import pytest

from emulator.report.traffic import measures


def test_entropy_counts_kinds_that_are_alike() -> None:
    assert measures.entropy_bits([5, 5, 5, 5]) == pytest.approx(2)
    assert measures.entropy_bits([7, 0]) == 0
    assert measures.entropy_bits([3, 1]) == pytest.approx(0.8113, abs=1e-4)


def test_frames_that_idle_less_than_the_gap_are_one_burst() -> None:
    begin, busy = np.array([0.0, 1.0, 3.0, 3.5]), np.array([0.5, 0.5, 0.5, 0.25])
    found = measures.bursts(begin, busy, np.array([10, 20, 30, 40]), 1.0)
    assert found.begin_us.tolist() == [0, 3]
    assert found.length_us.tolist() == [1.5, 0.75]
    assert found.gap_us.tolist() == [1.5]
    assert found.octets.tolist() == [30, 70]


def test_a_frame_counts_in_the_windows_that_it_lies_in() -> None:
    begin, busy = np.array([0.5, 8.0]), np.array([1.0, 1.0])
    # Of 2 us in 10 the window 8..9 has one: all of it, and five times the mean.
    assert measures.peak(begin, busy, (0.0, 10.0), 1.0) == pytest.approx((1, 5))
    assert measures.peak(begin, busy, (0.0, 10.0), 2.0) == pytest.approx((0.5, 2.5))
    assert measures.peak(begin, busy, (0.0, 10.0), 10.0) is None
    over = np.array([0.0, 0.0]), np.array([2.0, 2.0])  # which only another clock has
    assert measures.peak(*over, (0.0, 8.0), 2.0) == pytest.approx((1, 2))
    # A frame fills the windows behind the one in which it begins.
    long = np.array([0.5]), np.array([2.0])
    assert measures.peak(*long, (0.0, 1e9), 1.0) == pytest.approx((1, 1e9 / 2))
    assert measures.peak(begin[:0], busy[:0], (0.0, 10.0), 1.0) is None


def test_intervals_at_once() -> None:
    begin, end = np.array([0.0, 1.0, 4.0]), np.array([2.0, 3.0, 5.0])
    most, mean = measures.at_once(begin, end)
    assert most == 2
    assert mean == pytest.approx(5 / 4)
    assert measures.at_once(begin[:0], end[:0]) == (0, 0.0)


def test_intervals_are_joined_where_they_touch() -> None:
    begin, end = measures.union(np.array([4.0, 0.0, 1.0, 1.0]), np.array([5.0, 2.0, 1.5, 3.0]))
    assert begin.tolist() == [0, 4]
    assert end.tolist() == [3, 5]


def test_sizes_and_their_powers_of_two() -> None:
    octets = np.array([64, 65, 128, 1500])
    assert measures.sizes(octets) == {
        "least_bytes": 64,
        "median_bytes": 65,
        "mean_bytes": 439.2,
        "most_bytes": 1500,
    }
    assert measures.histogram(octets) == [
        {"up_to_bytes": 64, "count": 1, "sum_bytes": 64},
        {"up_to_bytes": 128, "count": 2, "sum_bytes": 193},
        {"up_to_bytes": 2048, "count": 1, "sum_bytes": 1500},
    ]
