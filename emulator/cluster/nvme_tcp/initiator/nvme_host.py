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
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

from emulator.cluster.nvme_tcp.initiator.controller_session import (
    ControllerFacts,
    ControllerSession,
    Dialer,
    NamespaceFacts,
    dial,
)
from emulator.cluster.nvme_tcp.initiator.host_options import HostOptions
from emulator.cluster.nvme_tcp.initiator.host_queue import (
    ControllerLostError,
    NvmeCommandError,
    QueueBrokenError,
    entry,
    io_entry,
)
from emulator.cluster.nvme_tcp.wire import layouts as nvme
from emulator.errors import UserError

_STEPS = 8  # buckets for each doubling
_STEP_BITS = 3


class LatencyHistogram:
    """Counts times in ns; percentiles are exact to an eighth."""

    def __init__(self) -> None:
        self._buckets = [0] * (64 * _STEPS)
        self.count = 0
        self.total_ns = 0
        self.least_ns = 0
        self.most_ns = 0

    def add(self, ns: int) -> None:
        ns = max(ns, 1)
        self.least_ns = ns if not self.count else min(ns, self.least_ns)
        self.most_ns = max(ns, self.most_ns)
        self.count += 1
        self.total_ns += ns
        self._buckets[_bucket(ns)] += 1

    def percentile(self, share: float) -> int:
        """Return the upper end (ns) of the bucket that holds this share (0 to 1) of the times."""
        rank = share * self.count
        seen = 0
        for number, count in enumerate(self._buckets):
            seen += count
            if count and seen >= rank:
                return min(_end(number), self.most_ns)
        return 0

    def summary_us(self) -> dict[str, float]:
        """Return mean and percentiles in microseconds; without times, nothing."""
        if not self.count:
            return {}
        return {
            "mean": round(self.total_ns / self.count / 1e3, 1),
            "least": round(self.least_ns / 1e3, 1),
            "p50": round(self.percentile(0.5) / 1e3, 1),
            "p99": round(self.percentile(0.99) / 1e3, 1),
            "most": round(self.most_ns / 1e3, 1),
        }


def _bucket(ns: int) -> int:
    if ns < _STEPS:
        return ns
    shift = ns.bit_length() - 1 - _STEP_BITS
    return shift * _STEPS + (ns >> shift)


def _end(number: int) -> int:
    if number < 2 * _STEPS:
        return number
    shift = number // _STEPS - 1
    return ((number % _STEPS + _STEPS + 1) << shift) - 1


#: Blocks of one command (NLB has 16 bits).
_MOST_BLOCKS = 1 << 16
#: Least size of a logical block (LBADS is at least 9).
_LEAST_BLOCK = 512
#: Pause before a command that failed for a passing reason is sent again (s).
_PAUSE_S = 0.05


