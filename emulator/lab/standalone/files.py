"""Files that an endpoint leaves; what is wrong with them is one sentence."""

from __future__ import annotations

import io
import struct
import time
from collections.abc import Iterable
from pathlib import Path

from emulator.dataplane.capture import pcapng
from emulator.errors import UserError


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
        """Bring the file up to date."""
        try:
            self._file.flush()
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> UserError:
        # What the file did not take is lost, and must not be tried again at each later end.
        self._raw.close()
        return UserError(f"cannot write {self._path}: {error.strerror}; make room")

    def close(self) -> None:
        """The file is complete."""
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
        """Bring the file up to date."""
        self._file.flush()

    def close(self) -> None:
        """The file is complete."""
        self._file.close()
