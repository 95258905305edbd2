"""The generated dissector in a real tshark, against the golden vectors and the decoder."""

import random
from pathlib import Path

import pytest

from tests.harness.wire import golden
from tests.harness.wire.tshark import (
    CAPTURES,
    COLUMNS,
    OWN,
    TSHARK,
    compare,
    disagreements,
    number,
    read_pcap,
    rows,
    tshark,
    value,
    write,
)
from uet.wire.frame import CrcMode, decode_frame
from uet.wire.wireshark.names import DERIVED

pytestmark = pytest.mark.skipif(TSHARK is None, reason="tshark is not installed")


def test_every_golden_vector_is_shown_as_the_vector_has_it(lua: Path, tmp_path: Path) -> None:
    capture = write(tmp_path / "all.pcap", (vector.frame for vector in golden.ALL))
    shown = rows(lua, capture, COLUMNS)
    assert len(shown) == len(golden.ALL)
    for vector, row in zip(golden.ALL, shown, strict=True):
        if vector.crc_only:
            assert row["uet.error.type"]
            assert row["uet.crc.status"] == ["1"]
            continue
        compared = 0
        for own, expected in vector.fields.items():
            if own not in OWN or (vector.is_tss and not own.startswith(("tss.", "entropy."))):
                continue
            found = [value(name, each) for name in OWN[own] for each in row.get(name, [])]
            assert found == [golden.number(expected)], f"{vector}: {own}"
            compared += 1
        assert compared >= 2, vector
        if not vector.is_tss:
            for own, expected in vector.derived.items():
                name = DERIVED[own][0]
                assert [number(each) for each in row[name]] == [expected], f"{vector}: {own}"


def test_every_golden_vector_is_shown_as_the_decoder_has_it(lua: Path, tmp_path: Path) -> None:
    capture = write(tmp_path / "all.pcap", (vector.frame for vector in golden.ALL))
    for vector, row in zip(golden.ALL, rows(lua, capture, COLUMNS), strict=True):
        assert disagreements(row, decode_frame(vector.frame)) == [], vector


def test_captures_of_the_reference_provider(lua: Path, tmp_path: Path) -> None:
    captures = sorted(CAPTURES.glob("*.pcap"))
    assert len(captures) == 46
    frames = [frame for capture in captures for frame in read_pcap(capture)]
    shown = rows(lua, write(tmp_path / "all.pcap", frames), COLUMNS)
    assert len(shown) == len(frames)
    for frame, row in zip(frames, shown, strict=True):
        decoded = decode_frame(frame)
        assert decoded.errors == []
        assert disagreements(row, decoded) == []


#: One vector per layout, so that cutting them at every length stays quick.
SHAPES = list({tuple(name for name, _ in v.layers): v for v in golden.ALL}.values())


def udp_at(frame: bytes | bytearray) -> int | None:
    """Offset of the UDP header in a vector without VLAN tag or IPv6 extension."""
    v4 = frame[14] >> 4 == 4
    if frame[23 if v4 else 20] != 17:
        return None
    return 14 + ((frame[14] & 15) * 4 if v4 else 40)


def shortened(frame: bytes, length: int, *, trimmed: bool = False) -> bytes:
    """``frame`` as a packet of ``length`` octets; as switches trim, UDP's length stays."""
    short = bytearray(frame[:length])
    v4 = frame[14] >> 4 == 4
    where, size = (16, length - 14) if v4 else (18, length - 54)
    short[where : where + 2] = size.to_bytes(2, "big")
    udp = udp_at(frame)
    if udp is not None and not trimmed:
        short[udp + 4 : udp + 6] = (length - udp).to_bytes(2, "big")
    return bytes(short)


def header_end(frame: bytes | bytearray) -> int:
    """Return where UET begins; Wireshark asks no dissector about a UDP packet without any octet."""
    udp = udp_at(frame)
    v4 = frame[14] >> 4 == 4
    return 14 + (20 if v4 else 40) + 4 if udp is None else udp + 8


