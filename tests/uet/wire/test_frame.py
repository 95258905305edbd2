"""Test what ``decode_frame`` makes of frames that are cut, trimmed, odd, malformed or hostile."""

import random
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP, IPOption_Router_Alert
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Packet, Raw

from tests.harness.wire.golden import ALL, Vector
from uet.wire import layers as uet
from uet.wire.frame import DecodedPacket, decode_frame

ETHER = Ether(dst="02:00:00:00:00:02", src="02:00:00:00:00:01")
ADDRESSES = IP(src="10.0.1.2", dst="10.0.1.3")
DATAGRAM = ETHER / ADDRESSES / UDP(sport=7, dport=4793)
WRITE = uet.UET_RUD_REQ(psn=9) / uet.UET_SES_STD(opcode="WRITE", request_length=100) / (b"x" * 100)
VECTOR = {vector.name: vector for vector in ALL}


def decode(packet: Packet, **options: Any) -> DecodedPacket:
    return decode_frame(bytes(packet), **options)


def test_a_write_decodes_without_complaint() -> None:
    packet = decode(DATAGRAM / WRITE / uet.UET_CRC())
    assert packet.layer_names == ["pds.rud_req", "ses.request_std_som", "payload", "crc"]
    assert packet.errors == packet.notes == []
    assert packet.envelope.encapsulation == "ipv4/udp"
    assert (packet.envelope.source, packet.envelope.destination) == ("10.0.1.2", "10.0.1.3")


@pytest.mark.parametrize("vlans", [1, 2])
def test_vlan_tags(vlans: int) -> None:
    tags = ETHER / Dot1Q(vlan=5) if vlans == 1 else ETHER / Dot1Q(vlan=5) / Dot1Q(vlan=6)
    packet = decode(tags / ADDRESSES / UDP(sport=7) / WRITE)
    assert packet.layer_names[0] == "pds.rud_req"
    assert packet.errors == []


def test_ip_options_and_extension_headers() -> None:
    options = IP(src="10.0.1.2", dst="10.0.1.3", options=[IPOption_Router_Alert()])
    extension = IPv6(src="fd00::2", dst="fd00::3") / IPv6ExtHdrDestOpt()
    for start in (options / UDP(sport=7), extension / UDP(sport=7), extension / uet.UET_ENTROPY()):
        packet = decode(ETHER / start / WRITE / uet.UET_CRC())
        assert packet.layer_names[-1] == "crc"
        assert packet.errors == []


def test_ethernet_padding_is_not_payload() -> None:
    packet = decode(DATAGRAM / uet.UET_ACK() / Raw(b""))
    assert packet.layer_names == ["pds.ack"]
    padded = bytes(DATAGRAM / uet.UET_ACK()) + bytes(30)
    assert decode_frame(padded).layer_names == ["pds.ack"]
    assert decode_frame(padded).errors == []


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (ETHER / ARP(), "0x0806"),
        (ETHER / ADDRESSES / UDP(dport=53), "port 53"),
        (ETHER / IP(proto=6) / Raw(bytes(40)), "protocol 6"),
        (ETHER / IP(frag=8) / UDP(dport=4793) / WRITE, "fragment"),
        (ETHER / IPv6() / IPv6ExtHdrFragment() / UDP(sport=7) / WRITE, "fragment"),
        (ETHER / IP(ihl=4) / UDP(dport=4793) / WRITE, "header length 4"),
    ],
)
def test_frames_without_uet_say_why(packet: Packet, reason: str) -> None:
    decoded = decode(packet)
    assert not decoded.is_uet
    assert decoded.layers == []
    assert reason in " ".join(decoded.errors)


def test_port_and_protocol_are_configurable() -> None:
    assert not decode(ETHER / ADDRESSES / UDP(dport=5000) / WRITE).is_uet
    assert decode(ETHER / ADDRESSES / UDP(dport=5000) / WRITE, udp_port=5000).is_uet
    native = ETHER / IP(proto=254) / uet.UET_ENTROPY() / WRITE
    native[IP].proto = 254
    assert not decode(native).is_uet
    assert decode(native, native_protocol=254).is_uet


