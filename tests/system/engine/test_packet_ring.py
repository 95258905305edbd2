"""A ring hands out the frames of the kernel, copied or where they lie."""

import select
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from emulator.dataplane.kernel import namespaces
from emulator.dataplane.kernel.frames.packet_ring import PacketRing, sender
from emulator.dataplane.kernel.sysctls import QUIET, SILENT, write_sysctl

pytestmark = pytest.mark.root

LONGEST, SLOTS = 4200, 8
MACS = bytes.fromhex("020000000001020000000002")
PLAIN = MACS + bytes.fromhex("88b5") + bytes(range(46))
#: A priority tag (IEEE 802.1Q), which the kernel takes out of what it receives.
TAGGED = MACS + bytes.fromhex("8100600088b5") + bytes(range(46))


@dataclass
class Cable:
    """One end sends, and the ring has what comes out at the other."""

    out: socket.socket
    ring: PacketRing


@pytest.fixture
def cable(lab_name: str) -> Iterator[Cable]:
    path = namespaces.path_of(lab_name, "cable")

    def make() -> Cable:
        for name, value in (*QUIET, *SILENT):  # nothing but what the test sends
            write_sysctl(name, value)
        for command in ("add name v0 type veth peer name v1", "set v0 up", "set v1 up"):
            subprocess.run(["ip", "link", *command.split()], check=True)
        ring = PacketRing(lambda raw: None, interface="v1", frame_octets=LONGEST, slots=SLOTS)
        return Cable(sender("v0"), ring)

    visitor = namespaces.visitor()
    visitor.run(lambda: namespaces.make(path))
    try:
        made = visitor.inside(path, make)
        yield made
        made.out.close()
        made.ring.close()
    finally:
        namespaces.remove(path)


def wait_for_frame(ring: PacketRing) -> None:
    """Wait until the ring has a frame: a busy kernel hands over a veth's frames from a thread."""
    readable, _, _ = select.select([ring.socket], [], [], 30)
    assert readable, "no frame came within 30 s"


@pytest.mark.parametrize("frame", [PLAIN, TAGGED], ids=["plain", "with a VLAN tag"])
def test_a_frame_is_seen_where_it_lies_as_it_was_sent(cable: Cable, frame: bytes) -> None:
    for _ in range(3 * SLOTS):  # round the ring
        cable.out.send(frame)
        wait_for_frame(cable.ring)
        seen = []
        while (view := cable.ring.look()) is not None:
            seen.append(bytes(view))
            assert bytes(view) == bytes(cable.ring.look() or b"")  # until it is released
            cable.ring.release()
        assert seen == [frame]


@pytest.mark.parametrize("frame", [PLAIN, TAGGED], ids=["plain", "with a VLAN tag"])
def test_frames_are_taken_in_their_order(cable: Cable, frame: bytes) -> None:
    for _ in range(3):
        sent = [frame + bytes([number]) for number in range(SLOTS - 1)]
        for one in sent:
            cable.out.send(one)
        taken: list[bytes] = []
        while len(taken) < len(sent):
            wait_for_frame(cable.ring)
            taken += [one for _, one in cable.ring.take()]
        assert taken == sent


def test_a_view_that_is_left_keeps_the_memory_and_not_the_socket(cable: Cable) -> None:
    cable.out.send(PLAIN)
    wait_for_frame(cable.ring)
    view = cable.ring.look()
    assert view is not None
    cable.ring.close()
    assert len(bytes(view)) >= len(PLAIN)
