"""Layouts with fields at offsets, and those of Identify data."""

import pytest

from emulator.cluster.nvme_tcp.wire.layouts import (
    CONNECT_DATA,
    DISCOVERY_ENTRY,
    DO_NOT_RETRY,
    IDENTIFY_CONTROLLER,
    IDENTIFY_NAMESPACE,
    NvmeStatus,
    SparseLayout,
    padded_text,
    status_name,
)


def test_fields_lie_at_their_offsets_and_the_rest_is_zero() -> None:
    layout = SparseLayout(8, {"one": (2, "H"), "name": (5, "2s")})
    octets = layout.pack(one=0x1234, name=b"ab")
    assert octets == b"\0\0\x34\x12\0ab\0"
    assert layout.unpack(octets) == {"one": 0x1234, "name": b"ab"}
    assert layout.offset("name") == 5


def test_a_field_outside_is_refused() -> None:
    with pytest.raises(ValueError, match="outside"):
        SparseLayout(8, {"one": (6, "I")})


def test_sizes_of_structures() -> None:
    sizes = [one.size for one in (IDENTIFY_CONTROLLER, IDENTIFY_NAMESPACE, CONNECT_DATA)]
    assert sizes == [4096, 4096, 1024]
    assert DISCOVERY_ENTRY.size == 1024


@pytest.mark.parametrize("octets", [b"abc", b"abc   ", b"abc\0\0", b"abc\0xyz"])
def test_text_ends_at_padding(octets: bytes) -> None:
    assert padded_text(octets) == "abc"


def test_statuses_have_names() -> None:
    assert status_name(NvmeStatus.LBA_OUT_OF_RANGE | DO_NOT_RETRY) == "lba_out_of_range"
    assert status_name(0x7FF) == "type 0x7, code 0xff"
