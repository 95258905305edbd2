"""Faults: each as often as it should, the same again for the same seed."""

from itertools import groupby, pairwise
from typing import Any

import pytest

from emulator.dataplane.kernel.port_counters import read_ports
from emulator.dataplane.switch.bpf import port_program as ports
from emulator.dataplane.switch.bpf.layout import PORT_HEAD, DropReason, Queue, TrafficClass
from emulator.dataplane.switch.port_faults import Faults
from emulator.dataplane.switch.switch_counters import reset
from emulator.dataplane.switch.switch_profile import arrival_settings, port_settings
from emulator.errors import UserError
from tests.harness.asic.port_bench import (
    FAR,
    NEAR,
    Bench,
    number_of,
    numbered,
    profile,
    shape,
    udp,
    within,
)

pytestmark = pytest.mark.root

COUNT = 4000
DATA = TrafficClass.UNTRIMMED


def frames(count: int = COUNT, size: int = 64) -> list[bytes]:
    return numbered(count, size, dscp=20, ecn=0)


def lost(bench: Bench, faults: Faults, seed: int = 1) -> list[bool]:
    """Send; for each frame whether it was lost.  The last frame may suffer too: it is repeated."""
    reset(bench.program, NEAR)
    bench.configure(profile("lossless"), seed=seed, faults=faults)
    sent = frames()
    for frame in sent:
        bench.out.send(frame)
    bench.configure(profile("lossless"))
    arrived = {number_of(frame) for frame in bench.exchange([])}
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
    assert row.lost_bytes * COUNT == row.bytes * sum(gone)  # all frames are alike
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


@pytest.mark.parametrize("size", [64, 640])
def test_bit_errors_take_frames_by_their_length(bench: Bench, size: int) -> None:
    """The chance is the ratio times the bits of the frame with its check sequence."""
    faults, sent = Faults(bit_errors=1e-4), frames(size=size)
    reset(bench.program, NEAR)
    bench.configure(profile("lossless"), faults=faults)
    for frame in sent:
        bench.out.send(frame)
    bench.configure(profile("lossless"))
    gone = COUNT - len(bench.exchange([]))
    assert near(gone, faults.loss_of(len(sent[0]) + 4) * COUNT)
    assert bench.counters().classes[DATA].drops[DropReason.LOSS] == gone


def test_black_hole(bench: Bench) -> None:
    assert all(lost(bench, Faults(black_hole=True)))
    row = bench.counters().classes[DATA]
    assert (row.packets, row.drops[DropReason.BLACK_HOLE]) == (0, COUNT)


def test_what_a_pulled_cable_takes_is_told_apart(bench: Bench) -> None:
    """Whatever else would take it."""
    for faults in (Faults(unplugged=True), Faults(unplugged=True, black_hole=True, loss=1.0)):
        assert all(lost(bench, faults))
        drops = bench.counters().classes[DATA].drops
        assert {reason: n for reason, n in drops.items() if n} == {DropReason.LINK_DOWN: COUNT}


def test_corruption_inverts_one_bit_behind_the_ip_header(bench: Bench) -> None:
    bench.configure(profile("lossless"), faults=Faults(corruption=0.5))
    sent = frames(1000)
    for frame in sent:
        bench.out.send(frame)
    bench.configure(profile("lossless"))  # or the last frame, too, might be another
    arrived = bench.exchange([])
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


def overtakers(order: list[int]) -> list[int]:
    """Return the frames that arrived before one that had been sent before them."""
    return [n for place, n in enumerate(order) if any(m < n for m in order[place + 1 :])]


def receive(bench: Bench, count: int) -> list[int]:
    return [number_of(bench.heard.recv(65536)) for _ in range(count)]


