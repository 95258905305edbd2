"""Frames that cross a namespace: what comes late, and why others never come."""

import struct
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.layers.vxlan import VXLAN

from emulator.dataplane.account import Account
from emulator.dataplane.dataplane import Astray, Taken
from emulator.dataplane.kernel.frames.kernel_switch import Outlets, SwitchEntrance, unnumbered
from topologies.model import CableEnd

OUTER = {"src": "10.255.0.1", "dst": "10.255.0.2"}
INSIDE = VXLAN(vni=10101) / Ether() / IP(src="10.0.1.2", dst="10.0.1.3", id=77) / UDP(dport=4793)


def tunnelled(identification: int, **fields: Any) -> bytes:
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
    """Hands out ``at_once`` frames, and ``late`` ones after all softirqs have run."""

    def __init__(self, at_once: int, late: int) -> None:
        self.account = Account()
        self.ring = SimpleNamespace(lost=0)
        self.finished = 0
        self._ready, self._late = at_once, late

    def take(self) -> list[Taken]:
        ready, self._ready = self._ready, 0
        return [(1, b"")] * ready

    def settle(self) -> None:
        pass

    def finish(self, arrived: Callable[[], bool]) -> None:
        self.finished += 1
        self._ready, self._late = self._late, 0
        arrived()


class Words:
    """The words of a switch whose program lets go or drops so many of the next frame."""

    def __init__(self, *, passed: int = 0, dropped: int = 0) -> None:
        self.shared = memoryview(bytearray(24)).cast("Q")
        self._passed, self._dropped = passed, dropped

    def send(self, frame: bytes) -> int:
        self.shared[1] += self._passed
        self.shared[2] += self._dropped
        return len(frame)


def crossing(
    outlets: LateOutlets,
    words: Words | None = None,
    *,
    reason: str | None = None,
    dead_ports: Sequence[CableEnd] = (),
) -> SwitchEntrance:
    """The port of a switch where the kernel explains a drop with ``reason``."""
    return SwitchEntrance(
        "rail0",
        cast(Outlets, outlets),
        Words().send if words is None else words.send,
        lambda _: reason,
        None if words is None else (words.shared, 0),
        dead_ports,
    )


DEAD = CableEnd("rail0", "down1")
UNICAST = bytes.fromhex("020000000001") + bytes(54)


@pytest.mark.parametrize(
    ("destination", "at_once", "late", "taken"),
    [
        ("029999999999", 63, 66, 129),  # 64 at a time: net.core.dev_weight
        ("ffffffffffff", 1, 64, 65),
        ("020000000001", 1, 1, 1),  # the second is none of its own
    ],
)
def test_copies_of_a_flood_come_at_one_instant(
    destination: str, at_once: int, late: int, taken: int
) -> None:
    outlets = LateOutlets(at_once, late)
    out = crossing(outlets).enter(bytes.fromhex(destination) + bytes(54), 0)
    assert len(out) == taken
    assert outlets.account.delivered == 1


@pytest.mark.parametrize("words", [None, Words(passed=1)], ids=["without program", "with one"])
def test_a_late_frame_is_there_once_softirqs_have_run(words: Words | None) -> None:
    outlets = LateOutlets(0, 1)
    crossing(outlets, words, dead_ports=[DEAD]).enter(UNICAST, 0)
    assert outlets.account.as_dict() == {"injected": 1, "delivered": 1, "dropped": {}}


@pytest.mark.parametrize(
    ("words", "reason", "dead_ports", "cause"),
    [
        (Words(dropped=1), None, (), "switch"),
        (Words(), "no route", [DEAD], "no route"),
        (Words(), None, [DEAD], "port without carrier"),
        (None, None, [DEAD], "port without carrier"),
    ],
)
def test_a_frame_that_never_comes_out_has_its_cause(
    words: Words | None, reason: str | None, dead_ports: Sequence[CableEnd], cause: str
) -> None:
    outlets = LateOutlets(0, 0)
    crossing(outlets, words, reason=reason, dead_ports=dead_ports).enter(UNICAST, 0)
    assert outlets.account.dropped == {f"rail0: {cause}": 1}
    assert outlets.finished == (cause == "port without carrier")  # what is known needs no barrier


@pytest.mark.parametrize(
    ("words", "late", "message"),
    [
        (None, 0, "went into rail0 at 0 ns and neither came out nor was counted"),
        (Words(passed=3), 2, "2 came out, of 3 that its ports let go: the kernel had no room"),
        (Words(passed=1), 2, "one frame went into rail0 and 2 came out"),
    ],
)
def test_a_frame_without_a_trace_ends_the_run_once_softirqs_have_run(
    words: Words | None, late: int, message: str
) -> None:
    outlets = LateOutlets(0, late)
    with pytest.raises(Astray, match=message):
        crossing(outlets, words).enter(UNICAST, 0)
    assert outlets.finished == 1
