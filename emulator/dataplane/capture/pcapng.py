"""Many capture files into one pcapng file, in order of time, and the packets of one.

Wireshark's own tools join where they exist.  :func:`join_pcap` writes the file itself, for
machines that have only tcpdump: its files carry no interface names, which is what pcapng is for.
"""

from __future__ import annotations

import gzip
import heapq
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from emulator.errors import UserError
from emulator.whole_file import whole_file


def join(parts: Sequence[Path], output: Path, comment: str) -> None:
    """Join pcapng ``parts`` into ``output``; each keeps its interfaces and their names.

    Parts that end in the middle of a packet (their writer was killed) give what they have. dumpcap
    writes the frames of several ports block by block. So a part is not in order in itself, and a
    merge by time alone would not be either: the result is sorted.
    """
    merged, ordered, commented = (
        output.with_name(f"{output.name}.{step}") for step in ("merged", "ordered", "commented")
    )
    requested = [part for part in parts if part.is_file() and part.stat().st_size]
    if not requested:
        raise UserError("the capture is empty: no sniffer lived long enough to write its file")
    trimmed: list[Path] = []
    try:
        try:
            _concatenate(requested, merged)
        except UserError:
            # mergecap gives up all that is left when one part is cut; editcap saves the rest.
            for part in requested:
                trimmed.append(part.with_name(f"{part.name}.trimmed"))
                _tool("editcap", str(part), str(trimmed[-1]))
            _concatenate(trimmed, merged)
        found = _tool("reordercap", "-n", str(merged), str(ordered))
        if found.startswith("0 frames"):
            merged.replace(output)  # editcap would forget the interfaces of an empty capture
            return
        source = merged if ", 0 out of order" in found else ordered
        comments = ["--discard-capture-comment", "--capture-comment", comment]
        _tool("editcap", *comments, str(source), str(commented))
        commented.replace(output)
    finally:
        for leftover in (merged, ordered, commented, *trimmed):
            leftover.unlink(missing_ok=True)


def _concatenate(parts: Sequence[Path], output: Path) -> None:
    _tool("mergecap", "-a", "-I", "none", "-F", "pcapng", "-w", str(output), *map(str, parts))


def _tool(*argv: str) -> str:
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        words = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise UserError(f"the capture could not be joined: {words[-1]}; its parts are kept")
    return done.stdout


# The pcap and pcapng formats (draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng).
_PCAP_NANOSECONDS = 0xA1B23C4D
_SECTION_HEADER, _INTERFACE, ENHANCED_PACKET = 0x0A0D0D0A, 1, 6
COMMENT = 1
_IF_NAME, _USER_APPLICATION, _IF_TSRESOL = 2, 4, 9
#: Of a packet: the option, and which way the packet went.
FLAGS, INBOUND, OUTBOUND = 2, 1, 2
_LINKTYPE_ETHERNET = 1
_PCAP_HEADER = struct.Struct("<IHHiIII")
_PCAP_RECORD = struct.Struct("<IIII")
_BYTE_ORDER = 0x1A2B3C4D
_BLOCK, _PACKET, _OPTION = (struct.Struct(form) for form in ("<II", "<IIIII", "<HH"))
#: Octets of an empty block, and of one that is damaged.
_LEAST_BLOCK, _LARGEST_BLOCK = 12, 2**24
_GZIP = b"\x1f\x8b"


def section(comment: str, application: str = "") -> bytes:
    """The block that a file begins with."""
    reported = options((COMMENT, comment.encode()), (_USER_APPLICATION, application.encode()))
    return block(_SECTION_HEADER, struct.pack("<IHHq", _BYTE_ORDER, 1, 0, -1) + reported)


def interface(name: str, snaplen: int = 0) -> bytes:
    """The block of an Ethernet port whose packets have times in ns; ``snaplen`` 0: no limit."""
    named = options((_IF_NAME, name.encode()), (_IF_TSRESOL, b"\x09"))
    return block(_INTERFACE, struct.pack("<HHI", _LINKTYPE_ETHERNET, 0, snaplen) + named)


def options(*given: tuple[int, bytes]) -> bytes:
    """Options by code, and the one that ends them; those without a value are left out."""
    packed = [
        struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)
        for code, value in given
        if value
    ]
    return b"".join(packed) + struct.pack("<HH", 0, 0)


def block(kind: int, body: bytes) -> bytes:
    """A block of ``body``, whose length is a multiple of four."""
    length = 12 + len(body)
    return struct.pack("<II", kind, length) + body + struct.pack("<I", length)


