"""Headers of a modelled tunnel: their fields, marks on the way in and out, what is refused."""

import struct

import pytest

from emulator.dataplane.model.tunnel import Inside, ModelTunnel, opened
from uet.wire.codes import UDP_PORT as UET_PORT

HERE, THERE = bytes((10, 255, 0, 1)), bytes((10, 255, 0, 2))
VNI, PORT = 10_101, 40_000
DATAGRAM = struct.pack("!4H", PORT, UET_PORT, 40, 0) + bytes(32)
ETHERNET = bytes(12) + b"\x08\x00"


def inner(traffic: int) -> bytes:
    """Return a frame of UDP over IPv4 with DSCP and ECN of ``traffic``."""
    head = struct.pack("!BBHHHBBH4s4s", 0x45, traffic, 60, 0, 0, 9, 17, 0, HERE, THERE)
    words = sum(struct.unpack("!10H", head))
    words = (words & 0xFFFF) + (words >> 16)
    return ETHERNET + head[:10] + (~words & 0xFFFF).to_bytes(2) + head[12:] + DATAGRAM


def tunnelled(frame: bytes) -> bytes:
    return ETHERNET + ModelTunnel("rail0", VNI, HERE).packet(frame, THERE, PORT)


def sum_of(header: bytes) -> int:
    words = sum(struct.unpack(f"!{len(header) // 2}H", header))
    return (words & 0xFFFF) + (words >> 16)


def changed(frame: bytes, at: int, octets: bytes) -> bytes:
    return frame[:at] + octets + frame[at + len(octets) :]


def test_a_frame_comes_out_as_it_went_in() -> None:
    frame = inner(0x28)
    outer = tunnelled(frame)
    assert len(outer) == len(frame) + 50
    assert outer[18:24] == bytes((0, 0, 0, 0, 64, 17))  # identification, DF, TTL, UDP
    assert outer[40:42] == bytes(2)  # no checksum of UDP
    assert sum_of(outer[14:34]) == 0xFFFF
    assert opened(outer) == Inside(VNI, frame)
    assert opened(outer + bytes(9)) == Inside(VNI, frame)


@pytest.mark.parametrize(("ecn", "outside"), [(0, 0), (1, 1), (2, 2), (3, 2)])
def test_marks_outside_are_those_of_rfc_6040(ecn: int, outside: int) -> None:
    assert tunnelled(inner(0x28 | ecn))[15] == 0x28 | outside


@pytest.mark.parametrize("ecn", [1, 2, 3])
def test_a_mark_on_the_way_comes_in(ecn: int) -> None:
    outer = tunnelled(inner(0x28 | ecn))
    taken = opened(changed(outer, 15, bytes((0x28 | 3,))))
    assert taken is not None
    assert taken.frame[15] == 0x28 | 3
    assert sum_of(taken.frame[14:34]) == 0xFFFF


@pytest.mark.parametrize(
    ("at", "octets"),
    [
        (15, b"\x2b"),  # CE around a packet that is not ECN-capable
        (36, b"\x12\xb6"),  # another port
        (38, b"\x00\x0f"),  # shorter than its headers
        (42, b"\x00"),  # no VNI
        (49, b"\x01"),  # a reserved bit
        (23, b"\x06"),  # TCP
        (40, b"\x00\x01"),  # a wrong checksum
        (56, b"\x01"),  # a group that sends
        (38, b"\x00\x2c"),  # a frame inside that ends before its ports
    ],
)
def test_what_linux_refuses_does_not_come_out(at: int, octets: bytes) -> None:
    outer = tunnelled(inner(0x28))
    assert opened(outer) is not None
    assert opened(changed(outer, at, octets)) is None


def test_a_right_checksum_of_udp_is_no_harm() -> None:
    outer = tunnelled(inner(0x28))
    datagram = outer[34:]
    pseudo = outer[26:34] + bytes((0, 17)) + len(datagram).to_bytes(2)
    right = ~sum_of(pseudo + datagram) & 0xFFFF
    assert opened(changed(outer, 40, right.to_bytes(2))) == Inside(VNI, inner(0x28))


def test_equal_ends_share_the_hashes() -> None:
    tunnel, ends = ModelTunnel("rail0", VNI, HERE), (HERE, THERE)
    assert [tunnel.far_end(ends, one) for one in (0, 2**31 - 2, 2**31, 2**32 - 1)] == [
        *(HERE, HERE),
        *(THERE, THERE),
    ]
