"""Captures in virtual time: the engine writes what goes by its ports, so that nothing is missed.

A frame that leaves a port has the time at which its first octet does, one that arrives the time at
which its last octet has.  Times are those of the virtual clock, rounded down to the nanosecond, and
:data:`emulator.engine.virtual_clock.EPOCH` stands for its 0: equal runs leave equal files.

What a switch did to a frame on its way to a port that is captured stands in a comment there.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from emulator.asic.code_points import LAB
from emulator.asic.layout import TrafficClass
from emulator.engine.event_queue import PS
from emulator.engine.line import Line
from emulator.engine.network import Network
from emulator.engine.packet_ring import Taken
from emulator.engine.virtual_clock import EPOCH
from emulator.errors import UserError
from emulator.fabric import pcapng
from emulator.fabric.capture import Tap
from emulator.fabric.sniffer import PortCount
from topologies.model import End

#: Octets that wait in memory before they are written.
BUFFER_OCTETS = 1 << 20

_EPOCH_NS = int(EPOCH.timestamp()) * 10**9
_HEAD = struct.Struct("<IIIIIII")
_LENGTH = struct.Struct("<I")
_LOW_WORD = 0xFFFF_FFFF
#: Octets of a block around what was captured, beside its options.
_AROUND = _HEAD.size + _LENGTH.size

_CE = 3  # RFC 3168
_ECN_BITS = 2
_CLASSES = LAB.classes()


class PortCapture:
    """Writes all frames at the ports of ``taps`` to ``path``, ``snaplen`` octets of each.

    Make it before frames move.  Raises UserError if the file cannot be made.  ``error`` is why
    the file ends early, None if it does not.  The file holds whole blocks after each
    :meth:`flush`, and what comes in between waits in memory.
    """

    def __init__(
        self, path: Path, taps: Sequence[Tap], network: Network, *, snaplen: int, comment: str
    ) -> None:
        self.path = path
        self.error: str | None = None
        self._sides: dict[str, tuple[_Side, _Side]] = {}
        self._parts: list[bytes] = [pcapng.section(comment)]
        self.waiting = 0
        ends = [End(tap.node, port) for tap in taps for port in tap.ports]
        changes = _Changes()
        for number, end in enumerate(ends):
            self._parts.append(pcapng.interface(str(end), snaplen))
            out = _Side(self, number, pcapng.OUTBOUND, snaplen, changes.told)
            into = _Side(self, number, pcapng.INBOUND, snaplen, {})
            network.lines[end].departing = out
            network.lines[network.other(end)].arriving = into
            self._sides[str(end)] = out, into
        changes.watch(network, ends)
        try:
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from error
        self.flush()

    def add(self, octets: bytes) -> None:
        """Take whole blocks."""
        self._parts.append(octets)
        self.waiting += len(octets)
        if self.waiting > BUFFER_OCTETS:
            self.flush()

    def flush(self) -> None:
        """Bring the file up to date; what a full disk cuts off is taken back to whole blocks."""
        octets = b"".join(self._parts)
        self._parts.clear()
        self.waiting = 0
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
        """Frames of each port, both ways."""
        return [
            PortCount(name, out.frames + into.frames, 0)
            for name, (out, into) in self._sides.items()
        ]


class _Side:
    """One direction of a port: interface ``number`` of the file."""

    __slots__ = ("_add", "_flags", "_number", "_snaplen", "_tails", "_told", "frames")

    def __init__(
        self,
        capture: PortCapture,
        number: int,
        direction: int,
        snaplen: int,
        told: dict[int, tuple[bytes, str]],
    ) -> None:
        self._add = capture.add
        self._number, self._snaplen, self._told = number, snaplen, told
        self._flags = pcapng.FLAGS, direction.to_bytes(4, "little")
        self._tails: dict[int, tuple[int, bytes]] = {}
        self.frames = 0

    def frame(self, when_ps: int, frame: bytes) -> None:
        """Write ``frame`` as one of ``when_ps``."""
        self.frames += 1
        length = captured = len(frame)
        if captured > self._snaplen:
            captured = self._snaplen
            kept = frame[:captured]
        else:
            kept = frame
        tail = None
        if self._told:
            change = self._told.pop(id(frame), None)
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
        self._add(head + kept + end)

    def _tail(self, captured: int, comment: str) -> tuple[int, bytes]:
        """Length of a block of ``captured`` octets, and what stands in it behind them."""
        options = pcapng.options(self._flags, (pcapng.COMMENT, comment.encode()))
        end = bytes(-captured % 4) + options
        total = _AROUND + captured + len(end)
        return total, end + _LENGTH.pack(total)


class _Changes:
    """Sees what goes into a switch and what comes out, and notes what the switch changed.

    ``told`` has the frames that wait with a note, by identity: each is held, so that no other
    object can have its place.
    """

    def __init__(self) -> None:
        self.told: dict[int, tuple[bytes, str]] = {}
        self._frame: bytes | None = None
        self._ends: Mapping[int, End] = {}

    def watch(self, network: Network, ends: Sequence[End]) -> None:
        """Note what happens to frames on their way to those of ``ends`` that switches have."""
        nodes = {end.node for end in ends}
        inlets = [end for end in network.inlets if end.node in nodes]
        if not inlets:
            return
        self._ends = {network.index(end): end for end in ends}
        network.outlets.changes = self.out
        for end in inlets:
            self._look_into(network.lines[network.other(end)])

    def _look_into(self, line: Line) -> None:
        far = line.far

        def arrive(frame: bytes) -> None:
            self._frame = frame
            far(frame)
            self._frame = None

        line.far = arrive

    def out(self, taken: Sequence[Taken]) -> None:
        """See what has come out of the kernel."""
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
        self.told[id(frame)] = frame, what


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