class NvmeHost:
    """A host connected to one subsystem; made by :meth:`connect`."""

    def __init__(self, options: HostOptions, dialer: Dialer, session: ControllerSession) -> None:
        self.options = options
        self._dialer = dialer
        self.session = session
        self._live = asyncio.Event()
        self._live.set()
        self._lost: str | None = None
        self._supervisor = asyncio.create_task(self._supervise())
        self._counts: Counter[str] = Counter()
        #: Latencies of I/O commands, each from its capsule to its completion.
        self.latencies = LatencyHistogram()

    @classmethod
    async def connect(cls, options: HostOptions, dialer: Dialer = dial) -> NvmeHost:
        """Connect all queues; raises :class:`UserError` where the first attempt fails."""
        return cls(options, dialer, await ControllerSession.open(options, dialer))

    async def __aenter__(self) -> NvmeHost:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Shut the controller down, and close all connections."""
        self._lost = self._lost or "the host was closed"
        self._supervisor.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._supervisor
        await self.session.shut_down()
        if self._live.is_set():
            self._retire()
        self._live.set()  # whoever waits learns of the end

    # -- facts -------------------------------------------------------------------------------------

    @property
    def controller(self) -> ControllerFacts:
        """Return facts of the controller that is, or was last, connected."""
        return self.session.facts

    @property
    def namespaces(self) -> dict[int, NamespaceFacts]:
        """Return the active namespaces, by their NSID."""
        return self.session.namespaces

    @property
    def connected(self) -> bool:
        return self._live.is_set() and self._lost is None

    @property
    def lost(self) -> str | None:
        """Return why the host does not connect any more; None: it is connected, or tries to be."""
        return self._lost

    async def connected_or_lost(self) -> None:
        """Return once the controller is connected, or lost."""
        await self._live.wait()

    def counters(self) -> dict[str, int]:
        total = Counter(self._counts)
        if self._live.is_set():
            total.update(_counts_of(self.session))
        return dict(total)

    # -- I/O ---------------------------------------------------------------------------------------

    async def read(self, nsid: int, lba: int, blocks: int) -> bytes:
        """Read blocks, by as many commands as it takes; raises :class:`UserError`."""
        size = self._namespace(nsid).block_size
        pieces = self._pieces(lba, blocks, size)
        results = await _all(
            self._io(io_entry(nvme.IoOpcode.READ, nsid, at, count), "Read", download=count * size)
            for at, count in pieces
        )
        return results[0] if len(results) == 1 else b"".join(results)

    async def write(self, nsid: int, lba: int, data: bytes, *, through: bool = False) -> None:
        """Write whole blocks; ``through`` forces them to the medium (FUA)."""
        flags = nvme.FORCE_UNIT_ACCESS if through else 0
        await self._upload(nvme.IoOpcode.WRITE, nsid, lba, data, flags)

    async def compare(self, nsid: int, lba: int, data: bytes) -> bool:
        try:
            await self._upload(nvme.IoOpcode.COMPARE, nsid, lba, data, 0)
        except NvmeCommandError as error:
            if error.status == nvme.NvmeStatus.COMPARE_FAILURE:
                return False
            raise
        return True

    async def flush(self, nsid: int) -> None:
        """Bring what was written to the medium."""
        await self._io(entry(nvme.IoOpcode.FLUSH, nsid), "Flush")

    async def write_zeroes(self, nsid: int, lba: int, blocks: int) -> None:
        """Make blocks read as zeroes, without sending them."""
        for at, count in self._pieces(lba, blocks, 1):
            request = io_entry(nvme.IoOpcode.WRITE_ZEROES, nsid, at, count)
            await self._io(request, "Write Zeroes")

    async def deallocate(self, nsid: int, lba: int, blocks: int) -> None:
        """Advise the controller that the contents of blocks are not needed."""
        request = entry(nvme.IoOpcode.DATASET_MANAGEMENT, nsid, 0, nvme.ATTRIBUTE_DEALLOCATE)
        table = nvme.DSM_RANGE.pack(0, blocks, lba)
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

    async def _upload(
        self, opcode: nvme.IoOpcode, nsid: int, lba: int, data: bytes, flags: int
    ) -> None:
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
            link = min((await self._connected()).io, key=lambda link: link.outstanding)
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
            session = self.session
            if all(link.queue.broken is None for link in session.links):
                if not session.io:
                    raise UserError("a discovery controller has no I/O queues; name a subsystem")
                return session
            self._live.clear()  # the supervisor is about to take note

    def _retire(self) -> None:
        """Keep the counters of the session, which has ended."""
        self._counts.update(_counts_of(self.session))
        self._live.clear()

    async def _supervise(self) -> None:
        """Connect again whenever a queue has ended, until ``ctrl_loss_s`` is over."""
        try:
            while True:
                reason = await self.session.wait_broken()
                self._retire()
                self.session.abandon(reason)
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
            try:
                self.session = await ControllerSession.open(self.options, self._dialer)
            except (NvmeCommandError, QueueBrokenError) as error:
                self._counts["failed_reconnects"] += 1
                reason = str(error)
                if isinstance(error, NvmeCommandError) and error.do_not_retry:
                    break
            else:
                self._counts["reconnects"] += 1
                self._live.set()
                return True
        self._lost = f"the controller of {self.options.subsystem} is lost: {reason}"
        return False


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


T = TypeVar("T")


class MultipathHost:
    """A host of several ``paths`` to one subsystem; made by :meth:`connect`.

    Every path is a controller of its own, with its own connections, at a port of the subsystem.
    All commands take one path until it breaks.  It connects again meanwhile, and is in reserve.
    """

    def __init__(self, paths: Sequence[NvmeHost]) -> None:
        self.paths = tuple(paths)
        self._active = self.paths[0]
        self._counts: Counter[str] = Counter()
        #: Latencies of I/O commands over all paths.
        self.latencies = LatencyHistogram()
        for path in self.paths:
            path.latencies = self.latencies

    @classmethod
    async def connect(cls, options: Sequence[HostOptions], dialer: Dialer = dial) -> MultipathHost:
        """Connect all paths of ``options``.

        Raises UserError where one of them cannot be, or they do not lead to the same namespaces.
        """
        paths: list[NvmeHost] = []
        try:
            for one in options:
                paths.append(await NvmeHost.connect(replace(one, failover=True), dialer))
            first, *others = (path.namespaces for path in paths)
            if any(other != first for other in others):
                places = " and ".join(one.address for one in options)
                raise UserError(f"{places} have not the same namespaces; give paths to one disk")
        except BaseException:
            for path in paths:
                await path.close()
            raise
        return cls(paths)

    async def __aenter__(self) -> MultipathHost:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Shut all controllers down, and close all connections."""
        await asyncio.gather(*(path.close() for path in self.paths))

    @property
    def controller(self) -> ControllerFacts:
        return self._active.controller

    @property
    def namespaces(self) -> dict[int, NamespaceFacts]:
        """Return the active namespaces, by their NSID."""
        return self._active.namespaces

    def counters(self) -> dict[str, int]:
        """Return the counters of all paths, and ``failovers``: changes of the path in use."""
        total = Counter(self._counts)
        for path in self.paths:
            total.update(path.counters())
        return dict(total)

    async def read(self, nsid: int, lba: int, blocks: int) -> bytes:
        """Read blocks, as :meth:`NvmeHost.read` does."""
        return await self._by_a_path(lambda path: path.read(nsid, lba, blocks))

    async def write(self, nsid: int, lba: int, data: bytes, *, through: bool = False) -> None:
        """Write whole blocks; ``through`` forces them to the medium (FUA)."""
        await self._by_a_path(lambda path: path.write(nsid, lba, data, through=through))

    async def flush(self, nsid: int) -> None:
        """Bring what was written to the medium."""
        await self._by_a_path(lambda path: path.flush(nsid))

    async def _by_a_path(self, carry_out: Callable[[NvmeHost], Awaitable[T]]) -> T:
        """Carry out I/O by the path in use, and by others where it breaks.

        Raises ControllerLostError once all paths are lost.
        """
        while True:
            path = await self._path()
            try:
                return await carry_out(path)
            except (QueueBrokenError, ControllerLostError):
                await asyncio.sleep(0)  # the path's supervisor takes note of it

    async def _path(self) -> NvmeHost:
        """Return a path that is connected, and wait for one where there is none."""
        if self._active.connected:
            return self._active
        while True:
            for path in self.paths:
                if path.connected:
                    self._counts["failovers"] += path is not self._active
                    self._active = path
                    return path
            left = [path for path in self.paths if path.lost is None]
            if not left:
                raise ControllerLostError("; ".join(str(path.lost) for path in self.paths))
            waits = [asyncio.ensure_future(path.connected_or_lost()) for path in left]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()


