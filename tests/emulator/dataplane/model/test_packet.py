"""A modelled switch leaves a valid IPv4 header in every frame that it changes."""

import random
import struct

import pytest

from emulator.dataplane.model.packet import (
    corrupted,
    is_transport,
    marked,
    next_hop,
    parse,
    trimmed,
)

PAYLOAD = bytes(range(200))
MACS = bytes(range(12))


def frame(traffic: int, ttl: int = 64, identification: int = 0) -> bytes:
    """An IPv4 packet with the right checksum."""
    head = struct.pack(
        "!BBHHHBBH4s4s",
        *(0x45, traffic, 20 + len(PAYLOAD), identification, 0x4000, ttl, 17, 0),
        *(b"\x0a\0\1\3", b"\x0a\0\2\3"),
    )
    summed = checksum(head)
    return bytes(12) + b"\x08\0" + head[:10] + summed.to_bytes(2) + head[12:] + PAYLOAD


def checksum(head: bytes) -> int:
    """The checksum of ``head``, whose own is zero (RFC 1071)."""
    total = sum(struct.unpack(f"!{len(head) // 2}H", head))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def valid(one: bytes) -> bool:
    return checksum(one[14:34]) == 0


@pytest.mark.parametrize("seed", range(200))
def test_each_change_leaves_a_valid_checksum(seed: int) -> None:
    rng = random.Random(seed)
    for ecn in (1, 2):
        one = frame(rng.randrange(64) << 2 | ecn, rng.randrange(2, 256), rng.randrange(65536))
        assert valid(one)
        for changed in (
            marked(one, parse(one)),
            trimmed(one, parse(one), 64, rng.randrange(64)),
            next_hop(one, MACS),
        ):
            assert valid(changed)


def test_a_mark_changes_the_ecn_field_alone() -> None:
    one = frame(0b101001)
    changed = marked(one, parse(one))
    assert changed[15] == 0b101011
    assert changed[:15] + changed[16:24] + changed[26:] == one[:15] + one[16:24] + one[26:]


def test_a_trimmed_packet_keeps_ecn_and_ttl() -> None:
    one = frame(0b101010)
    changed = trimmed(one, parse(one), 64, 0b110011)
    assert changed[15] == 0b11001110
    assert changed[22] == one[22]
    assert len(changed) == 14 + 20 + 64
    assert parse(changed).payload == 64


def test_a_router_takes_one_off_the_ttl_and_cuts_what_is_behind_the_packet() -> None:
    one = frame(0, ttl=7)
    changed = next_hop(one + b"behind", MACS)
    assert changed[:12] == MACS
    assert changed[22] == 6
    assert changed[26:] == one[26:]


def test_corruption_inverts_one_bit_of_the_payload() -> None:
    one = frame(0)
    changed = corrupted(one, parse(one), 13)
    assert changed is not None
    assert int.from_bytes(changed) ^ int.from_bytes(one) == 1 << 8 * (len(one) - 36) + 5


@pytest.mark.parametrize(
    "broken",
    [b"", bytes(14), frame(0)[:30], frame(0)[:40], bytes(12) + b"\x08\0" + b"\x41" + bytes(40)],
)
def test_lengths_that_a_frame_does_not_bear_out_are_no_packet(broken: bytes) -> None:
    assert parse(broken).version == 0


def udp(port: int, inside: bytes = bytes(8)) -> bytes:
    return struct.pack("!4H", 50_000, port, 8 + len(inside), 0) + inside


def ipv4(protocol: int, inside: bytes, fragment: int = 0) -> bytes:
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(inside), 0, fragment, 64, protocol, 0)
    return head + bytes(8) + inside


def ipv6(following: int, inside: bytes) -> bytes:
    return struct.pack("!IHBB", 6 << 28, len(inside), following, 64) + bytes(32) + inside


def ethernet(kind: int, inside: bytes) -> bytes:
    return bytes(12) + kind.to_bytes(2) + inside


def vxlan(kind: int, inside: bytes) -> bytes:
    return ipv4(17, udp(4789, bytes(8) + ethernet(kind, inside)))


@pytest.mark.parametrize(
    ("one", "is_one"),
    [
        (ethernet(0x800, ipv4(17, udp(4793))), True),
        (ethernet(0x800, ipv4(17, udp(4791))), True),
        (ethernet(0x800, ipv4(17, udp(4792))), False),
        (ethernet(0x800, ipv4(17, udp(4793), fragment=1)), False),
        (ethernet(0x800, ipv4(17, udp(4793)))[:37], False),
        (ethernet(0x800, ipv4(253, b"")), True),
        (ethernet(0x86DD, ipv6(17, udp(4793))), True),
        (ethernet(0x86DD, ipv6(253, b"")), True),
        (ethernet(0x86DD, ipv6(4, ipv4(17, udp(4793)))), False),
        (ethernet(0x806, ipv4(17, udp(4793))), False),
        (ethernet(0x800, ipv4(4, ipv4(17, udp(4793)))), True),
        (ethernet(0x800, ipv4(4, ipv4(4, ipv4(17, udp(4793))))), False),
        (ethernet(0x800, vxlan(0x800, ipv4(17, udp(4793)))), True),
        (ethernet(0x800, vxlan(0x86DD, ipv6(17, udp(4791)))), True),
        (ethernet(0x800, vxlan(0x800, ipv4(17, udp(4792)))), False),
        (ethernet(0x800, vxlan(0x900, ipv4(17, udp(4793)))), False),
        (ethernet(0x800, vxlan(0x800, vxlan(0x800, ipv4(17, udp(4793))))), False),
        (ethernet(0x800, ipv4(17, udp(4789))), False),
        (b"", False),
    ],
)
def test_which_frames_are_a_transports(one: bytes, is_one: bool) -> None:
    assert is_transport(one, 253) is is_one
