"""Entropy: which paths packets take (UES 3.6.16)."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from tests.stack.script import MS, MTU, Script, ack
from uet.congestion.spraying import EV_FIRST, EV_LAST, EV_SET_SIZE, ObliviousSpraying


@pytest.mark.conformance("C-110")
@pytest.mark.parametrize("size", [2, 3, EV_SET_SIZE])
def test_every_value_once_before_any_again(size: int) -> None:
    """Round after round, each in another order, and never the same value twice in a row."""
    for seed in range(30):
        spraying = ObliviousSpraying(random.Random(seed), size)
        rounds = [[spraying.pick() for _ in range(size)] for _ in range(20)]
        assert all(sorted(each) == sorted(rounds[0]) for each in rounds)
        assert len(set(rounds[0])) == size
        assert all(EV_FIRST <= ev <= EV_LAST for ev in rounds[0])
        picked = [ev for each in rounds for ev in each]
        assert all(a != b for a, b in pairwise(picked))
        if size == EV_SET_SIZE:
            assert len({tuple(each) for each in rounds}) == 20


@pytest.mark.conformance("C-110")
def test_a_message_uses_all_its_paths_evenly() -> None:
    script = Script(window_bytes=10**9)
    script.post(bytes(2 * EV_SET_SIZE * MTU))
    assert set(Counter(p.ev for p in script.take()).values()) == {2}


def test_two_peers_or_seeds_are_sprayed_apart() -> None:
    sets = set()
    for seed in range(10):
        script = Script(seed=seed)
        script.post(bytes(20 * MTU))
        sets.add(tuple(p.ev for p in script.take()))
    assert len(sets) == 10


@pytest.mark.conformance("C-045")
def test_a_retransmission_takes_another_path() -> None:
    """Even if it is the very next frame, at the seam of two rounds."""
    for position in range(2 * EV_SET_SIZE):
        script = Script(window_bytes=10**9)
        script.establish_initiator()
        spraying = script.pdc.writer._entropy
        for _ in range(position % EV_SET_SIZE):
            spraying.pick()
        script.post(b"x")
        (request,) = script.take()
        (again,) = script.wait(MS)
        assert again.ev != request.ev
        script.give(ack(again, retx=1))