def test_packets_that_are_too_short(lua: Path, tmp_path: Path) -> None:
    frames = [
        shortened(vector.frame, length)
        for vector in SHAPES
        for length in range(header_end(vector.frame) + 1, len(vector.frame))
    ]
    assert len(frames) > 1000
    compare(lua, write(tmp_path / "short.pcap", frames), [decode_frame(f) for f in frames])


def test_packets_trimmed_at_every_length(lua: Path, tmp_path: Path) -> None:
    frames = [
        shortened(vector.frame, length, trimmed=True)
        for vector in SHAPES
        if udp_at(vector.frame) is not None
        for length in range(header_end(vector.frame) + 1, len(vector.frame))
    ]
    decoded = [decode_frame(frame) for frame in frames]
    assert all(packet.trimmed for packet in decoded)
    capture = write(tmp_path / "trimmed.pcap", frames)
    compare(lua, capture, decoded)
    assert tshark(lua, capture, "-Y", "udp.length.bad") == ""
    udp = rows(lua, capture, ["udp.length"], "-Y", "udp.dstport == 4793 && udp.srcport")
    assert [number(row["udp.length"][-1]) for row in udp] == [
        int.from_bytes(frame[at + 4 : at + 6], "big") for frame in frames if (at := udp_at(frame))
    ]


def test_a_udp_length_beyond_ip_is_malformed_where_code_points_mark_trimming(
    lua: Path, tmp_path: Path
) -> None:
    """So it is in a packet for another port, and in one that ends before its IP length does."""
    (vector, *_) = (v for v in SHAPES if udp_at(v.frame) == 34)
    frame = shortened(vector.frame, 70, trimmed=True)
    other = frame[:36] + (4794).to_bytes(2, "big") + frame[38:]
    shown = ("-Y", "udp.length.bad")
    assert len(rows(lua, write(tmp_path / "o", [other, vector.frame[:70]]), [], *shown)) == 2
    assert len(rows(lua, write(tmp_path / "t", [frame]), [], *shown, "-o", "uet.dscp:1")) == 1
    assert rows(lua, tmp_path / "t", [], *shown) == []


def test_frames_that_the_capture_cut(lua: Path, tmp_path: Path) -> None:
    cut = [
        (vector.frame[:length], len(vector.frame))
        for vector in SHAPES
        for length in range(header_end(vector.frame) + 1, len(vector.frame))
    ]
    capture = write(tmp_path / "cut.pcap", (f for f, _ in cut), wire=(wire for _, wire in cut))
    compare(lua, capture, [decode_frame(frame, wire_length=wire) for frame, wire in cut])


def test_frames_cut_without_a_word(lua: Path, tmp_path: Path) -> None:
    """Every octet may be the last one: no script error, which :func:`tshark` looks for."""
    frames = [vector.frame[:n] for vector in SHAPES for n in range(14, len(vector.frame))]
    assert len(rows(lua, write(tmp_path / "cut.pcap", frames), COLUMNS)) == len(frames)


def test_random_octets_behind_a_udp_header(lua: Path, tmp_path: Path) -> None:
    rng = random.Random(4793)
    start = golden.ALL[0].frame[:42]
    frames = [
        shortened(start + bytes([kind << 3 | rng.randrange(8)]) + rng.randbytes(size), 43 + size)
        for kind in range(32)
        for size in range(0, 120, 4)
    ]
    compare(lua, write(tmp_path / "random.pcap", frames), [decode_frame(f) for f in frames])


@pytest.mark.parametrize("crc", ["auto", "on", "off"])
def test_octets_changed_at_random(lua: Path, tmp_path: Path, crc: CrcMode) -> None:
    rng = random.Random(253)
    frames = []
    for vector in golden.ALL:
        for _ in range(8):
            frame = bytearray(vector.frame)
            for _ in range(rng.randint(1, 4)):
                frame[rng.randrange(header_end(frame), len(frame))] = rng.randrange(256)
            frames.append(bytes(frame))
    capture = write(tmp_path / "changed.pcap", frames)
    stated = {"auto": "Automatic", "on": "Always", "off": "Never"}[crc]
    decoded = [decode_frame(frame, crc=crc) for frame in frames]
    compare(lua, capture, decoded, "-o", f"uet.crc:{stated}")
