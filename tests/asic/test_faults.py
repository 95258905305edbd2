"""Faults: each as often as it should, the same again for the same seed."""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest

from emulator.asic.counters import reset
from emulator.asic.faults import Faults
from emulator.asic.layout import DropReason, TrafficClass
from emulator.errors import UserError
from tests.asic.bench import NEAR, Bench, needs_root, profile, root, udp

pytestmark = [root, needs_root]

COUNT = 4000
DATA = TrafficClass.UNTRIMMED


def frames(count: int = COUNT, size: int = 64) -> list[bytes]:
    return [udp(size, dscp=20, ecn=0, sport=n) for n in range(count)]


def sport(frame: bytes) -> int:
    return int.from_bytes(frame[34:36], "big")


def lost(bench: Bench, faults: Faults, seed: int = 1) -> list[bool]:
    """Send; for each frame whether it was lost.  The last frame may suffer too: it is repeated."""
    reset(bench.program, NEAR)
    bench.configure(profile("lossless"), seed=seed, faults=faults)
    sent = frames()
    for frame in sent:
        bench.out.send(frame)
    bench.configure(profile("lossless"))
    arrived = {sport(frame) for frame in bench.exchange([])}
    return [n not in arrived for n in range(COUNT)]


def near(count: int, mean: float) -> bool:
    """Within five standard deviations; seeds are fixed, so it holds or it does not."""
    return abs(count - mean) < 5 * mean**0.5


def test_independent_loss(bench: Bench) -> None:
    gone = lost(bench, Faults(loss=0.1))
    assert near(sum(gone), 0.1 * COUNT)
    row = bench.counters().classes[DATA]
    assert row.drops[DropReason.LOSS] == sum(gone)
    assert row.packets == COUNT  # the queue had room for all of them
    after_loss = sum(b for a, b in pairwise(gone) if a)
    assert near(after_loss, 0.1 * sum(gone))


def test_a_seed_is_a_sequence(bench: Bench) -> None:
    first = lost(bench, Faults(loss=0.1), seed=5)
    assert lost(bench, Faults(loss=0.1), seed=5) == first
    assert lost(bench, Faults(loss=0.1), seed=6) != first
    # another kind of fault does not shift it
    assert lost(bench, Faults(loss=0.1, duplication=0.5), seed=5) == first


def test_bursts(bench: Bench) -> None:
    begin, end = 0.01, 0.2
    gone = lost(bench, Faults(burst_begin=begin, burst_end=end))
    bursts = [len(list(run)) for value, run in groupby(gone) if value]
    assert near(len(bursts), COUNT / (1 / begin + 1 / end))
    assert 3.5 < sum(bursts) / len(bursts) < 6.5  # 1 / end on average
    assert bench.counters().classes[DATA].drops[DropReason.BURST] == sum(gone)


def test_partial_loss_in_bursts(bench: Bench) -> None:
    gone = lost(bench, Faults(burst_begin=1.0, burst_end=0.0001, burst_loss=0.25))
    assert near(sum(gone), 0.25 * COUNT)


def test_certain_loss(bench: Bench) -> None:
    assert all(lost(bench, Faults(loss=1.0)))


def test_black_hole(bench: Bench) -> None:
    assert all(lost(bench, Faults(black_hole=True)))
    row = bench.counters().classes[DATA]
    assert (row.packets, row.drops[DropReason.BLACK_HOLE]) == (0, COUNT)


def test_corruption_inverts_one_bit_behind_the_ip_header(bench: Bench) -> None:
    bench.configure(profile("lossless"), faults=Faults(corruption=0.5))
    sent = frames(1000)
    arrived = bench.exchange(sent)
    differences = []
    for before, after in zip(sent, arrived, strict=True):
        assert before[:34] == after[:34]
        difference = int.from_bytes(before, "big") ^ int.from_bytes(after, "big")
        if difference:
            assert difference.bit_count() == 1
            differences.append(len(before) - 1 - (difference.bit_length() - 1) // 8)
    assert near(len(differences), 500)
    assert bench.counters().classes[DATA].corrupted == len(differences)
    assert {*range(34, 34 + 72)} >= set(differences)
    assert len(set(differences)) > 60  # everywhere


def test_duplication(bench: Bench) -> None:
    bench.configure(profile("lossless"), faults=Faults(duplication=0.2))
    sent = frames(1000)
    arrived = bench.exchange(sent)
    assert list(dict.fromkeys(arrived)) == sent
    runs = [len(list(run)) for _, run in groupby(arrived)]
    assert set(runs) == {1, 2}
    row = bench.counters().classes[DATA]
    assert near(row.duplicated, 200)
    assert row.duplicated == len(arrived) - len(sent)
    assert row.packets == len(arrived)  # copies take room in the queue like any frame


def test_faults_end_when_they_are_taken_back(bench: Bench) -> None:
    bench.configure(profile("lossless"), faults=Faults(loss=1.0))
    bench.configure(profile("lossless"))
    sent = frames(50)
    assert bench.exchange(sent) == sent


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"loss": 1.5}, "the fault loss is 1.5: a probability is 0 to 1"),
        ({"duplication": "often"}, "the fault duplication is 'often'"),
        ({"corruption": -0.1}, "the fault corruption is -0.1"),
        ({"burst_begin": 0.1, "burst_end": 0.0}, "begin but never end"),
    ],
)
def test_faults_that_cannot_be(settings: dict[str, float], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Faults(**settings)  # type: ignore[arg-type]
