"""Both encapsulations of UET over both versions of IP, with and without the CRC (UES 3.5.10)."""

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP, IPOption_RR
from scapy.layers.inet6 import (
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
)
from scapy.layers.l2 import Dot1AD, Dot1Q, Ether
from scapy.packet import Packet
from scapy.utils import checksum

from tests.harness.examples import examples
from tests.harness.wire.golden import ALL, TRIMMED_DSCP, Vector
from uet.carrier_codec import Decapsulator, Opened, PeerEnvelope, ipv4_checksum
from uet.encapsulation_choice import Encapsulation, EncapsulationError
from uet.transport import Frame
from uet.wire import headers
from uet.wire.codes import ICV_SIZE, NextHeader, Opcode, PacketType
from uet.wire.crc import COVERAGE_START
from uet.wire.envelope import open_frame
from uet.wire.frame import decode_frame
from uet.wire.layers import UET_CRC, UET_ENTROPY, UET_RUD_REQ

HERE_MAC, THERE_MAC = "02:00:00:00:00:01", "02:00:00:00:00:02"
HERE = {4: "10.0.1.1", 6: "2001:db8::1"}
THERE = {4: "10.0.1.2", 6: "2001:db8::2"}
IP_SIZE = {4: 20, 6: 40}
#: a RUD request that carries nothing, a legal packet
BARE = headers.RUD_REQ.encode(psn=7, spdcid=1, dpdcid=2)
TRIMMED = frozenset({4, TRIMMED_DSCP})

Kind = tuple[int, bool, bool]  # version, native, crc
KINDS: list[Kind] = list(itertools.product((4, 6), (False, True), (False, True)))


def named(kind: Kind) -> str:
    version, native, crc = kind
    return f"ipv{version}-{'native' if native else 'udp'}{'-crc' if crc else ''}"


every_kind = pytest.mark.parametrize("kind", KINDS, ids=named)


def encapsulation(kind: Kind, *, here: bool = True, **fields: Any) -> Encapsulation:
    fields = {"native": kind[1], "crc": kind[2]} | fields
    if here:
        return Encapsulation(address=HERE[kind[0]], mac=HERE_MAC, **fields)
    return Encapsulation(address=THERE[kind[0]], mac=THERE_MAC, **fields)


def envelope(kind: Kind, **fields: Any) -> PeerEnvelope:
    """From here to there."""
    return PeerEnvelope(encapsulation(kind, **fields), THERE[kind[0]], THERE_MAC)


def opener(kind: Kind, **fields: Any) -> Decapsulator:
    """Return the decapsulator of the other end."""
    return Decapsulator(encapsulation(kind, here=False, **fields), TRIMMED)


def taken(opener: Decapsulator, frame: bytes) -> Opened:
    """Return what both ways through the opener say of a frame that is ours."""
    found = opener.open(memoryview(frame))
    assert opener.open_any(memoryview(frame)) == found
    assert not isinstance(found, str), found
    return found


def dropped(opener: Decapsulator, frame: bytes) -> str:
    found = opener.open(memoryview(frame))
    assert opener.open_any(memoryview(frame)) == found
    assert isinstance(found, str), found
    return found


def joined(frame: Frame) -> bytes:
    return b"".join(frame)


def write_request(size: int) -> bytes:
    """The headers of a one-packet write."""
    request = headers.RUD_REQ.encode(next_hdr=NextHeader.REQUEST_STD, psn=9, spdcid=1, dpdcid=2)
    return request + headers.SES_STD_SOM.encode(opcode=Opcode.WRITE, eom=1, request_length=size)


def uet_at(kind: Kind) -> int:
    version, native, _ = kind
    return 14 + IP_SIZE[version] + (4 if native else 8)


