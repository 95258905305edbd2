"""Counters that wrap, samples that do not count (UES 3.6.13)."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uet.congestion.signals import (
    NO_SAMPLE,
    ReceivedOctets,
    ahead,
    congestion_penalty,
    out_of_order,
    rtt_sample,
    service_time,
    units,
)

WRAP = 1 << 24


@given(st.integers(0, WRAP - 1), st.integers(-(WRAP // 2), WRAP // 2 - 1))
def test_distance_of_counters(b: int, distance: int) -> None:
    assert ahead((b + distance) % WRAP, b) == distance


def test_octets_round_up_to_units() -> None:
    assert [units(n) for n in (0, 1, 256, 257, 256 * WRAP - 1)] == [0, 1, 1, 2, 0]


@given(st.lists(st.integers(0, 200_000), max_size=40), st.randoms(use_true_random=False))
def test_new_octets_whatever_order_acks_come_in(sizes: list[int], rng: random.Random) -> None:
    """They add up to the newest counter, past its wrap, and an overtaken ACK adds nothing."""
    received = ReceivedOctets()
    for quarter in (1, 2, 3):
        assert received.advance(quarter * WRAP // 4) == 64 * WRAP
    received.advance(WRAP - 100)
    start = total = 256 * (WRAP - 100)
    counters = []
    for size in sizes:
        total += size
        counters.append(units(total))
    rng.shuffle(counters)
    news = sum(received.advance(counter) for counter in counters)
    assert news == -(-(total - start) // 256) * 256
    assert all(received.advance(counter) == 0 for counter in counters)


@pytest.mark.conformance("C-093")
@pytest.mark.parametrize(
    ("transmissions", "resent", "valid"),
    [(1, 0, True), (1, 0x20, False), (2, 0, False), (2, 0x20, True), (3, 0, False), (3, 1, False)],
)
def test_a_sample_knows_which_transmission_it_is_of(
    transmissions: int, resent: int, valid: bool
) -> None:
    sample = rtt_sample(15_000, 1_000, transmissions, resent)
    assert sample == (14_000 if valid else NO_SAMPLE)


def test_service_time_comes_off() -> None:
    assert rtt_sample(15_000, 1_000, 1, 0, 10) == 14_000 - 1_280
    assert rtt_sample(15_000, 1_000, 1, 0, 0xFFFF) == NO_SAMPLE
    assert service_time(0) == 0
    assert service_time(0xFFFE) == 0xFFFE * 128
    assert service_time(0xFFFF) == NO_SAMPLE


def test_no_time_at_all_is_no_sample() -> None:
    """A peer whose clock is off, or that lies, must not make the base RTT 0."""
    assert rtt_sample(2_280, 1_000, 1, 0, 10) == NO_SAMPLE
    assert rtt_sample(2_281, 1_000, 1, 0, 10) == 1


def test_out_of_order_count() -> None:
    assert out_of_order(0xFFFF) is None
    assert out_of_order(0xFFFE) == 0xFFFE


def test_penalty_of_a_receive_buffer() -> None:
    levels = [congestion_penalty(held, 1_000) for held in range(0, 1_201)]
    assert levels[:251] == 251 * [0]
    assert levels[500] == 63
    assert set(levels[750:]) == {127}
    assert levels == sorted(levels)
