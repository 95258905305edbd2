"""A host keeps its controller connected and carries out I/O: the initiator's API.

::

    async with await NvmeHost.connect(HostOptions("10.0.0.1", "nqn.2026-01.example:disk")) as host:
        await host.write(1, 0, bytes(4096))
        octets = await host.read(1, 0, 8)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import asdict
from types import TracebackType

from emulator.cluster.nvme_tcp.initiator.controller_session import (
    ControllerFacts,
    ControllerSession,
    NamespaceFacts,
)
from emulator.cluster.nvme_tcp.initiator.host_commands import entry, io_entry
from emulator.cluster.nvme_tcp.initiator.host_errors import (
    ControllerLostError,
    NvmeCommandError,
    QueueBrokenError,
)
from emulator.cluster.nvme_tcp.initiator.host_link import Dialer, HostLink, dial
from emulator.cluster.nvme_tcp.initiator.host_options import HostOptions
from emulator.cluster.nvme_tcp.initiator.latency_histogram import LatencyHistogram
from emulator.cluster.nvme_tcp.wire.layouts import (
    ATTRIBUTE_DEALLOCATE,
    DSM_RANGE,
    FORCE_UNIT_ACCESS,
    IoOpcode,
    NvmeStatus,
)
from emulator.errors import UserError

#: Blocks of one command (NLB has 16 bits).
_MOST_BLOCKS = 1 << 16
#: Least size of a logical block (LBADS is at least 9).
_LEAST_BLOCK = 512
#: Pause before a command that failed for a passing reason is sent again (s).
_PAUSE_S = 0.05


class NvmeHost:
    """A host connected to one subsystem; made by :meth:`connect`."""

    def __init__(self, options: HostOptions, dialer: Dialer) -> None:
        self.options = options
        self._dialer = dialer
        self._session: ControllerSession | None = None
        self._live = asyncio.Event()
        self._lost: str | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._counts: Counter[str] = Counter()
        #: Latencies of I/O commands, each from its capsule to its completion.
        self.latencies = LatencyHistogram()

    @classmethod
    async def connect(cls, options: HostOptions, dialer: Dialer = dial) -> NvmeHost:
        """Connect all queues; raises :class:`UserError` where the first attempt fails."""
        host = cls(options, dialer)
        session = ControllerSession(options, dialer)
        await session.open()
        host._begin(session)
        host._supervisor = asyncio.create_task(host._supervise())
        return host

    async def __aenter__(self) -> NvmeHost:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Shut the controller down, and close all connections."""
        self._lost = self._lost or "the host was closed"
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
        if self._session is not None:
            await self._session.shut_down()
            if self._live.is_set():
                self._retire(self._session)
        self._live.set()  # whoever waits learns of the end

    # -- facts -------------------------------------------------------------------------------------

    @property
    def controller(self) -> ControllerFacts:
        """Return facts of the controller that is, or was last, connected."""
        assert self._session is not None
        assert self._session.facts is not None
        return self._session.facts

    @property
    def namespaces(self) -> dict[int, NamespaceFacts]:
        """Return the active namespaces, by their NSID."""
        assert self._session is not None
        return self._session.namespaces

    @property
    def connected(self) -> bool:
        """Tell whether the controller is connected at present."""
        return self._live.is_set() and self._lost is None

    @property
    def lost(self) -> str | None:
        """Return why the host does not connect any more; None: it is connected, or tries to be."""
        return self._lost

    async def connected_or_lost(self) -> None:
        """Return once the controller is connected, or lost."""
        await self._live.wait()

    def counters(self) -> dict[str, int]:
        """Return counters of all queues since the host was made."""
        total = Counter(self._counts)
        if self._session is not None and self._live.is_set():
            total.update(_counts_of(self._session))
        return dict(total)

    # -- I/O ---------------------------------------------------------------------------------------

    async def read(self, nsid: int, lba: int, blocks: int) -> bytes:
        """Read blocks, by as many commands as it takes; raises :class:`UserError`."""
        size = self._namespace(nsid).block_size
        pieces = self._pieces(lba, blocks, size)
        results = await _all(
            self._io(io_entry(IoOpcode.READ, nsid, at, count), "Read", download=count * size)
            for at, count in pieces
        )
        return results[0] if len(results) == 1 else b"".join(results)

    async def write(self, nsid: int, lba: int, data: bytes, *, through: bool = False) -> None:
        """Write whole blocks; ``through`` forces them to the medium (FUA)."""
        flags = FORCE_UNIT_ACCESS if through else 0
        await self._upload(IoOpcode.WRITE, nsid, lba, data, flags)

    async def compare(self, nsid: int, lba: int, data: bytes) -> bool:
        """Tell whether blocks hold this data."""
        try:
            await self._upload(IoOpcode.COMPARE, nsid, lba, data, 0)
        except NvmeCommandError as error:
            if error.status == NvmeStatus.COMPARE_FAILURE:
                return False
            raise
        return True

    async def flush(self, nsid: int) -> None:
        """Bring what was written to the medium."""
        await self._io(entry(IoOpcode.FLUSH, nsid), "Flush")

    async def write_zeroes(self, nsid: int, lba: int, blocks: int) -> None:
        """Make blocks read as zeroes, without sending them."""
        for at, count in self._pieces(lba, blocks, 1):
            request = io_entry(IoOpcode.WRITE_ZEROES, nsid, at, count)
            await self._io(request, "Write Zeroes")

    async def deallocate(self, nsid: int, lba: int, blocks: int) -> None:
        """Advise the controller that the contents of blocks are not needed."""
        request = entry(IoOpcode.DATASET_MANAGEMENT, nsid, 0, ATTRIBUTE_DEALLOCATE)
        table = DSM_RANGE.pack(0, blocks, lba)
        await self._io(request, "Dataset Management", upload=table)

    async def log_page(self, page: int, length: int, offset: int = 0) -> bytes:
        """Read ``length`` octets of a log page, a multiple of 4."""
        session = await self._connected()
        return await session.log_page(page, length, offset)

    def _namespace(self, nsid: int) -> NamespaceFacts:
        namespace = self.namespaces.get(nsid)
        if namespace is None:
            known = ", ".join(map(str, self.namespaces)) or "none"
            raise UserError(f"there is no namespace {nsid}; there are: {known}")
        if not _LEAST_BLOCK <= namespace.block_size <= self.controller.most_transfer:
            raise UserError(
                f"namespace {nsid} has blocks of {namespace.block_size} octets, which a command"
                " cannot carry; use another namespace"
            )
        return namespace

    async def _upload(self, opcode: IoOpcode, nsid: int, lba: int, data: bytes, flags: int) -> None:
        size = self._namespace(nsid).block_size
        if not data or len(data) % size:
            raise UserError(f"{len(data)} octets are no whole blocks of {size}; add or cut some")
        pieces = self._pieces(lba, len(data) // size, size)
        await _all(
            self._io(
                io_entry(opcode, nsid, at, count, flags),
                opcode.name.capitalize(),
                upload=data[(at - lba) * size : (at - lba + count) * size],
            )
            for at, count in pieces
        )

    def _pieces(self, lba: int, blocks: int, size: int) -> list[tuple[int, int]]:
        """Cut a range into commands: first block, number of blocks."""
        if lba < 0 or blocks < 1:
            raise UserError(f"{blocks} blocks from {lba} are no range; give at least one")
        most = min(self.controller.most_transfer // size, _MOST_BLOCKS)
        return [(at, min(most, lba + blocks - at)) for at in range(lba, lba + blocks, most)]

    async def _io(
        self, request: bytearray, what: str, *, upload: bytes = b"", download: int = 0
    ) -> bytes:
        """Carry out an I/O command, again after a broken connection or a passing error."""
        for attempt in range(self.options.retries + 1):
            link = _least_busy(await self._connected())
            try:
                done = await link.submit(
                    request,
                    upload=upload,
                    download=download,
                    timeout_s=self.options.command_timeout_s,
                )
            except QueueBrokenError as error:
                if self.options.failover:
                    raise
                failure: UserError = error
                await asyncio.sleep(0)  # the supervisor takes note of it
            else:
                self.latencies.add(done.elapsed_ns)
                if done.completion.ok:
                    return done.data
                error_of = NvmeCommandError(what, done.completion.status, done.completion.result)
                if error_of.do_not_retry:
                    raise error_of
                failure = error_of
                await asyncio.sleep(_PAUSE_S)
            if attempt < self.options.retries:
                self._counts["retries"] += 1
        raise failure

    # -- recovery ----------------------------------------------------------------------------------

    async def _connected(self) -> ControllerSession:
        while True:
            if self.options.failover and not self._live.is_set():
                raise QueueBrokenError(f"{self.options.address} is not connected")
            await self._live.wait()
            if self._lost is not None:
                raise ControllerLostError(self._lost)
            session = self._session
            assert session is not None
            if all(link.queue.broken is None for link in session.links):
                if not session.io:
                    raise UserError("a discovery controller has no I/O queues; name a subsystem")
                return session
            self._live.clear()  # the supervisor is about to take note

    def _begin(self, session: ControllerSession) -> None:
        self._session = session
        self._live.set()

    def _retire(self, session: ControllerSession) -> None:
        """Keep the counters of a session that has ended."""
        self._counts.update(_counts_of(session))
        self._live.clear()

    async def _supervise(self) -> None:
        """Connect again whenever a queue has ended, until ``ctrl_loss_s`` is over."""
        try:
            while True:
                assert self._session is not None
                reason = await self._session.wait_broken()
                self._retire(self._session)
                self._session.abandon(reason)
                self._counts["lost_connections"] += 1
                if not await self._reconnect(reason):
                    return
        finally:  # nobody waits for a host that does not connect any more
            self._lost = self._lost or "the host has stopped"
            if not self._live.is_set():
                self._live.set()

    async def _reconnect(self, reason: str) -> bool:
        loop = asyncio.get_running_loop()
        end = loop.time() + self.options.ctrl_loss_s
        while loop.time() < end:
            await asyncio.sleep(min(self.options.reconnect_delay_s, end - loop.time()))
            session = ControllerSession(self.options, self._dialer)
            try:
                await session.open()
            except NvmeCommandError as error:
                self._counts["failed_reconnects"] += 1
                reason = str(error)
                if error.do_not_retry:
                    break
            except QueueBrokenError as error:
                self._counts["failed_reconnects"] += 1
                reason = str(error)
            else:
                self._counts["reconnects"] += 1
                self._begin(session)
                return True
        self._lost = f"the controller of {self.options.subsystem} is lost: {reason}"
        return False


def _least_busy(session: ControllerSession) -> HostLink:
    return min(session.io, key=lambda link: link.outstanding)


def _counts_of(session: ControllerSession) -> Counter[str]:
    counts: Counter[str] = Counter(events=session.events)
    for link in session.links:
        counts.update(asdict(link.queue.counters))
    return counts


async def _all(coroutines: object) -> list[bytes]:
    """Run coroutines together; where one fails, cancel the others and raise its error."""
    tasks = [asyncio.ensure_future(one) for one in coroutines]  # type: ignore[attr-defined]
    if len(tasks) == 1:
        return [await tasks[0]]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
