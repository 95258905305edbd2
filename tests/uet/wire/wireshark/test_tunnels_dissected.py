"""UET inside VXLAN and IP in IP: the innermost IP header is the one that counts."""

from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from scapy.layers.vxlan import VXLAN
from scapy.packet import Packet, Raw

from tests.harness.wire.tshark import COLUMNS, TSHARK, compare, rows, write
from uet.wire import layers as uet
from uet.wire.frame import decode_frame
from uet.wire.wireshark import dissector

OUTER = Ether(src="02:00:00:00:00:11", dst="02:00:00:00:00:12")
INNER = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
LOOPBACKS = IP(src="10.255.0.1", dst="10.255.0.2")
LOOPBACKS6 = IPv6(src="fd01::1", dst="fd01::2")
VTEP = UDP(sport=50001, dport=4789, chksum=0)
ADDRESSES = IP(src="10.0.1.2", dst="10.0.1.3", tos=184)
WRITE = (
    UDP(sport=50000, dport=4793, chksum=0)
    / uet.UET_RUD_REQ(psn=9, spdcid=5, dpdcid=6)
    / uet.UET_SES_STD(opcode="WRITE", request_length=100)
    / Raw(b"x" * 100)
    / uet.UET_CRC()
)
ACK = uet.UET_ENTROPY(entropy=9) / uet.UET_ACK(spdcid=5, dpdcid=6) / uet.UET_SES_RESPONSE()
TUNNELS: dict[str, tuple[Packet, list[str]]] = {
    "vxlan": (OUTER / LOOPBACKS / VTEP / VXLAN(vni=10101) / INNER, ["vxlan 10101"]),
    "vxlan-ipv6": (OUTER / LOOPBACKS6 / VTEP / VXLAN(vni=7) / INNER, ["vxlan 7"]),
    "vxlan-vlans": (
        OUTER / Dot1Q(vlan=9) / LOOPBACKS / VTEP / VXLAN(vni=7) / INNER / Dot1Q(vlan=8),
        ["vxlan 7"],
    ),
    "ip-in-ip": (OUTER / LOOPBACKS, ["ipv4"]),
    "ip-in-ipv6": (OUTER / LOOPBACKS6, ["ipv6"]),
    "ip-in-ip-in-vxlan": (
        OUTER / LOOPBACKS / VTEP / VXLAN(vni=3) / INNER / IP(src="10.9.0.1", dst="10.9.0.2"),
        ["vxlan 3", "ipv4"],
    ),
}
NAMED = pytest.mark.parametrize("name", TUNNELS)
needs_tshark = pytest.mark.skipif(TSHARK is None, reason="tshark is not installed")


def carried(name: str, packet: Packet) -> bytes:
    return bytes(TUNNELS[name][0] / packet)


@NAMED
def test_the_innermost_headers_count(name: str) -> None:
    packet = decode_frame(carried(name, ADDRESSES / WRITE))
    assert packet.errors == packet.notes == []
    assert packet.layer_names == ["pds.rud_req", "ses.request_std_som", "payload", "crc"]
    assert (packet.envelope.source, packet.envelope.destination) == ("10.0.1.2", "10.0.1.3")
    assert packet.envelope.tunnels == TUNNELS[name][1]
    assert packet.fields["ip.dscp"] == 46
    vnis = [int(tunnel.split()[1]) for tunnel in TUNNELS[name][1] if tunnel.startswith("vxlan")]
    assert packet.fields.get("vxlan.vni") == (vnis[-1] if vnis else None)


@NAMED
def test_uet_without_udp_in_tunnels(name: str) -> None:
    six = IPv6(src="fd00::2", dst="fd00::3")
    for lower in (IP(src="10.0.1.2", dst="10.0.1.3"), six):
        packet = decode_frame(carried(name, lower / ACK))
        assert packet.errors == []
        assert packet.layer_names == ["pds.ack", "ses.response"]
        assert "native" in packet.envelope.encapsulation


