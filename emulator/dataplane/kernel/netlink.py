"""Route netlink, many requests to a send (RFC 3549; kernel headers ``linux/rtnetlink.h``).

A fabric of 512 GPUs is some twenty thousand requests.  pyroute2's message classes encode one in
30-100 us and its sockets wait for every answer; here a request is packed in a few us, hundreds go
to the kernel in one send, and only the last requests an acknowledgement: the kernel reports
failures in any case, by sequence number.  The numbers are written out, as pyroute2 takes a fifth of
a second to import.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator

# linux/netlink.h
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP = 0x1, 0x4, 0x300
NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 0x100, 0x200, 0x400
# linux/rtnetlink.h
RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK, RTM_SETLINK = 16, 17, 18, 19
RTM_NEWADDR = 20
RTM_NEWROUTE, RTM_GETROUTE = 24, 26
RTM_NEWNEIGH, RTM_DELNEIGH, RTM_GETNEIGH = 28, 29, 30
RTM_NEWRULE = 32
RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC = 36, 37, 38
RTM_NEWTCLASS, RTM_DELTCLASS = 40, 41
RTM_NEWTFILTER, RTM_DELTFILTER = 44, 45
RTMGRP_NEIGH, RTMGRP_IPV4_ROUTE = 0x4, 0x40

HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
ATTRIBUTE = struct.Struct("=HH")  # length, type
NESTED = 0x8000
SOL_NETLINK = 270
NETLINK_EXT_ACK = 11
NLM_F_ACK_TLVS = 0x200
NLMSGERR_ATTR_MSG = 1
SEND_BYTES = 60_000  # stays below the default send buffer, headroom included
RECEIVE_BYTES = 1 << 18
U8, U16, U32, U64 = (struct.Struct(f"={code}").pack for code in "BHIQ")

Describe = Callable[[], str]


class KernelRefusal(OSError):
    """The kernel refused a request; the message names the object and any reason of the kernel."""


def attribute(kind: int, payload: bytes) -> bytes:
    """One type-length-value, padded to four octets."""
    return ATTRIBUTE.pack(4 + len(payload), kind) + payload + bytes(-len(payload) % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    return attribute(kind | NESTED, b"".join(attributes))


def text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def attributes(payload: bytes | memoryview, start: int = 0) -> Iterator[tuple[int, memoryview]]:
    """(type, value) of every attribute in ``payload`` from ``start``."""
    view = memoryview(payload)
    while start + 4 <= len(view):
        length, kind = ATTRIBUTE.unpack_from(view, start)
        if length < 4:
            return
        yield kind & 0x3FFF, view[start + 4 : start + length]
        start += (length + 3) & ~3


class RouteSocket:
    """A NETLINK_ROUTE socket in the network namespace of the thread that makes it.

    It stays in that namespace wherever it is used from.  ``queue`` collects requests,
    ``flush`` sends them and raises :class:`KernelRefusal` for the first that failed.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE
        )
        try:
            self._socket.setsockopt(SOL_NETLINK, NETLINK_EXT_ACK, 1)
            self._socket.bind((0, 0))
        except BaseException:
            self._socket.close()
            raise
        self._sequence = 0
        self._queued: list[tuple[bytes, str]] = []

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """Return the descriptor of the socket, for ``ioctl`` in its namespace."""
        return self._socket.fileno()

    def queue(self, kind: int, flags: int, body: bytes, subject: str) -> None:
        """Collect one request; ``subject`` names the object in an error message."""
        self._sequence += 1
        length = HEADER.size + len(body)
        header = HEADER.pack(length, kind, NLM_F_REQUEST | flags, self._sequence, 0)
        self._queued.append((header + body, subject))

    def flush(self) -> None:
        """Hand all collected requests to the kernel, in order.

        Raises :class:`KernelRefusal` for the first refused one; those after it were still tried.
        """
        queued, self._queued = self._queued, []
        start = 0
        refusal: KernelRefusal | None = None
        while start < len(queued):
            end, size = start, 0
            while end < len(queued) and (size + len(queued[end][0]) <= SEND_BYTES or end == start):
                size += len(queued[end][0])
                end += 1
            refusal = refusal or self._send(queued[start:end])
            start = end
        if refusal is not None:
            raise refusal

    def _send(self, batch: list[tuple[bytes, str]]) -> KernelRefusal | None:
        subjects = {HEADER.unpack_from(request)[3]: subject for request, subject in batch}
        last, _ = batch[-1]
        length, kind, flags, sequence, port = HEADER.unpack_from(last)
        acknowledged = HEADER.pack(length, kind, flags | NLM_F_ACK, sequence, port)
        data = b"".join([*(request for request, _ in batch[:-1]), acknowledged, last[16:]])
        self._socket.sendto(data, (0, 0))
        refusal: KernelRefusal | None = None
        while True:
            for kind, flags, answered, payload in self._receive():
                if kind != NLMSG_ERROR or answered not in subjects:
                    continue
                code = -struct.unpack_from("=i", payload)[0]
                if code and refusal is None:
                    refusal = _refusal(code, flags, payload, subjects[answered])
                if answered == sequence:
                    return refusal

    def ask(self, kind: int, body: bytes, subject: str) -> memoryview:
        """Return the payload of the one object that answers a request for it.

        Raises :class:`KernelRefusal` if there is none.
        """
        self._sequence += 1
        sequence = self._sequence
        header = HEADER.pack(HEADER.size + len(body), kind, NLM_F_REQUEST, sequence, 0)
        self._socket.sendto(header + body, (0, 0))
        while True:
            for answer, flags, answered, payload in self._receive():
                if answered != sequence:
                    continue
                if answer == NLMSG_ERROR:
                    code = -struct.unpack_from("=i", payload)[0]
                    raise _refusal(code, flags, payload, subject)
                return payload

    def dump(self, kind: int, body: bytes) -> Iterator[memoryview]:
        """The payload of every object in the answer to a dump request."""
        self._sequence += 1
        sequence = self._sequence
        length = HEADER.size + len(body)
        header = HEADER.pack(length, kind, NLM_F_REQUEST | NLM_F_DUMP, sequence, 0)
        self._socket.sendto(header + body, (0, 0))
        while True:
            for answer, flags, answered, payload in self._receive():
                if answered != sequence:
                    continue
                if answer == NLMSG_DONE:
                    return
                if answer == NLMSG_ERROR:
                    code = -struct.unpack_from("=i", payload)[0]
                    raise _refusal(code, flags, payload, "a dump")
                yield payload

    def _receive(self) -> Iterator[tuple[int, int, int, memoryview]]:
        data = memoryview(self._socket.recv(RECEIVE_BYTES))
        while len(data) >= HEADER.size:
            length, kind, flags, sequence, _ = HEADER.unpack_from(data)
            yield kind, flags, sequence, data[HEADER.size : length]
            data = data[(length + 3) & ~3 :]


def _refusal(code: int, flags: int, payload: memoryview, subject: str) -> KernelRefusal:
    reason = os.strerror(code)
    if flags & NLM_F_ACK_TLVS:
        # int error, then the refused message (whole: NETLINK_CAP_ACK is off), then attributes
        (original,) = struct.unpack_from("=I", payload, 4)
        for kind, value in attributes(payload, 4 + ((original + 3) & ~3)):
            if kind == NLMSGERR_ATTR_MSG:
                reason = f"{bytes(value).rstrip(bytes(1)).decode()} ({reason})"
    return KernelRefusal(code, f"{subject}: {reason}")
