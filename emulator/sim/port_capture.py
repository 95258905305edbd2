"""Captures in virtual time: the engine writes what goes by its ports, so that nothing is missed.

A frame that leaves a port has the time at which its first octet does. A frame that arrives has the
time at which its last octet does. Times are those of the virtual clock, rounded down to the
nanosecond. :data:`emulator.sim.virtual_clock.EPOCH` stands for its 0, so equal runs leave equal
files.

What a switch did to a frame on its way to a port that is captured stands in a comment there.

Blocks of one instant are in an order of their own, arrivals first and then by port. It does not
depend on which worker had which port.
"""

from __future__ import annotations

import errno
import os
import struct
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path

from emulator.dataplane.capture import pcapng
from emulator.dataplane.capture.sniffer import PortCount
from emulator.dataplane.dataplane import Taken
from emulator.dataplane.switch.bpf.layout import TrafficClass
from emulator.dataplane.switch.code_points import LAB
from emulator.errors import UserError
from emulator.sim.event_queue import NEVER, PS
from emulator.sim.line import Line
from emulator.sim.network import Network
from emulator.sim.virtual_clock import EPOCH
from topologies.model import CableEnd

#: Blocks that wait in memory before they are written.
BUFFER_BLOCKS = 512
#: A block's place: its time (ps), whether the frame leaves, and the number of its port.
_NUMBER_BITS = 20
_PLACE_BITS = _NUMBER_BITS + 1
_NUMBERS = (1 << _NUMBER_BITS) - 1

_EPOCH_NS = int(EPOCH.timestamp()) * 10**9
_HEAD = struct.Struct("<IIIIIII")
_LENGTH = struct.Struct("<I")
_LOW_WORD = 0xFFFF_FFFF
#: Octets of a block around what was captured, beside its options.
_AROUND = _HEAD.size + _LENGTH.size

_CE = 3  # RFC 3168
_ECN_BITS = 2
_CLASSES = LAB.classes()


#: Its place in the file (see :data:`_PLACE_BITS`), and a packet's block.
Block = tuple[int, bytes]


class PortTaps:
    """Makes blocks of all frames at the ports ``ends`` of ``network``'s worker.

    ``blocks`` are those that nobody has taken yet, and ``full`` is called when they are many.  Make
    it before frames move.
    """

    def __init__(self, ends: Sequence[CableEnd], network: Network, snaplen: int) -> None:
        self.blocks: list[Block] = []
        self.full: Callable[[], None] | None = None
        changes = _Changes()
        for number, end in enumerate(ends):
            if network.owns(end.node):
                out = _Side(self, number, pcapng.OUTBOUND, snaplen, changes.reported)
                into = _Side(self, number, pcapng.INBOUND, snaplen, {})
                network.lines[end].departing = out
                network.lines[network.topology.far_end(end)].arriving = into
        changes.watch(network, [end for end in ends if network.owns(end.node)])

    def take(self) -> list[Block]:
        """Return all blocks since the last call."""
        taken = self.blocks[:]
        self.blocks.clear()
        return taken


class PortCapture:
    """Writes all frames at the ``ends`` to ``path``.

    Raises UserError if the file cannot be made.  ``error`` is why the file ends early, None if it
    does not.  The file holds whole blocks after each :meth:`flush`, and what comes in between waits
    in memory.
    """

    def __init__(self, path: Path, ends: Sequence[CableEnd], *, snaplen: int, comment: str) -> None:
        self.path, self.ends = path, ends
        self.error: str | None = None
        self._frames = [0] * len(ends)
        head = [pcapng.section(comment)]
        head += [pcapng.interface(str(end), snaplen) for end in ends]
        try:
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from error
        self._waiting: list[Block] = []
        self._write(b"".join(head))

    def add(self, blocks: Sequence[Block]) -> None:
        """Take blocks."""
        self._waiting += blocks

    def flush(self, before_ps: int = NEVER) -> None:
        """Bring the file up to date with all that was seen before a time."""
        waiting = self._waiting
        waiting.sort(key=itemgetter(0))
        done = bisect_left(waiting, before_ps << _PLACE_BITS, key=itemgetter(0))
        for place, _ in waiting[:done]:
            self._frames[place & _NUMBERS] += 1
        self._write(b"".join([octets for _, octets in waiting[:done]]))
        del waiting[:done]

    def _write(self, octets: bytes) -> None:
        """Write whole blocks; what a full disk cuts off is taken back to the last whole one."""
        if self.error is not None:
            return
        begun = self._file.tell()
        try:
            if self._file.write(octets) < len(octets):
                self._file.truncate(begun)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self.error = f"cannot write {self.path}: {error.strerror}"

    def close(self) -> None:
        """Write what waits; no frame may come afterwards."""
        self.flush()
        self._file.close()

    @property
    def ports(self) -> list[PortCount]:
        """Frames of each port, both ways, that the file has."""
        return [
            PortCount(str(end), frames, 0)
            for end, frames in zip(self.ends, self._frames, strict=True)
        ]


