"""A controller: properties, features, queues, and what waits in it (NVM Express Base 2.0, 3.1)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from emulator.cluster.nvme_tcp.target.subsystem_model import NvmeSubsystem
from emulator.cluster.nvme_tcp.target.target_settings import TargetSettings
from emulator.cluster.nvme_tcp.wire.layouts import (
    ENABLE,
    FATAL_STATUS,
    KEEP_ALIVE_UNIT_MS,
    READY,
    SHUTDOWN_COMPLETE,
    SHUTDOWN_MASK,
    VERSION,
    NvmeCommand,
    Property,
    capabilities,
)

#: Entries that the error log keeps.
ERROR_ENTRIES = 16
_READY_TIMEOUT_MS = 15_000
_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """An entry of the error log: the number of the error, its command, its queue and status."""

    count: int
    sqid: int
    command: NvmeCommand
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
        self.cap = capabilities(settings.queue_entries, _READY_TIMEOUT_MS)
        self.write_cache = True
        self.event_mask = 0
        self.health = HealthCounts()
        self.errors: deque[ErrorRecord] = deque(maxlen=ERROR_ENTRIES)
        self.error_count = 0
        #: CIDs of Async Event Requests that wait.
        self.event_requests: deque[int] = deque()
        self._keep_alive_ms = 0
        self.deadline_ns: int | None = None

    @property
    def enabled(self) -> bool:
        """Tell whether CC.EN is set, and the controller is ready."""
        return bool(self.csts & READY)

    # -- properties (Base 2.0, 3.1.3) --------------------------------------------------------------

    def value_of(self, offset: int) -> int | None:
        """Return the value of a property, None where there is none."""
        match offset:
            case Property.CAP:
                return self.cap
            case Property.VS:
                return VERSION
            case Property.CC:
                return self.cc
            case Property.CSTS:
                return self.csts
        return None

    def configure(self, value: int) -> None:
        """Set CC: enable, disable (a reset), shut down; CSTS follows at once."""
        before, self.cc = self.cc, value
        if value & ENABLE and not before & ENABLE:
            self.csts = READY
        elif before & ENABLE and not value & ENABLE:
            self.csts = 0
            self.event_mask = 0
        if value & SHUTDOWN_MASK and not before & SHUTDOWN_MASK:
            self.csts |= SHUTDOWN_COMPLETE

    # -- keep alive (Base 2.0, 3.9) ----------------------------------------------------------------

    @property
    def keep_alive_ms(self) -> int:
        """Return KATO, rounded up to the unit of KAS; 0: no timer."""
        return self._keep_alive_ms

    def set_keep_alive(self, milliseconds: int, now_ns: int) -> None:
        """Set KATO and start its timer."""
        units = -(-milliseconds // KEEP_ALIVE_UNIT_MS)
        self._keep_alive_ms = units * KEEP_ALIVE_UNIT_MS
        self.keep_alive(now_ns)

    def keep_alive(self, now_ns: int) -> None:
        """Start the timer again: a Keep Alive command has come."""
        period = self._keep_alive_ms
        self.deadline_ns = now_ns + period * _MS if period else None

    def expire(self) -> None:
        """Enter the fatal state: the host has been silent for too long."""
        self.csts |= FATAL_STATUS
        self.deadline_ns = None

    def record_error(self, sqid: int, command: NvmeCommand, status: int) -> None:
        """Put a failed command into the error log."""
        self.error_count += 1
        self.errors.appendleft(ErrorRecord(self.error_count, sqid, command, status))
