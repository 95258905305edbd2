"""The ring by which the switch program reports pause events (``bpf_ringbuf``).

Kernel and process share its pages: the first has the position up to which the process has read, the
second the position up to which the kernel has written. Then come the records, mapped twice in a row
so that none is ever cut in two (Documentation/bpf/ringbuf.rst).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from emulator.dataplane.kernel.programs.bpf_syscall import Map
from emulator.dataplane.switch.bpf.layout import PAUSE_EVENT

_RECORD = struct.Struct("=II")  # length with its two flags, page offset
_BUSY, _DISCARDED = 1 << 31, 1 << 30


class EventKind(IntEnum):
    """The kinds of events that a port reports to the pause agent."""

    XOFF = 0  # its lossless buffer is above XOFF
    XON = 1  # it is down to XON again
    FRAME = 2  # a MAC control frame came in


@dataclass(frozen=True, slots=True)
class PauseEvent:
    """An event of a port.

    ``time`` is CLOCK_MONOTONIC in ns; the last two are of a frame: its destination, and what stands
    behind its EtherType.
    """

    time: int
    port: int
    kind: EventKind
    destination: bytes
    control: bytes


class PauseRing:
    """The ring of the pinned map ``events``; becomes readable when something is in it."""

    def __init__(self, events: Map) -> None:
        self._events = events
        size, page = events.entries, mmap.PAGESIZE
        self._size = size
        self._read = mmap.mmap(events.handle, page)
        self._position = memoryview(self._read).cast("Q")
        self._written = mmap.mmap(events.handle, page + 2 * size, prot=mmap.PROT_READ, offset=page)
        self._octets = memoryview(self._written)
        self._end = self._octets[:8].cast("Q")

    def fileno(self) -> int:
        return self._events.handle

    def take(self) -> Iterator[PauseEvent]:
        """Yield the events reported since the last call."""
        at = self._position[0]
        while at < self._end[0]:
            start = mmap.PAGESIZE + at % self._size
            length, _ = _RECORD.unpack_from(self._octets, start)
            if length & _BUSY:  # still being written, on the other processor
                return
            reported = not length & _DISCARDED
            length &= ~(_BUSY | _DISCARDED)
            if reported and length == PAUSE_EVENT.size:
                time, port, kind, _, destination, control = PAUSE_EVENT.unpack_from(
                    self._octets, start + _RECORD.size
                )
                yield PauseEvent(time, port, EventKind(kind), destination, control)
            at += (_RECORD.size + length + 7) & ~7
            self._position[0] = at
