"""What the engine does to frames that come out of the kernel."""

from __future__ import annotations

import struct

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.layers.vxlan import VXLAN

from emulator.engine.kernel_switch import unnumbered

OUTER = {"src": "10.255.0.1", "dst": "10.255.0.2"}
INSIDE = VXLAN(vni=10101) / Ether() / IP(src="10.0.1.2", dst="10.0.1.3", id=77) / UDP(dport=4793)


def tunnelled(identification: int, **fields: object) -> bytes:
    packet = Ether() / IP(**OUTER, id=identification, **fields)
    return bytes(packet / UDP(sport=50000, dport=4789, chksum=0) / INSIDE)


def checksum(header: bytes) -> int:
    """RFC 1071, from the start: 0 where the header's own checksum is right."""
    total = sum(struct.unpack("!10H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


@pytest.mark.parametrize("identification", [1, 0x1234, 0x8000, 0xFFFE, 0xFFFF])
@pytest.mark.parametrize("tos", [0, 3, 0xB8])
def test_tunnel_frames_lose_their_identification(identification: int, tos: int) -> None:
    changed = unnumbered(tunnelled(identification, tos=tos, flags="DF"))
    assert changed == tunnelled(0, tos=tos, flags="DF")
    assert checksum(changed[14:34]) == 0


@pytest.mark.parametrize(
    "frame",
    [
        tunnelled(0),
        bytes(Ether() / IP(**OUTER, id=9) / UDP(sport=50000, dport=4793) / INSIDE),
        bytes(Ether() / IPv6() / UDP(sport=50000, dport=4789) / INSIDE),
        bytes(Ether() / IP(**OUTER, id=9, proto=253) / (b"\0\0\x12\xb5" + bytes(60))),
    ],
    ids=["without one", "not VXLAN", "IPv6", "not UDP"],
)
def test_other_frames_stay_as_they_are(frame: bytes) -> None:
    assert unnumbered(frame) == frame
