"""Limits and options of a target."""

from __future__ import annotations

from dataclasses import dataclass

from emulator.cluster.nvme_tcp.wire.layouts import PAGE
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
        pages = self.most_transfer // PAGE
        if self.most_transfer % PAGE or pages & (pages - 1) or not pages:
            raise UserError("the most data of a command is a power of two times 4 KiB")
        if self.maxh2cdata < LEAST_MAXH2CDATA or self.maxh2cdata % 4:
            raise UserError(f"MAXH2CDATA is at least {LEAST_MAXH2CDATA}, a multiple of 4")
        if not 0 <= self.alignment <= MOST_ALIGNMENT:
            raise UserError(f"CPDA is 0 to {MOST_ALIGNMENT}")
        if self.in_capsule % 16 or not 2 <= self.queue_entries <= 1 << 16:
            raise UserError("data in capsules comes in units of 16 octets, queues have 2 to 65536")