#: A host by one path, or by several.
BlockHost = NvmeHost | MultipathHost


async def connect(options: Sequence[HostOptions]) -> BlockHost:
    if len(options) == 1:
        return await NvmeHost.connect(options[0])
    return await MultipathHost.connect(options)


#: Entries that are read; a log with more is refused.
_MOST_DISCOVERED = 4096
_ATTEMPTS = 5


@dataclass(frozen=True)
class DiscoveredSubsystem:
    """An entry of the discovery log, with the numbers of the specification."""

    transport: int
    family: int
    kind: int
    nqn: str
    address: str
    service: str
    port_id: int
    cntlid: int
    admin_entries: int


async def discover(options: HostOptions, dialer: Dialer = dial) -> list[DiscoveredSubsystem]:
    """Read the discovery log at the address of ``options``, whatever their subsystem."""
    session = await ControllerSession.open(replace(options, subsystem=nvme.DISCOVERY_NQN), dialer)
    try:
        for _ in range(_ATTEMPTS):
            head = await session.log_page(nvme.LogPage.DISCOVERY, nvme.DISCOVERY_HEAD.size)
            generation, number, _ = nvme.DISCOVERY_HEAD.unpack(head)
            if number > _MOST_DISCOVERED:
                raise QueueBrokenError(f"the discovery log has {number} entries; that is refused")
            entries = [await _discovered(session, place) for place in range(number)]
            head = await session.log_page(nvme.LogPage.DISCOVERY, nvme.DISCOVERY_HEAD.size)
            if nvme.DISCOVERY_HEAD.unpack(head)[0] == generation:
                return entries
        raise QueueBrokenError("the discovery log changes while it is read; try again")
    finally:
        await session.shut_down()


async def _discovered(session: ControllerSession, place: int) -> DiscoveredSubsystem:
    offset = nvme.DISCOVERY_HEAD.size + place * nvme.DISCOVERY_ENTRY.size
    fields = nvme.DISCOVERY_ENTRY.unpack(
        await session.log_page(nvme.LogPage.DISCOVERY, nvme.DISCOVERY_ENTRY.size, offset)
    )
    return DiscoveredSubsystem(
        transport=fields["trtype"],
        family=fields["adrfam"],
        kind=fields["subtype"],
        nqn=nvme.padded_text(fields["subnqn"]),
        address=nvme.padded_text(fields["traddr"]),
        service=nvme.padded_text(fields["trsvcid"]),
        port_id=fields["portid"],
        cntlid=fields["cntlid"],
        admin_entries=fields["asqsz"],
    )
