"""Every frame that an endpoint sent and took, as a pcapng file (draft-ietf-opsawg-pcapng).

Frames carry their direction and the nanosecond at which the endpoint had them in hand: a sent
one when it went to the NIC, a received one when it came from there.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable
from pathlib import Path

from emulator.dataplane.capture import pcapng
from emulator.lab.standalone.output_file import OutputFile

_FLAGS = struct.Struct("<HHI")
_PACKET = struct.Struct("<IIIIIII")
#: Octets that wait in memory at most; the file is whole after every turn that is idle.
_BUFFER = 1 << 20


class CaptureFile:
    """A new pcapng file that is written as the frames come (see :class:`OutputFile` for errors)."""

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
