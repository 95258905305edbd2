"""The modelled queue: what it admits, refuses, counts, and how the link drains it."""

import json

import pytest

from emulator.dataplane.switch.bpf import port_program as ports
from emulator.dataplane.switch.bpf.layout import BINS, DropReason, Queue, TrafficClass
from emulator.dataplane.switch.switch_counters import read, reset
from tests.harness.asic.port_bench import LAST, NEAR, WIRE, Bench, profile, udp, within

pytestmark = pytest.mark.root

SIZE = 4000
OCTETS = SIZE + 28 + WIRE


def test_unconfigured_port_passes_everything_untouched(bench: Bench) -> None:
    frames = [udp(SIZE, dscp=dscp) for dscp in range(64)]
    assert bench.exchange(frames) == frames
    assert all(row.packets == 0 for row in bench.counters().classes.values())


@pytest.mark.parametrize("version", [4, 6])
def test_classes_by_code_point(bench: Bench, version: int) -> None:
    bench.configure(profile("lossless"))
    frames = [udp(100, dscp=dscp, ecn=0, version=version) for dscp in range(64)]
    assert bench.exchange(frames) == frames
    counted = {name.name: row.packets for name, row in bench.counters().classes.items()}
    assert counted == {
        "CONTROL": 2,  # endpoints and routing protocols
        "TRIMMED": 2,
        "DATA": 1,
        "RETRANSMISSION": 1,
        "UNTRIMMED": 58,
        "OTHER": 1,  # the frame that ends an exchange
    }
    octets = 100 + 8 + (20 if version == 4 else 40) + WIRE
    assert bench.counters().classes[TrafficClass.UNTRIMMED].bytes == 58 * octets
    assert bench.counters().classes[TrafficClass.OTHER].bytes == len(LAST) + 24


def test_tail_drop_at_the_limit(bench: Bench) -> None:
    # room for ten frames and a half; the link carries nothing worth mentioning
    limit = 10 * OCTETS + OCTETS // 2
    bench.configure(profile("deep", untrimmed__limit_bytes=limit))
    frames = [udp(SIZE, dscp=20, fill=n) for n in range(30)]
    assert [frame[-4:] for frame in bench.exchange(frames)] == [f[-4:] for f in frames[:10]]
    seen = bench.counters()
    row = seen.classes[TrafficClass.UNTRIMMED]
    assert (row.packets, row.bytes, row.drops[DropReason.TAIL]) == (10, 10 * OCTETS, 20)
    low = seen.queues[Queue.LOW]
    assert 10 * OCTETS - 100 < low.max_bytes <= 10 * OCTETS + 84  # the last frame found room
    assert 9 * OCTETS < low.bytes <= low.max_bytes
    assert sum(low.histogram) == 31  # one per arrival, the last frame's too