def join_pcap(parts: Sequence[tuple[str, Path]], output: Path, comment: str) -> None:
    """Join nanosecond pcap files, given with the name of their interface, into a pcapng file."""
    with whole_file(output) as fresh, fresh.open("wb") as out:
        out.write(section(comment))
        for name, _ in parts:
            out.write(interface(name))
        frames = [_read_pcap(path, number) for number, (_, path) in enumerate(parts)]
        for time_ns, number, length, frame in heapq.merge(*frames):
            head = struct.pack(
                "<IIIII", number, time_ns >> 32, time_ns & 0xFFFFFFFF, len(frame), length
            )
            out.write(block(ENHANCED_PACKET, head + frame + bytes(-len(frame) % 4)))


def _read_pcap(path: Path, number: int) -> Iterator[tuple[int, int, int, bytes]]:
    """(time in ns, ``number``, length on the wire, captured octets); ends where the file is cut."""
    with path.open("rb") as file:
        header = file.read(_PCAP_HEADER.size)
        if len(header) < _PCAP_HEADER.size:
            return
        if _PCAP_HEADER.unpack(header)[0] != _PCAP_NANOSECONDS:
            raise UserError(f"{path} is not a nanosecond pcap file of this machine's byte order")
        while len(record := file.read(_PCAP_RECORD.size)) == _PCAP_RECORD.size:
            seconds, nanoseconds, captured, length = _PCAP_RECORD.unpack(record)
            frame = file.read(captured)
            if len(frame) < captured:
                return
            yield seconds * 1_000_000_000 + nanoseconds, number, length, frame


class Packet(NamedTuple):
    """A packet of a file: its time (ns), the name of its interface, the way, length and octets.

    ``way`` is INBOUND or OUTBOUND, or 0 where the file does not say it.
    """

    at_ns: int
    port: str
    way: int
    length: int
    octets: bytes


def read_packets(path: Path, ports: set[str] | None = None) -> Iterator[Packet]:
    """Yield the packets of a pcapng file, also of one that gzip compressed.

    ``ports`` gets the names of all interfaces.  Raises EOFError where the file ends within a block,
    and ValueError or OSError where it is damaged.
    """
    interfaces: list[tuple[str, int]] = []
    with path.open("rb") as raw, gzip.open(raw) if raw.peek(2)[:2] == _GZIP else raw as file:
        kind = 0
        while head := file.read(_BLOCK.size):
            before, (kind, length) = kind, _BLOCK.unpack(head.ljust(_BLOCK.size, b"\0"))
            if not before and kind != _SECTION_HEADER:
                raise ValueError("it is no pcapng file")
            if len(head) == _BLOCK.size and not _LEAST_BLOCK <= length <= _LARGEST_BLOCK:
                raise ValueError(f"a block has {length} octets")
            body = file.read(max(0, length - len(head)))
            if len(head) + len(body) < length or len(head) < _BLOCK.size:
                raise EOFError("it ends in the middle of a block")
            if kind == ENHANCED_PACKET and len(body) >= _PACKET.size:
                number, high, low, captured, wire = _PACKET.unpack_from(body)
                if number >= len(interfaces) or captured > len(body) - _PACKET.size:
                    raise ValueError("a packet is malformed")
                port, ticks = interfaces[number]
                end = _PACKET.size + captured
                way = int.from_bytes(_option(body, end + -captured % 4, FLAGS), "little") & 3
                at = (high << 32 | low) * 10**9 // ticks
                yield Packet(at, port, way, wire, body[_PACKET.size : end])
            elif kind == _INTERFACE:
                resolution = (_option(body, 8, _IF_TSRESOL) or b"\x06")[0]
                port = _option(body, 8, _IF_NAME).decode(errors="replace")
                base = 2 if resolution & 0x80 else 10
                interfaces.append((port, base ** (resolution & 0x7F)))
                if ports is not None:
                    ports.add(port)
            elif kind == _SECTION_HEADER:
                if int.from_bytes(body[:4], "little") != _BYTE_ORDER:
                    raise ValueError("it is of another byte order")
                interfaces.clear()
    if not kind:
        raise ValueError("it is empty")


def _option(body: bytes, at: int, wanted: int) -> bytes:
    """Return the value of an option of a block, empty without it; its options begin ``at``."""
    while at + _OPTION.size <= len(body) - 4:
        code, size = _OPTION.unpack_from(body, at)
        at += _OPTION.size
        if code == wanted:
            return body[at : at + size]
        if not code:
            break
        at += size + -size % 4
    return b""
