"""Many capture files into one pcapng file, in order of time.

Wireshark's own tools do the work where they exist.  :func:`join_pcap` writes the file itself, for
machines that have only tcpdump: its files carry no interface names, which is what pcapng is for.
"""

from __future__ import annotations

import heapq
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

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


def section(comment: str, application: str = "") -> bytes:
    """The block that a file begins with."""
    reported = options((COMMENT, comment.encode()), (_USER_APPLICATION, application.encode()))
    return block(_SECTION_HEADER, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1) + reported)


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
