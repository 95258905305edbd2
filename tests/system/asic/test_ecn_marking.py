"""ECN: RED on the depth that a packet finds, for packets that are capable of it (RFC 3168)."""

from dataclasses import replace

import pytest
from scapy.layers.inet import IP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from emulator.dataplane.switch.bpf.layout import TrafficClass
from emulator.dataplane.switch.switch_counters import reset
from tests.harness.asic.port_bench import NEAR, WIRE, Bench, profile, udp

pytestmark = pytest.mark.root

SIZE = 1000
NOT_CAPABLE, CONGESTED = 0, 3


def ecn_of(frame: bytes, version: int = 4) -> int:
    traffic = frame[15] if version == 4 else (frame[14] & 0xF) << 4 | frame[15] >> 4
    return traffic & 3


@pytest.mark.parametrize("version", [4, 6])
def test_step_marks_every_packet_from_the_threshold_on(bench: Bench, version: int) -> None:
    octets = SIZE + 8 + (20 if version == 4 else 40) + WIRE
    # the 11th packet finds ten, less what has left meanwhile
    depth = 10 * octets - octets // 2
    bench.configure(profile("deep", untrimmed__kmin_bytes=depth, untrimmed__kmax_bytes=depth))
    frames = [udp(SIZE, dscp=20, ecn=ecn, version=version) for ecn in (1, 2) * 10]
    arrived = bench.exchange(frames)
    assert arrived[:10] == frames[:10]
    for before, after in zip(frames[10:], arrived[10:], strict=True):
        assert ecn_of(after, version) == CONGESTED
        unmarked = Ether(after)
        if version == 4:
            assert unmarked[IP].chksum == IP(bytes(unmarked[IP].copy())).chksum
            unmarked[IP].tos = before[15]
            checksum = unmarked[IP].chksum
            del unmarked[IP].chksum
            unmarked[IP].chksum = int.from_bytes(before[24:26], "big")
            assert valid_ipv4_checksum(after)
            assert checksum != int.from_bytes(before[24:26], "big")
        else:
            unmarked[IPv6].tc = 20 << 2 | ecn_of(before, 6)
        assert bytes(unmarked) == before
    assert bench.counters().classes[TrafficClass.UNTRIMMED].marked == 10


def valid_ipv4_checksum(frame: bytes) -> bool:
    total = sum(int.from_bytes(frame[at : at + 2], "big") for at in range(14, 34, 2))
    return (total & 0xFFFF) + (total >> 16) == 0xFFFF


def test_only_capable_packets_are_marked(bench: Bench) -> None:
    bench.configure(profile("deep", untrimmed__kmin_bytes=0, untrimmed__kmax_bytes=1))
    # nor is it this port's mark if an earlier switch has set it
    frames = [udp(SIZE, dscp=20, ecn=ecn) for ecn in (NOT_CAPABLE, CONGESTED) * 10]
    assert bench.exchange(frames) == frames
    assert bench.counters().classes[TrafficClass.UNTRIMMED].marked == 0


@pytest.mark.parametrize(("faces_nic", "marks"), [(True, False), (False, True)])
def test_the_last_hop_may_be_left_to_the_receiver(
    bench: Bench, faces_nic: bool, marks: bool
) -> None:
    rules = profile("deep", untrimmed__kmin_bytes=0, untrimmed__kmax_bytes=1)
    bench.configure(replace(rules, last_hop_ecn=False), faces_nic=faces_nic)
    arrived = bench.exchange([udp(SIZE, dscp=20, ecn=2)] * 20)
    assert (CONGESTED in map(ecn_of, arrived)) is marks
    assert bool(bench.counters().classes[TrafficClass.UNTRIMMED].marked) is marks


def test_control_is_never_marked(bench: Bench) -> None:
    bench.configure(profile("deep", bdp=30_000))
    frames = [udp(SIZE, dscp=46)] * 20
    assert bench.exchange(frames) == frames


@pytest.mark.parametrize("pmax", [1.0, 0.4])
def test_probability_grows_linearly_between_the_thresholds(bench: Bench, pmax: float) -> None:
    kmin, kmax = 200_000, 1_000_000
    rules = profile(
        "deep",
        untrimmed__kmin_bytes=kmin,
        untrimmed__kmax_bytes=kmax,
        untrimmed__pmax=pmax,
        untrimmed__limit_bytes=1_200_000,
    )
    octets = SIZE + 28 + WIRE
    expected = [0.0] * 4
    hits = [0] * 4
    for seed in range(6):
        reset(bench.program, NEAR)
        bench.configure(rules, seed=seed)
        for n, frame in enumerate(bench.exchange([udp(SIZE, dscp=20)] * 1100)):
            depth = n * octets
            if depth < kmin:
                assert ecn_of(frame) != CONGESTED
            elif depth > kmax + 200:
                assert ecn_of(frame) == CONGESTED
            elif depth < kmax:
                quarter = int((depth - kmin) / (kmax - kmin) * 4)
                expected[quarter] += pmax * (depth - kmin) / (kmax - kmin)
                hits[quarter] += ecn_of(frame) == CONGESTED
    for hit, mean in zip(hits, expected, strict=True):
        assert abs(hit - mean) < 5 * mean**0.5  # the seeds are fixed: it holds or it does not


def test_the_same_seed_marks_the_same_packets(bench: Bench) -> None:
    rules = profile("deep", untrimmed__kmin_bytes=0, untrimmed__kmax_bytes=400_000)

    def marked(seed: int) -> list[bool]:
        reset(bench.program, NEAR)
        bench.configure(rules, seed=seed)
        frames = bench.exchange([udp(SIZE, dscp=20)] * 300)
        return [ecn_of(frame) == CONGESTED for frame in frames]

    first, again, other = marked(3), marked(3), marked(4)
    # a depth is some octets less when the test runs slower, which may turn a packet on the edge
    assert sum(a != b for a, b in zip(first, again, strict=True)) <= 2
    assert sum(a != b for a, b in zip(first, other, strict=True)) > 20
