"""Carrier of an endpoint's ports, reported by the kernel whenever it changes."""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
from collections.abc import Sequence

# linux/rtnetlink.h, linux/sockios.h, linux/if.h
_RTMGRP_LINK = 1
_SIOCGIFFLAGS = 0x8913
_IFREQ = struct.Struct("=16sH22x")
_IFF_UP, _IFF_RUNNING = 0x1, 0x40


def has_carrier(any_socket: socket.socket, interface: str) -> bool:
    """Return whether ``interface`` is up and so is the other end of its cable.

    False if it is gone.
    """
    try:
        answer = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, _IFREQ.pack(interface.encode(), 0))
    except OSError:
        return False
    _, flags = _IFREQ.unpack(answer)
    return flags & (_IFF_UP | _IFF_RUNNING) == _IFF_UP | _IFF_RUNNING


class CarrierWatch:
    """``interfaces`` of the current network namespace; readable when one may have changed."""

    def __init__(self, interfaces: Sequence[str]) -> None:
        self._interfaces = tuple(interfaces)
        kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK
        self._socket = socket.socket(socket.AF_NETLINK, kind, socket.NETLINK_ROUTE)
        self._socket.bind((0, _RTMGRP_LINK))

    def fileno(self) -> int:
        return self._socket.fileno()

    def look(self) -> list[bool]:
        """Take the kernel's notices, and return the carrier of each interface now."""
        while True:
            try:
                self._socket.recv(65536)  # not read: what counts is how the interfaces are now
            except BlockingIOError:
                break
            except OSError as failure:
                if failure.errno != errno.ENOBUFS:  # notified of more at once than the socket holds
                    raise
        return [has_carrier(self._socket, interface) for interface in self._interfaces]

    def close(self) -> None:
        self._socket.close()
