"""The scapy layers against the golden vectors, field by field and bit for bit."""

from collections.abc import Iterator
from typing import Any

import pytest
from scapy.config import conf
from scapy.fields import ConditionalField
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from tests.harness.wire import golden
from tests.harness.wire.golden import CLEAR, TRIMMED_DSCP, UET_FIELDS, WITH_CRC, Vector
from uet.wire import layers as uet
from uet.wire.crc import COVERAGE_START
from uet.wire.encapsulation import UETLayer
from uet.wire.envelope import open_frame

_FLAGS = frozenset({"retx", "ar", "syn", "m", "p", "req", "nt", "isrod"})
_CLASSES: dict[str, type[UETLayer]] = {
    cls.uet_name: cls
    for name in uet.__all__
    if isinstance(cls := getattr(uet, name), type) and issubclass(cls, UETLayer) and cls.uet_name
}
_CLASSES["ses.request_std_som"] = _CLASSES["ses.request_std_nosom"] = uet.UET_SES_STD


@pytest.fixture(autouse=True)
def _configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conf, "debug_dissector", True)
    monkeypatch.setitem(conf.contribs["uet"], "trimmed_dscp", {TRIMMED_DSCP})
    monkeypatch.setitem(conf.contribs["uet"], "crc", "auto")


def walk(packet: Packet) -> Iterator[Packet]:
    while packet:
        yield packet
        packet = packet.payload


def shown_name(layer: type[UETLayer], field: str) -> str:
    if layer.uet_name.startswith("pds.") and field in _FLAGS:
        return f"pds.flags.{field}"
    prefix = "ext" if layer.uet_name.startswith("ses.ext_") else layer.uet_name.split(".")[0]
    return f"{prefix}.{layer.uet_labels.get(field, field)}"


def fields_of(layer: UETLayer) -> dict[str, Any]:
    return {
        shown_name(type(layer), field.name): layer.getfieldval(field.name)
        for field in layer.fields_desc
        if not field.name.startswith("rsvd")
        and not (isinstance(field, ConditionalField) and not field.cond(layer))
    }


@pytest.mark.parametrize("vector", CLEAR, ids=str)
def test_fields(vector: Vector) -> None:
    packet = Ether(vector.frame)
    found: dict[str, Any] = {}
    for layer in walk(packet):
        if isinstance(layer, UETLayer):
            found |= fields_of(layer)
    expected = {
        name: golden.number(value)
        for name, value in vector.fields.items()
        if name.startswith(UET_FIELDS) and name != "pds.flags"
    }
    assert found == expected
    if "crc" in vector.fields:
        assert packet[uet.UET_CRC].crc == golden.number(vector.fields["crc"])
    if vector.native:
        assert packet[uet.UET_ENTROPY].entropy == vector.fields["entropy.entropy"]
    else:
        assert packet[UDP].sport == vector.fields["udp.sport"]


@pytest.mark.parametrize("vector", CLEAR, ids=str)
def test_layers(vector: Vector) -> None:
    packet = Ether(vector.frame)
    above = packet[UDP].payload if not vector.native else packet[uet.UET_ENTROPY].payload
    found = []
    for layer in walk(above):
        if isinstance(layer, uet.UET_TRUNCATED):
            found.append("truncated")
        elif isinstance(layer, uet.UET_CRC):
            found.append("crc")
        else:
            found.append(layer.uet_name if isinstance(layer, UETLayer) else "payload")
    expected = [
        "ses.request_std" if name.startswith("ses.request_std") else name
        for name, _ in vector.layers
    ]
    assert found == expected


@pytest.mark.parametrize("vector", CLEAR, ids=str)
def test_build_from_the_fields_of_the_vector(vector: Vector) -> None:
    for name, octets in vector.layers:
        if name in ("payload", "crc", "truncated"):
            continue
        layer = _CLASSES[name]
        shown = {field.name: shown_name(layer, field.name) for field in layer.fields_desc}
        values = {
            field: golden.number(vector.fields[known])
            for field, known in shown.items()
            if known in vector.fields
        }
        assert bytes(layer(**values)) == octets


