"""Packets of pcapng files, whole, compressed, cut and damaged."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from scapy.utils import RawPcapNgReader

from emulator.dataplane.capture.pcapng import (
    ENHANCED_PACKET,
    INBOUND,
    OUTBOUND,
    Packet,
    block,
    read_packets,
    section,
)
from tests.harness.runs.written_folder import capture, directed_capture

FRAMES = [(1.5, "a:eth0 out", b"\1" * 61, 900), (2.25, "b:eth0 in", b"\2" * 64, 64)]
CONTENT = directed_capture(["a:eth0", "b:eth0", "c:eth0"], FRAMES)


def read(path: Path, content: bytes, ports: set[str] | None = None) -> list[Packet]:
    path.write_bytes(content)
    return list(read_packets(path, ports))


def test_packets_are_those_that_scapy_reads(tmp_path: Path) -> None:
    ports: set[str] = set()
    found = read(tmp_path / "x.pcapng", CONTENT, ports)
    assert ports == {"a:eth0", "b:eth0", "c:eth0"}
    assert [(one.way, one.length, one.octets) for one in found] == [
        (OUTBOUND, 900, b"\1" * 61),
        (INBOUND, 64, b"\2" * 64),
    ]
    with RawPcapNgReader(str(tmp_path / "x.pcapng")) as reader:
        for one, (octets, meta) in zip(found, reader, strict=True):
            assert one == Packet(
                (meta.tshigh << 32) + meta.tslow,
                meta.ifname.decode(),
                meta.direction,
                meta.wirelen,
                octets,
            )
    (without,) = read(tmp_path / "y.pcapng", capture([(1.0, 0, b"\3" * 7)]))
    assert (without.way, without.octets) == (0, b"\3" * 7)


def test_a_compressed_file_is_read(tmp_path: Path) -> None:
    whole = read(tmp_path / "x", CONTENT)
    assert read(tmp_path / "x.gz", gzip.compress(CONTENT)) == whole
    with pytest.raises(EOFError):
        read(tmp_path / "x.gz", gzip.compress(CONTENT)[:-20])


def test_a_cut_file_has_all_packets_before_the_cut(tmp_path: Path) -> None:
    whole = read(tmp_path / "x", CONTENT)
    for kept in range(1, len(CONTENT)):
        found = []
        ended = "whole"
        (tmp_path / "x").write_bytes(CONTENT[:kept])
        try:
            for one in read_packets(tmp_path / "x"):
                found.append(one)
        except (EOFError, ValueError) as error:
            ended = type(error).__name__
        assert found == whole[: len(found)]
        assert len(found) < len(whole)
        assert ended in ("EOFError", "whole") or kept < 4


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        (b"no capture, by far", "it is no pcapng file"),
        (section("x").replace(b"\x4d\x3c\x2b\x1a", b"\x1a\x2b\x3c\x4d"), "of another byte order"),
        (section("x") + block(ENHANCED_PACKET, bytes(20)), "a packet is malformed"),
        (section("x") + b"\6\0\0\0\xff\xff\xff\xff" + bytes(40), "a block has 4294967295 octets"),
    ],
)
def test_a_damaged_file_has_its_reason(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read(tmp_path / "x", content)
