"""Trimming (UES 4.1): which packets, what is left of them, and how they go on."""

import struct
from collections.abc import Callable
from typing import Any

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from emulator.dataplane.kernel.port_counters import read_ports
from emulator.dataplane.switch.bpf.layout import DropReason, Queue, TrafficClass
from tests.harness.asic.port_bench import (
    FAR_MAC,
    NEAR,
    NEAR_MAC,
    POINTS,
    WIRE,
    Bench,
    native,
    profile,
    shape,
    udp,
)
from tests.system.asic.test_ecn_marking import valid_ipv4_checksum

pytestmark = pytest.mark.root

SIZE = 4000
ROOM = 10 * 4200  # for ten frames of SIZE


def expected(frame: bytes, version: int, dscp: int, left: int = 24) -> bytes:
    """``frame`` as UES 4.1 wants it trimmed, computed another way than the program does."""
    if version == 6:
        word = int.from_bytes(frame[14:18], "big")
        word = word & ~(0x3F << 22) | dscp << 22
        return frame[:14] + struct.pack("!IH", word, left) + frame[20 : 14 + 40 + left]
    header = bytearray(frame[14:34])
    header[1] = dscp << 2 | header[1] & 3
    header[2:4] = struct.pack("!H", 20 + left)
    header[10:12] = bytes(2)
    total = sum(struct.unpack("!10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    header[10:12] = struct.pack("!H", ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF)
    return frame[:14] + bytes(header) + frame[34 : 34 + left]


@pytest.mark.conformance("C-122")
@pytest.mark.parametrize("ecn", [0, 1, 2, 3])
@pytest.mark.parametrize("version", [4, 6])
def test_what_is_left_of_a_packet(bench: Bench, version: int, ecn: int) -> None:
    bench.configure(profile(data__trim_bytes=ROOM, data__kmin_bytes=80_000))
    frames = [udp(SIZE, version=version, ecn=ecn, sport=n, fill=n) for n in range(15)]
    arrived = bench.exchange(frames)
    assert arrived[:10] == frames[:10]
    assert arrived[10:] == [expected(frame, version, POINTS.trimmed or 0) for frame in frames[10:]]
    if version == 4:
        assert all(valid_ipv4_checksum(frame) for frame in arrived)
    seen = bench.counters().classes
    assert seen[TrafficClass.DATA].trimmed == 5
    assert seen[TrafficClass.DATA].packets == 10
    assert seen[TrafficClass.TRIMMED].packets == 5
    assert seen[TrafficClass.TRIMMED].marked == 0
    assert seen[TrafficClass.TRIMMED].bytes == 5 * (84 if version == 4 else 24 + 40 + WIRE)


@pytest.mark.conformance("C-122")
def test_native_encapsulation(bench: Bench) -> None:
    bench.configure(profile(data__trim_bytes=ROOM))
    frames = [native(SIZE, entropy=n) for n in range(12)]
    arrived = bench.exchange(frames)
    assert arrived[10:] == [expected(frame, 4, POINTS.trimmed or 0) for frame in frames[10:]]


def ipv6(payload: Packet, *, dscp: int = 0, next_header: int | None = None) -> bytes:
    fields: dict[str, Any] = {} if next_header is None else {"nh": next_header}
    header = IPv6(src="fd00::1", dst="fd00::2", tc=dscp << 2 | 2, hlim=61, fl=0xABCDE, **fields)
    return bytes(Ether(src=NEAR_MAC, dst=FAR_MAC) / header / payload)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: ipv6(Raw(struct.pack("!HH", n, 0) + bytes([n]) * SIZE), next_header=253),
        lambda n: ipv6(IPv6ExtHdrDestOpt() / UDP(sport=n, dport=4793) / Raw(bytes([n]) * SIZE)),
        lambda n: ipv6(IPv6ExtHdrFragment(offset=n) / Raw(bytes([n]) * SIZE)),
    ],
    ids=["native", "extension header", "fragment"],
)
def test_everything_behind_the_ipv6_header_is_payload(
    bench: Bench, make: Callable[[int], bytes]
) -> None:
    bench.configure(profile(data__trim_bytes=ROOM))
    frames = [make(n) for n in range(12)]
    arrived = bench.exchange(frames)
    assert arrived[:10] == frames[:10]
    assert arrived[10:] == [expected(frame, 6, POINTS.trimmed or 0) for frame in frames[10:]]