@pytest.mark.parametrize("measured", [False, True], ids=["computed", "measured"])
def test_reordering(bench: Bench, measured: bool) -> None:
    """60 frames wait; a fifth of them goes first, and the model's queue is empty afterwards."""
    rate, count, size = 8e6, 60, 4000
    shape(bench.near, NEAR, rate)
    ports.configure(bench.program, FAR, arrival_settings(peer=NEAR if measured else 0))
    ports.attach(bench.far.kernel, FAR, bench.program, subject="far")
    bench.far.kernel.flush()
    bench.configure(
        profile("lossless"), rate_bps=rate, measured=measured, faults=Faults(reordering=0.2)
    )
    for frame in frames(count, size):
        bench.out.send(frame)
    order = receive(bench, count)
    assert sorted(order) == list(range(count))
    early = overtakers(order)
    assert early == sorted(early)  # each kept its place among its kind
    late = [n for n in order if n not in early]
    assert late == sorted(late)
    seen = bench.counters()
    row = seen.classes[DATA]
    # the first ones may have been told to overtake a frame that was being sent already
    assert len(early) <= row.reordered <= len(early) + 3
    assert near(row.reordered, 0.2 * count)
    assert row.packets == count
    assert seen.queues[Queue.HIGH].max_bytes == 0  # by the rules of its own class, in its queue
    within(lambda: bench.counters().queues[Queue.LOW].bytes == 0, "an empty queue")
    (port,) = read_ports(bench.near.kernel).values()
    assert port.control.packets == row.reordered
    assert port.data.packets == count - row.reordered


def test_an_idle_port_cannot_reorder(bench: Bench) -> None:
    shape(bench.near, NEAR, 1e9)
    bench.configure(profile("lossless"), rate_bps=1e9, faults=Faults(reordering=1.0))
    for n, frame in enumerate(frames(20)):
        within(lambda: bench.counters().queues[Queue.LOW].bytes == 0, "an empty queue")
        bench.out.send(frame)
        assert receive(bench, 1) == [n]
    assert bench.counters().classes[DATA].reordered == 0


def test_control_is_not_reordered(bench: Bench) -> None:
    bench.configure(profile("lossless"), faults=Faults(reordering=1.0))
    bench.exchange([udp(64, dscp=46)] * 20)
    assert bench.counters().classes[TrafficClass.CONTROL].reordered == 0


def test_the_same_seed_reorders_the_same_packets(bench: Bench) -> None:
    # a link that carries nothing: only the first frame finds nobody to overtake
    def counted(seed: int) -> int:
        reset(bench.program, NEAR)
        bench.configure(profile("lossless"), seed=seed, faults=Faults(reordering=0.5))
        bench.exchange(frames(1000))
        return bench.counters().classes[DATA].reordered

    first = counted(3)
    assert counted(3) == first
    assert {counted(seed) for seed in (4, 5, 6)} != {first}


def test_half_the_rate() -> None:
    """The model's link; the kernel's is in test_rate.py."""
    whole = port_settings(profile(), rate_bps=8e9, dilation=10, seed=1)
    half = port_settings(profile(), rate_bps=8e9, dilation=10, seed=1, faults=Faults(rate=0.5))
    assert PORT_HEAD.unpack_from(half)[0] == pytest.approx(
        PORT_HEAD.unpack_from(whole)[0] / 2, rel=1e-5
    )
    assert half[8:] == whole[8:]


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
        ({"reordering": 2}, "the fault reordering is 2: a probability is 0 to 1"),
        ({"rate": 1.25}, "the fault rate is 1.25: a share of the link's rate is 0 to 1"),
        ({"rate": 0}, "leaves nothing of the link: set black_hole"),
        ({"burst_begin": 0.1, "burst_end": 0.0}, "begin but never end"),
        ({"black_hole": 0.5}, "black_hole is 0.5: it is True or False"),
        ({"loss": float("nan")}, "the fault loss is nan"),
        ({"arriving": True, "duplication": 0.1}, "what arrives cannot be duplicated"),
    ],
)
def test_faults_that_cannot_be(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Faults(**settings)
