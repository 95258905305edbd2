"""The scale-up network of a GPU (NVLink): copies from GPU memory to GPU memory.

A copy goes straight into the peer's mapping; a datagram over a Unix socket notifies the peer of the
fabric time at which the data can have arrived.  Behind a switch each GPU has one port of a given
rate: copies to several peers take turns at the egress, and copies from several peers share the
ingress. Without a switch every peer has a link of its own.  A latency is added to each copy.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

#: Directory of all labs' run-time state.  Unix sockets in a file system reach across namespaces.
STATE_DIRECTORY = Path("/run/uetemu")

_NOTICE = struct.Struct("=IIIIQQQ")
_QUEUE_LIMIT = Path("/proc/sys/net/unix/max_dgram_qlen")
_QUEUE_LENGTH = 512
#: Modelled times are kept in picoseconds: many short copies must not be rounded to nothing.
_PS = 1000
_BITS_PS = 8 * 10**9 * _PS
#: Separate times at which an ingress was busy that it remembers.
_KEPT = 256
#: A peer that does not empty its mailbox is tried again after this much host time (ns).
RETRY_HOST_NS = 50_000


def mailbox_path(lab: str, node: str) -> Path:
    """Return the path of the socket at which GPU ``node`` gets notices of copies to its memory."""
    return STATE_DIRECTORY / lab / f"{node}.nvlink"


class CopyNotice(NamedTuple):
    """A peer's copy has been placed at ``offset``; it counts as arrived at ``deliver_at`` (ns)."""

    sender: int
    execution: int
    tag: int
    crc: int
    offset: int
    length: int
    deliver_at: int


@dataclass(frozen=True, slots=True)
class ScaleUpLink:
    """The scale-up ports of a GPU: rate each way, and latency, in fabric units.

    ``shared``: one port leads to a switch and by it to all peers, else each peer has one.
    """

    rate_bps: int
    latency_ns: int
    shared: bool = True

    def octets_ps(self, octets: int) -> int:
        """Return how long ``octets`` take."""
        return -(-octets * _BITS_PS // self.rate_bps)


class Ingress:
    """The port by which a scale-up switch reaches one GPU: it carries one octet at a time.

    Copies are admitted in any order of their times.  Each takes what earlier ones have left free
    from its start on, so that the port is never idle while octets wait for it.  Times are ps.
    """

    __slots__ = ("_busy", "_floor")

    def __init__(self) -> None:
        self._busy: list[tuple[int, int]] = []  # apart from each other, in order
        self._floor = 0  # before, all is taken for busy

    def admit(self, start: int, duration: int) -> int:
        """Return when a copy of ``duration`` from ``start`` on ends, behind what is on the port."""
        start = max(start, self._floor)
        if not duration:
            return start
        busy = self._busy
        if busy and busy[-1][1] == start:  # the common case: one behind the other
            busy[-1] = busy[-1][0], start + duration
            return start + duration
        first = len(busy)
        while first and busy[first - 1][1] >= start:
            first -= 1
        at, after = start, first
        begin = min(start, busy[first][0]) if first < len(busy) else start
        while True:
            if after < len(busy) and busy[after][0] <= at:
                at = max(at, busy[after][1])
                after += 1
                continue
            room = busy[after][0] - at if after < len(busy) else duration
            at += min(room, duration)
            duration -= min(room, duration)
            if not duration:
                break
        end = at
        if after < len(busy) and busy[after][0] == end:  # they touch
            at = busy[after][1]
            after += 1
        busy[first:after] = [(begin, at)]
        if len(busy) > _KEPT:
            self._floor = busy.pop(0)[1]
        return end


class NvLink:
    """Ports of one GPU, and its mailbox.  ``peers`` maps the ranks that it reaches to mailboxes."""

    def __init__(
        self, rank: int, mailbox: Path, peers: Mapping[int, Path], link: ScaleUpLink
    ) -> None:
        self._rank = rank
        self._link = link
        self._peers = {peer: str(path) for peer, path in peers.items()}
        self._egress_free: dict[int | None, int] = {}  # by peer; None: of all; ps
        self._ingress = Ingress() if link.shared else None
        self._unsent: deque[tuple[int, bytes]] = deque()
        self._path = mailbox
        with contextlib.suppress(OSError):  # older kernels keep one limit for all namespaces
            _QUEUE_LIMIT.write_text(str(_QUEUE_LENGTH))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        mailbox.unlink(missing_ok=True)
        self._socket.bind(str(mailbox))
        self.copies_out = self.copies_in = self.octets_out = self.octets_in = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def reaches(self, rank: int) -> bool:
        return rank in self._peers

    def occupy(self, now: int, octets: int, peer: int) -> tuple[int, int]:
        """Take the egress to ``peer`` for ``octets``.

        Returns when it is free again, and when the peer has the data if nobody else copies there.
        """
        port = None if self._link.shared else peer
        start = max(now * _PS, self._egress_free.get(port, 0))
        end = self._egress_free[port] = start + self._link.octets_ps(octets)
        self.copies_out += 1
        self.octets_out += octets
        free = -(-end // _PS)
        return free, free + self._link.latency_ns

    def notify(self, peer: int, notice: CopyNotice) -> None:
        """Notify ``peer`` of a copy.  ``ConnectionError`` if the peer listens no more."""
        self._unsent.append(
            (
                peer,
                _NOTICE.pack(
                    notice.sender,
                    notice.execution,
                    notice.tag,
                    notice.crc,
                    notice.offset,
                    notice.length,
                    notice.deliver_at,
                ),
            )
        )
        self.flush()

    @property
    def backlog(self) -> int:
        """Notices that wait for room in a peer's mailbox."""
        return len(self._unsent)

    def flush(self) -> None:
        """Send the notices that are still waiting, in order."""
        while self._unsent:
            peer, datagram = self._unsent[0]
            try:
                self._socket.sendto(datagram, self._peers[peer])
            except BlockingIOError:
                return
            except OSError as failure:
                if failure.errno not in (errno.ECONNREFUSED, errno.ENOENT):
                    raise
                raise ConnectionError(f"rank {peer} has left the scale-up network") from None
            self._unsent.popleft()

    def notices(self, limit: int = 64) -> list[CopyNotice]:
        """The copies of peers since the last call, with the time at which each is there."""
        out: list[CopyNotice] = []
        while len(out) < limit:
            try:
                datagram = self._socket.recv(_NOTICE.size)
            except BlockingIOError:
                break
            sender, execution, tag, crc, offset, length, deliver_at = _NOTICE.unpack(datagram)
            if self._ingress is not None:
                duration = self._link.octets_ps(length)
                end = self._ingress.admit(deliver_at * _PS - duration, duration)
                deliver_at = max(deliver_at, -(-end // _PS))
            out.append(CopyNotice(sender, execution, tag, crc, offset, length, deliver_at))
            self.copies_in += 1
            self.octets_in += length
        return out

    def counters(self) -> dict[str, int]:
        return {
            "copies_out": self.copies_out,
            "octets_out": self.octets_out,
            "copies_in": self.copies_in,
            "octets_in": self.octets_in,
        }

    def close(self) -> None:
        self._socket.close()
        self._path.unlink(missing_ok=True)
