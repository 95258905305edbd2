"""A session connects a controller's queues once, from Connect to the loss of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from emulator.cluster.nvme_tcp.initiator.host_commands import (
    connect_data,
    connect_entry,
    entry,
    identify_entry,
    log_entry,
    property_get_entry,
    property_set_entry,
)
from emulator.cluster.nvme_tcp.initiator.host_errors import NvmeCommandError, QueueBrokenError
from emulator.cluster.nvme_tcp.initiator.host_link import Dialer, HostLink
from emulator.cluster.nvme_tcp.initiator.host_options import HostOptions
from emulator.cluster.nvme_tcp.initiator.host_queue import CommandDone, QueueSettings
from emulator.cluster.nvme_tcp.wire.layouts import (
    ANY_CONTROLLER,
    CAPSULE_UNIT,
    DISCOVERY_CONTROLLER,
    ENABLE,
    FATAL_STATUS,
    IDENTIFY_CONTROLLER,
    IDENTIFY_NAMESPACE,
    IDENTIFY_SIZE,
    IO_ENTRY_SIZES,
    PAGE,
    READY,
    SHUTDOWN_COMPLETE,
    SHUTDOWN_MASK,
    SHUTDOWN_NORMAL,
    SQE,
    AdminOpcode,
    FeatureId,
    IdentifyCns,
    Property,
    most_entries,
    padded_text,
    ready_timeout_ms,
)

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
        """Return the size in octets."""
        return self.blocks * self.block_size


class ControllerSession:
    """Hold the connected queues of one controller; a discovery controller has no I/O queues."""

    def __init__(self, options: HostOptions, dialer: Dialer) -> None:
        self._options = options
        self._dialer = dialer
        self._links: list[HostLink] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.cap = 0
        self.events = 0
        self.facts: ControllerFacts | None = None
        self.namespaces: dict[int, NamespaceFacts] = {}

    @property
    def admin(self) -> HostLink:
        """Return the link of the Admin queue."""
        return self._links[0]

    @property
    def io(self) -> list[HostLink]:
        """Return the links of I/O queues."""
        return self._links[1:]

    @property
    def links(self) -> list[HostLink]:
        """Return the links of all queues."""
        return list(self._links)

    # -- setup -------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, enable and identify the controller; on an error, close all queues."""
        try:
            await self._open()
        except BaseException:
            self.abandon("setup has failed")
            raise

    async def _open(self) -> None:
        options = self._options
        keep_alive_ms = int(options.keep_alive_s * 1000)
        cntlid = await self._connect(
            0, _ADMIN_DEPTH, _ADMIN_IN_CAPSULE, _ADMIN_TRANSFER, keep_alive_ms, ANY_CONTROLLER
        )
        await self._enable()
        self.facts = await self._identify_controller()
        self._tasks.append(asyncio.create_task(self._watch_events()))
        if options.keep_alive_s:
            self._tasks.append(asyncio.create_task(self._keep_alive()))
        if self.facts.discovery:
            return
        granted = await self._number_of_queues(options.io_queues)
        depth = min(options.queue_entries, most_entries(self.cap)) - 1
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
        self.cap = await self.read_property(Property.CAP)
        await self._set_property(Property.CC, ENABLE | IO_ENTRY_SIZES)
        await self._wait_status(READY, READY, ready_timeout_ms(self.cap) / 1e3, "become ready")

    async def _wait_status(self, mask: int, value: int, seconds: float, what: str) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while True:
            status = await self.read_property(Property.CSTS)
            if status & FATAL_STATUS:
                raise QueueBrokenError("the controller has a fatal status (CSTS.CFS)")
            if status & mask == value:
                return
            if loop.time() > end:
                raise QueueBrokenError(f"the controller did not {what} in {seconds:g} s")
            await asyncio.sleep(_POLL_S)

    async def _identify_controller(self) -> ControllerFacts:
        octets = await self.identify(IdentifyCns.CONTROLLER)
        fields = IDENTIFY_CONTROLLER.unpack(octets)
        version = fields["ver"]
        discovery = fields["cntrltype"] == DISCOVERY_CONTROLLER
        inside = max(0, fields["ioccsz"] * CAPSULE_UNIT - SQE.size)
        return ControllerFacts(
            cntlid=fields["cntlid"],
            model=padded_text(fields["mn"]),
            serial=padded_text(fields["sn"]),
            firmware=padded_text(fields["fr"]),
            version=f"{version >> 16}.{version >> 8 & 0xFF}.{version & 0xFF}",
            subsystem=padded_text(fields["subnqn"]),
            discovery=discovery,
            most_transfer=min(PAGE << (fields["mdts"] or 255), _MOST_TRANSFER),
            in_capsule=0 if fields["icdoff"] else inside,
            optional_commands=fields["oncs"],
        )

    async def _number_of_queues(self, requested: int) -> int:
        value = (requested - 1) << 16 | (requested - 1)
        request = entry(AdminOpcode.SET_FEATURES, 0, FeatureId.NUMBER_OF_QUEUES, value)
        done = await self.command(self.admin, request, "Set Features (number of queues)")
        result = done.completion.result
        return min(requested, (result & 0xFFFF) + 1, (result >> 16 & 0xFFFF) + 1)

    async def _identify_namespaces(self) -> dict[int, NamespaceFacts]:
        found: dict[int, NamespaceFacts] = {}
        last = 0
        while True:
            octets = await self.identify(IdentifyCns.ACTIVE_NAMESPACES, last)
            words = [int.from_bytes(octets[at : at + 4], "little") for at in range(0, 4096, 4)]
            listed = words[: words.index(0)] if 0 in words else words
            if listed and (listed[0] <= last or len(found) + len(listed) > _MOST_NAMESPACES):
                raise QueueBrokenError("the list of namespaces does not rise, or does not end")
            for nsid in listed:
                data = await self.identify(IdentifyCns.NAMESPACE, nsid)
                fields = IDENTIFY_NAMESPACE.unpack(data)
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

    async def identify(self, cns: IdentifyCns, nsid: int = 0) -> bytes:
        """Return Identify data of 4096 octets."""
        request = identify_entry(cns, nsid)
        done = await self.command(
            self.admin, request, f"Identify ({cns.name.lower()})", download=IDENTIFY_SIZE
        )
        return done.data

    async def log_page(self, page: int, length: int, offset: int = 0) -> bytes:
        """Read ``length`` octets of a log page, a multiple of 4."""
        request = log_entry(page, offset, length)
        what = f"Get Log Page {page:#04x}"
        return (await self.command(self.admin, request, what, download=length)).data

    async def read_property(self, offset: Property) -> int:
        """Read a property."""
        what = f"Property Get {offset.name}"
        return (await self.command(self.admin, property_get_entry(offset), what)).completion.result

    async def _set_property(self, offset: Property, value: int) -> None:
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
            value = ENABLE | IO_ENTRY_SIZES | SHUTDOWN_NORMAL
            await self._set_property(Property.CC, value)
            timeout_s = self._options.command_timeout_s
            await self._wait_status(SHUTDOWN_MASK >> 12, SHUTDOWN_COMPLETE, timeout_s, "shut down")
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
                lambda: self.command(self.admin, entry(AdminOpcode.KEEP_ALIVE), "Keep Alive")
            )

    async def _watch_events(self) -> None:
        """Keep one Async Event Request at the controller, and count events."""
        while True:
            await self._or_break(self._event)

    async def _event(self) -> None:
        done = await self.admin.submit(entry(AdminOpcode.ASYNC_EVENT_REQUEST))
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
    return octets[IDENTIFY_NAMESPACE.offset("lbads") + 4 * number]
