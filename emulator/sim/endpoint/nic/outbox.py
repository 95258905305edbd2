"""Frames that wait for a packet socket, whose send buffer is kept to a few frames.

When the port's own queue is full the socket reports it (``EAGAIN``). The frame waits here, where
nothing is lost, instead of being dropped there.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import socket
import struct
from collections import deque
from collections.abc import Sequence

from emulator.dataplane.kernel.shaping import DSCP_MASK, DSFIELDS_CONTROL
from topologies.ethernet import HEADER_OCTETS
from uet.transport import Frame

_SO_SNDBUFFORCE = 32
_SIOCOUTQ = 0x5411
_LINK_ERRORS = frozenset({errno.ENETDOWN, errno.ENXIO, errno.ENODEV})
_BELOW_THE_SOCKET = 640  # what the kernel accounts for a frame besides its octets, about


class Outbox:
    """Sends through ``sender``, of which ``queue_frames`` frames of ``frame_octets`` may wait."""

    def __init__(self, sender: socket.socket, frame_octets: int, queue_frames: int) -> None:
        self._socket = sender
        self._queue_frames = queue_frames
        self._pending: deque[Frame] = deque()
        # The kernel doubles the value and reports writable below half of that.
        self._frame_charge = _charge(frame_octets)
        sender.setsockopt(
            socket.SOL_SOCKET, _SO_SNDBUFFORCE, queue_frames * self._frame_charge // 2
        )
        self._send_room = sender.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        self.counters = dict.fromkeys(
            ("frames_out", "octets_out", "send_retries", "send_refused", "link_down"), 0
        )

    def fileno(self) -> int:
        return self._socket.fileno()

    def room(self) -> int:
        """Return how many full frames the port's queue takes now (0: wait until it is writable)."""
        if self._pending:
            return 0
        (queued,) = struct.unpack("=i", fcntl.ioctl(self._socket, _SIOCOUTQ, b"\0\0\0\0"))
        if queued == 0:
            return self._queue_frames
        free: int = self._send_room - queued
        return max(0, free // self._frame_charge)

    @property
    def backlog(self) -> int:
        """Frames that wait here because the port's queue is full."""
        return len(self._pending)

    def send(self, frames: Sequence[Frame]) -> int:
        """Send ``frames`` after those still pending; returns how many went out now."""
        if self._pending:
            self._pending.extend(frames)
            frames = tuple(self._pending)
            self._pending.clear()
        send = self._socket.sendmsg
        sent = octets = 0
        for frame in frames:
            try:
                octets += send(frame)
            except BlockingIOError:
                self._pending.extend(frames[sent:])
                self.counters["send_retries"] += 1
                break
            except OSError as failure:
                self._refused(failure, frame)
            sent += 1
        self.counters["frames_out"] += sent
        self.counters["octets_out"] += octets
        return sent

    def recall(self) -> list[Frame]:
        """Take back what waits here."""
        frames = list(self._pending)
        self._pending.clear()
        return frames

    def close(self) -> None:
        self._socket.close()

    def _refused(self, failure: OSError, frame: Frame) -> None:
        """A frame that the port did not take is lost as on a dead cable, and counted."""
        if failure.errno == errno.ENOBUFS:
            self.counters["send_refused"] += 1
        elif failure.errno in _LINK_ERRORS:
            self.counters["link_down"] += 1
        elif failure.errno == errno.EMSGSIZE:
            length = len(frame[0]) + len(frame[1])
            raise ValueError(
                f"a frame of {length} octets exceeds the MTU of its port; lower the transport's"
                " payload size or raise the MTU of the links"
            ) from failure
        else:
            raise failure


def is_control(frame: Frame) -> bool:
    """Return whether the port queues the frame as control (see ``shaping``)."""
    header = frame[0]
    four = header[14] >> 4 == 4
    traffic = header[15] if four else (header[14] & 0xF) << 4 | header[15] >> 4
    return traffic & DSCP_MASK in DSFIELDS_CONTROL


def _charge(frame_octets: int) -> int:
    """Return what the kernel accounts for one queued frame.

    Whole pages of data, and its descriptor.
    """
    page = mmap.PAGESIZE
    return -(-(frame_octets - HEADER_OCTETS) // page) * page + _BELOW_THE_SOCKET
