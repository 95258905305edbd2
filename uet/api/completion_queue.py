"""Completions in the order of ending (``fi_cq``), and counters (``fi_cntr``)."""

from __future__ import annotations

import errno
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from uet.api.address_vector import ADDR_UNSPEC
from uet.api.driver import wait_until
from uet.api.flags import Flag
from uet.wire.codes import NackCode, ReturnCode

if TYPE_CHECKING:
    from uet.api.domain import Domain

#: ``prov_errno`` of NACK codes, which share numbers with SES return codes, is above this.
NACK_ERROR: Final = 0x100

_ERRNO: Final = {
    "CANCELLED": errno.ECANCELED,
    "PERM_VIOLATION": errno.EACCES,
    "UNSUPPORTED_SIZE": errno.EMSGSIZE,
    "RESTART_TIMEOUT": errno.ETIMEDOUT,
    "READ_TIMEOUT": errno.ETIMEDOUT,
    "RENDEZVOUS_TIMEOUT": errno.ETIMEDOUT,
    "RTO_RETRIES_EXHAUSTED": errno.ETIMEDOUT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CqEntry:
    """A completed operation: ``fi_cq_tagged_entry``, with the source of ``fi_cq_readfrom``.

    ``len`` counts octets moved.  ``buf`` is where a receive or a remote write put them.  ``data``
    means something with :attr:`Flag.REMOTE_CQ_DATA`, ``tag`` with :attr:`Flag.TAGGED`.
    """

    op_context: object
    flags: Flag
    len: int = 0
    buf: memoryview | None = None
    data: int = 0
    tag: int = 0
    src_addr: int = ADDR_UNSPEC


@dataclass(frozen=True, slots=True, kw_only=True)
class CqErrEntry(CqEntry):
    """One that failed: ``fi_cq_err_entry``.

    ``err`` is an ``errno``.  ``error`` is the name of what happened: an SES return code that the
    peer answered with (:class:`uet.wire.codes.ReturnCode`), or a NACK that ended the PDC
    (:class:`uet.wire.codes.NackCode`). Or it is what this endpoint gave up for, such as
    ``RTO_RETRIES_EXHAUSTED``.
    """

    err: int
    error: str

    @property
    def prov_errno(self) -> int:
        """The SES return code, :data:`NACK_ERROR` plus the NACK code, or 0 for a local reason."""
        if self.error in ReturnCode.__members__:
            return int(ReturnCode[self.error])
        if self.error in NackCode.__members__:
            return NACK_ERROR + int(NackCode[self.error])
        return 0

    def strerror(self) -> str:
        """The error in words: ``fi_cq_strerror``."""
        if self.error in ReturnCode.__members__:
            return f"SES return code {self.error} ({self.prov_errno:#04x})"
        if self.error in NackCode.__members__:
            return f"PDS NACK {self.error} ({self.prov_errno - NACK_ERROR:#04x})"
        return f"given up here: {self.error}"


def error_number(error: str) -> int:
    """The ``errno`` that comes nearest to an error's name."""
    return _ERRNO.get(error, errno.EIO)


class ErrorAvailable(Exception):
    """The next entry is one of an error (``-FI_EAVAIL``): take it with :meth:`readerr`."""


class CompletionQueue:
    """Entries of the endpoints that are bound to it; made by :meth:`uet.api.Domain.cq_open`.

    >>> from uet.api.loopback import pair
    >>> a, b = pair()
    >>> a.endpoint.send(b"nobody listens", a.peer, context="lost")
    >>> a.cq.wait()
    Traceback (most recent call last):
    ...
    uet.api.completion_queue.ErrorAvailable: NO_MATCH; take the entry with readerr()
    >>> entry = a.cq.readerr()
    >>> entry.op_context, entry.error, entry.strerror()
    ('lost', 'NO_MATCH', 'SES return code NO_MATCH (0x05)')
    """

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self._entries: deque[CqEntry] = deque()
        self._signalled = False

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, entry: CqEntry) -> None:
        """Called by endpoints."""
        self._entries.append(entry)

    def read(self, count: int | None = None) -> list[CqEntry]:
        """Return at most ``count`` entries without waiting: ``fi_cq_read``.

        None of them is an error: entries up to the next error are given, and if that is the
        first, :class:`ErrorAvailable` is raised.
        """
        if not self._entries:
            self.domain.driver.poll()
        return self._take(count)

    def wait(self, timeout: int | None = None, *, count: int | None = None) -> list[CqEntry]:
        """Wait for an entry and return at most ``count`` of them: ``fi_cq_sread``.

        At most ``timeout`` ns of fabric time.  Empty when that is over, after :meth:`signal`, or
        when nothing is under way that could complete anything (in virtual time).
        """
        wait_until(self.domain.driver, lambda: bool(self._entries) or self._signalled, timeout)
        self._signalled = False
        return self._take(count)

    def _take(self, count: int | None) -> list[CqEntry]:
        entries = self._entries
        if entries and isinstance(entries[0], CqErrEntry):
            raise ErrorAvailable(f"{entries[0].error}; take the entry with readerr()")
        taken: list[CqEntry] = []
        while entries and not isinstance(entries[0], CqErrEntry):
            if count is not None and len(taken) >= count:
                break
            taken.append(entries.popleft())
        return taken

    def readerr(self) -> CqErrEntry | None:
        """The error that is next, if one is: ``fi_cq_readerr``."""
        if self._entries and isinstance(entry := self._entries[0], CqErrEntry):
            self._entries.popleft()
            return entry
        return None

    def signal(self) -> None:
        """Let :meth:`wait` return, from another thread too: ``fi_cq_signal``."""
        self._signalled = True
        self.domain.driver.interrupt()


class Counter:
    """The number of operations that have ended: ``fi_cntr``; see :meth:`uet.api.Domain.cntr_open`.

    >>> from uet.api import Flag
    >>> from uet.api.loopback import pair
    >>> a, b = pair()
    >>> written = a.domain.cntr_open()
    >>> a.endpoint.bind(written, Flag.WRITE)
    >>> region = b.domain.mr_reg(bytearray(4))
    >>> a.endpoint.write(b"one.", a.peer, 0, region.key)
    >>> a.endpoint.write(b"two.", a.peer, 0, region.key)
    >>> written.wait(2)
    True
    >>> written.read(), written.readerr()
    (2, 0)
    """

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self._done = 0
        self._failed = 0

    def add(self, failed: bool) -> None:
        """Called by endpoints."""
        if failed:
            self._failed += 1
        else:
            self._done += 1

    def read(self) -> int:
        """Operations that ended well: ``fi_cntr_read``."""
        return self._done

    def readerr(self) -> int:
        """Operations that failed: ``fi_cntr_readerr``."""
        return self._failed

    def wait(self, threshold: int, timeout: int | None = None) -> bool:
        """Until ``threshold`` have ended well, or any fails, or ``timeout`` ns: ``fi_cntr_wait``.

        Whether the threshold was reached.
        """
        failed = self._failed
        wait_until(
            self.domain.driver,
            lambda: self._done >= threshold or self._failed != failed,
            timeout,
        )
        return self._done >= threshold