class _Side:
    """One direction of a port: interface ``number`` of the file."""

    __slots__ = (
        "_blocks",
        "_flags",
        "_number",
        "_place",
        "_reported",
        "_snaplen",
        "_tails",
        "_taps",
    )

    def __init__(
        self,
        taps: PortTaps,
        number: int,
        direction: int,
        snaplen: int,
        reported: dict[int, tuple[bytes, str]],
    ) -> None:
        self._taps, self._blocks = taps, taps.blocks
        self._place = int(direction == pcapng.OUTBOUND) << _NUMBER_BITS | number
        self._number, self._snaplen, self._reported = number, snaplen, reported
        self._flags = pcapng.FLAGS, direction.to_bytes(4, "little")
        self._tails: dict[int, tuple[int, bytes]] = {}

    def frame(self, when_ps: int, frame: bytes) -> None:
        """Write ``frame`` as one of ``when_ps``."""
        length = captured = len(frame)
        if captured > self._snaplen:
            captured = self._snaplen
            kept = frame[:captured]
        else:
            kept = frame
        tail = None
        if self._reported:
            change = self._reported.pop(id(frame), None)
            if change is not None:
                tail = self._tail(captured, change[1])
        if tail is None:
            tail = self._tails.get(captured)
            if tail is None:
                tail = self._tails[captured] = self._tail(captured, "")
        total, end = tail
        at = when_ps // PS + _EPOCH_NS
        head = _HEAD.pack(
            pcapng.ENHANCED_PACKET,
            total,
            self._number,
            at >> 32,
            at & _LOW_WORD,
            captured,
            length,
        )
        self._blocks.append((when_ps << _PLACE_BITS | self._place, head + kept + end))
        if len(self._blocks) >= BUFFER_BLOCKS and self._taps.full is not None:
            self._taps.full()

    def _tail(self, captured: int, comment: str) -> tuple[int, bytes]:
        """Length of a block of ``captured`` octets, and what stands in it behind them."""
        options = pcapng.options(self._flags, (pcapng.COMMENT, comment.encode()))
        end = bytes(-captured % 4) + options
        total = _AROUND + captured + len(end)
        return total, end + _LENGTH.pack(total)


class _Changes:
    """Sees what goes into a switch and what comes out, and notes what the switch changed.

    ``reported`` has the frames that wait with a note, by identity: each is held, so that no other
    object can have its place.
    """

    def __init__(self) -> None:
        self.reported: dict[int, tuple[bytes, str]] = {}
        self._frame: bytes | None = None
        self._ends: Mapping[int, CableEnd] = {}

    def watch(self, network: Network, ends: Sequence[CableEnd]) -> None:
        """Note what happens to frames on their way to those of ``ends`` that switches have."""
        nodes = {end.node for end in ends}
        inlets = [end for end in network.inlets if end.node in nodes]  # all of this worker
        if not inlets:
            return
        self._ends = {network.index(end): end for end in ends}
        network.outlets.changes = self.out
        for end in inlets:
            self._look_into(network.lines[network.topology.far_end(end)])

    def _look_into(self, line: Line) -> None:
        far = line.far

        def arrive(frame: bytes) -> None:
            self._frame = frame
            far(frame)
            self._frame = None

        line.far = arrive

    def out(self, taken: Sequence[Taken]) -> None:
        """See what has come out of a node."""
        before = self._frame
        if before is None:
            return  # of a GPU
        was = _traffic_class(before)
        for index, frame in taken:
            now = _traffic_class(frame)
            if now == was or index not in self._ends:
                continue
            if now & _CE == _CE != was & _CE:
                self._note(frame, f"marked CE by {self._ends[index]}")
            elif _trimmed(now) and not _trimmed(was):
                what = f"trimmed by {self._ends[index]} from {len(before)} octets"
                self._note(frame, what)

    def _note(self, frame: bytes, what: str) -> None:
        self.reported[id(frame)] = frame, what


def _trimmed(traffic_class: int) -> bool:
    return _CLASSES[traffic_class >> _ECN_BITS] == TrafficClass.TRIMMED


def _traffic_class(frame: bytes) -> int:
    """DSCP and ECN of the outermost IP packet in ``frame``; 0 if there is none."""
    at = 12
    if frame[at] == 0x81 and frame[at + 1] == 0:
        at += 4
    if frame[at] == 0x08 and frame[at + 1] == 0:
        return frame[at + 3]
    if frame[at] == 0x86 and frame[at + 1] == 0xDD:
        return (frame[at + 2] & 0xF) << 4 | frame[at + 3] >> 4
    return 0