def crafted(kind: Kind, *tags: Packet, options: Any = None, octet: int = 2, **udp: int) -> bytes:
    """A frame to there made by scapy; ``options`` are IPv4 options or IPv6 extension headers."""
    version, native, crc = kind
    packet: Packet = Ether(src=HERE_MAC, dst=THERE_MAC)
    for tag in tags:
        packet /= tag
    ends = {"src": HERE[version], "dst": THERE[version]}
    if version == 4:
        packet /= IP(**ends, tos=octet, options=options or [])
    else:
        packet /= IPv6(**ends, tc=octet)
        if options:
            options.lastlayer().nh = 253 if native else 17
            packet /= options
    packet /= UET_ENTROPY(entropy=77) if native else UDP(**{"sport": 77, "dport": 4793} | udp)
    packet /= UET_RUD_REQ(psn=7, spdcid=1, dpdcid=2)
    return bytes(packet / UET_CRC() if crc else packet)


def odd_frames(kind: Kind) -> list[bytes]:
    """With and without VLAN tags, IPv4 options and IPv6 extension headers."""
    options: list[Any] = [None, [IPOption_RR(length=39, routers=["0.0.0.0"] * 9)]]
    if kind[0] == 6:
        routing = IPv6ExtHdrRouting(addresses=["2001:db8::9"], segleft=0)
        options = [None, IPv6ExtHdrHopByHop(), IPv6ExtHdrDestOpt()]
        options.append(IPv6ExtHdrHopByHop() / routing / IPv6ExtHdrDestOpt())
    tags = ((), (Dot1Q(vlan=7),), (Dot1AD(vlan=7), Dot1Q(vlan=8)))
    return [crafted(kind, *each, options=one, octet=184) for each in tags for one in options]


# -- what leaves -------------------------------------------------------------------------------


@pytest.mark.conformance("C-123")
@every_kind
@pytest.mark.parametrize("size", [0, 1, 2, 3, 59, 1024, 4096, 8192])
def test_wrapped_frames_decode_and_open(kind: Kind, size: int) -> None:
    """The wire decoder finds nothing wrong, scapy agrees on every field, the far end opens it."""
    version, native, crc = kind
    payload = memoryview(random.Random(size).randbytes(size))
    sender = envelope(kind, ttl=17)
    for octet, entropy in ((0, 0), (2, 4711), (46 << 2 | 1, 0xFFFF), (255, 1)):
        header, body = sender.wrap(octet, entropy, write_request(size), payload)
        assert crc or body is payload  # not copied
        frame = header + body
        decoded = decode_frame(frame, crc="on" if crc else "off", trimmed_dscp=frozenset())
        assert decoded.errors == decoded.notes == []
        names = ["pds.rud_req", "ses.request_std_som"]
        names += ["payload"] * bool(size) + ["crc"] * crc
        assert decoded.layer_names == names
        assert len(frame) == decoded.envelope.end

        source, start, end, seen, klass, source_at = taken(opener(kind), frame)
        assert source == encapsulation(kind).packed == frame[source_at:][: len(source)]
        assert (start, seen, klass) == (uet_at(kind), entropy, octet)
        assert frame[start:end] == write_request(size) + bytes(payload)
        assert end + sender.trailer == len(frame)

        packet = Ether(frame)
        assert (packet.src, packet.dst) == (HERE_MAC, THERE_MAC)
        ip = packet.payload
        assert (ip.src, ip.dst) == (HERE[version], THERE[version])
        carried = len(frame) - 14 - IP_SIZE[version]
        if isinstance(ip, IP):
            assert (ip.tos, ip.ttl, ip.id, str(ip.flags), ip.frag) == (octet, 17, 0, "DF", 0)
            assert (ip.len, ip.proto) == (20 + carried, 253 if native else 17)
            sent = ip.chksum
            del ip.chksum
            assert IP(bytes(ip)).chksum == sent
        else:
            assert (ip.tc, ip.hlim, ip.fl) == (octet, 17, 0)
            assert (ip.plen, ip.nh) == (carried, 253 if native else 17)
        if native:
            assert (ip.payload.entropy, ip.payload.rsvd) == (entropy, 0)
        else:
            assert (ip[UDP].sport, ip[UDP].dport) == (entropy, 4793)
            assert (ip[UDP].len, ip[UDP].chksum) == (carried, 0)
        assert sender.transport_overhead == (4 if native else 8)


