"""The report of a running endpoint: one JSON object a line, or lines for people.

Every event has ``event`` and ``time`` (seconds since the endpoint began).
"""

from __future__ import annotations

import io
import json
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import TextIO

from emulator.dataplane.capture import pcapng
from emulator.errors import UserError

_WIDTH = 10
#: What a line for people leaves out, because it is long or reported elsewhere.
_HIDDEN = frozenset({"config", "counters", "nic", "sha256", "unix_time"})


class EventReport:
    """Writes events to ``out``, each as soon as it happens."""

    def __init__(self, out: TextIO, *, table: bool) -> None:
        self._out = out
        self._table = table
        self._begun = time.monotonic_ns()

    def event(self, name: str, **data: object) -> None:
        """Report one event; fields that are ``None`` are left out."""
        elapsed = (time.monotonic_ns() - self._begun) / 1e9
        reported = {key: value for key, value in data.items() if value is not None}
        if self._table:
            self._out.write(_line(name, elapsed, reported))
        else:
            line = {"event": name, "time": round(elapsed, 6), **reported}
            self._out.write(json.dumps(line, separators=(", ", ": ")) + "\n")
        self._out.flush()


def _line(name: str, elapsed: float, reported: Mapping[str, object]) -> str:
    head = f"{elapsed:12.6f}  {name:<{_WIDTH}}"
    pairs = [f"{key}={_short(value)}" for key, value in reported.items() if key not in _HIDDEN]
    lines = [f"{head}  {'  '.join(pairs)}".rstrip()]
    counters = reported.get("counters")
    if isinstance(counters, Mapping):
        widest = max(map(len, counters), default=0)
        indent = " " * 14
        lines += [f"{indent}{key:<{widest}}  {value}" for key, value in sorted(counters.items())]
    return "\n".join(lines) + "\n"


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{item}" for key, item in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ",".join(map(_short, value)) or "-"
    return str(value)


_PREFIXES = ("rx_drop_", "tss_")
_NAMES = frozenset(
    {
        "rx_requests_refused", "rx_malformed_requests", "rx_datagrams_dropped",
        "rx_naks_fatal", "rx_bad_responses", "qp_errors",
    }
)  # fmt: skip


def is_refusal(name: str) -> bool:
    """Return whether a counter of that name counts what was refused or dropped."""
    return name in _NAMES or name.startswith(_PREFIXES)


class Refusals:
    """Reports each kind of refusal once to ``report``; ``counts`` are those of the endpoint.

    The numbers at the end are their counts.  Nothing here is on the path of packets: counters are
    looked at once a turn, and a counter that stands at zero costs one comparison.
    """

    def __init__(self, counts: Mapping[str, int], report: EventReport) -> None:
        self._counts, self._report = counts, report
        self._seen = 0  # counters that have been there
        self._silent: list[str] = []  # of these, refusals that have not happened yet
        self._reported: set[str] = set()

    def look(self, frames: Sequence[memoryview]) -> None:
        """Report refusals since the last call, during which ``frames`` arrived."""
        counts = self._counts
        if len(counts) != self._seen:
            self._seen = len(counts)
            self._silent = [
                name for name in counts if name not in self._reported and is_refusal(name)
            ]
        for name in [name for name in self._silent if counts[name]]:
            self._silent.remove(name)
            self._reported.add(name)
            self._report.event("refused", what=name, peer=_only_source(frames))


def _only_source(frames: Sequence[memoryview]) -> str | None:
    sources = {
        bytes(frame[26:30] if bytes(frame[12:14]) == b"\x08\x00" else frame[22:38])
        for frame in frames
    }
    if len(sources) != 1:
        return None
    (source,) = sources
    return str(ip_address(source)) if len(source) in (4, 16) else None


class OutputFile:
    """A file opened for writing; a ``new`` one must not exist, unless it is a pipe or a device.

    ``buffer`` is how many octets may wait in memory.  Every method may raise :class:`UserError`.
    """

    def __init__(self, path: Path, *, buffer: int, new: bool = False) -> None:
        self._path = path
        special = path.exists() and not path.is_file()
        try:
            self._raw = io.FileIO(path, "x" if new and not special else "w")
        except FileExistsError:
            raise UserError(f"{path} is there already; choose another file") from None
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}; choose another file") from None
        self._file = io.BufferedWriter(self._raw, buffer)

    def write(self, octets: bytes) -> None:
        try:
            self._file.write(octets)
        except OSError as error:
            raise self._failed(error) from None

    def flush(self) -> None:
        try:
            self._file.flush()
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> UserError:
        # What the file did not take is lost, and must not be tried again at each later end.
        self._raw.close()
        return UserError(f"cannot write {self._path}: {error.strerror}; make room")

    def close(self) -> None:
        if not self._file.closed:
            self.flush()
            self._file.close()


def make_folder(path: Path) -> None:
    """Make the folder that data is saved in; :class:`UserError` if that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot make the folder {path}: {error.strerror}; choose another"
        ) from None


_FLAGS = struct.Struct("<HHI")
_PACKET = struct.Struct("<IIIIIII")
#: Octets that wait in memory at most; the file is whole after every turn that is idle.
_BUFFER = 1 << 20


class CaptureFile:
    """A new pcapng file (draft-ietf-opsawg-pcapng) that is written as the frames come.

    Frames carry their direction and the nanosecond at which the endpoint had them in hand: a sent
    one when it went to the NIC, a received one when it came from there.
    """

    def __init__(self, path: Path, interface: str, comment: str) -> None:
        self.frames = 0
        self._file = OutputFile(path, buffer=_BUFFER, new=True)
        self._file.write(pcapng.section(comment, "uetemu fep"))
        self._file.write(pcapng.interface(interface))
        self.flush()

    def sent(self, frames: Iterable[tuple[bytes, memoryview | bytes]]) -> None:
        """Record what is handed to the NIC."""
        at = time.time_ns()
        for header, payload in frames:
            self._frame(at, b"".join((header, payload)), pcapng.OUTBOUND)

    def received(self, frames: Iterable[memoryview]) -> None:
        """Record what the NIC has brought."""
        at = time.time_ns()
        for frame in frames:
            self._frame(at, bytes(frame), pcapng.INBOUND)

    def _frame(self, at: int, frame: bytes, direction: int) -> None:
        length = len(frame)
        padding = bytes(-length % 4)
        # block header 8, packet 20, frame, flags option 8, end of options 4, length again 4
        total = 8 + 20 + length + len(padding) + 8 + 4 + 4
        head = _PACKET.pack(
            pcapng.ENHANCED_PACKET, total, 0, at >> 32, at & 0xFFFF_FFFF, length, length
        )
        tail = _FLAGS.pack(pcapng.FLAGS, 4, direction) + bytes(4) + struct.pack("<I", total)
        self._file.write(b"".join((head, frame, padding, tail)))
        self.frames += 1

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()
