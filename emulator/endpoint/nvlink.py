"""The scale-up network of a server (NVLink): copies from GPU memory to GPU memory.

A copy goes straight into the peer's mapping; a datagram over a Unix socket tells the peer when,
in fabric time, the data has arrived.  Each GPU has one egress of a given rate, so copies to
several peers take turns; the switch between them adds a latency.
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

#: Directory of all labs' run-time state.  Unix sockets in a file system reach across namespaces.
STATE_DIRECTORY = Path("/run/uetemu")

_NOTICE = struct.Struct("=IIIIQQQ")
_QUEUE_LIMIT = Path("/proc/sys/net/unix/max_dgram_qlen")
_QUEUE_LENGTH = 512
#: A peer that does not empty its mailbox is tried again after this much host time (ns).
RETRY_HOST_NS = 50_000


def mailbox_path(lab: str, node: str) -> Path:
    """The socket on which GPU ``node`` hears of copies into its memory."""
    return STATE_DIRECTORY / lab / f"{node}.nvlink"


@dataclass(frozen=True, slots=True)
class CopyNotice:
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
    """What a GPU's scale-up port can do: rate each way, and latency, in fabric units."""

    rate_bps: int
    latency_ns: int


class NvLink:
    """Egress of one GPU, and its mailbox.  ``peers`` maps ranks of the server to mailboxes."""

    def __init__(
        self, rank: int, mailbox: Path, peers: Mapping[int, Path], link: ScaleUpLink
    ) -> None:
        self._rank = rank
        self._link = link
        self._peers = {peer: str(path) for peer, path in peers.items()}
        self._egress_free = 0
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

    def occupy(self, now: int, octets: int) -> tuple[int, int]:
        """Take the egress for ``octets``: when it is free again, and when the peer has the data."""
        start = max(now, self._egress_free)
        self._egress_free = start + octets * 8 * 1_000_000_000 // self._link.rate_bps
        self.copies_out += 1
        self.octets_out += octets
        return self._egress_free, self._egress_free + self._link.latency_ns

    def notify(self, peer: int, notice: CopyNotice) -> None:
        """Tell ``peer`` of a copy.  ``ConnectionError`` when nobody listens there any more."""
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
        """What peers have copied here since the last call."""
        out: list[CopyNotice] = []
        while len(out) < limit:
            try:
                datagram = self._socket.recv(_NOTICE.size)
            except BlockingIOError:
                break
            sender, execution, tag, crc, offset, length, deliver_at = _NOTICE.unpack(datagram)
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
