"""Runs tshark with the generated dissector, and compares what it shows with the decoder."""

import shutil
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from tests import DATA
from uet.wire.frame import DecodedPacket
from uet.wire.wireshark import dissector
from uet.wire.wireshark.colors import ERRORS
from uet.wire.wireshark.names import DERIVED

CAPTURES = DATA / "captures"
TSHARK = shutil.which("tshark")

OWN = dissector.display_fields()
EXPERTS = list(ERRORS)
OTHERS = ["uet.trimmed", "uet.crc.status", "uet.tss.tsc", "uet.ses.std.restart_token"]
COLUMNS = sorted(
    {*(name for names in OWN.values() for name in names), *(name for name, _ in DERIVED.values())}
    | {*EXPERTS, *OTHERS}
)

Row = dict[str, list[str]]


def tshark(lua: Path, capture: Path, *arguments: str) -> str:
    """Return what tshark prints with nothing of the user's configuration; it must not complain."""
    command = [str(TSHARK), "-n", "-X", f"lua_script:{lua}", "-r", str(capture), *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "WIRESHARK_CONFIG_DIR": str(lua.parent), "HOME": "/nowhere"},
    )
    complaints = [line for line in done.stderr.splitlines() if not line.startswith("Running as")]
    assert not complaints
    assert "Lua Error" not in done.stdout
    assert str(lua) not in done.stdout
    return done.stdout


def rows(lua: Path, capture: Path, columns: list[str], *arguments: str) -> list[Row]:
    """The values of ``columns`` for each frame; none of them may have stopped the script."""
    asked = [*columns, "_ws.lua.error"]
    chosen = [option for column in asked for option in ("-e", column)]
    layout = ("-T", "fields", "-E", "occurrence=a", "-E", "aggregator=;", *chosen)
    found = [
        {
            column: text.split(";")
            for column, text in zip(asked, line.split("\t"), strict=True)
            if text
        }
        for line in tshark(lua, capture, *layout, *arguments).split("\n")[:-1]
    ]
    stopped = [number for number, row in enumerate(found, start=1) if "_ws.lua.error" in row]
    assert not stopped, f"Lua errors in frames {stopped[:5]}"
    return found


def write(path: Path, frames: Iterable[bytes], *, wire: Iterable[int] = ()) -> Path:
    """A capture of ``frames``, which had ``wire`` octets before they were cut."""
    chosen = list(frames)
    lengths = list(wire) or [len(frame) for frame in chosen]
    records = (
        struct.pack("<IIII", 0, number, len(frame), length) + frame
        for number, (frame, length) in enumerate(zip(chosen, lengths, strict=True))
    )
    path.write_bytes(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1) + b"".join(records))
    return path


def number(text: str) -> int:
    if text in ("True", "False"):
        return int(text == "True")
    plain = text.replace(":", "")
    return int(plain, 0) if plain.lstrip("-").isdecimal() or "x" in plain else int(plain, 16)


def value(name: str, text: str) -> int:
    return int(text.replace(":", ""), 16) if name.endswith("_value") else number(text)


def disagreements(row: Row, decoded: DecodedPacket) -> list[str]:
    """In what a frame's row of :data:`COLUMNS` differs from what the decoder says."""
    found = []
    for own, expected in decoded.fields.items():
        if own not in OWN:
            continue  # IP and UDP are Wireshark's own
        shown = [value(name, each) for name in OWN[own] for each in row.get(name, [])]
        if shown != [expected]:
            found.append(f"{own}: {shown} for {expected}")
    for own, expected in decoded.derived.items():
        shown = [number(each) for each in row.get(DERIVED[own][0], [])]
        if shown != [expected]:
            found.append(f"{own}: {shown} for {expected}")
    flawed = any(expert in row for expert in EXPERTS)
    if flawed != bool(decoded.errors):
        found.append(f"experts {[e for e in EXPERTS if e in row]} for {decoded.errors}")
    if ("uet.trimmed" in row) != decoded.trimmed:
        found.append(f"trimmed is {decoded.trimmed}")
    return found


def read_pcap(path: Path) -> list[bytes]:
    data = path.read_bytes()
    order: Literal["little", "big"] = "little" if data[:4] == b"\xd4\xc3\xb2\xa1" else "big"
    frames, at = [], 24
    while at < len(data):
        length = int.from_bytes(data[at + 8 : at + 12], order)
        frames.append(data[at + 16 : at + 16 + length])
        at += 16 + length
    return frames


def summaries(lua: Path, capture: Path, *arguments: str) -> list[str]:
    layout = ("-T", "fields", "-e", "_ws.col.Protocol", "-e", "_ws.col.Info")
    return tshark(lua, capture, *layout, *arguments).splitlines()


def compare(lua: Path, capture: Path, decoded: list[DecodedPacket], *arguments: str) -> None:
    shown = rows(lua, capture, COLUMNS, *arguments)
    wrong = [
        f"frame {at}: {found}"
        for at, (row, packet) in enumerate(zip(shown, decoded, strict=True), start=1)
        if (found := disagreements(row, packet))
    ]
    assert wrong[:3] == []


def _block(kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    return struct.pack("<II", kind, len(body) + 12) + body + struct.pack("<I", len(body) + 12)


def write_ports(path: Path, sections: list[list[tuple[int, int, bytes]]]) -> Path:
    """A pcapng of sections, with frames as (interface, microseconds, octets)."""
    octets = b""
    for frames in sections:
        octets += _block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
        for _ in range(1 + max(interface for interface, _, _ in frames)):
            octets += _block(1, struct.pack("<HHI", 1, 0, 0))
        for interface, when, frame in frames:
            head = struct.pack("<IIIII", interface, 0, when, len(frame), len(frame))
            octets += _block(6, head + frame)
    path.write_bytes(octets)
    return path
