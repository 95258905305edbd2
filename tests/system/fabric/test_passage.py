"""Frames of the transport wait for the packet ring of the wires; all others pass in the kernel."""

import socket
import struct
import threading
from ipaddress import IPv4Address, IPv6Address

import pytest

from emulator.dataplane.switch.switch_choice import parse
from emulator.dataplane.switch.virtual_state import PASSED, SWITCH_WORDS
from tests.harness.lab.wire_tap import (
    VXLAN_PORT,
    datagram,
    ear,
    ip,
    ip_udp,
    ones_complement,
    received,
    tapped,
    virtual,
)
from tests.system.conftest import LabFactory
from topologies.model import CableEnd

pytestmark = pytest.mark.root

RAIL = "rail_clos:hosts=2,gpus_per_host=2"
STRETCHED = "clos:segments=2,hosts=1,gpus_per_host=2,spines=1,rails_per_switch=2,subnets=stretched"
GPU, SWITCH = CableEnd("h0g0", "eth0"), CableEnd("rail0", "down0")  # the two ends of a cable
OURS, THEIRS = IPv4Address("10.0.1.2"), IPv4Address("10.0.1.3")
IP, IPV6 = b"\x08\x00", b"\x86\xdd"
TCP = 6


def ipv6(protocol: int, payload: bytes) -> bytes:
    head = struct.pack("!IHBB", 6 << 28, len(payload), protocol, 64)
    return head + IPv6Address("fd00::1").packed + IPv6Address("fd00::2").packed + payload


def in_vxlan(frame: bytes, *, port: int = VXLAN_PORT, options: int = 0) -> bytes:
    vxlan = bytes.fromhex("0800000000271000")
    return IP + ip_udp(OURS, THEIRS, port, vxlan + bytes(12) + frame, options=options)


UET = IP + ip_udp(OURS, THEIRS, 4793, bytes(32))
UET_WITH_OPTIONS = IP + ip_udp(OURS, THEIRS, 4793, bytes(32), options=8)
UDP_OVER_IPV6 = struct.pack("!4H", 49152, 4793, 40, 0) + bytes(32)
NTP = IP + ip_udp(OURS, THEIRS, 123, bytes(32))
LATER_FRAGMENT = IP + ip(OURS, THEIRS, 17, UET[22:], fragment=185)
#: From the EtherType on.
TRANSPORT = {
    "uet": UET,
    "ip-options": UET_WITH_OPTIONS,
    "rocev2": IP + ip_udp(OURS, THEIRS, 4791, bytes(32)),
    "native": IP + ip(OURS, THEIRS, 253, bytes(32)),
    "ipv6": IPV6 + ipv6(17, UDP_OVER_IPV6),
    "ipv6-native": IPV6 + ipv6(253, bytes(32)),
    "pause": bytes.fromhex("88080101"),
    "vxlan": in_vxlan(UET),
    "vxlan-options": in_vxlan(UET_WITH_OPTIONS, options=12),
    "vxlan-native": in_vxlan(IP + ip(OURS, THEIRS, 253, bytes(32))),
    "vxlan-ipv6": in_vxlan(IPV6 + ipv6(17, UDP_OVER_IPV6)),
    "ip-in-ip": IP + ip(OURS, THEIRS, 4, UET_WITH_OPTIONS[2:], options=4),
}
OTHER = {
    "arp": bytes.fromhex("08060001080006040001"),
    "lldp": bytes.fromhex("88cc"),
    "ntp": NTP,
    "tcp-to-4793": IP + ip(OURS, THEIRS, TCP, struct.pack("!2H", 49152, 4793) + bytes(16)),
    "icmp": IP + ip(OURS, THEIRS, 1, bytes(32)),
    "later-fragment": LATER_FRAGMENT,
    "vxlan-arp": in_vxlan(bytes.fromhex("08060001")),
    "vxlan-ntp": in_vxlan(NTP),
    "vxlan-fragment": in_vxlan(LATER_FRAGMENT),
    "native-cut": (IP + ip(OURS, THEIRS, 253, b""))[:20],
    "uet-cut": UET[:25],
    "uet-options-cut": UET_WITH_OPTIONS[:33],
    "ipv6-cut": (IPV6 + ipv6(253, b""))[:41],
    "ipv6-uet-cut": (IPV6 + ipv6(17, UDP_OVER_IPV6))[:45],
    "vxlan-cut": in_vxlan(UET)[:60],
    "vxlan-udp-cut": in_vxlan(UET)[:75],
    "vxlan-ipv6-cut": in_vxlan(IPV6 + ipv6(17, UDP_OVER_IPV6))[:95],
    "vxlan-over-ipv6": IPV6 + ipv6(17, in_vxlan(UET)[22:]),
    "ipv6-in-ip": IP + ip(OURS, THEIRS, 41, ipv6(17, UDP_OVER_IPV6)),
    "ip-in-ipv6": IPV6 + ipv6(4, UET[2:]),
    "ip-in-ip-in-ip": IP + ip(OURS, THEIRS, 4, ip(OURS, THEIRS, 4, UET[2:])),
    "ip-in-ip-cut": (IP + ip(OURS, THEIRS, 4, UET[2:]))[:45],
    "no-vxlan": in_vxlan(UET, port=4790),
    "ip-in-ip-tcp": IP + ip(OURS, THEIRS, 4, ip(OURS, THEIRS, TCP, bytes(20))),
    "ipv6-tcp": IPV6 + ipv6(TCP, bytes(20)),
}