@pytest.mark.conformance("C-122")
def test_only_the_code_point_decides(bench: Bench) -> None:
    """UES 4.1 looks neither at the protocol nor at a port."""
    bench.configure(
        profile(data__trim_bytes=ROOM, retransmission__trim_bytes=ROOM, untrimmed__kmax_bytes=None)
    )
    full = [udp(SIZE)] * 10
    over_all = [udp(1400, dscp=dscp) for dscp in range(64)]
    arrived = bench.exchange(full + over_all)
    trimmable = (POINTS.data, POINTS.retransmission)
    cut = [dscp for dscp, (b, a) in enumerate(zip(over_all, arrived[10:], strict=True)) if a != b]
    assert cut == sorted(point for point in trimmable if point is not None)


@pytest.mark.parametrize(
    "payload",
    [
        TCP(sport=179, dport=50_000, seq=7) / Raw(bytes(SIZE)),
        UDP(sport=1, dport=4791) / Raw(bytes(SIZE)),
        UDP(sport=1, dport=4793) / Raw(bytes(SIZE)),
        ICMP() / Raw(bytes(SIZE)),
    ],
    ids=["TCP", "RoCEv2", "UDP checksum", "ICMP"],
)
def test_any_packet_of_a_trimmable_code_point(bench: Bench, payload: Packet) -> None:
    """What the payload says of itself stays: checksums and the length in the UDP header."""
    bench.configure(profile(data__trim_bytes=ROOM))
    frame = bytes(
        Ether(src=NEAR_MAC, dst=FAR_MAC) / IP(src="10.0.0.1", dst="10.0.0.2", tos=2) / payload
    )
    assert bench.exchange([frame] * 12)[-1] == expected(frame, 4, POINTS.trimmed or 0)


def test_ethernet_padding_is_no_payload(bench: Bench) -> None:
    bench.configure(profile(data__trim_bytes=ROOM))
    small = udp(16) + bytes(1400)  # 24 octets of IP payload, and a trailer
    larger = udp(17) + bytes(1400)
    arrived = bench.exchange([udp(SIZE)] * 10 + [small, larger])
    assert arrived[-2:] == [small, expected(larger, 4, POINTS.trimmed or 0)]


@pytest.mark.parametrize("code_point", [POINTS.trimmed, POINTS.trimmed_last_hop])
def test_trimmed_by_an_earlier_switch(bench: Bench, code_point: int) -> None:
    """The last hop neither cuts again nor rewrites what another switch wrote."""
    bench.configure(profile(data__trim_bytes=ROOM), faces_nic=True)
    early = expected(udp(SIZE), 4, code_point, 64)
    assert bench.exchange([udp(SIZE)] * 10 + [early]) == [udp(SIZE)] * 10 + [early]
    assert bench.counters().classes[TrafficClass.TRIMMED].packets == 1


def test_ip_options_stay(bench: Bench) -> None:
    bench.configure(profile(data__trim_bytes=ROOM))
    plain = udp(SIZE)
    header = bytearray(plain[14:34] + b"\x94\x04\0\0")  # router alert
    header[0] = 0x46
    header[2:4] = struct.pack("!H", 24 + 8 + SIZE)
    header[10:12] = bytes(2)
    total = sum(struct.unpack("!12H", header))
    header[10:12] = struct.pack("!H", ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF)
    frame = plain[:14] + bytes(header) + plain[34:]
    trimmed = bench.exchange([frame] * 12)[-1]
    assert len(trimmed) == 14 + 24 + 24
    assert trimmed[34:] == frame[34 : 14 + 24 + 24]
    assert struct.unpack_from("!H", trimmed, 16) == (48,)
    total = sum(struct.unpack("!12H", trimmed[14:38]))
    assert (total & 0xFFFF) + (total >> 16) == 0xFFFF


def test_ports_that_face_a_nic_say_so(bench: Bench) -> None:
    bench.configure(profile(data__trim_bytes=ROOM), faces_nic=True)
    frame = udp(SIZE)
    assert bench.exchange([frame] * 12)[-1] == expected(frame, 4, POINTS.trimmed_last_hop or 0)


