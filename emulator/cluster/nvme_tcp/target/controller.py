"""What a target has: settings, subsystems with namespaces, controllers, outcomes of commands.

Source: NVM Express Base 2.0, 3.1, 3.2 and 4.5.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from emulator.cluster.nvme_tcp.target.block_store import BlockStore
from emulator.cluster.nvme_tcp.wire import layouts as nvme
from emulator.cluster.nvme_tcp.wire.pdu import LEAST_MAXH2CDATA, MOST_ALIGNMENT
from emulator.errors import UserError


@dataclass(frozen=True)
class TargetSettings:
    """Sizes in octets, times in ns; each bounds what a host can make the target keep."""

    #: I/O queues of a controller, and entries of a queue.
    queues: int = 16
    queue_entries: int = 128
    #: Data within a command capsule of an I/O queue; the Admin queue takes 8 KiB.
    in_capsule: int = 8192
    #: Most data of an H2CData PDU.
    maxh2cdata: int = 1 << 18
    #: Most data of a command; a power of two of pages.
    most_transfer: int = 1 << 20
    #: Most data that one R2T requests, and most data of a C2HData PDU.
    r2t_octets: int = 1 << 20
    c2h_octets: int = 1 << 18
    #: CPDA: H2CData and capsules bring data aligned to ``4 * (alignment + 1)``; Linux takes 0 only.
    alignment: int = 0
    #: Digests are enabled where the host requests them and these allow it.
    header_digest: bool = True
    data_digest: bool = True
    #: A read's last C2HData replaces its response where the queue has no flow control.
    success_flag: bool = True
    #: Time from a TCP connection to its Connect command.
    connect_ns: int = 10_000_000_000
    #: TCP connections and controllers at a time.
    connections: int = 256
    controllers: int = 64
    #: Async Event Requests that a controller holds.
    event_requests: int = 4

    def __post_init__(self) -> None:
        pages = self.most_transfer // nvme.PAGE
        if self.most_transfer % nvme.PAGE or pages & (pages - 1) or not pages:
            raise UserError("the most data of a command is a power of two times 4 KiB")
        if self.maxh2cdata < LEAST_MAXH2CDATA or self.maxh2cdata % 4:
            raise UserError(f"MAXH2CDATA is at least {LEAST_MAXH2CDATA}, a multiple of 4")
        if not 0 <= self.alignment <= MOST_ALIGNMENT:
            raise UserError(f"CPDA is 0 to {MOST_ALIGNMENT}")
        if self.in_capsule % 16 or not 2 <= self.queue_entries <= 1 << 16:
            raise UserError("data in capsules comes in units of 16 octets, queues have 2 to 65536")


#: Block sizes that are offered; Linux uses no larger ones than a page.
BLOCK_SIZES = (512, 1024, 2048, 4096)
#: Identifiers are derived from names, so that a target that starts again is the same.
_FAMILY = uuid.uuid5(uuid.NAMESPACE_URL, "uetemu:nvme")


def checked_nqn(nqn: str) -> str:
    """Return an NQN as it is; raises :class:`UserError` where it is none (Base 2.0, 4.5)."""
    octets = nqn.encode()
    if (
        not nqn.startswith("nqn.")
        or len(octets) > nvme.MOST_NQN
        or not nqn.isprintable()
        or " " in nqn
    ):
        raise UserError(
            f"{nqn!r} is no NQN; write for example nqn.2026-01.example:disk,"
            f" at most {nvme.MOST_NQN} octets"
        )
    return nqn


@dataclass(frozen=True)
class NvmeNamespace:
    """Blocks of a store, under a namespace identifier (NSID)."""

    nsid: int
    store: BlockStore
    block_size: int
    uuid: uuid.UUID

    @property
    def blocks(self) -> int:
        """Return the size in blocks; octets behind the last whole block are not used."""
        return self.store.size // self.block_size

    @property
    def nguid(self) -> bytes:
        """Return the namespace globally unique identifier."""
        return self.uuid.bytes


@dataclass
class NvmeSubsystem:
    """Namespaces under one NQN; without ``hosts`` any host may connect."""

    nqn: str
    serial: str
    hosts: frozenset[str] = frozenset()
    namespaces: dict[int, NvmeNamespace] = field(default_factory=dict)

    @classmethod
    def named(cls, nqn: str, hosts: frozenset[str] = frozenset()) -> NvmeSubsystem:
        """Make a subsystem without namespaces; raises :class:`UserError` for a bad NQN."""
        if checked_nqn(nqn) == nvme.DISCOVERY_NQN:
            raise UserError("the discovery subsystem is always there; give another NQN")
        for host in hosts:
            checked_nqn(host)
        return cls(nqn, hashlib.sha256(nqn.encode()).hexdigest()[:20], hosts)

    def add(self, store: BlockStore, block_size: int = 512) -> NvmeNamespace:
        """Add a namespace with the next NSID; raises :class:`UserError`."""
        if block_size not in BLOCK_SIZES:
            raise UserError(f"block size {block_size} is not offered; use one of {BLOCK_SIZES}")
        if store.size < block_size:
            raise UserError(
                f"{store.size} octets are less than a block of {block_size}; give --size"
            )
        nsid = len(self.namespaces) + 1
        identifier = uuid.uuid5(_FAMILY, f"{self.nqn}/{nsid}")
        namespace = NvmeNamespace(nsid, store, block_size, identifier)
        self.namespaces[nsid] = namespace
        return namespace


@dataclass(frozen=True, slots=True)
class Answer:
    """The completion of a command: its status, and dwords 0 and 1."""

    status: int = nvme.NvmeStatus.SUCCESS
    result: int = 0


@dataclass(frozen=True, slots=True)
class Transmission:
    """``length`` octets go to the host, read piece by piece (offset, length), then success."""

    length: int
    read: Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class Collection:
    """``length`` octets of the host are taken piece by piece (offset, octets), then ``finish``."""

    length: int
    take: Callable[[int, bytes], None]
    finish: Callable[[], Answer]


@dataclass(frozen=True, slots=True)
class Waiting:
    """The command is held: its controller completes it later."""


Outcome: TypeAlias = Answer | Transmission | Collection | Waiting
SUCCEEDED = Answer()


def refused(status: nvme.NvmeStatus, result: int = 0) -> Answer:
    """Make an answer with Do Not Retry: the same command would fail again."""
    return Answer(status | nvme.DO_NOT_RETRY, result)


def transmission_of(octets: bytes) -> Transmission:
    return Transmission(len(octets), lambda offset, length: octets[offset : offset + length])


#: Entries that the error log keeps.
ERROR_ENTRIES = 16
_READY_TIMEOUT_MS = 15_000
_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """An entry of the error log: the number of the error, its command, its queue and status."""

    count: int
    sqid: int
    command: nvme.NvmeCommand
    status: int


@dataclass(frozen=True, slots=True)
class ConnectedHost:
    """The host of a controller, as its Connect command names it."""

    nqn: str
    identifier: bytes


@dataclass
class HealthCounts:
    """Counters of the health log: commands and octets that succeeded."""

    reads: int = 0
    writes: int = 0
    octets_read: int = 0
    octets_written: int = 0


class NvmeController:
    """A controller of one host; ``subsystem`` is None for a discovery controller."""

    def __init__(
        self,
        cntlid: int,
        subsystem: NvmeSubsystem | None,
        host: ConnectedHost,
        settings: TargetSettings,
    ) -> None:
        self.cntlid = cntlid
        self.subsystem = subsystem
        self.host = host
        self.settings = settings
        self.cc = 0
        self.csts = 0
        self.cap = nvme.capabilities(settings.queue_entries, _READY_TIMEOUT_MS)
        self.write_cache = True
        self.event_mask = 0
        self.health = HealthCounts()
        self.errors: deque[ErrorRecord] = deque(maxlen=ERROR_ENTRIES)
        self.error_count = 0
        #: CIDs of Async Event Requests that wait.
        self.event_requests: deque[int] = deque()
        #: KATO, rounded up to the unit of KAS; 0: no timer.
        self.keep_alive_ms = 0
        self.deadline_ns: int | None = None

    @property
    def namespaces(self) -> Mapping[int, NvmeNamespace]:
        return {} if self.subsystem is None else self.subsystem.namespaces

    @property
    def enabled(self) -> bool:
        """Tell whether CC.EN is set, and the controller is ready."""
        return bool(self.csts & nvme.READY)

    # -- properties (Base 2.0, 3.1.3) --------------------------------------------------------------

    def value_of(self, offset: int) -> int | None:
        """Return the value of a property, None where there is none."""
        match offset:
            case nvme.Property.CAP:
                return self.cap
            case nvme.Property.VS:
                return nvme.VERSION
            case nvme.Property.CC:
                return self.cc
            case nvme.Property.CSTS:
                return self.csts
        return None

    def configure(self, value: int) -> None:
        """Set CC: enable, disable (a reset), shut down; CSTS follows at once."""
        before, self.cc = self.cc, value
        if value & nvme.ENABLE and not before & nvme.ENABLE:
            self.csts = nvme.READY
        elif before & nvme.ENABLE and not value & nvme.ENABLE:
            self.csts = 0
            self.event_mask = 0
        if value & nvme.SHUTDOWN_MASK and not before & nvme.SHUTDOWN_MASK:
            self.csts |= nvme.SHUTDOWN_COMPLETE

    # -- keep alive (Base 2.0, 3.9) ----------------------------------------------------------------

    def set_keep_alive(self, milliseconds: int, now_ns: int) -> None:
        """Set KATO and start its timer."""
        units = -(-milliseconds // nvme.KEEP_ALIVE_UNIT_MS)
        self.keep_alive_ms = units * nvme.KEEP_ALIVE_UNIT_MS
        self.keep_alive(now_ns)

    def keep_alive(self, now_ns: int) -> None:
        """Start the timer again: a Keep Alive command has come."""
        period = self.keep_alive_ms
        self.deadline_ns = now_ns + period * _MS if period else None

    def expire(self) -> None:
        """Enter the fatal state: the host has been silent for too long."""
        self.csts |= nvme.FATAL_STATUS
        self.deadline_ns = None

    def record_error(self, sqid: int, command: nvme.NvmeCommand, status: int) -> None:
        """Put a failed command into the error log."""
        self.error_count += 1
        self.errors.appendleft(ErrorRecord(self.error_count, sqid, command, status))