def test_histogram_holds_the_depth_each_packet_found(bench: Bench) -> None:
    bench.configure(profile("deep", bdp=200_000))
    bench.exchange([udp(SIZE, dscp=20)] * 40)
    low = bench.counters().queues[Queue.LOW]
    expected = [0] * BINS
    for found in range(41):
        # a few octets leave while the test runs; no multiple of a frame is near a bin's edge
        expected[min(BINS - 1, max(0, found * OCTETS - 50) // low.bin_bytes)] += 1
    assert list(low.histogram) == expected


def test_smallest_frames_are_charged_as_on_the_wire(bench: Bench) -> None:
    bench.configure(profile("lossless"))
    bench.exchange([udp(0, dscp=20)])
    assert bench.counters().classes[TrafficClass.UNTRIMMED].bytes == 84


def test_link_drains_at_its_rate(bench: Bench) -> None:
    # 100 frames of 4066 octets at 8 Mbit/s in fabric time, dilation 4: 1.6 s in all
    bench.configure(profile("lossless"), rate_bps=32e6, dilation=16)
    bench.exchange([udp(SIZE, dscp=20)] * 100)
    before = bench.counters().queues[Queue.LOW]
    assert before.bytes > 80 * OCTETS
    within(lambda: bench.counters().queues[Queue.LOW].bytes == 0, "an empty queue")
    bench.exchange([])
    assert bench.counters().queues[Queue.LOW].histogram[0] > 1  # the program, too, saw it empty


def test_control_is_drained_first(bench: Bench) -> None:
    bench.configure(profile("lossless"), rate_bps=8e6)
    bench.exchange([udp(SIZE, dscp=20)] * 40 + [udp(SIZE, dscp=46)] * 40)
    within(lambda: bench.counters().queues[Queue.HIGH].bytes == 0, "no control waits")
    # 40 frames take 160 ms: data cannot have left before control has
    left = bench.counters().queues[Queue.LOW].bytes
    assert left > 0
    within(lambda: bench.counters().queues[Queue.LOW].bytes == 0, "no data waits")


@pytest.mark.parametrize("share", [0.0, 0.05, 0.25])
def test_data_own_a_share(bench: Bench, share: float) -> None:
    """Both queues wait: what leaves them is in the ratio of what they own."""
    rules = profile("lossless", data_share=share)
    bench.configure(rules)  # a link at a standstill while they fill
    bench.exchange([udp(SIZE, dscp=20)] * 60 + [udp(SIZE, dscp=46)] * 60)
    first = bench.counters().queues
    bench.configure(rules, rate_bps=4e6)
    within(lambda: bench.counters().queues[Queue.HIGH].bytes < 20 * OCTETS, "control served")
    last = bench.counters().queues
    assert last[Queue.HIGH].bytes > 0
    high, low = (first[queue].bytes - last[queue].bytes for queue in (Queue.HIGH, Queue.LOW))
    # the frame that ended the exchange is the last that the program saw: all is one step of it
    assert low == pytest.approx(share * (high + low), abs=OCTETS / 10)
    bench.exchange([])  # and the program takes the step
    now = bench.counters().queues
    high, low = (first[queue].bytes - now[queue].bytes for queue in (Queue.HIGH, Queue.LOW))
    assert low + 84 == pytest.approx(share * (high + low + 84), abs=OCTETS / 4)
    within(lambda: not bench.counters().queues[Queue.LOW].bytes, "an empty queue")


def test_high_queue_has_a_limit_of_its_own(bench: Bench) -> None:
    bench.configure(profile("deep", control__limit_bytes=5 * OCTETS))
    data, control = udp(SIZE, dscp=20, ecn=0), udp(SIZE, dscp=46)
    arrived = bench.exchange([data] * 20 + [control] * 8)
    assert arrived == [data] * 20 + [control] * 5
    assert bench.counters().classes[TrafficClass.CONTROL].drops[DropReason.TAIL] == 3


def test_malformed_ip_is_something_else(bench: Bench) -> None:
    bench.configure(profile())
    good = udp(100)
    too_long = good[:16] + b"\xff\xff" + good[18:]
    no_header = good[:14] + b"\x44" + good[15:]
    short = good[:18]
    version = good[:14] + b"\x75" + good[15:]
    frames = [too_long, no_header, short, version]
    assert bench.exchange(frames) == frames
    assert bench.counters().classes[TrafficClass.OTHER].packets == len(frames) + 1
    assert bench.counters().classes[TrafficClass.DATA].packets == 0


def test_counters_as_they_go_into_a_result(bench: Bench) -> None:
    bench.configure(profile("deep"))
    bench.exchange([udp(SIZE, dscp=20)])
    made = json.loads(json.dumps(bench.counters().as_dict()))
    assert made["classes"]["untrimmed"]["packets"] == 1
    assert made["classes"]["untrimmed"]["drops"]["tail"] == 0
    assert made["queues"]["low"]["max_bytes"] >= OCTETS


def test_reset_starts_again(bench: Bench) -> None:
    bench.configure(profile("deep"))
    bench.exchange([udp(SIZE, dscp=20)] * 10)
    reset(bench.program, NEAR)
    seen = read(bench.program, NEAR)
    assert all(row.packets == 0 for row in seen.classes.values())
    assert seen.queues[Queue.LOW].bytes == 0
    bench.exchange([udp(SIZE, dscp=20)])
    assert bench.counters().classes[TrafficClass.UNTRIMMED].packets == 1


def test_detached_port_is_free(bench: Bench) -> None:
    bench.configure(profile("deep", untrimmed__limit_bytes=2 * OCTETS))
    assert len(bench.exchange([udp(SIZE, dscp=20)] * 5)) == 2
    ports.detach(bench.near.kernel, NEAR, subject="near")
    assert len(bench.exchange([udp(SIZE, dscp=20)] * 5)) == 5