@pytest.mark.parametrize("left", [24, 40, 1000])
def test_configured_size(bench: Bench, left: int) -> None:
    bench.configure(profile(data__trim_bytes=ROOM, trim_size=left))
    frame = udp(SIZE)
    assert bench.exchange([frame] * 12)[-1] == expected(frame, 4, POINTS.trimmed or 0, left)


def test_what_is_not_trimmed(bench: Bench) -> None:
    # control, trimmed by an earlier switch, data that forbids it: all beyond data's threshold
    rules = profile(
        bdp=60_000, data__trim_bytes=ROOM, data__kmin_bytes=48_000, untrimmed__kmin_bytes=48_000
    )
    bench.configure(rules)
    frames = [udp(SIZE)] * 10
    others = [udp(1000, dscp=dscp) for dscp in (46, 10, 12, 20)]
    assert bench.exchange(frames + others) == frames + others
    assert all(row.trimmed == 0 for row in bench.counters().classes.values())


def test_packet_no_larger_than_what_trimming_leaves(bench: Bench) -> None:
    bench.configure(profile(data__trim_bytes=ROOM, data__limit_bytes=ROOM))
    small = udp(16, ecn=0)  # 24 octets of IP payload
    larger = udp(17, ecn=0)
    arrived = bench.exchange([udp(SIZE)] * 10 + [small] * 100 + [larger])
    # small ones fill what is left of the queue and are dropped at its limit
    kept = arrived.count(small)
    assert 0 < kept < 100
    assert arrived[-1] == expected(larger, 4, POINTS.trimmed or 0)
    row = bench.counters().classes[TrafficClass.DATA]
    assert row.trimmed == 1
    assert row.drops[DropReason.TAIL] == 100 - kept


def test_retransmissions_have_a_threshold_of_their_own(bench: Bench) -> None:
    bench.configure(profile(bdp=ROOM))  # 1 and 1.5 times
    data, again = udp(SIZE), udp(SIZE, dscp=POINTS.retransmission or 0)
    arrived = bench.exchange([data] * 12 + [again] * 8)
    assert [len(frame) > 100 for frame in arrived] == [True] * 10 + [False] * 2 + [True] * 5 + [
        False
    ] * 3


def test_trimmed_packets_have_a_limit(bench: Bench) -> None:
    # smallest frames are 84 octets on the wire; the limit may not be below one MTU
    limit = 4600
    bench.configure(profile(data__trim_bytes=ROOM, trimmed__limit_bytes=limit))
    arrived = bench.exchange([udp(SIZE)] * 100)
    fit = limit // 84
    assert len(arrived) == 10 + fit
    row = bench.counters().classes[TrafficClass.TRIMMED]
    assert (row.packets, row.drops[DropReason.TAIL]) == (fit, 90 - fit)


@pytest.mark.parametrize("queue", ["high", "medium"])
def test_queue_of_trimmed_packets(bench: Bench, queue: str) -> None:
    bench.configure(profile(data__trim_bytes=ROOM, trimmed_queue=queue))
    bench.exchange([udp(SIZE)] * 20)
    seen = bench.counters().queues
    assert (seen[Queue.HIGH].max_bytes > 0) == (queue == "high")
    assert (seen[Queue.MEDIUM].max_bytes > 0) == (queue == "medium")


def test_htb_charges_the_new_length_to_the_control_class(bench: Bench) -> None:
    shape(bench.near, NEAR, 1e9)
    bench.configure(profile(data__trim_bytes=ROOM))
    bench.exchange([udp(SIZE)] * 15)
    (port,) = read_ports(bench.near.kernel).values()
    assert (port.control.packets, port.control.bytes) == (5, 5 * (14 + 20 + 24))
    assert port.data.packets == 11  # with the last frame of the exchange
    assert port.data.bytes == 10 * len(udp(SIZE)) + 60


def test_priority_of_each_class(bench: Bench) -> None:
    # no filter below looks at DSCP 10 and 12: only skb->priority takes them to control
    shape(bench.near, NEAR, 1e9)
    bench.configure(profile("lossless"))
    bench.exchange([udp(100, dscp=dscp) for dscp in (46, 10, 12, 0, 8, 20)])
    (port,) = read_ports(bench.near.kernel).values()
    assert port.control.packets == 3
    assert port.data.packets == 4
