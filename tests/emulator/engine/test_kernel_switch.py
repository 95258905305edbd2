"""Test what the engine does to frames that come out of the kernel."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import cast

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.layers.vxlan import VXLAN

from emulator.engine.event_queue import EventQueue
from emulator.engine.frames.kernel_switch import Account, Outlets, SwitchInlet, unnumbered

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


class LateOutlets:
    """Hands out so many frames at a time as ``waves`` says, each after the kernel was settled."""

    def __init__(self, waves: Sequence[int]) -> None:
        self.account = Account()
        self.taken = 0
        self._waves, self._ready = list(waves), True

    def take(self, origin: int = 0) -> int:
        if not self._ready or not self._waves:
            return 0
        self._ready = False
        self.taken += self._waves[0]
        return self._waves.pop(0)

    def settle(self) -> None:
        self._ready = True


@pytest.mark.parametrize(
    ("destination", "waves", "left"),
    [
        ("029999999999", [63, 64, 2], []),  # 64 at a time: net.core.dev_weight
        ("ffffffffffff", [1, 64], []),
        ("020000000001", [1, 1], [1]),  # the second is none of its own
    ],
)
def test_copies_of_a_flood_come_at_one_instant(
    destination: str, waves: list[int], left: list[int]
) -> None:
    outlets = LateOutlets(waves)
    inlet = SwitchInlet(
        "rail0", 1, EventQueue(), cast(Outlets, outlets), lambda _: 60, lambda: {}, None
    )
    inlet.arrive(bytes.fromhex(destination) + bytes(54))
    assert outlets.taken == sum(waves) - sum(left)
    assert outlets.account.delivered == 1
