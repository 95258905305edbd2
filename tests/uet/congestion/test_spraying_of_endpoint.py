"""Entropy: which paths packets take (UES 3.6.16)."""

import random
from collections import Counter
from itertools import pairwise
from statistics import fmean
from zlib import crc32

import pytest

from tests.harness.uet.script import MS, MTU, Script, ack
from uet.congestion.spraying.paths import EV_FIRST, EV_LAST, EVS, ObliviousSpraying


@pytest.mark.conformance("C-110")
@pytest.mark.parametrize("seed", range(5))
def test_every_value_once_before_any_again(seed: int) -> None:
    """Round after round, each in another order, and never the same value twice in a row."""
    spraying = ObliviousSpraying(random.Random(seed))
    rounds = [[spraying.pick() for _ in range(EVS)] for _ in range(4)]
    assert all(sorted(each) == list(range(EV_FIRST, EV_LAST + 1)) for each in rounds)
    assert all(a != b for a, b in pairwise(ev for each in rounds for ev in each))
    assert len({tuple(each) for each in rounds}) == 4


@pytest.mark.conformance("C-110")
def test_no_two_packets_of_a_message_have_the_same_value() -> None:
    script = Script(window_bytes=10**9)
    script.post(bytes(512 * MTU))
    assert len({p.ev for p in script.take()}) == 512


@pytest.mark.parametrize("paths", [2, 4, 8, 32])
def test_hashes_of_them_load_all_paths_alike(paths: int) -> None:
    """Hashes load paths as evenly as independent draws, whatever the generator's low bits do."""
    worst = []
    for seed in range(20):
        spraying = ObliviousSpraying(random.Random(seed))
        load = Counter(crc32(b"%d" % spraying.pick()) % paths for _ in range(4_096))
        worst.append(max(load.values()) * paths / 4_096)
    chance = (paths / 4_096) ** 0.5  # one standard deviation of a path's load, over its mean
    assert fmean(worst) < 1 + 3 * chance


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
    for position in range(EVS - 4, EVS + 4):
        script = Script(window_bytes=10**9)
        script.establish_initiator()
        paths = script.pdc.peer.congestion.paths
        for _ in range(position):
            paths.pick()
        script.post(b"x")
        (request,) = script.take()
        (again,) = script.wait(MS)
        assert again.ev != request.ev
        script.give(ack(again, retx=1))
