"""Drops by the kernel of a switch have the reason that the frame itself bears out."""

import struct
from collections.abc import Iterator

import pytest

from emulator.dataplane.dataplane import Astray, Dataplane
from emulator.dataplane.lab import Lab
from emulator.dataplane.switch.switch_choice import parse
from emulator.sim.event_queue import EventQueue
from emulator.sim.line import LOW
from emulator.sim.network import Network
from tests.harness.lab.wire_tap import datagram, virtual
from tests.system.conftest import LabFactory
from topologies.model import CableEnd

pytestmark = pytest.mark.root

SPINES = "rail_clos:hosts=1,gpus_per_host=2,spines=1,uplinks_per_spine=1"
#: Nobody's (RFC 5737).
NOBODY = bytes((203, 0, 113, 9))
_IP_AT, _TTL_AT, _CHECKSUM_AT, _SOURCE_AT, _DESTINATION_AT = 14, 22, 24, 26, 30
FORWARD = "{ type filter hook forward priority 0; policy drop; }"


@pytest.fixture(params=["shallow", None])
def network(request: pytest.FixtureRequest, lab: LabFactory) -> Iterator[Network]:
    switch = None if request.param is None else parse(request.param)
    made = Network(virtual(lab, SPINES, switch=switch), EventQueue())
    yield made
    made.close()


def changed(frame: bytes, at: int, octets: bytes) -> bytes:
    """``frame`` with other ``octets`` in its IPv4 header, whose checksum is right (RFC 1071)."""
    new = bytearray(frame)
    new[at : at + len(octets)] = octets
    new[_CHECKSUM_AT : _CHECKSUM_AT + 2] = bytes(2)
    total = sum(struct.unpack("!10H", new[_IP_AT : _IP_AT + 20]))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    new[_CHECKSUM_AT : _CHECKSUM_AT + 2] = (total ^ 0xFFFF).to_bytes(2, "big")
    return bytes(new)


def send(network: Network, *frames: bytes) -> dict[str, int]:
    """The drops of the account after ``frames`` of the first GPU."""
    for frame in frames:
        network.lines[CableEnd("h0g0", "eth0")].enqueue(frame, LOW)
    network.events.run()
    return dict(network.account.dropped)


def across(lab: Dataplane) -> bytes:
    return datagram(lab, "h0g0", "h0g1")


def test_a_frame_at_the_end_of_its_life(network: Network) -> None:
    frame = across(network.lab)
    network.arrives(CableEnd("h0g1", "eth0"), lambda _: None)
    last = changed(frame, _TTL_AT, bytes([1]))
    dropped = send(network, last, frame, changed(frame, _TTL_AT, bytes([2])))
    assert dropped == {
        "rail0: time to live exceeded": 1,
        "spine0: time to live exceeded": 1,
    }


def test_a_frame_for_nobody(network: Network) -> None:
    frame = changed(across(network.lab), _DESTINATION_AT, NOBODY)
    assert send(network, frame, frame) == {"rail0: no route": 2}


def test_a_packet_of_its_own_that_came_back(network: Network) -> None:
    """The next switch may send a tunnel's packet back while routes change."""
    own = network.lab.topology.node("rail0").loopback
    assert own is not None
    frame = changed(across(network.lab), _SOURCE_AT, own.packed)
    assert send(network, frame) == {"rail0: packet of its own that came back": 1}


def test_what_others_lose_explains_nothing(network: Network) -> None:
    """A ping to nobody is counted by the same kernel as having no route."""
    lab = network.lab
    assert isinstance(lab, Lab)
    lab.exec("h0g0", ["ping", "-c", "1", "-W", "1", ".".join(map(str, NOBODY))], timeout=30)
    for words in (("add", "table", "ip", "t"), ("add", "chain", "ip", "t", "c", FORWARD)):
        assert lab.exec("rail0", ["nft", *words], timeout=30).returncode == 0
    with pytest.raises(Astray, match="went into rail0"):
        send(network, across(lab))
