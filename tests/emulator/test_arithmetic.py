"""The arithmetic of traffic experiments against numbers computed by hand."""

import numpy as np
import pytest

from emulator.arithmetic import (
    FlowProgress,
    convergence,
    jain,
    max_mean,
    max_min,
    payload_rate,
    percentile,
    rates_between,
    steady_interval,
)
from emulator.run.measures.queue_depths import QueueSeries


def test_jain() -> None:
    assert jain([3, 3, 3, 3]) == 1
    assert jain([1, 0, 0, 0]) == jain([0.0, 0.0, 8.0, 0.0]) == 0.25
    assert jain([1, 2, 3]) == pytest.approx(36 / (3 * 14))
    # the example of the paper: of 100 users 10 get all there is
    assert jain([1] * 10 + [0] * 90) == pytest.approx(0.1)
    assert jain([]) is jain([0, 0]) is jain([0.0, 0.0, 0.0]) is None


def test_max_mean() -> None:
    assert max_mean([5, 5, 5]) == 1
    assert max_mean([8, 2, 2, 4]) == 2
    assert max_mean([]) is max_mean([0, 0]) is None


@pytest.mark.parametrize(
    ("share", "expected"), [(0.05, 15), (0.3, 20), (0.4, 20), (0.5, 35), (0.99, 50), (1, 50)]
)
def test_percentiles_are_values_that_were_seen(share: float, expected: int) -> None:
    """The textbook's example of the nearest rank."""
    assert percentile([35, 20, 15, 50, 40], share) == expected
    assert percentile([], share) is None


def test_the_seventh_of_a_hundred_is_not_the_eighth() -> None:
    assert percentile(list(range(1, 101)), 0.07) == 7


def test_payload_rate() -> None:
    # 400 Gb/s are 50 GB/s; 4096 of 4200 octets are payload
    assert payload_rate(400e9, 4096, 104) == pytest.approx(50 * 4096 / 4200)


def test_delivery_between_messages_is_even() -> None:
    flow = FlowProgress.of(100, [(300, 10), (200, 10)])
    assert [flow.delivered(t) for t in (0, 100, 150, 200, 250, 300, 999)] == [
        *(0, 0, 5, 10, 15, 20, 20)
    ]
    assert flow.rate == pytest.approx(20 / 200)
    assert (flow.first_delivery, flow.end) == (200, 300)
    assert FlowProgress.of(5, []).rate == 0


def test_the_steady_state_is_while_all_are_under_way() -> None:
    one = FlowProgress.of(0, [(10, 100), (50, 400), (100, 500)])
    other = FlowProgress.of(0, [(20, 100), (80, 300)])
    assert steady_interval([one, other]) == (20, 80)
    # one: 100 + 400 * 10/40 = 200 at 20, 500 + 500 * 30/50 = 800 at 80
    assert rates_between([one, other], 20, 80) == [pytest.approx(10), pytest.approx(5)]


def test_an_interval_as_short_as_the_first_messages_took_tells_nothing() -> None:
    one = FlowProgress.of(0, [(10, 1), (40, 1)])
    late = FlowProgress.of(0, [(25, 1), (60, 1)])
    assert steady_interval([one, late]) is None
    assert steady_interval([]) is None
    assert steady_interval([FlowProgress.of(0, [(10, 1)])]) is None


def test_flows_have_converged_once_their_rates_stay_alike() -> None:
    even = FlowProgress(((0, 0.0), (1000, 1000.0)))
    late = FlowProgress(((0, 0.0), (400, 100.0), (1000, 700.0)))  # 0.25, from 400 on 1
    assert convergence([even, late], 0, 100, 0.1) == 400
    assert convergence([even, late], 200, 100, 0.1) == 200
    assert convergence([even, even], 0, 100, 0.1) == 0
    slower = FlowProgress(((0, 0.0), (900, 900.0), (1000, 910.0)))
    assert convergence([even, slower], 0, 100, 0.1) is None  # apart again at the end
    assert convergence([even, even], 950, 100, 0.1) is None  # no window is left
    assert convergence([], 0, 100, 0.1) is None


def test_max_min_fills_one_resource_after_the_other() -> None:
    # Bertsekas and Gallager's chain: one flow over both links, one over the first, three over the
    # second: the second is full at 1/4 each, which leaves 3/4 of the first.
    flows = [("a", "b"), ("a",), ("b",), ("b",), ("b",)]
    rates = max_min(flows, {"a": 1.0, "b": 1.0})
    assert rates == [pytest.approx(x) for x in (0.25, 0.75, 0.25, 0.25, 0.25)]
    assert max_min([], {}) == []


def test_what_left_a_queue_is_what_was_let_in_and_waits_no_more() -> None:
    queue = QueueSeries(
        np.array([0.0, 10.0, 30.0]), np.array([0.0, 100.0, 40.0]), np.array([0.0, 300.0, 840.0])
    )
    assert queue.rate(0, 10) == pytest.approx(20)
    assert queue.rate(10, 30) == pytest.approx(30)
    assert queue.rate(5, 20) == pytest.approx((100 + 300) / 15)
    assert queue.rate(10, 50) == pytest.approx(30)  # as far as it is known
    assert queue.rate(30, 50) is queue.rate(-1, 5) is None
    assert QueueSeries(np.zeros(1), np.zeros(1)).rate(0, 1) is None


def test_a_mean_depth_is_weighted_by_time() -> None:
    queue = QueueSeries(np.array([0.0, 10.0, 30.0]), np.array([0.0, 100.0, 40.0]))
    assert queue.mean(0, 40) == pytest.approx((0 * 10 + 100 * 20 + 40 * 10) / 40)
    assert queue.mean(15, 25) == 100
    assert queue.mean(20, 32) == pytest.approx((100 * 10 + 40 * 2) / 12)
    assert queue.mean(50, 60) == 40  # the last sample holds
    assert queue.mean(-5, 10) is queue.mean(5, 5) is None