@given(st.binary(min_size=20, max_size=20).filter(any))
@example(b"\x45\xff\xba" + bytes(17))  # zero in ones' complement
@example(b"\xff" * 20)
@examples(50)
def test_checksum_is_that_of_scapy(header: bytes) -> None:
    assert ipv4_checksum(header) == checksum(header)


@pytest.mark.parametrize("kind", KINDS[::2], ids=named)
def test_what_is_kept_is_bounded(kind: Kind) -> None:
    """Any number of lengths and classes, used again in any order, and always the right ones."""
    sender, receiver = envelope(kind), opener(kind)
    kept = 0
    order = [(size, octet) for size in range(300) for octet in (0, 2, 184)]
    for size, octet in (*order, *order[::-1]):
        frame = joined(sender.wrap(octet, 5, BARE, bytes(size)))
        assert taken(receiver, frame)[2:5:2] == (len(frame), octet)
        kept = max(kept, len(sender._prefixes))  # noqa: SLF001  memory alone
    assert kept <= 64


@every_kind
def test_shortest_and_longest_packets(kind: Kind) -> None:
    version, native, crc = kind
    most = 65_535 - (20 if version == 4 else 0) - (4 if native else 8) - 4 * crc - len(BARE)
    sender = envelope(kind)
    frame = joined(sender.wrap(0, 1, BARE, bytes(most)))
    assert taken(opener(kind), frame)[2] == len(frame) - sender.trailer
    for size in (most + 1, most + 65_536):
        with pytest.raises(EncapsulationError, match="do not fit into one IP packet"):
            sender.wrap(0, 1, BARE, bytes(size))
    short = joined(sender.wrap(0, 1, BARE[:3])) + bytes(9)
    assert dropped(opener(kind), short) == ("rx_drop_bad_crc" if crc else "rx_drop_bad_ip_length")


# -- security ----------------------------------------------------------------------------------


@every_kind
def test_sealed_frames(kind: Kind) -> None:
    """The seal sees what the far end sees, lengths fit, and there is no CRC."""
    version, native, _ = kind
    seen: list[bytes] = []

    def seal(prefix: bytes) -> bytes:
        seen.append(prefix)
        return headers.TSS_SSI.encode(sdi=5, ssi=6, counter=7) + b"c" * 30 + b"t" * ICV_SIZE

    header, sealed = envelope(kind).wrap_sealed(2, 4711, 16 + 30 + ICV_SIZE, seal)
    frame = header + bytes(sealed)
    decoded = decode_frame(frame, crc="on" if kind[2] else "off")
    assert decoded.errors == []
    assert decoded.layer_names == ["tss", "payload", "icv"]
    receiver = opener(kind)
    source, start, end, entropy, octet, source_at = taken(receiver, frame)
    assert (end, entropy, octet) == (len(frame), 4711, 2)
    assert source_at == 14 + COVERAGE_START[version]
    prefix = seen[0]
    assert prefix == frame[source_at:start]
    assert prefix[: len(source)] == source
    assert len(prefix) == (8 if version == 4 else 32) + (4 if native else 8)
    assert receiver.sealed_prefix(memoryview(frame), source_at, start) == prefix
    if not native:  # somebody on the way has filled the UDP checksum in
        frame = frame[: start - 2] + b"\xab\xcd" + frame[start:]
        taken(receiver, frame)
        assert receiver.sealed_prefix(memoryview(frame), source_at, start) == prefix
    with pytest.raises(EncapsulationError, match="62 octets were sealed, but"):
        envelope(kind).wrap_sealed(0, 1, 61, seal)