def trimmed(name: str, packet: Packet, octets: int, dscp: int) -> bytes:
    """Return a frame as a switch between the ends of a tunnel leaves it: new DSCP and length."""
    frame = Ether(carried(name, packet)[:-octets])
    outer = frame[IPv6] if name.endswith("ipv6") else frame[IP]
    whole = bytes(frame)
    at = whole.index(bytes(outer)[:20])
    cut = bytearray(carried(name, packet)[:-octets])
    if name.endswith("ipv6"):
        cut[at : at + 2] = ((6 << 12) | dscp << 6).to_bytes(2, "big")
        cut[at + 4 : at + 6] = (len(cut) - at - 40).to_bytes(2, "big")
    else:
        cut[at + 1] = dscp << 2
        cut[at + 2 : at + 4] = (len(cut) - at).to_bytes(2, "big")
    return bytes(cut)


@NAMED
@pytest.mark.parametrize("octets", [1, 104, 120])
def test_what_was_trimmed_on_its_way_through_a_tunnel(name: str, octets: int) -> None:
    frame = trimmed(name, ADDRESSES / WRITE, octets, dscp=10)
    for dscps in (None, frozenset({10})):
        packet = decode_frame(frame, trimmed_dscp=dscps)
        assert packet.trimmed
        assert packet.errors == []
    assert not decode_frame(frame, trimmed_dscp=frozenset({11})).trimmed


@pytest.mark.parametrize(
    ("packet", "why"),
    [
        (OUTER / LOOPBACKS / VTEP / VXLAN(vni=1, flags=0) / INNER / ADDRESSES / WRITE, "4789"),
        (OUTER / LOOPBACKS / VTEP / VXLAN(vni=1) / INNER / IP() / UDP(dport=53), "port 53"),
        (OUTER / LOOPBACKS / IP(proto=6) / Raw(bytes(40)), "protocol 6"),
    ],
)
def test_tunnels_that_carry_no_uet(packet: Packet, why: str) -> None:
    decoded = decode_frame(bytes(packet))
    assert not decoded.is_uet
    assert why in decoded.errors[-1]


def test_tunnels_without_end() -> None:
    inner = bytes(ADDRESSES / WRITE)
    for _ in range(200):
        inner = bytes(IP(src="10.0.0.1", dst="10.0.0.2", proto=4) / Raw(inner))
    decoded = decode_frame(bytes(OUTER / IP())[:14] + inner)
    assert not decoded.is_uet
    assert len(decoded.envelope.tunnels) == 8


def test_every_cut_of_a_tunnel_is_survived() -> None:
    for name in TUNNELS:
        frame = carried(name, ADDRESSES / WRITE)
        for length in range(len(frame)):
            decode_frame(frame[:length])
            cut = decode_frame(frame[:length], wire_length=len(frame))
            assert not (cut.is_uet and cut.errors), (name, length)


@needs_tshark
def test_wireshark_hands_what_tunnels_carry_to_the_dissector(tmp_path: Path) -> None:
    script = tmp_path / "uet.lua"
    script.write_text(dissector.dissector())
    frames = [carried(name, ADDRESSES / WRITE) for name in TUNNELS]
    frames += [carried(name, IP(src="10.0.1.2", dst="10.0.1.3") / ACK) for name in TUNNELS]
    frames += [trimmed(name, ADDRESSES / WRITE, n, 10) for name in TUNNELS for n in (1, 104, 120)]
    capture = write(tmp_path / "a.pcap", frames)
    compare(script, capture, [decode_frame(frame) for frame in frames])
    good = rows(script, capture, COLUMNS)[: len(TUNNELS)]
    assert [row["uet.crc.status"] for row in good] == [["1"]] * len(TUNNELS)
    by_dscp = [decode_frame(frame, trimmed_dscp=frozenset({10})) for frame in frames]
    compare(script, capture, by_dscp, "-o", "uet.dscp:10")