@pytest.mark.parametrize("vector", [v for v in ALL if not v.restrictions], ids=str)
def test_a_cut_capture_is_no_malformed_packet(vector: Vector) -> None:
    whole = decode_frame(vector.frame)
    for snap in range(14, len(vector.frame)):
        packet = decode_frame(vector.frame[:snap], wire_length=len(vector.frame))
        if not packet.is_uet:
            assert snap < 14 + 40 + 8
            continue
        assert packet.errors == [], snap
        if not whole.trimmed:
            assert packet.fields.items() <= whole.fields.items()
        assert any("captured" in note for note in packet.notes)


def test_fields_in_front_of_the_cut_are_there() -> None:
    frame = bytes(DATAGRAM / WRITE)
    packet = decode_frame(frame[: 42 + 12 + 8], wire_length=len(frame))
    assert packet.layer_names == ["pds.rud_req", "ses.request_std_som"]
    assert "ses.job_id" in packet.fields
    assert "ses.pid_on_fep" not in packet.fields
    with pytest.raises(ValueError, match="fields"):
        packet.layers[1].encode()


def trim(frame: bytes, octets: int, dscp: int) -> bytes:
    """Return what a switch does: cut the UET part, new DSCP and IP length, UDP length as it was."""
    packet = Ether(frame[: 42 + octets])
    packet[IP].tos = dscp << 2
    packet[IP].len = 28 + octets
    del packet[IP].chksum
    return bytes(packet)[: 42 + octets]


@pytest.mark.parametrize("octets", range(0, 150, 7))
def test_trimmed_packets(octets: int) -> None:
    frame = trim(bytes(DATAGRAM / WRITE / uet.UET_CRC()), octets, dscp=10)
    for dscps in (None, frozenset({10})):
        packet = decode_frame(frame, trimmed_dscp=dscps)
        assert packet.trimmed
        assert "crc" not in packet.fields
        assert "payload" not in packet.layer_names
        assert packet.errors == [] or octets == 0
    other = decode_frame(frame, trimmed_dscp=frozenset({11}))
    assert not other.trimmed
    assert any("UDP length" in error for error in other.errors)


def test_native_trimmed_packets_are_known_by_dscp_alone() -> None:
    frame = bytes(ETHER / IP(tos=10 << 2, len=20 + 20, proto=253) / uet.UET_ENTROPY() / WRITE)[:54]
    assert decode_frame(frame, trimmed_dscp=frozenset({10})).errors == []
    assert decode_frame(frame).errors != []


@pytest.mark.parametrize(
    ("uet_part", "complaint"),
    [
        (Raw(b"\x00\x00\x00\x00"), "type 0 is reserved"),
        (Raw(b"\xf8\x00\x00\x00"), "type 31 is reserved"),
        (Raw(b"\x11"), "needs 12 octets, 1 are left"),
        (uet.UET_RUD_REQ(next_hdr=9) / Raw(b"abcd"), "next header 9"),
        (uet.UET_ACK(next_hdr=3) / uet.UET_SES_STD(), "next header 3"),
        (uet.UET_RUD_REQ(next_hdr=3) / Raw(b"abcd"), "needs 44 octets, 4 are left"),
        (uet.UET_NACK() / Raw(b"abcde"), "5 octets follow a NACK"),
        (uet.UET_CP(ctl_type="PROBE") / Raw(b"abcd"), "CRC that does not verify"),
        (uet.UET_ACK() / uet.UET_SES_RESPONSE() / Raw(b"a"), "1 octets follow a response"),
        (uet.UET_RUD_REQ() / uet.UET_SES_STD(opcode="READ") / Raw(b"a"), "READ request"),
        (uet.UET_RUD_REQ() / uet.UET_SES_STD(version=1), "version 1"),
        (
            uet.UET_RUD_REQ() / uet.UET_SES_STD(som=0, payload_length=9) / Raw(b"a"),
            "payload_length is 9, but 1 octets follow",
        ),
        (
            uet.UET_RUD_REQ() / uet.UET_SES_STD(opcode="ATOMIC") / Raw(b"\x0d\x00"),
            "ses.ext_cswap needs 36 octets, 2 are left",
        ),
        (uet.UET_TSS() / Raw(b"abc"), "authentication tag"),
    ],
)
def test_malformed_packets_are_told_in_a_sentence(uet_part: Packet, complaint: str) -> None:
    packet = decode(DATAGRAM / uet_part)
    assert packet.is_uet
    assert complaint in " ".join(packet.errors)


