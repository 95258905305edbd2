"""The fast codec and scapy agree on every field of every header, whatever the values."""

import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.fields import BitField, ConditionalField
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from emulator.rocev2.wire import headers as rocev2
from uet.wire import headers
from uet.wire.codec import Field, Header, compile_stack, header
from uet.wire.codes import CSWAP_OPCODES, Datatype, ErrorClass, NackCode, NextHeader, PacketType
from uet.wire.encapsulation import UETLayer

COMPILED = {name: header for name, header in vars(headers).items() if isinstance(header, Header)}
ROCEV2 = [header for header in vars(rocev2).values() if isinstance(header, Header)]
OURS = {
    name: header
    for name, header in COMPILED.items()
    if header.layer is not None and issubclass(header.layer, UETLayer)
}


def overlay_of(header: Header) -> dict[str, Any]:
    """Return the values of the fields that decide which of its layer's variants a header is."""
    return {
        field.name: field.default
        for field in header.fields
        if field.name in ("syn", "p", "nt", "sp", "cc_type")
        or (field.name == "opcode" and field.default)
    }


def described(header: Header) -> tuple[Field, ...]:
    """Return the fields of a header as its layer describes them, but for those at its end."""
    assert header.layer is not None
    decide = {*overlay_of(header), "som", "hd"}
    given = {field.name: field.default for field in header.fields if field.name in decide}
    if header.name in ("ip", "ip6"):
        given |= {field.name: field.default for field in header.fields[:2] if field.width == 4}
    probe = header.layer(**given)
    fields: list[Field] = []
    offset = 0
    for description in header.layer.fields_desc:
        if isinstance(description, ConditionalField):
            if not description.cond(probe):
                continue
            description = description.fld
        if description.name in ("options", "icrc"):
            continue
        is_bits = isinstance(description, BitField)
        width = int(description.size if is_bits else description.sz * 8)
        octets = description.fmt[-1] == "s" and not is_bits
        default = given.get(description.name, description.default)
        fields.append(
            Field(
                description.name,
                offset,
                width,
                bytes(width // 8) if octets else int(default or 0),
                signed=description.fmt[-1] in "bhiq" and not is_bits,
                octets=octets,
            )
        )
        offset += width
    return tuple(fields)


def values_of(header: Header) -> st.SearchStrategy[dict[str, Any]]:
    """Any values of a header's fields that keep to its overlay variant."""

    overlay = overlay_of(header)

    def values(octets: bytes) -> dict[str, Any]:
        return {**header.values(octets), **overlay}

    anything = st.binary(min_size=header.size, max_size=header.size).map(values)
    layer = header.layer
    if layer is None or not any(isinstance(f, ConditionalField) for f in layer.fields_desc):
        return anything
    return anything.filter(lambda values: active(layer(**values)) == header.names)


def active(packet: Packet) -> tuple[str, ...]:
    """Names of the fields that a layer with these values has on the wire."""
    return tuple(
        field.name
        for field in packet.fields_desc
        if not (isinstance(field, ConditionalField) and not field.cond(packet))
    )


@pytest.mark.parametrize("compiled", [*COMPILED.values(), *ROCEV2], ids=lambda header: header.name)
def test_a_header_is_what_its_layer_describes(compiled: Header) -> None:
    """Names, order, places, widths, defaults and kinds of its fields."""
    assert compiled.fields == described(compiled)


@pytest.mark.parametrize("name", OURS)
def test_both_codecs_agree(name: str) -> None:
    header = OURS[name]
    layer = header.layer
    assert layer is not None

    @given(values_of(header))
    def agree(values: dict[str, Any]) -> None:
        octets = header.encode(**values)
        assert len(octets) == header.size
        assert bytes(layer(**values)) == octets
        assert dict(zip(header.names, header.decode(octets), strict=True)) == values
        dissected = layer(octets)
        assert {field: dissected.getfieldval(field) for field in header.names} == values
        assert header.pack(*header.unpack_from(octets)) == octets

    agree()


@given(values_of(headers.IPV4))
def test_ipv4_agrees(values: dict[str, Any]) -> None:
    octets = headers.IPV4.encode(**values)
    addresses = {name: socket.inet_ntoa(values[name]) for name in ("src", "dst")}
    assert bytes(IP(**{**values, **addresses})) == octets
    assert headers.IPV4.values(octets) == values


@given(values_of(headers.UDP_HEADER))
def test_udp_agrees(values: dict[str, Any]) -> None:
    assert bytes(UDP(**values)) == headers.UDP_HEADER.encode(**values)


@given(st.binary(min_size=6, max_size=6), st.binary(min_size=6, max_size=6), st.integers(0, 65535))
def test_ethernet_agrees(destination: bytes, source: bytes, ethertype: int) -> None:
    frame = headers.ETHERNET.encode(destination, source, ethertype)
    built = Ether(dst=destination.hex(":"), src=source.hex(":"), type=ethertype)
    assert bytes(built) == frame


STACK = compile_stack(
    headers.ETHERNET, headers.IPV4, headers.UDP_HEADER, headers.RUD_REQ, headers.SES_STD_SOM
)


@given(st.binary(min_size=STACK.size, max_size=STACK.size))
def test_a_stack_is_its_headers_in_a_row(frame: bytes) -> None:
    parts = (
        headers.ETHERNET,
        headers.IPV4,
        headers.UDP_HEADER,
        headers.RUD_REQ,
        headers.SES_STD_SOM,
    )
    fields: tuple[Any, ...] = ()
    words: tuple[Any, ...] = ()
    offset = 0
    for part in parts:
        fields += part.decode(frame, offset)
        words += part.unpack_from(frame, offset)
        offset += part.size
    assert STACK.decode(frame) == fields
    assert STACK.unpack_from(frame) == words
    assert STACK.encode(*fields) == STACK.pack(*words) == frame


@pytest.mark.parametrize("name", COMPILED)
def test_out_of_range_values_are_refused_by_name(name: str) -> None:
    header = COMPILED[name]
    for field in header.fields:
        bad: list[Any]
        if field.octets:
            bad = [bytes(field.width // 8 + 1), b""]
        elif field.signed:
            bad = [1 << (field.width - 1), -(1 << (field.width - 1)) - 1]
        else:
            bad = [1 << field.width, -1]
        for value in bad:
            with pytest.raises(ValueError, match=field.name):
                header.encode(**{field.name: value})


@pytest.mark.parametrize("name", COMPILED)
def test_short_buffers_are_refused(name: str) -> None:
    header = COMPILED[name]
    for left in (0, header.size - 1):
        with pytest.raises(ValueError, match="octets"):
            header.decode(bytes(left + 3), 3)
    with pytest.raises(ValueError, match="octets"):
        header.decode(bytes(header.size), header.size + 9)


def test_words_masks_and_shifts() -> None:
    prologue = headers.RUD_REQ.word(next_hdr=NextHeader.REQUEST_STD, ar=1)
    assert prologue == 0x1188
    assert prologue & headers.RUD_REQ.mask("ar")
    assert prologue >> headers.RUD_REQ.shift("type") == PacketType.RUD_REQ
    octets = headers.RUD_REQ.pack(prologue, -3, 0x01020304, 0x1A2B, 0x3C4D)
    assert octets.hex() == "1188fffd010203041a2b3c4d"
    with pytest.raises(ValueError, match="one word"):
        headers.RUD_REQ.word(ar=1, psn=2)
    with pytest.raises(ValueError, match="ar"):
        headers.RUD_REQ.word(ar=2)


def test_fields_that_fill_no_words_are_a_type_error() -> None:
    with pytest.raises(TypeError, match="whole words"):
        header("odd", "scapy.packet.Raw", "a:5 b:7")


def test_code_tables() -> None:
    assert NackCode.TRIMMED.error_class is ErrorClass.NORMAL
    assert NackCode.ACK_WITH_DATA.error_class is ErrorClass.PDC_ERR
    assert NackCode.INVALID_SYN.error_class is ErrorClass.PDC_FATAL
    assert {code.error_class for code in NackCode} == set(ErrorClass)
    assert sorted(CSWAP_OPCODES) == list(range(0x0D, 0x13))
    assert [Datatype.UINT64.size, Datatype.LONG_DOUBLE.size, Datatype.FP16.size] == [8, None, 2]
