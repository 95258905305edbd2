"""The fast codec against the golden vectors, field by field and bit for bit."""

import pytest

from tests.harness.wire import golden
from tests.harness.wire.golden import CLEAR, TRIMMED_DSCP, WITH_CRC, Vector
from uet.wire import headers
from uet.wire.codec import Header
from uet.wire.dispatch import RESPONSES, pds_header, request_header
from uet.wire.frame import DecodedPacket, decode_frame
from uet.wire.naming import label

_REQUEST_FORMATS = {
    "ses.request_small": 1,
    "ses.request_medium": 2,
    "ses.request_std_som": 3,
    "ses.request_std_nosom": 3,
}
_FIXED = {
    header.name: header
    for header in (
        headers.REQ_CC_STATE,
        headers.SES_RENDEZVOUS,
        headers.SES_ATOMIC,
        headers.SES_CSWAP,
        *RESPONSES.values(),
    )
}


def decode(vector: Vector) -> DecodedPacket:
    return decode_frame(vector.frame, trimmed_dscp=frozenset({TRIMMED_DSCP}))


def header_of(name: str, octets: bytes) -> Header:
    if name in _FIXED:
        return _FIXED[name]
    if name in _REQUEST_FORMATS:
        return request_header(_REQUEST_FORMATS[name], octets)
    return pds_header(octets)


@pytest.mark.parametrize("vector", CLEAR, ids=str)
def test_fields_and_derived(vector: Vector) -> None:
    packet = decode(vector)
    shown = packet.presented_fields()
    if vector.name.startswith("ws-"):  # their files leave the DSCP out
        del shown["ip.dscp"]
    assert shown == vector.fields
    assert {type(value) for value in shown.values()} <= {int, str}
    assert packet.derived == vector.derived


@pytest.mark.parametrize("vector", CLEAR, ids=str)
def test_layers(vector: Vector) -> None:
    packet = decode(vector)
    found = [
        (layer.name, vector.frame[layer.offset : layer.offset + layer.length])
        for layer in packet.layers
    ]
    assert found == vector.layers


@pytest.mark.parametrize("vector", CLEAR, ids=str)
def test_errors_only_where_the_sample_lacks_its_payload(vector: Vector) -> None:
    errors = decode(vector).errors
    if "header_only" in vector.restrictions:
        (error,) = errors
        assert "payload_length" in error
    else:
        assert errors == []


@pytest.mark.parametrize("vector", CLEAR, ids=str)
def test_encode_from_the_fields_of_the_vector(vector: Vector) -> None:
    """From the published numbers alone, so that decode and encode cannot err together."""
    for name, octets in vector.layers:
        if name in ("payload", "crc", "truncated"):
            continue
        header = header_of(name, octets)
        values = {}
        for field in header.fields:
            shown = label(header, field)
            if shown is not None:
                values[field.name] = golden.number(vector.fields[shown])
        assert header.encode(**values) == octets


@pytest.mark.parametrize("vector", CLEAR, ids=str)
def test_encode_from_the_decoded_layers(vector: Vector) -> None:
    for layer in decode(vector).layers:
        octets = vector.frame[layer.offset : layer.offset + layer.length]
        if layer.header is not None:
            assert layer.encode() == octets
            words = layer.header.unpack_from(vector.frame, layer.offset)
            assert layer.header.pack(*words) == octets


@pytest.mark.parametrize("vector", golden.ALL, ids=str)
def test_headers_below_uet_are_encoded_bit_for_bit(vector: Vector) -> None:
    packet = decode(vector)
    ip = headers.IPV4 if packet.envelope.version == 4 else headers.IPV6
    below = headers.UDP_HEADER if packet.envelope.udp else headers.ENTROPY
    assert packet.envelope.uet is not None
    for header, offset in (
        (headers.ETHERNET, 0),
        (ip, packet.envelope.ip),
        (below, packet.envelope.uet - below.size),
    ):
        values = header.decode(vector.frame, offset)
        assert header.encode(*values) == vector.frame[offset : offset + header.size]


@pytest.mark.parametrize("vector", WITH_CRC, ids=str)
def test_crc_is_found_and_a_flipped_bit_loses_it(vector: Vector) -> None:
    packet = decode(vector)
    assert packet.presented_fields()["crc"] == vector.fields["crc"]
    assert packet.layer_names[-1] == "crc"
    covered = range(
        packet.envelope.ip + (12 if packet.envelope.version == 4 else 8), len(vector.frame)
    )
    for offset in covered:
        if packet.envelope.udp is not None and offset - packet.envelope.udp in (6, 7):
            continue  # the UDP checksum counts as zero
        for bit in (0x01, 0x80):
            frame = bytearray(vector.frame)
            frame[offset] ^= bit
            assert decode_frame(bytes(frame)).fields.get("crc") is None


def test_crc_on_reports_a_wrong_one() -> None:
    vector = WITH_CRC[0]
    frame = vector.frame[:-1] + bytes([vector.frame[-1] ^ 1])
    packet = decode_frame(frame, crc="on")
    assert packet.layer_names[-1] == "crc"
    assert any("CRC" in error for error in packet.errors)


def test_crc_off_leaves_it_to_the_payload() -> None:
    vector = next(v for v in WITH_CRC if v.name == "rp-rud-req-write-last")
    packet = decode_frame(vector.frame, crc="off")
    assert "crc" not in packet.fields
    assert packet.layer_names[-1] == "payload"


@pytest.mark.parametrize("vector", [v for v in golden.ALL if v.is_tss], ids=str)
def test_security_header(vector: Vector) -> None:
    packet = decode(vector)
    assert packet.layer_names == ["tss", "payload", "icv"]
    expected = {name: value for name, value in vector.fields.items() if name[:4] == "tss."}
    shown = packet.presented_fields()
    assert {name: shown[name] for name in shown if name[:4] == "tss."} == expected
    assert packet.layers[0].encode() == vector.layers[0][1]
    last = packet.layers[-1]
    assert vector.frame[last.offset :] == vector.layers[-1][1]
