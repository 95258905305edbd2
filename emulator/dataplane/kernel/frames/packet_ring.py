"""The frames that leave the kernel at the inner ends of all cables: one ring of one socket.

``sockaddr_ll`` in each slot names the interface by which a frame came (packet(7), PACKET_RX_RING).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from emulator.dataplane.dataplane import Taken
from emulator.dataplane.kernel.receive_ring import (
    PACKET_IGNORE_OUTGOING,
    PACKET_STATISTICS,
    SOL_PACKET,
    map_ring,
)

# linux/if_packet.h, asm-generic/socket.h
_ETH_P_ALL = 0x0003
_USER, _VLAN_VALID = 1, 1 << 4
#: status, length, captured, frame at; VLAN tag; interface index of the sockaddr_ll.
_SLOT = struct.Struct("=IIIH10xHH8xi")
_TAG = struct.Struct("!HH")
_MACS = 12
#: struct sockaddr_ll: family, protocol, interface index, and what binding does not use.
_ADDRESS = struct.Struct("=HHi12x")
_libc = ctypes.CDLL(None, use_errno=True)

#: Packet sockets that are opened, or closed, at a time.
_AT_A_TIME = 64

T = TypeVar("T")
U = TypeVar("U")


class PacketRing:
    """Frames that ``filtered``, which is given the socket, lets through; made where they come in.

    ``interface`` None: all of the current network namespace.  ``frame_octets`` is the longest
    frame, ``slots`` how many may wait.
    """

    def __init__(
        self,
        filtered: Callable[[socket.socket], None],
        *,
        interface: str | None,
        frame_octets: int,
        slots: int,
    ) -> None:
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # deaf until bound
        try:
            self._make_ring(frame_octets, slots)
            self.socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            filtered(self.socket)
            if interface is None:
                self._bind_to_all()
            else:
                self.socket.bind((interface, _ETH_P_ALL))
        except BaseException:
            self.socket.close()
            raise
        self.lost = 0

    def _make_ring(self, frame_octets: int, slots: int) -> None:
        self._ring, self._slots = map_ring(self.socket, frame_octets, slots)
        self._octets = memoryview(self._ring)
        self._words = self._octets.cast("I")
        self._head = 0

    def _bind_to_all(self) -> None:
        """Python's own ``bind`` takes the name of an interface; index 0 stands for all."""
        address = _ADDRESS.pack(socket.AF_PACKET, socket.htons(_ETH_P_ALL), 0)
        if _libc.bind(self.socket.fileno(), address, len(address)) != 0:
            failure = ctypes.get_errno()
            raise OSError(failure, os.strerror(failure))

    def take(self) -> list[Taken]:
        """All frames that are there, in the order in which the kernel handed them over."""
        slots, ring, words, head = self._slots, self._ring, self._words, self._head
        at = slots[head]
        out: list[Taken] = []
        while words[at >> 2] & _USER:
            status, length, captured, start, tag, kind, interface = _SLOT.unpack_from(ring, at)
            begin = at + start
            frame = ring[begin : begin + captured]
            words[at >> 2] = 0
            head += 1
            if head == len(slots):
                head = 0
            if captured < length:
                self._head = head
                raise ValueError(f"a frame of {length} octets is longer than a slot of the ring")
            if status & _VLAN_VALID:
                frame = _tagged(frame, kind, tag)
            out.append((interface, frame))
            at = slots[head]
        self._head = head
        return out

    def look(self) -> memoryview | None:
        """The oldest frame, where it lies in the ring until :meth:`release`; None without one."""
        at = self._slots[self._head]
        if not self._words[at >> 2] & _USER:
            return None
        status, length, captured, start, tag, kind, _ = _SLOT.unpack_from(self._ring, at)
        if captured < length:
            raise ValueError(f"a frame of {length} octets is longer than a slot of the ring")
        frame = self._octets[at + start : at + start + captured]
        return memoryview(_tagged(bytes(frame), kind, tag)) if status & _VLAN_VALID else frame

    def release(self) -> None:
        """Give the slot of the oldest frame back to the kernel."""
        head = self._head
        self._words[self._slots[head] >> 2] = 0
        head += 1
        self._head = 0 if head == len(self._slots) else head

    def settle(self) -> None:
        """Let the kernel finish what this processor has begun, and count frames without a slot."""
        statistics = self.socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)
        self.lost += struct.unpack("=II", statistics)[1]

    def close(self) -> None:
        """Give up the ring, unless somebody has a view of it still (then the last one unmaps)."""
        self._words.release()
        self._octets.release()
        with contextlib.suppress(BufferError):
            self._ring.close()  # which holds the socket, too
        self.socket.close()


def _tagged(frame: bytes, kind: int, tag: int) -> bytes:
    """``frame`` with the VLAN tag that the kernel has taken out of it (IEEE 802.1Q)."""
    return frame[:_MACS] + _TAG.pack(kind or 0x8100, tag) + frame[_MACS:]


def sender(interface: str) -> socket.socket:
    """Return a socket that sends by ``interface`` of the current namespace and receives nothing."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    try:
        made.bind((interface, 0))
    except BaseException:
        made.close()
        raise
    return made


class Closable(Protocol):
    """Has sockets."""

    def close(self) -> None: ...


def open_together(open_one: Callable[[T], U], requested: Iterable[T]) -> list[U]:
    """Open all of ``requested`` by ``open_one``; return the results in their order.

    The kernel waits for all its processors whenever it makes the ring of a packet socket, or closes
    one (synchronize_net). Many sockets wait for the same moment.
    """
    with ThreadPoolExecutor(_AT_A_TIME) as threads:
        return list(threads.map(open_one, requested))


def close_together(opened: Iterable[Closable]) -> None:
    """Close all of ``opened``; see :func:`open_together`."""
    with ThreadPoolExecutor(_AT_A_TIME) as threads:
        list(threads.map(lambda one: one.close(), opened))