# -- what arrives ------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", ALL, ids=str)
def test_golden_vectors_open(vector: Vector) -> None:
    """Envelopes by other people: options, checksums, CRC, security, a trimmed one."""
    wire = open_frame(vector.frame)
    crc = "crc" in vector.fields
    native = wire.udp is None
    ours = Encapsulation(address=wire.destination, mac=THERE_MAC, native=native, crc=crc)
    source, start, end, entropy, octet, source_at = taken(Decapsulator(ours, TRIMMED), vector.frame)
    other = Decapsulator(replace(ours, crc=not crc), TRIMMED)
    assert source == Encapsulation(address=wire.source, mac=HERE_MAC).packed
    assert (start, entropy) == (wire.uet, wire.entropy)
    assert octet == wire.dscp << 2 | wire.ecn
    assert source_at == wire.ip + COVERAGE_START[wire.version]
    assert end == wire.end - 4 * crc
    if crc or vector.is_tss or wire.shortened:  # in the last two no CRC is looked for
        assert taken(other, vector.frame)[2] == wire.end
    else:
        assert dropped(other, vector.frame) == "rx_drop_bad_crc"


@every_kind
def test_frames_of_scapy_open(kind: Kind) -> None:
    """Where its layers say, with its CRC, whatever stands in front; a flipped bit is noticed."""
    _, native, crc = kind
    for frame in odd_frames(kind):
        wire = open_frame(frame)
        for padding in (b"", bytes(30)):
            source, start, end, entropy, octet, source_at = taken(opener(kind), frame + padding)
            assert (wire.errors, start, end) == ([], wire.uet, len(frame) - 4 * crc)
            assert frame[start:end] == BARE
            assert (entropy, octet) == (77, 184)
            assert source_at == wire.ip + COVERAGE_START[wire.version]
            assert frame[source_at:][: len(source)] == source == encapsulation(kind).packed
        for bit in range(source_at * 8, len(frame) * 8) if crc else ():
            damaged = bytearray(frame)
            damaged[bit // 8] ^= 0x80 >> bit % 8
            if damaged[start] >> 3 == PacketType.TSS:
                continue
            if native or not start - 2 <= bit // 8 < start:
                assert isinstance(opener(kind).open(memoryview(damaged)), str), bit


@pytest.mark.conformance("C-123")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind[1]], ids=named)
def test_any_udp_checksum_is_accepted(kind: Kind) -> None:
    expected = taken(opener(kind), crafted(kind, chksum=0))
    for value in (1, 0x8000, 0xFFFF):
        assert taken(opener(kind), crafted(kind, chksum=value)) == expected


@every_kind
def test_trimmed_packets(kind: Kind) -> None:
    """Told by DSCP: the UDP length may be too long, and there is no CRC any more."""
    version, native, _ = kind
    whole = joined(envelope(kind).wrap(2, 9, write_request(1_000), bytes(1_000)))
    for kept, dscp in itertools.product((16, 40, 200), sorted(TRIMMED)):
        frame = bytearray(whole[: uet_at(kind) + kept])
        if version == 4:
            frame[15] = dscp << 2 | 2
            frame[16:18] = (len(frame) - 14).to_bytes(2, "big")
        else:
            frame[14:16] = (0x6000 | (dscp << 2 | 2) << 4).to_bytes(2, "big")
            frame[18:20] = (len(frame) - 54).to_bytes(2, "big")
        for padding in (b"", bytes(20)):
            found = taken(opener(kind), bytes(frame) + padding)
            assert found[1:5] == (uet_at(kind), uet_at(kind) + kept, 9, dscp << 2 | 2)
        others = Decapsulator(encapsulation(kind, here=False), frozenset({63}))
        if not native:
            assert dropped(others, bytes(frame)) == "rx_drop_bad_udp_length"
            frame[uet_at(kind) - 4 : uet_at(kind) - 2] = (kept + 7).to_bytes(2, "big")
            assert dropped(opener(kind), bytes(frame)) == "rx_drop_bad_udp_length"


