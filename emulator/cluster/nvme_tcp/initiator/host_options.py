"""Options of an initiator: its target, and the limits that it requests."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from emulator.cluster.nvme_tcp.wire.layouts import IO_PORT
from emulator.cluster.nvme_tcp.wire.pdu import MOST_ALIGNMENT
from emulator.errors import UserError

#: Host identifiers are derived from host NQNs: a host has one (Base 2.0, 5.27.1.25).
_FAMILY = uuid.uuid5(uuid.NAMESPACE_URL, "uetemu:nvme-host")
HOST_NQN = f"nqn.2014-08.org.nvmexpress:uuid:{uuid.uuid5(_FAMILY, 'default')}"


@dataclass(frozen=True)
class HostOptions:
    """Options of a host, with the defaults of Linux; times in seconds."""

    address: str
    subsystem: str
    port: int = IO_PORT
    host_nqn: str = HOST_NQN
    io_queues: int = 1
    queue_entries: int = 128
    header_digest: bool = False
    data_digest: bool = False
    #: HPDA: C2HData bring data aligned to ``4 * (alignment + 1)``.
    alignment: int = 0
    #: R2Ts that a controller may have outstanding for a command.
    r2ts: int = 1
    #: The host goes without flow control of submission queues (SQHD), as Linux can.
    flow_control: bool = True
    keep_alive_s: float = 5.0
    command_timeout_s: float = 30.0
    connect_timeout_s: float = 10.0
    reconnect_delay_s: float = 1.0
    #: How long a lost controller is tried again; 0: never.
    ctrl_loss_s: float = 600.0
    #: How often a command is sent again after a broken connection or a passing error.
    retries: int = 5
    #: A command whose connection breaks, or is not there, fails at once: another path takes it.
    failover: bool = False

    def __post_init__(self) -> None:
        if not 2 <= self.queue_entries <= 1 << 16:
            raise UserError(f"a queue has 2 to 65536 entries, not {self.queue_entries}")
        if not 1 <= self.io_queues < 1 << 16:
            raise UserError(f"{self.io_queues} I/O queues cannot be; ask for 1 to 65535")
        if not 0 <= self.alignment <= MOST_ALIGNMENT or self.r2ts < 1:
            raise UserError(f"HPDA is 0 to {MOST_ALIGNMENT}, and there is at least one R2T")

    @property
    def host_identifier(self) -> bytes:
        """Return the host identifier of 16 octets."""
        return uuid.uuid5(_FAMILY, self.host_nqn).bytes
