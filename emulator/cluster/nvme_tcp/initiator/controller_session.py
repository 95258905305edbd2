"""A session connects a controller's queues once, from Connect to the loss of a queue."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from emulator.cluster.nvme_tcp.initiator.host_options import HostOptions
from emulator.cluster.nvme_tcp.initiator.host_queue import (
    CommandDone,
    HostQueue,
    NvmeCommandError,
    QueueBrokenError,
    QueueSettings,
    connect_data,
    connect_entry,
    entry,
    identify_entry,
    log_entry,
    property_get_entry,
    property_set_entry,
)
from emulator.cluster.nvme_tcp.wake_timer import WakeTimer
from emulator.cluster.nvme_tcp.wire import layouts as nvme

_BUFFER, _HIGH_WATER, _BATCH = 1 << 18, 1 << 20, 1 << 18
#: Opens a TCP connection; the socket may lie in any network namespace.
Dialer: TypeAlias = Callable[[str, int], Awaitable[socket.socket]]


async def dial(address: str, port: int) -> socket.socket:
    """Connect from the network namespace of this process; raises ``OSError``."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    one = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        await asyncio.get_running_loop().sock_connect(one, (address, port))
    except BaseException:
        one.close()
        raise
    return one


class HostLink(asyncio.BufferedProtocol):
    """Submits commands and waits for them; :meth:`wait_broken` returns when the queue has ended."""

    def __init__(self, settings: QueueSettings, connect_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self.queue = HostQueue(settings, time.monotonic_ns(), int(connect_s * 1e9))
        self._buffer = bytearray(_BUFFER)
        self._transport: asyncio.Transport | None = None
        self._full = False
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[str] = self._loop.create_future()
        self._slots = asyncio.Semaphore(settings.depth)
        self._waiting: set[asyncio.Future[CommandDone]] = set()
        self._timer = WakeTimer(self._loop, self._expire)

    @classmethod
    async def open(
        cls, dialer: Dialer, address: str, port: int, settings: QueueSettings, connect_s: float
    ) -> HostLink:
        """Connect and exchange ICReq and ICResp; raises :class:`QueueBrokenError`."""
        loop = asyncio.get_running_loop()
        try:
            one = await asyncio.wait_for(dialer(address, port), connect_s)
        except TimeoutError:
            raise QueueBrokenError(
                f"nobody answers at {address} port {port}; check the address and the route"
            ) from None
        except OSError as error:
            raise QueueBrokenError(
                f"cannot connect to {address} port {port}: {os.strerror(error.errno or 0)};"
                " start the target, or check address and port"
            ) from None
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _, link = await loop.create_connection(lambda: cls(settings, connect_s), sock=one)
        try:
            await link._ready  # noqa: SLF001  a method of its class
        except BaseException:
            link.close()
            raise
        return link

    # -- commands ----------------------------------------------------------------------------------

    @property
    def outstanding(self) -> int:
        """Return the number of commands under way."""
        return len(self._waiting)

    async def submit(
        self,
        entry: bytearray,
        *,
        upload: bytes = b"",
        download: int = 0,
        timeout_s: float | None = None,
    ) -> CommandDone:
        """Carry out a command when the queue has room; raises :class:`QueueBrokenError`."""
        await self._slots.acquire()
        if self.queue.broken is not None:
            self._slots.release()  # the next one learns of it too
            raise QueueBrokenError(self.queue.broken)
        done: asyncio.Future[CommandDone] = self._loop.create_future()
        self.queue.submit(
            entry, done, time.monotonic_ns(), upload=upload, download=download,
            timeout_ns=None if timeout_s is None else int(timeout_s * 1e9),
        )  # fmt: skip
        # until its completion, also where nobody waits for it any more
        self._waiting.add(done)
        self._pump()
        if timeout_s is not None:
            self._timer.set(self._loop.time() + timeout_s)
        return await done

    async def wait_broken(self) -> str:
        """Wait for the end of the queue; return its reason."""
        return await asyncio.shield(self._ended)

    def close(self, reason: str = "closed") -> None:
        """End the queue; outstanding commands raise :class:`QueueBrokenError`."""
        self.queue.fail(reason)
        self._pump()
        self._settle()

    # -- asyncio -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(_HIGH_WATER)
        self._set_timer()
        self._pump()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        with memoryview(self._buffer) as view:
            self.queue.receive(view[:nbytes], time.monotonic_ns())
        self._pump()
        self._settle()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.queue.fail("the connection has ended" if exc is None else f"{exc}")
        self._settle()

    def _pump(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        while not self._full and self.queue.busy:
            transport.write(b"".join(self.queue.octets_to_send(_BATCH)))
        if self.queue.broken is not None:
            transport.close()

    def _settle(self) -> None:
        """Hand completions, and the end of the queue, to the tasks that wait for them."""
        for done in self.queue.take_completions():
            future = cast("asyncio.Future[CommandDone]", done.token)
            self._waiting.discard(future)
            self._slots.release()
            if not future.done():
                future.set_result(done)
        if self.queue.ready and not self._ready.done():
            self._ready.set_result(None)
        if self.queue.broken is None:
            return
        self._timer.cancel()
        if not self._ready.done():
            self._ready.set_exception(QueueBrokenError(self.queue.broken))
        for future in tuple(self._waiting):
            if not future.done():
                future.set_exception(QueueBrokenError(self.queue.broken))
        self._waiting.clear()
        if not self._ended.done():
            self._ended.set_result(self.queue.broken)
            self._slots.release()  # who waits for one learns of the end

    def _expire(self) -> None:
        self.queue.handle_timer(time.monotonic_ns())
        self._pump()
        self._settle()
        self._set_timer()

    def _set_timer(self) -> None:
        deadline = self.queue.next_deadline()
        if deadline is not None and self.queue.broken is None:
            self._timer.set(deadline / 1e9)  # asyncio's clock is the monotonic one, in seconds


_ADMIN_DEPTH, _ADMIN_IN_CAPSULE, _ADMIN_TRANSFER = 31, 8192, 1 << 20
#: Most data of a command, whatever MDTS says: a controller makes the host keep no more.
_MOST_TRANSFER = 1 << 22
#: Most namespaces that are identified.
_MOST_NAMESPACES = 4096
_POLL_S = 0.02


@dataclass(frozen=True)
class ControllerFacts:
    """Identify Controller data, as far as the initiator uses them."""

    cntlid: int
    model: str
    serial: str
    firmware: str
    version: str
    subsystem: str
    discovery: bool
    most_transfer: int
    in_capsule: int
    optional_commands: int


@dataclass(frozen=True)
class NamespaceFacts:
    """Identify Namespace data: sizes in blocks and octets, the NGUID in hexadecimal."""

    nsid: int
    blocks: int
    block_size: int
    nguid: str
    write_protected: bool

    @property
    def octets(self) -> int:
        return self.blocks * self.block_size


class ControllerSession:
    """Hold the connected queues of one controller; a discovery controller has no I/O queues."""

    facts: ControllerFacts

    def __init__(self, options: HostOptions, dialer: Dialer) -> None:
        self._options = options
        self._dialer = dialer
        self._links: list[HostLink] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.cap = 0
        self.events = 0
        self.namespaces: dict[int, NamespaceFacts] = {}

    @property
    def admin(self) -> HostLink:
        return self._links[0]

    @property
    def io(self) -> list[HostLink]:
        """Return the links of I/O queues."""
        return self._links[1:]

    @property
    def links(self) -> list[HostLink]:
        return list(self._links)

    # -- setup -------------------------------------------------------------------------------------

    @classmethod
    async def open(cls, options: HostOptions, dialer: Dialer) -> ControllerSession:
        """Connect, enable and identify the controller; on an error, close all queues."""
        session = cls(options, dialer)
        try:
            await session._open()
        except BaseException:
            session.abandon("setup has failed")
            raise
        return session

    async def _open(self) -> None:
        options = self._options
        keep_alive_ms = int(options.keep_alive_s * 1000)
        cntlid = await self._connect(
            0, _ADMIN_DEPTH, _ADMIN_IN_CAPSULE, _ADMIN_TRANSFER, keep_alive_ms, nvme.ANY_CONTROLLER
        )
        await self._enable()
        self.facts = await self._identify_controller()
        self._tasks.append(asyncio.create_task(self._watch_events()))
        if options.keep_alive_s:
            self._tasks.append(asyncio.create_task(self._keep_alive()))
        if self.facts.discovery:
            return
        granted = await self._number_of_queues(options.io_queues)
        depth = min(options.queue_entries, nvme.most_entries(self.cap)) - 1
        for qid in range(1, granted + 1):
            await self._connect(
                qid, depth, self.facts.in_capsule, self.facts.most_transfer, 0, cntlid
            )
        self.namespaces = await self._identify_namespaces()

    async def _connect(
        self, qid: int, depth: int, in_capsule: int, most: int, keep_alive_ms: int, cntlid: int
    ) -> int:
        options = self._options
        settings = QueueSettings(
            header_digest=options.header_digest,
            data_digest=options.data_digest,
            alignment=options.alignment,
            r2ts=options.r2ts,
            depth=depth,
            in_capsule=in_capsule,
            most_transfer=most,
        )
        link = await HostLink.open(
            self._dialer, options.address, options.port, settings, options.connect_timeout_s
        )
        self._links.append(link)
        data = connect_data(options.host_identifier, cntlid, options.subsystem, options.host_nqn)
        request = connect_entry(qid, depth, keep_alive_ms, flow_control=options.flow_control)
        what = f"Connect of queue {qid} to {options.subsystem}"
        done = await self.command(link, request, what, upload=data)
        return done.completion.result & 0xFFFF

    async def _enable(self) -> None:
        self.cap = await self.read_property(nvme.Property.CAP)
        await self._set_property(nvme.Property.CC, nvme.ENABLE | nvme.IO_ENTRY_SIZES)
        await self._wait_status(
            nvme.READY, nvme.READY, nvme.ready_timeout_ms(self.cap) / 1e3, "become ready"
        )

    async def _wait_status(self, mask: int, value: int, seconds: float, what: str) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while True:
            status = await self.read_property(nvme.Property.CSTS)
            if status & nvme.FATAL_STATUS:
                raise QueueBrokenError("the controller has a fatal status (CSTS.CFS)")
            if status & mask == value:
                return
            if loop.time() > end:
                raise QueueBrokenError(f"the controller did not {what} in {seconds:g} s")
            await asyncio.sleep(_POLL_S)

    async def _identify_controller(self) -> ControllerFacts:
        octets = await self.identify(nvme.IdentifyCns.CONTROLLER)
        fields = nvme.IDENTIFY_CONTROLLER.unpack(octets)
        version = fields["ver"]
        discovery = fields["cntrltype"] == nvme.DISCOVERY_CONTROLLER
        inside = max(0, fields["ioccsz"] * nvme.CAPSULE_UNIT - nvme.SQE.size)
        return ControllerFacts(
            cntlid=fields["cntlid"],
            model=nvme.padded_text(fields["mn"]),
            serial=nvme.padded_text(fields["sn"]),
            firmware=nvme.padded_text(fields["fr"]),
            version=f"{version >> 16}.{version >> 8 & 0xFF}.{version & 0xFF}",
            subsystem=nvme.padded_text(fields["subnqn"]),
            discovery=discovery,
            most_transfer=min(nvme.PAGE << (fields["mdts"] or 255), _MOST_TRANSFER),
            in_capsule=0 if fields["icdoff"] else inside,
            optional_commands=fields["oncs"],
        )

    async def _number_of_queues(self, requested: int) -> int:
        value = (requested - 1) << 16 | (requested - 1)
        request = entry(nvme.AdminOpcode.SET_FEATURES, 0, nvme.FeatureId.NUMBER_OF_QUEUES, value)
        done = await self.command(self.admin, request, "Set Features (number of queues)")
        result = done.completion.result
        return min(requested, (result & 0xFFFF) + 1, (result >> 16 & 0xFFFF) + 1)

    async def _identify_namespaces(self) -> dict[int, NamespaceFacts]:
        found: dict[int, NamespaceFacts] = {}
        last = 0
        while True:
            octets = await self.identify(nvme.IdentifyCns.ACTIVE_NAMESPACES, last)
            words = [int.from_bytes(octets[at : at + 4], "little") for at in range(0, 4096, 4)]
            listed = words[: words.index(0)] if 0 in words else words
            if listed and (listed[0] <= last or len(found) + len(listed) > _MOST_NAMESPACES):
                raise QueueBrokenError("the list of namespaces does not rise, or does not end")
            for nsid in listed:
                data = await self.identify(nvme.IdentifyCns.NAMESPACE, nsid)
                fields = nvme.IDENTIFY_NAMESPACE.unpack(data)
                found[nsid] = NamespaceFacts(
                    nsid=nsid,
                    blocks=fields["nsze"],
                    # the format in use: four octets each, from the first one on
                    block_size=1 << _block_shift(data, fields["flbas"] & 0xF),
                    nguid=fields["nguid"].hex(),
                    write_protected=bool(fields["nsattr"] & 1),
                )
            if len(listed) < len(words):
                return found
            last = listed[-1]

    # -- commands ----------------------------------------------------------------------------------

    async def command(
        self,
        link: HostLink,
        request: bytearray,
        what: str,
        *,
        upload: bytes = b"",
        download: int = 0,
    ) -> CommandDone:
        """Carry out a command; raises :class:`NvmeCommandError` where it fails."""
        done = await link.submit(
            request, upload=upload, download=download, timeout_s=self._options.command_timeout_s
        )
        if not done.completion.ok:
            raise NvmeCommandError(what, done.completion.status, done.completion.result)
        return done

    async def identify(self, cns: nvme.IdentifyCns, nsid: int = 0) -> bytes:
        """Return Identify data of 4096 octets."""
        request = identify_entry(cns, nsid)
        done = await self.command(
            self.admin, request, f"Identify ({cns.name.lower()})", download=nvme.IDENTIFY_SIZE
        )
        return done.data

    async def log_page(self, page: int, length: int, offset: int = 0) -> bytes:
        """Read ``length`` octets of a log page, a multiple of 4."""
        request = log_entry(page, offset, length)
        what = f"Get Log Page {page:#04x}"
        return (await self.command(self.admin, request, what, download=length)).data

    async def read_property(self, offset: nvme.Property) -> int:
        what = f"Property Get {offset.name}"
        return (await self.command(self.admin, property_get_entry(offset), what)).completion.result

    async def _set_property(self, offset: nvme.Property, value: int) -> None:
        what = f"Property Set {offset.name}"
        await self.command(self.admin, property_set_entry(offset, value), what)

    # -- life --------------------------------------------------------------------------------------

    async def wait_broken(self) -> str:
        """Wait until the first of the queues has ended; return why."""
        waits = [asyncio.ensure_future(link.wait_broken()) for link in self._links]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for wait in waits:
                wait.cancel()

    async def shut_down(self) -> None:
        """Shut the controller down (CC.SHN), and close all queues."""
        try:
            value = nvme.ENABLE | nvme.IO_ENTRY_SIZES | nvme.SHUTDOWN_NORMAL
            await self._set_property(nvme.Property.CC, value)
            timeout_s = self._options.command_timeout_s
            await self._wait_status(
                nvme.SHUTDOWN_MASK >> 12, nvme.SHUTDOWN_COMPLETE, timeout_s, "shut down"
            )
        except (QueueBrokenError, NvmeCommandError):
            pass  # it has gone by itself: what was to be reached
        finally:
            self.abandon("closed")

    def abandon(self, reason: str) -> None:
        """Close all queues at once."""
        for task in self._tasks:
            task.cancel()
        for link in self._links:
            link.close(reason)

    async def _keep_alive(self) -> None:
        period = self._options.keep_alive_s / 2
        while True:
            await asyncio.sleep(period)
            await self._or_break(
                lambda: self.command(self.admin, entry(nvme.AdminOpcode.KEEP_ALIVE), "Keep Alive")
            )

    async def _watch_events(self) -> None:
        """Keep one Async Event Request at the controller, and count events."""
        while True:
            await self._or_break(self._event)

    async def _event(self) -> None:
        done = await self.admin.submit(entry(nvme.AdminOpcode.ASYNC_EVENT_REQUEST))
        if not done.completion.ok:
            raise NvmeCommandError("Async Event Request", done.completion.status)
        self.events += 1
        page = done.completion.result >> 16 & 0xFF
        await self.log_page(page, 512)  # reading its log page clears the event

    async def _or_break(self, action: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Carry out a command of the background; where it fails, end the Admin queue."""
        try:
            await action()
        except (QueueBrokenError, NvmeCommandError) as error:
            self.admin.close(str(error))
            raise asyncio.CancelledError from None


def _block_shift(octets: bytes, number: int) -> int:
    return octets[nvme.IDENTIFY_NAMESPACE.offset("lbads") + 4 * number]