#: Why a frame is dropped: offset and octets put there, by IP version and (from UET on) for UDP.
DROPS: dict[object, dict[str, str]] = {
    4: {
        "rx_drop_not_uet": "12:0806 12:86dd 12:8100 14:65 14:44 23:06",
        "rx_drop_other_address": "30:0a000109",
        "rx_drop_fragment": "20:2000 20:0001",
        "rx_drop_bad_ip_length": "16:001b 16:0000 16:ffff",
    },
    6: {
        "rx_drop_not_uet": "12:0800 12:8100 14:45 20:06",
        "rx_drop_other_address": "38:fd",
        "rx_drop_bad_ip_length": "18:0007 18:0000 18:ffff",
    },
    "udp": {
        "rx_drop_not_uet": "-6:12b7",
        "rx_drop_bad_udp_length": "-4:0000 -4:000c -4:ffff",
    },
}
REASONS = {"rx_drop_truncated", "rx_drop_bad_crc", *DROPS[4], *DROPS["udp"]}


@every_kind
def test_frames_that_are_not_for_us(kind: Kind) -> None:
    """Each is counted under its reason."""
    version, native, crc = kind
    good, start = crafted(kind), uet_at(kind)
    cases = [(0, *case) for case in DROPS[version].items()]
    cases += [(start, *case) for case in DROPS["udp"].items() if not native]
    cases += [(start, "rx_drop_bad_crc", "4:ee")] if crc else []
    for base, reason, edits in cases:
        for edit in edits.split():
            offset, octets = edit.split(":")
            frame = bytearray(good)
            at = base + int(offset)
            frame[at : at + len(octets) // 2] = bytes.fromhex(octets)
            assert dropped(opener(kind), bytes(frame)) == reason, edit
    for other in KINDS:
        if other[:2] != kind[:2]:
            assert dropped(opener(kind), crafted(other)) == "rx_drop_not_uet"


@pytest.mark.parametrize("kind", KINDS[4:], ids=named)
def test_ipv6_fragments_and_waypoints(kind: Kind) -> None:
    protocol = 253 if kind[1] else 17
    plain = crafted((6, kind[1], False))
    behind = plain[54:]

    def with_extension(number: int, extension: Packet) -> bytes:
        octets = bytes(extension)
        length = (len(octets) + len(behind)).to_bytes(2, "big")
        return plain[:18] + length + bytes([number]) + plain[21:54] + octets + behind

    fragment = with_extension(44, IPv6ExtHdrFragment(nh=protocol, offset=3))
    assert dropped(opener(kind), fragment) == "rx_drop_fragment"
    for length in range(54, 62):
        assert dropped(opener(kind), fragment[:length]) == "rx_drop_truncated"
    assert dropped(opener(kind), with_extension(44, IPv6ExtHdrFragment(nh=6))) == "rx_drop_not_uet"
    routing = IPv6ExtHdrRouting(nh=protocol, addresses=["2001:db8::9"], segleft=1)
    assert dropped(opener(kind), with_extension(43, routing)) == "rx_drop_other_address"


@every_kind
def test_cut_frames(kind: Kind) -> None:
    """At every length: too short for its headers, or shorter than IP says."""
    for frame in (*odd_frames(kind), joined(envelope(kind).wrap(2, 1, BARE, bytes(9)))):
        start = taken(opener(kind), frame)[1]
        for length in range(len(frame)):
            short = "rx_drop_truncated" if length < start + 4 else "rx_drop_bad_ip_length"
            assert dropped(opener(kind), frame[:length]) == short, length


# -- hostile frames ----------------------------------------------------------------------------

OPENERS = {kind: opener(kind) for kind in KINDS}
SEEDS = {kind: odd_frames(kind) for kind in KINDS}
for _kind, _frames in SEEDS.items():
    _frames.append(joined(envelope(_kind).wrap_sealed(0, 1, 30, lambda _: b"\x0c" + bytes(29))))


def survives(kind: Kind, frame: bytes) -> None:
    """Both ways agree, and what is taken lies within the frame."""
    found = OPENERS[kind].open(memoryview(frame))
    assert OPENERS[kind].open_any(memoryview(frame)) == found
    if isinstance(found, str):
        assert found in REASONS
        return
    source, start, end, entropy, octet, source_at = found
    assert len(source) == (4 if kind[0] == 4 else 16)
    assert frame[source_at:][: len(source)] == source
    assert source_at + 2 * len(source) + (4 if kind[1] else 8) <= start
    assert start + 4 <= end <= len(frame)
    assert 0 <= entropy <= 0xFFFF
    assert 0 <= octet <= 0xFF


@given(st.sampled_from(KINDS), st.binary(max_size=120))
@examples(300)
def test_noise(kind: Kind, noise: bytes) -> None:
    survives(kind, noise)
    version = kind[0]
    for start in ("080045", "08004f", "86dd60", "8100000086dd60"):
        survives(kind, bytes(12) + bytes.fromhex(start) + noise)
    to = encapsulation(kind, here=False).packed
    at = 30 if version == 4 else 38
    frame = bytes(12) + (b"\x08\x00\x47" if version == 4 else b"\x86\xdd\x60") + noise
    survives(kind, frame[:at] + to + frame[at + len(to) :])


@given(st.data())
@examples(400)
def test_mutations(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    frame = bytearray(data.draw(st.sampled_from(SEEDS[kind])))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(12, len(frame) - 1))
        frame[at] = data.draw(st.one_of(st.integers(0, 255), st.sampled_from([0, 43, 44, 60, 255])))
    cut = data.draw(st.integers(0, len(frame)))
    survives(kind, bytes(frame))
    survives(kind, bytes(frame[:cut]))
    survives(kind, bytes(frame) + bytes(cut))


# -- configuration -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"address": "10.0.0"}, "address: '10.0.0' is not an IPv4 or IPv6 address"),
        ({"address": "fe80::1%eth0"}, "has a zone"),
        ({"address": "ff02::1"}, "not the address of one endpoint"),
        ({"address": "0.0.0.0"}, "not the address of one endpoint"),
        ({"mac": "02:00:00:00:00"}, "mac: '02:00:00:00:00' is not a MAC address"),
        ({"mac": "02:00:00:00:00:0g"}, "is not a MAC address"),
        ({"mac": "ff:ff:ff:ff:ff:ff"}, "is a group address"),
        ({"protocol": 256}, "protocol is 256; it must lie in 0..255"),
        ({"protocol": 17}, "protocol 17 is UDP or an IPv6 extension header"),
        ({"protocol": 44}, "protocol 44 is UDP or an IPv6 extension header"),
        ({"udp_port": 0}, "udp_port is 0"),
        ({"udp_port": 65_536}, "udp_port is 65536"),
        ({"ttl": 0}, "ttl is 0; it must lie in 1..255"),
        ({"ttl": 256}, "ttl is 256"),
        ({"peer_address": "2001:db8::1"}, "is not an IPv4 address, but this endpoint's"),
        ({"peer_address": "nowhere"}, "peer_address: 'nowhere'"),
        ({"peer_mac": "nobody"}, "peer_mac: 'nobody'"),
    ],
)
def test_bad_parameters_are_named(fields: dict[str, Any], sentence: str) -> None:
    good: dict[str, Any] = {"address": "10.0.1.1", "mac": HERE_MAC}
    peer = {"peer_address": "10.0.1.2", "peer_mac": THERE_MAC}
    PeerEnvelope(Encapsulation(**good), **peer)
    (peer if fields.keys() <= peer.keys() else good).update(fields)
    with pytest.raises(EncapsulationError, match=sentence.replace("(", r"\(")):
        PeerEnvelope(Encapsulation(**good), **peer)


@pytest.mark.parametrize("version", [4, 6])
def test_port_and_protocol_are_parameters(version: int) -> None:
    for native, fields in ((False, {"udp_port": 49_150}), (True, {"protocol": 254})):
        kind = (version, native, False)
        frame = joined(envelope(kind, **fields).wrap(0, 1, BARE))
        assert taken(opener(kind, **fields), frame)[1:3] == (uet_at(kind), len(frame))
        assert dropped(opener(kind), frame) == "rx_drop_not_uet"
        assert decode_frame(frame, udp_port=49_150, native_protocol=254).errors == []
