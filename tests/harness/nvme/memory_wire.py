"""An NVMe/TCP target and queues of a host in memory: octets go both ways until nothing moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from emulator.cluster.nvme_tcp.initiator.host_queue import (
    CommandDone,
    HostQueue,
    QueueSettings,
    connect_data,
    connect_entry,
    property_set_entry,
)
from emulator.cluster.nvme_tcp.target.block_store import BlockStore
from emulator.cluster.nvme_tcp.target.commands import LocalEnd
from emulator.cluster.nvme_tcp.target.controller import NvmeSubsystem, TargetSettings
from emulator.cluster.nvme_tcp.target.nvme_target import NvmeTarget, TargetConnection
from emulator.cluster.nvme_tcp.wire.layouts import (
    ANY_CONTROLLER,
    ENABLE,
    IO_ENTRY_SIZES,
    Property,
)

NQN, HOST_NQN, HOST_ID = "nqn.2026-01.example:disk", "nqn.2026-01.example:host", b"h" * 16
LOCAL = LocalEnd("192.0.2.1", 4420)
SIZE = 1 << 22
BLOCK = 512


def target_of(settings: TargetSettings | None = None, *, size: int = SIZE) -> NvmeTarget:
    subsystem = NvmeSubsystem.named(NQN)
    subsystem.add(BlockStore.memory(size), BLOCK)
    return NvmeTarget([subsystem], settings)


def queue_settings(**changes: Any) -> QueueSettings:
    values: dict[str, Any] = {
        "header_digest": False,
        "data_digest": False,
        "alignment": 0,
        "r2ts": 1,
        "depth": 31,
        "in_capsule": 8192,
        "most_transfer": 1 << 20,
    }
    return QueueSettings(**(values | changes))


@dataclass
class MemoryQueue:
    """A queue of the host and its connection at the target."""

    target: NvmeTarget
    settings: QueueSettings = field(default_factory=queue_settings)
    now: int = 0
    #: Octets of one call; small ones cut PDUs anywhere.
    piece: int = 1 << 20
    #: That of an I/O queue's controller.
    admin: MemoryQueue = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        connection = self.target.accept(LOCAL, self.now)
        assert connection is not None
        self.connection: TargetConnection = connection
        self.host = HostQueue(self.settings, self.now, 10**9)
        self.done: list[CommandDone] = []
        self.run()

    def run(self) -> None:
        """Carry octets until nothing moves."""
        while self.host.busy or self.connection.busy:
            self._carry(b"".join(self.host.octets_to_send(self.piece)), self.connection)
            self._carry(b"".join(self.connection.octets_to_send(self.piece)), self.host)
        self.done += self.host.take_completions()

    def _carry(self, octets: bytes, to: TargetConnection | HostQueue) -> None:
        for at in range(0, len(octets), self.piece):
            to.receive(octets[at : at + self.piece], self.now)

    def submit(
        self, entry: bytearray, *, upload: bytes = b"", download: int = 0, token: object = None
    ) -> int:
        return self.host.submit(entry, token, self.now, upload=upload, download=download)

    def command(self, entry: bytearray, *, upload: bytes = b"", download: int = 0) -> CommandDone:
        """Carry out one command."""
        token = object()
        self.submit(entry, upload=upload, download=download, token=token)
        self.run()
        (done,) = [one for one in self.done if one.token is token]
        self.done.remove(done)
        return done

    def connect(
        self,
        qid: int = 0,
        cntlid: int = ANY_CONTROLLER,
        *,
        sqsize: int = 31,
        kato_ms: int = 0,
        flow_control: bool = True,
        subsystem: str = NQN,
        host: str = HOST_NQN,
        identifier: bytes = HOST_ID,
    ) -> CommandDone:
        entry = connect_entry(qid, sqsize, kato_ms, flow_control=flow_control)
        data = connect_data(identifier, cntlid, subsystem, host)
        return self.command(entry, upload=data)

    def enable(self) -> None:
        value = ENABLE | IO_ENTRY_SIZES
        assert self.command(property_set_entry(Property.CC, value)).completion.ok


def admin_queue(
    target: NvmeTarget, settings: QueueSettings | None = None, **connect: Any
) -> tuple[MemoryQueue, int]:
    """A connected, enabled Admin queue, and its controller's identifier."""
    queue = MemoryQueue(target, settings or queue_settings())
    done = queue.connect(**connect)
    assert done.completion.ok
    queue.enable()
    return queue, done.completion.result


def io_queue(
    target: NvmeTarget,
    settings: QueueSettings | None = None,
    *,
    flow_control: bool = True,
    sqsize: int = 31,
) -> MemoryQueue:
    """A connected I/O queue of a new controller; its Admin queue is its ``admin``."""
    admin, cntlid = admin_queue(target, settings)
    queue = MemoryQueue(target, settings or queue_settings())
    done = queue.connect(1, cntlid, flow_control=flow_control, sqsize=sqsize)
    assert done.completion.ok
    queue.admin = admin
    return queue