def test_each_frame_is_in_the_ring_or_on_the_cable(lab: LabFactory) -> None:
    made = virtual(lab, RAIL)
    addresses = bytes.fromhex("020000000099020000000098")  # of nobody: no answer
    with tapped(made, 0) as ring, ear(made, GPU) as gpu, ear(made, SWITCH) as switch:
        for name, rest in (TRANSPORT | OTHER).items():
            frame = addresses + rest
            gpu.send(frame)
            taken, passed = ring.heard(), received(switch)
            assert taken == ([(GPU, frame)] if name in TRANSPORT else []), name
            assert passed == ([frame] if name in OTHER else []), name


def test_switch_program_sorts_packets_alike(lab: LabFactory) -> None:
    """A frame to nobody is flooded to the bridge's other port: the ASIC accounts for it or not."""
    made = virtual(lab, RAIL, switch=parse("shallow"))
    assert made.asic is not None
    assert made.asic.virtual is not None
    words, first = made.asic.virtual.switches, made.asic.ports[str(SWITCH)].switch * SWITCH_WORDS
    addresses = bytes.fromhex("020000000099020000000098")
    with tapped(made) as tap:
        for name, rest in (TRANSPORT | OTHER).items():
            before = words[first + PASSED]
            heard = [end for end, _ in tap.send(SWITCH, addresses + rest)]
            if not name.startswith("ipv6-") or not name.endswith("-cut"):  # bridges may drop those
                assert heard == [CableEnd("rail0", "down1")], name
            is_packet = name in TRANSPORT and name != "pause"  # which no switch forwards
            assert words[first + PASSED] - before == is_packet, name


def test_ring_takes_what_arrives_at_its_workers_nodes(lab: LabFactory) -> None:
    made = virtual(lab, RAIL, worker_of={"h1g0": 1, "rail0": 1})
    frame = datagram(made, "h0g0", "h1g0")
    with tapped(made, 0) as first, tapped(made, 1) as second, ear(made, GPU) as gpu:
        gpu.send(frame)
        assert (first.heard(), second.heard()) == ([(GPU, frame)], [])
        assert first.send(SWITCH, frame) == []
        assert second.heard() == [(CableEnd("rail0", "down1"), frame)]


@pytest.mark.parametrize("spec", [RAIL, STRETCHED])
def test_ping_passes_every_cable(lab: LabFactory, spec: str) -> None:
    made = virtual(lab, spec)
    for near, far in (("h0g0", "h1g0"), ("h0g0", "h1g1"), ("h1g1", "h0g0")):
        address = made.topology.node(far).ports[0].address
        assert address is not None
        answer = made.exec(near, ["ping", "-c2", "-i0.01", "-W5", str(address.ip)])
        assert "2 received" in answer.stdout


def test_tcp_passes_in_finished_frames(lab: LabFactory) -> None:
    made = virtual(lab, RAIL)
    server = made.inside("h1g1", socket.socket)
    client = made.inside("h0g0", socket.socket)
    address = made.topology.node("h1g1").ports[0].address
    assert address is not None
    message = bytes(range(256)) * 1000
    with server, client, ear(made, SWITCH) as switch:
        server.bind((str(address.ip), 7))
        server.listen()
        client.connect((str(address.ip), 7))
        accepted, _ = server.accept()
        sender = threading.Thread(target=client.sendall, args=(message,))
        sender.start()
        with accepted:
            assert accepted.recv(len(message), socket.MSG_WAITALL) == message
        sender.join()
        frames = [frame for frame in received(switch) if frame[12:14] == IP and frame[23] == TCP]
    assert sum(len(frame) for frame in frames) > len(message)
    for frame in frames:
        assert len(frame) <= 14 + made.topology.links[0].mtu
        packet = frame[14 : 14 + int.from_bytes(frame[16:18], "big")]
        pseudo = packet[12:20] + struct.pack("!2H", TCP, len(packet) - 20)
        assert ones_complement(pseudo + packet[20:]) == 0xFFFF
