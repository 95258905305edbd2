"""A frame of data has one tag on its whole way; what is no data has none."""

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet

from emulator.rocev2.wire.codes import (
    CNP_OPCODE,
    EXTENSIONS,
    OPERATION_MASK,
    UDP_PORT,
    BthOperation,
)
from emulator.rocev2.wire.layers import BTH
from emulator.sim.frame_taps import boundary, tag_of
from topologies import catalogue
from uet.wire import pds
from uet.wire.codes import NATIVE_PROTOCOL

DATA = pds.UET_RUD_REQ(psn=70_001, spdcid=5, dpdcid=6) / (b"x" * 200)


def frame(inner: Packet, *, port: int = 4793, ttl: int = 64, tos: int = 2) -> bytes:
    ip = IP(src="10.0.1.2", dst="10.0.1.3", ttl=ttl, tos=tos)
    return bytes(Ether() / ip / UDP(sport=50000, dport=port) / inner)


@pytest.mark.parametrize(
    "inner",
    [
        DATA,
        pds.UET_ROD_REQ(psn=1) / (b"x" * 40),
        pds.UET_RUDI_REQ(pkt_id=9) / (b"x" * 40),
        pds.UET_UUD_REQ() / (b"x" * 40),
    ],
)
def test_data_of_uet_has_a_tag_and_hops_leave_it(inner: Packet) -> None:
    tag = tag_of(frame(inner))
    assert tag is not None
    assert tag_of(frame(inner, ttl=61, tos=3)) == tag
    assert tag_of(frame(inner / b"longer")) != tag


def test_psns_have_tags_of_their_own() -> None:
    other = pds.UET_RUD_REQ(psn=70_002, spdcid=5, dpdcid=6) / (b"x" * 200)
    assert tag_of(frame(DATA)) != tag_of(frame(other))
    one, two = (BTH(opcode=6, dqpn=3, psn=psn) / (b"x" * 200) for psn in (1, 2))
    assert tag_of(frame(one, port=4791)) != tag_of(frame(two, port=4791))


@pytest.mark.parametrize("opcode", EXTENSIONS)
def test_numbers_of_rocev2_are_those_of_its_headers(opcode: int) -> None:
    without = {
        BthOperation.ACKNOWLEDGE,
        BthOperation.ATOMIC_ACKNOWLEDGE,
        BthOperation.READ_REQUEST,
    }
    data = opcode != CNP_OPCODE and opcode & OPERATION_MASK not in without
    sent = frame(BTH(opcode=opcode, dqpn=3, psn=1) / (b"x" * 200), port=UDP_PORT)
    assert (tag_of(sent) is not None) == data


def test_a_tag_is_found_behind_a_vlan_in_ipv6_and_without_udp() -> None:
    udp = UDP(sport=50000, dport=4793)
    ends = {"src": "10.0.1.2", "dst": "10.0.1.3"}
    tagged = bytes(Ether() / Dot1Q(vlan=5) / IP(**ends) / udp / DATA)
    assert tag_of(tagged) == tag_of(bytes(Ether() / IP(**ends) / udp / DATA))
    assert tag_of(bytes(Ether() / IPv6(src="2001:db8::1", dst="2001:db8::2") / udp / DATA))
    native = IP(**ends, proto=NATIVE_PROTOCOL) / (b"\xc3\x50\0\0" + bytes(DATA))
    assert tag_of(bytes(Ether() / native))


@pytest.mark.parametrize(
    "octets",
    [
        frame(pds.UET_ACK(cack_psn=1, spdcid=6, dpdcid=5)),
        frame(pds.UET_NACK(nack_psn=1, spdcid=6, dpdcid=5)),
        frame(pds.UET_CP(psn=1, spdcid=6, dpdcid=5)),
        frame(BTH(opcode=0x11) / bytes(8), port=4791),
        frame(BTH(opcode=CNP_OPCODE) / bytes(16), port=4791),
        frame(DATA, port=53),
        bytes(Ether(type=0x8808) / bytes(46)),
        bytes(Ether(type=0x0806) / bytes(46)),
        frame(DATA)[:42],
        b"\x00" * 14,
    ],
)
def test_what_is_no_data_has_no_tag(octets: bytes) -> None:
    assert tag_of(octets) is None


def test_the_boundary_is_at_the_nics() -> None:
    ends = boundary(catalogue.load("rail_clos:hosts=2,gpus_per_host=1,spines=1"))
    assert [str(end) for end in ends] == ["h0g0:eth0", "h1g0:eth0"]
    shared = boundary(catalogue.load("clos:hosts=2,gpus_per_host=2,gpus_per_nic=2,spines=1"))
    assert len(shared) == 2
