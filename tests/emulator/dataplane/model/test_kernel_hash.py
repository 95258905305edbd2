"""The hash of a switch's own packets is that of the kernel."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest

from emulator.dataplane.model.kernel_hash import udp_hash

SEED, LOCAL, VXLAN = 123_456_789, IPv4Address("10.255.0.1").packed, 4789


@pytest.mark.parametrize(
    ("far", "port", "place"),
    [
        ("10.255.151.141", 40565, 7),
        ("10.255.94.236", 37041, 0),
        ("10.255.121.162", 52557, 4),
        ("10.255.66.143", 48143, 5),
        ("10.255.121.103", 50778, 6),
        ("10.255.138.216", 48177, 7),
    ],
)
def test_a_packet_takes_the_next_hop_that_linux_gives_it(far: str, port: int, place: int) -> None:
    """``ip route get`` of Linux 6.18 has told the places, among eight next hops."""
    assert udp_hash(SEED, LOCAL, IPv4Address(far).packed, (port, VXLAN)) >> 29 == place


def test_both_directions_have_one_hash() -> None:
    far = IPv4Address("10.255.0.200").packed
    assert udp_hash(1, LOCAL, far, (40_000, VXLAN)) == udp_hash(1, far, LOCAL, (VXLAN, 40_000))
    assert udp_hash(1, LOCAL, far, (40_000, VXLAN)) != udp_hash(2, LOCAL, far, (40_000, VXLAN))
