"""The golden frames, through scapy's layers, through the compiled codec, and the ICRC."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from emulator.rocev2.wire import headers
from emulator.rocev2.wire import layers as wire
from emulator.rocev2.wire.codes import EXTENSIONS, Extension
from emulator.rocev2.wire.packets import Frames, PacketDecapsulator, encapsulation, icrc
from tests.harness.rocev2.rocev2_golden import CONNECTX, GOLDEN, Golden
from uet.carrier_codec import PeerEnvelope

MACS = ("02:00:00:00:00:01", "02:00:00:00:00:02")
PEERS4, PEERS6 = ("198.18.0.1", "198.18.0.2"), ("2001:db8::1", "2001:db8::2")

each_frame = pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name.split()[0])


def udp_at(frame: bytes) -> int:
    return 14 + (20 if frame[12:14] == b"\x08\x00" else 40)


def values(golden: Golden) -> dict[str, int]:
    return {"migreq": 1, **golden.bth}


def bth_and_more(golden: Golden) -> bytes:
    octets = headers.BTH.encode(**values(golden))
    for extension, fields in golden.extensions:
        octets += headers.OF[extension].encode(**fields)
    return octets + golden.payload + bytes(golden.pad)


@pytest.mark.conformance("R-006", "R-001", "R-004")
@each_frame
def test_scapy_builds_the_frame(golden: Golden) -> None:
    back = -1 if golden.reverse else 1
    if golden.ipv6:
        ip = IPv6(src=PEERS6[0], dst=PEERS6[1], tc=0x6A, fl=0x12345, hlim=64)
    else:
        source, destination = PEERS4[::back]
        ip = IP(src=source, dst=destination, tos=golden.tos, id=1, flags="DF", ttl=64)
    packet = ip / UDP(sport=0xC123, dport=4791, chksum=0) / wire.BTH(**values(golden))
    for extension, fields in golden.extensions:
        packet = packet / wire.LAYERS[extension](**fields)
    if golden.payload:
        packet = packet / Raw(golden.payload + bytes(golden.pad))
    assert bytes(Ether(src=MACS[0], dst=MACS[1]) / packet) == golden.frame


@pytest.mark.conformance("R-006")
@each_frame
def test_the_codec_and_the_icrc_build_the_packet(golden: Golden) -> None:
    at = udp_at(golden.frame)
    covered = golden.frame[14 : at + 8] + bth_and_more(golden)
    assert covered + icrc(covered, at - 14) == golden.frame[14:]


@pytest.mark.conformance("R-006")
@each_frame
def test_the_data_path_builds_the_packet(golden: Golden) -> None:
    """All of it but the IP header, whose identification (and flow label) is 0 here: one can
    tell by the ICRC, which must be that of what was built."""
    peers = PEERS6 if golden.ipv6 else PEERS4
    envelope = PeerEnvelope(encapsulation(peers[0], MACS[0]), peers[1], MACS[1])
    bth = values(golden)
    frames = Frames(envelope, 0xC123, bth["dqpn"], 0xFFFF)
    word = headers.BTH.word(
        **{name: bth[name] for name in ("opcode", "migreq", "solicited") if name in bth}
    )
    psn = bth.get("ackreq", 0) << 31 | bth.get("psn", 0)
    extensions = b"".join(headers.OF[x].encode(**fields) for x, fields in golden.extensions)
    made = b"".join(
        frames.frame(golden.tos, word, psn, extensions, golden.payload, bth.get("becn", 0))
    )
    at = udp_at(golden.frame)
    assert made[at:-4] == golden.frame[at:-4]
    assert made[-4:] == icrc(made[14:-4], at - 14)
    opener = PacketDecapsulator(encapsulation(peers[1], MACS[1]))
    for _ in range(2):  # the second time from what the first one left
        flow = opener.open(memoryview(made))
        assert not isinstance(flow, str), flow
        assert flow.opcode == bth["opcode"]
        assert made[flow.payload_at : flow.payload_end] == golden.payload


@pytest.mark.conformance("R-007")
@each_frame
def test_both_codecs_read_the_frame(golden: Golden) -> None:
    packet = Ether(golden.frame)
    bth = packet[wire.BTH]
    at = udp_at(golden.frame) + 8
    decoded = headers.BTH.values(golden.frame, at)
    for name, value in decoded.items():
        assert value == values(golden).get(name, headers.BTH.field(name).default), name
        assert value == getattr(bth, name), name
    at += headers.BTH.size
    layer = bth
    for extension, fields in golden.extensions:
        layer = layer.payload
        assert type(layer) is wire.LAYERS[extension]
        decoded = headers.OF[extension].values(golden.frame, at)
        for name, value in decoded.items():
            assert value == fields.get(name, 0) == getattr(layer, name), name
        at += headers.OF[extension].size
    assert bytes(layer.payload) == golden.payload + bytes(golden.pad)
    assert bytes(packet) == golden.frame


@pytest.mark.conformance("R-008")
def test_the_icrc_of_a_nic() -> None:
    assert icrc(CONNECTX[14:-4], 20).hex() == "82fd002a"
    opener = PacketDecapsulator(encapsulation("10.0.18.1", "e4:1d:2d:ab:2b:c2"))
    assert not isinstance(opener.open(memoryview(CONNECTX)), str)


def variant_bits(frame: bytes) -> set[int]:
    """Bits from the IP header on (counted in the frame) that the ICRC does not cover."""
    at = 14
    if frame[12:14] == b"\x08\x00":
        octets = [at + 1, at + 8, at + 10, at + 11]
        bits = {8 * octet + bit for octet in octets for bit in range(8)}
    else:
        bits = {8 * octet + bit for octet in (at + 1, at + 2, at + 3, at + 7) for bit in range(8)}
        bits |= {8 * at + bit for bit in range(4, 8)}
    udp = udp_at(frame)
    return bits | {8 * octet + bit for octet in (udp + 6, udp + 7, udp + 12) for bit in range(8)}


@pytest.mark.conformance("R-009")
@pytest.mark.parametrize("golden", [GOLDEN[0], GOLDEN[1], GOLDEN[2]], ids=["ipv4", "ipv6", "pad"])
def test_what_the_icrc_covers(golden: Golden) -> None:
    """Every single bit from the IP header to the pad, the version and IHL aside (they decide
    where everything is)."""
    at = udp_at(golden.frame)
    original = golden.frame[-4:]
    free = variant_bits(golden.frame)
    for bit in range(8 * 14, 8 * (len(golden.frame) - 4)):
        if 8 * 14 <= bit < 8 * 14 + (8 if at == 34 else 4):
            continue
        changed = bytearray(golden.frame)
        changed[bit // 8] ^= 0x80 >> bit % 8
        same = icrc(bytes(changed[14:-4]), at - 14) == original
        assert same == (bit in free), f"bit {bit}"


@pytest.mark.conformance("R-003", "R-005")
def test_extension_headers_of_the_opcodes() -> None:
    """Against the table of IBA 9.2: which headers, in which order."""
    x = Extension
    for base in (0x00, 0x20):
        assert EXTENSIONS[base | 0x0B] == (x.RETH, x.IMM_DT)
        for opcode in (0x00, 0x01, 0x02, 0x04, 0x07, 0x08):
            assert EXTENSIONS[base | opcode] == ()
        for opcode in (0x03, 0x05, 0x09):
            assert EXTENSIONS[base | opcode] == (x.IMM_DT,)
        for opcode in (0x06, 0x0A):
            assert EXTENSIONS[base | opcode] == (x.RETH,)
    assert EXTENSIONS[0x0C] == (x.RETH,)
    assert EXTENSIONS[0x0E] == ()
    assert {EXTENSIONS[opcode] for opcode in (0x0D, 0x0F, 0x10, 0x11)} == {(x.AETH,)}
    assert EXTENSIONS[0x12] == (x.AETH, x.ATOMIC_ACK_ETH)
    assert EXTENSIONS[0x13] == EXTENSIONS[0x14] == (x.ATOMIC_ETH,)
    assert EXTENSIONS[0x16] == EXTENSIONS[0x17] == (x.IETH,)
    assert EXTENSIONS[0x64] == (x.DETH,)
    assert EXTENSIONS[0x65] == (x.DETH, x.IMM_DT)
    assert not {0x2C, 0x31, 0x33, 0x36, 0x15} & set(EXTENSIONS)


@given(st.data())
def test_both_codecs_agree_on_every_header(data: st.DataObject) -> None:
    extension = data.draw(st.sampled_from([None, *Extension]))
    header = headers.BTH if extension is None else headers.OF[extension]
    layer = wire.BTH if extension is None else wire.LAYERS[extension]
    drawn = {
        field.name: data.draw(st.integers(0, (1 << field.width) - 1)) for field in header.fields
    }
    octets = header.encode(**drawn)
    assert (
        bytes(layer(**drawn, **({"icrc": 0} if extension is None else {})))[: header.size] == octets
    )
    assert header.values(octets) == drawn
    again = layer(octets + (bytes(4) if extension is None else b""))
    assert {name: getattr(again, name) for name in drawn} == drawn


@given(opcode=st.sampled_from(sorted(EXTENSIONS)), data=st.data(), v6=st.booleans())
def test_whole_packets_both_ways(opcode: int, data: st.DataObject, v6: bool) -> None:
    """What the data path builds, scapy reads with the same ICRC, and back."""
    peers = PEERS6 if v6 else PEERS4
    extensions = [
        (x, {f.name: data.draw(st.integers(0, (1 << f.width) - 1)) for f in headers.OF[x].fields})
        for x in EXTENSIONS[opcode]
    ]
    payload = data.draw(st.binary(max_size=64))
    psn = data.draw(st.integers(0, 0xFFFFFF))
    dqpn = data.draw(st.integers(0, 0xFFFFFF))
    port = data.draw(st.integers(0xC000, 0xFFFF))
    envelope = PeerEnvelope(encapsulation(peers[0], MACS[0]), peers[1], MACS[1])
    frame = b"".join(
        Frames(envelope, port, dqpn, 0xFFFF).frame(
            data.draw(st.integers(0, 255)),
            headers.BTH.word(opcode=opcode),
            psn,
            b"".join(headers.OF[x].encode(**fields) for x, fields in extensions),
            payload,
        )
    )
    packet = Ether(frame)
    bth = packet[wire.BTH]
    assert (bth.opcode, bth.dqpn, bth.psn, packet[UDP].sport) == (opcode, dqpn, psn, port)
    assert bth.padcount == -len(payload) % 4
    layer = bth
    for x, fields in extensions:
        layer = layer.payload
        assert {name: getattr(layer, name) for name in fields} == fields
        assert type(layer) is wire.LAYERS[x]
    read = bytes(layer.payload)
    assert read == payload + bytes(bth.padcount)
    bth.icrc = None
    assert bytes(packet) == frame  # scapy's own ICRC
