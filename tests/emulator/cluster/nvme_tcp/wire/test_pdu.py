"""The reader of PDUs: any cut of a stream, and what it refuses by FES and FEI."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.cluster.nvme_tcp.wire.pdu import (
    COMMON,
    HDGST,
    HEADER_LENGTHS,
    LAST_PDU,
    FatalError,
    Pdu,
    PduError,
    PduReader,
    PduType,
    PduWriter,
    digest,
)

LIMITS = {PduType.CAPSULE_CMD: 8192, PduType.H2C_DATA: 4096, PduType.H2C_TERM_REQ: 0}


def ends(*, header: bool, data: bool, alignment: int) -> tuple[PduWriter, PduReader]:
    writer, reader = PduWriter(), PduReader(LIMITS)
    for one in (writer, reader):
        one.header_digest, one.data_digest, one.alignment = header, data, alignment
    return writer, reader


def read(reader: PduReader, *pieces: bytes) -> list[Pdu]:
    found = []
    for piece in pieces:
        reader.feed(piece)
        while (pdu := reader.next_pdu()) is not None:
            found.append(pdu)
    return found


def test_digest_is_crc32c_of_the_published_check_value() -> None:
    assert digest(b"123456789") == (0xE3069283).to_bytes(4, "little")  # RFC 3720, appendix B.4


def test_lengths_of_headers_are_those_of_the_specification() -> None:
    assert [HEADER_LENGTHS[kind] for kind in PduType] == [128, 128, 24, 24, 72, 24, 24, 24, 24]


@given(
    header=st.booleans(),
    data=st.booleans(),
    alignment=st.integers(0, 31),
    sizes=st.lists(st.integers(0, 4096), min_size=1, max_size=4),
    cuts=st.lists(st.integers(1, 5000), max_size=8),
)
def test_a_stream_may_be_cut_anywhere(
    header: bool, data: bool, alignment: int, sizes: list[int], cuts: list[int]
) -> None:
    writer, reader = ends(header=header, data=data, alignment=alignment)
    payloads = [bytes([size & 0xFF]) * size for size in sizes]
    stream = b"".join(
        b"".join(writer.capsule(PduType.CAPSULE_CMD, bytes(64), payload)) for payload in payloads
    )
    pieces, at = [], 0
    for cut in cuts:
        pieces.append(stream[at : at + cut])
        at += cut
    pieces.append(stream[at:])
    found = read(reader, *pieces)
    assert [pdu.data for pdu in found] == payloads
    assert all(pdu.data_intact and len(pdu.header) == 72 for pdu in found)


@given(alignment=st.integers(0, 31), header=st.booleans())
def test_data_lie_where_the_receiver_has_requested(alignment: int, header: bool) -> None:
    writer, _ = ends(header=header, data=False, alignment=alignment)
    octets = b"".join(writer.data(PduType.H2C_DATA, LAST_PDU, 7, 1, 0, b"x" * 12))
    place, total = octets[3], COMMON.unpack_from(octets)[4]
    assert place % (4 * (alignment + 1)) == 0
    assert place >= 24 + 4 * header
    assert (octets[place:], total) == (b"x" * 12, len(octets))


def changed(octets: bytes, at: int, value: int, size: int = 1) -> bytes:
    return octets[:at] + value.to_bytes(size, "little") + octets[at + size :]


COMMAND = b"".join(PduWriter().capsule(PduType.CAPSULE_CMD, bytes(64), b"d" * 512))
DATA = b"".join(PduWriter().data(PduType.H2C_DATA, LAST_PDU, 1, 1, 0, b"d" * 4096))


@pytest.mark.parametrize(
    ("octets", "status", "information"),
    [
        (changed(COMMAND, 0, 0x0A), FatalError.INVALID_HEADER_FIELD, 0),
        (changed(COMMAND, 0, PduType.C2H_DATA), FatalError.INVALID_HEADER_FIELD, 0),
        (changed(COMMAND, 1, HDGST), FatalError.INVALID_HEADER_FIELD, 1),
        (changed(COMMAND, 1, 2), FatalError.INVALID_HEADER_FIELD, 1),
        (changed(COMMAND, 2, 71), FatalError.INVALID_HEADER_FIELD, 2),
        (changed(COMMAND, 3, 71), FatalError.INVALID_HEADER_FIELD, 3),
        (changed(COMMAND, 3, 74), FatalError.INVALID_HEADER_FIELD, 3),
        (changed(COMMAND, 4, 8, 4), FatalError.INVALID_HEADER_FIELD, 4),
        (changed(COMMAND, 4, 72 + 8193, 4), FatalError.INVALID_HEADER_FIELD, 4),
        (changed(COMMAND, 4, 0xFFFFFFFF, 4), FatalError.INVALID_HEADER_FIELD, 4),
        (changed(DATA, 4, 24 + 4100, 4), FatalError.LIMIT_EXCEEDED, 0),
    ],
)
def test_a_bad_header_is_refused_before_its_data(
    octets: bytes, status: FatalError, information: int
) -> None:
    reader = PduReader(LIMITS)
    with pytest.raises(PduError) as caught:
        read(reader, octets[:72])
    assert (caught.value.status, caught.value.information) == (status, information)
    assert octets.startswith(caught.value.header)


def test_header_digest_that_does_not_fit_is_quoted() -> None:
    writer, reader = ends(header=True, data=False, alignment=0)
    octets = bytearray(b"".join(writer.capsule(PduType.CAPSULE_CMD, bytes(64))))
    octets[20] ^= 1
    with pytest.raises(PduError) as caught:
        read(reader, bytes(octets))
    assert caught.value.status == FatalError.HEADER_DIGEST_ERROR
    assert caught.value.information == int.from_bytes(octets[72:76], "little")


def test_data_digest_that_does_not_fit_is_reported_with_the_data() -> None:
    writer, reader = ends(header=True, data=True, alignment=1)
    octets = bytearray(b"".join(writer.capsule(PduType.CAPSULE_CMD, bytes(64), b"d" * 512)))
    octets[-100] ^= 1
    (pdu,) = read(reader, bytes(octets))
    assert not pdu.data_intact