def test_negotiation_may_be_longer() -> None:
    packet = decode(DATAGRAM / uet.UET_CP(ctl_type="NEGOTIATION") / Raw(bytes(28)))
    assert packet.errors == []
    assert packet.layer_names == ["pds.cp", "payload"]


def test_wrong_lengths_below_uet_are_told() -> None:
    long = bytes(ETHER / IP(len=400) / UDP(sport=7) / WRITE)
    assert any("total length is 400" in error for error in decode_frame(long).errors)
    short = bytes(ETHER / ADDRESSES / UDP(sport=7, len=4, dport=4793) / WRITE)
    assert any("UDP length is 4" in error for error in decode_frame(short).errors)
    shorter = bytes(ETHER / ADDRESSES / UDP(sport=7, len=20, dport=4793) / WRITE)
    assert any("UDP length is 20" in error for error in decode_frame(shorter).errors)


def test_reserved_bits_are_noted_and_kept() -> None:
    frame = bytes(DATAGRAM / uet.UET_RUD_REQ(rsvd_flags_lo=2, psn=9))
    packet = decode_frame(frame)
    assert any("rsvd_flags_lo is 2" in note for note in packet.notes)
    assert packet.layers[0].encode() == frame[42:54]


def mutated(frames: list[bytes], dice: random.Random) -> bytes:
    """A frame with some bits flipped, octets overwritten, cut, spliced or grown."""
    frame = bytearray(dice.choice(frames))
    for _ in range(dice.randint(1, 4)):
        kind = dice.randrange(6)
        at = dice.randrange(len(frame)) if frame else 0
        if kind == 0 and frame:
            frame[at] ^= 1 << dice.randrange(8)
        elif kind == 1 and frame:
            frame[at] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
        elif kind == 2:
            del frame[at:]
        elif kind == 3:
            frame[at:] = dice.choice(frames)[at:]
        elif kind == 4:
            frame[at:at] = dice.randbytes(dice.randint(1, 9))
        elif frame:
            # The octets that decide what follows: IP header, prologue, first octets of SES.
            frame[dice.choice((12, 14, 16, 17, 23, 42, 43, 46, 54, 55, 58)) % len(frame)] = (
                dice.randrange(256)
            )
    return bytes(frame)


def attack(count: int, seed: int) -> None:
    dice = random.Random(seed)
    frames = [vector.frame for vector in ALL]
    for number in range(count):
        frame = mutated(frames, dice)
        packet = decode_frame(
            frame,
            crc=("auto", "on", "off")[number % 3],
            trimmed_dscp=(None, frozenset({0, 10}))[number % 2],
            wire_length=len(frame) + dice.choice((0, 0, 1, 900)),
        )
        at = packet.envelope.uet
        for layer in packet.layers:
            assert layer.offset == at
            at = layer.offset + layer.length
            assert at <= len(frame)
            if layer.header is not None and len(layer.values) == len(layer.header.fields):
                assert layer.encode() == frame[layer.offset : at]
        assert all(isinstance(value, int) for value in packet.fields.values())
        packet.presented_fields()


def test_hostile_frames() -> None:
    attack(30_000, seed=1)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2, 12))
def test_a_million_hostile_frames(seed: int) -> None:
    attack(100_000, seed)


def test_hostile_frames_do_not_escape_scapy() -> None:
    dice = random.Random(7)
    frames = [vector.frame for vector in ALL]
    for _ in range(1500):
        frame = mutated(frames, dice)
        if len(frame) >= 14:
            bytes(Ether(frame))
