"""``uetemu nvme discover``, ``identify``, ``read`` and ``write``: a host by itself."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from emulator.cluster.nvme_tcp.initiator.discovery_query import discover
from emulator.cluster.nvme_tcp.initiator.host_options import HostOptions
from emulator.cluster.nvme_tcp.initiator.multipath_host import BlockHost, connect
from emulator.errors import UserError
from emulator.lab.standalone.events import EventReport
from emulator.lab.standalone.session import enter_namespace

#: Octets that are read or written at a time.
_BATCH = 1 << 22
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

T = TypeVar("T")


@dataclass(frozen=True)
class HostAlone:
    """Settings of a host's verb: its options, its namespace, its output.

    ``others`` are further paths to the same subsystem.
    """

    options: HostOptions
    netns: str | None
    table: bool
    others: tuple[HostOptions, ...] = ()

    async def connect(self) -> BlockHost:
        """Return a host that is connected by all paths."""
        return await connect((self.options, *self.others))

    def check_one_path(self) -> None:
        """Raise UserError if several are given."""
        if self.others:
            raise UserError("this asks one controller; give one address")

    def report(self) -> EventReport:
        """Return a report on standard output."""
        return EventReport(sys.stdout, table=self.table)


def carried_out(host: HostAlone, action: Callable[[], Awaitable[T]]) -> T:
    """Run ``action`` in the namespace; a signal interrupts it, and connections are closed."""
    if host.netns is not None:
        enter_namespace(host.netns)

    async def interruptible() -> T:
        task = asyncio.ensure_future(action())
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, task.cancel)
        return await task

    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def show_discovery(host: HostAlone) -> int:
    """Print the discovery log, an event for each subsystem."""
    host.check_one_path()
    entries = carried_out(host, lambda: discover(host.options))
    report = host.report()
    for entry in entries:
        report.event("subsystem", **asdict(entry))
    return 0


def show_identity(host: HostAlone) -> int:
    """Print the Identify data of the controller and its namespaces."""
    host.check_one_path()

    async def identify() -> None:
        report = host.report()
        async with await host.connect() as one:
            report.event("controller", **asdict(one.controller))
            for namespace in one.namespaces.values():
                report.event("namespace", octets=namespace.octets, **asdict(namespace))

    carried_out(host, identify)
    return 0


def read_blocks(
    host: HostAlone, nsid: int, offset: int, length: int | None, out: Path | None
) -> int:
    """Read octets into a new file, or only their digest."""

    async def copy(sink: BinaryIO | None) -> None:
        sha = hashlib.sha256()
        async with await host.connect() as one:
            size = _block_size(one, nsid)
            total = one.namespaces[nsid].octets - offset if length is None else length
            _check_range(one, nsid, offset, total)
            for at in range(offset, offset + total, _BATCH):
                many = min(_BATCH, offset + total - at)
                octets = await one.read(nsid, at // size, many // size)
                sha.update(octets)
                if sink is not None:
                    sink.write(octets)
            host.report().event(
                "read",
                octets=total,
                sha256=sha.hexdigest(),
                counters=one.counters(),
                latency_us=one.latencies.summary_us(),
            )

    if out is None:
        carried_out(host, lambda: copy(None))
        return 0
    try:
        sink = out.open("xb")
    except FileExistsError:
        raise UserError(f"{out} is there already; give another --out") from None
    except OSError as error:
        raise UserError(f"cannot make {out}: {error.strerror}; give another --out") from None
    try:
        with sink:
            carried_out(host, lambda: copy(sink))
    except BaseException:
        out.unlink()
        raise
    return 0


def write_blocks(host: HostAlone, nsid: int, offset: int, source: BinaryIO, *, flush: bool) -> int:
    """Write the octets of a file, whole blocks, and flush."""

    async def copy() -> None:
        sha = hashlib.sha256()
        done = 0
        async with await host.connect() as one:
            size = _block_size(one, nsid)
            while octets := source.read(_BATCH):
                _check_range(one, nsid, offset + done, len(octets))
                await one.write(nsid, (offset + done) // size, octets)
                sha.update(octets)
                done += len(octets)
            if flush:
                await one.flush(nsid)
            host.report().event(
                "write",
                octets=done,
                sha256=sha.hexdigest(),
                counters=one.counters(),
                latency_us=one.latencies.summary_us(),
            )

    carried_out(host, copy)
    return 0


def _block_size(host: BlockHost, nsid: int) -> int:
    if nsid not in host.namespaces:
        known = ", ".join(map(str, host.namespaces)) or "none"
        raise UserError(f"there is no namespace {nsid}; there are: {known}")
    return host.namespaces[nsid].block_size


def _check_range(host: BlockHost, nsid: int, offset: int, length: int) -> None:
    namespace = host.namespaces[nsid]
    if offset % namespace.block_size or length % namespace.block_size:
        raise UserError(
            f"{length} octets from {offset} are no whole blocks of {namespace.block_size};"
            " give multiples"
        )
    if length < 1 or offset + length > namespace.octets:
        raise UserError(
            f"{length} octets from {offset} do not lie in the namespace of {namespace.octets};"
            " give less"
        )