def forget_octets(packet: Packet) -> None:
    """Make scapy build every layer from its fields."""
    for layer in walk(packet):
        layer.raw_packet_cache = None


@pytest.mark.parametrize("vector", golden.ALL, ids=str)
def test_whole_frame_is_built_again(vector: Vector) -> None:
    packet = Ether(vector.frame)
    assert bytes(packet) == vector.frame
    forget_octets(packet)
    assert bytes(packet) == vector.frame


@pytest.mark.parametrize("vector", [v for v in CLEAR if v.name[:3] != "tr-"], ids=str)
def test_lengths_checksums_and_crc_are_computed(vector: Vector) -> None:
    packet = Ether(vector.frame)
    forget_octets(packet)
    for layer in walk(packet):
        if isinstance(layer, IP):
            del layer.len, layer.chksum, layer.ihl, layer.proto
        elif isinstance(layer, IPv6):
            del layer.plen, layer.nh
        elif isinstance(layer, UDP):
            del layer.len, layer.dport
            if not layer.chksum:
                del layer.chksum
        elif isinstance(layer, uet.UET_CRC):
            del layer.crc
        elif "next_hdr" in layer.fields and not isinstance(layer, uet.UET_NACK):
            del layer.next_hdr
    assert bytes(packet) == vector.frame


@pytest.mark.parametrize("vector", WITH_CRC, ids=str)
def test_crc_verifies_and_a_flipped_bit_fails(
    vector: Vector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conf, "debug_dissector", False)
    trailer = Ether(vector.frame)[uet.UET_CRC]
    assert trailer.expected() == trailer.crc == golden.number(vector.fields["crc"])
    envelope = open_frame(vector.frame)
    checksum = () if envelope.udp is None else (envelope.udp + 6, envelope.udp + 7)
    covered = range(envelope.ip + COVERAGE_START[envelope.version], len(vector.frame))
    for offset in set(covered[::3]) - set(checksum):
        frame = bytearray(vector.frame)
        frame[offset] ^= 0x10
        assert uet.UET_CRC not in Ether(bytes(frame))


def test_crc_can_be_demanded_and_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = WITH_CRC[0].frame
    damaged = frame[:-1] + bytes([frame[-1] ^ 1])
    assert uet.UET_CRC not in Ether(damaged)
    monkeypatch.setitem(conf.contribs["uet"], "crc", True)
    trailer = Ether(damaged)[uet.UET_CRC]
    assert trailer.crc != trailer.expected()
    monkeypatch.setitem(conf.contribs["uet"], "crc", False)
    assert uet.UET_CRC not in Ether(frame)


def test_entropy_that_is_the_port_of_another_protocol() -> None:
    for sport in (53, 67, 123, 500, 4789, 5353):
        packet = Ether() / IP(dst="10.0.1.2") / UDP(sport=sport) / uet.UET_ACK(cack_psn=9)
        assert Ether(bytes(packet))[uet.UET_ACK].cack_psn == 9


def test_stacking_sets_types_ports_and_next_headers() -> None:
    request = IP(src="10.0.1.2", dst="10.0.1.3") / UDP(sport=7) / uet.UET_ROD_REQ(psn=5)
    built = IP(bytes(request / uet.UET_REQ_CC_STATE() / uet.UET_SES_SMALL(opcode="READ")))
    assert (built[UDP].dport, built[UDP].chksum) == (4793, 0)
    assert (built[uet.UET_ROD_REQ].type, built[uet.UET_ROD_REQ].next_hdr) == (14, 1)
    assert built[uet.UET_SES_SMALL].opcode == 2


def test_reserved_type_and_short_packet_do_not_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conf, "debug_dissector", False)
    for octets in (b"\x00\x00\x01", b"\xff", b"\x11", b"\x11\x88\x00\x00"):
        bytes(IP(bytes(IP() / UDP(sport=7, dport=4793) / octets)))
