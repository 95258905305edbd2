"""``uetemu nvme``: a target that serves until a signal, or a host, on the kernel's TCP."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from emulator.cluster.nvme_tcp.initiator.host_options import HostOptions
from emulator.cluster.nvme_tcp.initiator.nvme_host import BlockHost, connect, discover
from emulator.cluster.nvme_tcp.target.block_store import BlockStore
from emulator.cluster.nvme_tcp.target.controller import NvmeSubsystem, TargetSettings
from emulator.cluster.nvme_tcp.target.nvme_target import NvmeTarget, TargetConnection
from emulator.cluster.nvme_tcp.target.server import TargetServer
from emulator.cluster.nvme_tcp.wire.layouts import IO_PORT
from emulator.errors import UserError
from emulator.lab.standalone.events import EventReport
from emulator.lab.standalone.script.phrases import host_and_port, number
from emulator.lab.standalone.session import enter_namespace


@dataclass(frozen=True)
class StandAloneTarget:
    """Settings of ``uetemu nvme target``; sizes in octets, ``duration`` in ns."""

    files: tuple[Path, ...]
    memories: tuple[int, ...]
    size: int | None
    block_size: int
    read_only: bool
    subsystem: str
    hosts: tuple[str, ...]
    listen: tuple[str, ...]
    netns: str | None
    duration: int | None
    settings: TargetSettings
    table: bool


def serve(given: StandAloneTarget) -> int:
    """Serve until a signal or the end of the duration; return the exit status."""
    subsystem = NvmeSubsystem.named(given.subsystem, frozenset(given.hosts))
    places = [_place(text) for text in given.listen]
    with _stores(given) as stores:
        for store in stores:
            subsystem.add(store, given.block_size)
        if given.netns is not None:
            enter_namespace(given.netns)
        with contextlib.ExitStack() as opened:
            listeners = [opened.enter_context(_listener(*place)) for place in places]
            return asyncio.run(_serve(given, subsystem, listeners))


@contextlib.contextmanager
def _stores(given: StandAloneTarget) -> Iterator[list[BlockStore]]:
    if not given.files and not given.memories:
        raise UserError("nothing is to be served; give a FILE, or --memory SIZE")
    with contextlib.ExitStack() as opened:
        stores: list[BlockStore] = []
        for path in given.files:
            stores.append(BlockStore.file(path, given.size, read_only=given.read_only))
            opened.callback(stores[-1].close)
        for size in given.memories:
            stores.append(BlockStore.memory(size))
            opened.callback(stores[-1].close)
        yield stores


def _place(text: str) -> tuple[str, int]:
    host, port = host_and_port(text, listens=True)
    return host, number(port or IO_PORT, "--listen: the port", low=1, high=65535)


def _listener(host: str, port: int) -> socket.socket:
    try:
        if not host:
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128
            )
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise UserError(
            f"cannot listen at {host or '*'} port {port}: {os.strerror(error.errno or 0)};"
            " give an address of this namespace and a free port"
        ) from None


async def _serve(
    given: StandAloneTarget, subsystem: NvmeSubsystem, listeners: list[socket.socket]
) -> int:
    report = EventReport(sys.stdout, table=given.table)
    target = NvmeTarget([subsystem], given.settings)

    def ended(connection: TargetConnection) -> None:
        report.event("connection", queue=connection.qid, fault=connection.fault)

    server = TargetServer(target, ended)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in _SIGNALS:
        loop.add_signal_handler(signal_number, stop.set)
    for listener in listeners:
        await server.listen(listener)
    report.event(
        "start",
        subsystem=subsystem.nqn,
        listen=["{} port {}".format(*one.getsockname()[:2]) for one in listeners],
        namespaces=[
            {"nsid": one.nsid, "blocks": one.blocks, "block_size": one.block_size}
            for one in subsystem.namespaces.values()
        ],
    )
    reason = "signal"
    try:
        seconds = None if given.duration is None else given.duration / 1e9
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        reason = "duration"
    await server.close()
    report.event("end", reason=reason, counters=dict(sorted(target.counters.items())))
    return 0


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
        return await connect((self.options, *self.others))

    def check_one_path(self) -> None:
        """Raise UserError if several are given."""
        if self.others:
            raise UserError("this asks one controller; give one address")

    def report(self) -> EventReport:
        return EventReport(sys.stdout, table=self.table)


def carried_out(host: HostAlone, action: Callable[[], Awaitable[T]]) -> T:
    """Run ``action`` in the namespace; a signal interrupts it, and connections are closed."""
    if host.netns is not None:
        enter_namespace(host.netns)

    async def interruptible() -> T:
        task = asyncio.ensure_future(action())
        loop = asyncio.get_running_loop()
        for signal_number in _SIGNALS:
            loop.add_signal_handler(signal_number, task.cancel)
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
            _report_copy(host, one, "read", total, sha.hexdigest())

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
            _report_copy(host, one, "write", done, sha.hexdigest())

    carried_out(host, copy)
    return 0


def _report_copy(host: HostAlone, one: BlockHost, kind: str, octets: int, sha256: str) -> None:
    host.report().event(
        kind,
        octets=octets,
        sha256=sha256,
        counters=one.counters(),
        latency_us=one.latencies.summary_us(),
    )


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


PATTERNS = ("read", "write", "randread", "randwrite")


@dataclass(frozen=True)
class BenchLoad:
    """A load: commands of ``size`` octets, ``depth`` at a time, read back with ``verify``."""

    pattern: str
    nsid: int
    size: int
    depth: int
    count: int
    seed: int
    verify: bool


def bench(host: HostAlone, load: BenchLoad) -> int:
    """Carry out the load and report it; exit status 1 where octets came back wrong."""
    return carried_out(host, lambda: _bench(host, load))


async def _bench(host: HostAlone, load: BenchLoad) -> int:
    async with await host.connect() as one:
        if load.nsid not in one.namespaces:
            raise UserError(f"there is no namespace {load.nsid}; uetemu nvme identify shows them")
        namespace = one.namespaces[load.nsid]
        if load.size % namespace.block_size or not 0 < load.size <= namespace.octets:
            raise UserError(
                f"--size {load.size} is no whole number of blocks of {namespace.block_size} that"
                " fits; give another"
            )
        runner = _Load(one, load, namespace.block_size)
        began = time.perf_counter()
        await asyncio.gather(*(runner.work() for _ in range(load.depth)))
        seconds = time.perf_counter() - began
        host.report().event(
            "bench",
            pattern=load.pattern,
            size=load.size,
            depth=load.depth,
            commands=load.count,
            seconds=round(seconds, 6),
            octets_per_second=round(load.count * load.size / seconds),
            commands_per_second=round(load.count / seconds, 1),
            latency_us=one.latencies.summary_us(),
            wrong=runner.wrong if load.verify else None,
            counters=one.counters(),
        )
        return 1 if runner.wrong else 0


class _Load:
    """Commands that are left, which ``depth`` workers take."""

    def __init__(self, host: BlockHost, load: BenchLoad, block_size: int) -> None:
        self._host = host
        self._load = load
        self._blocks = load.size // block_size
        places = host.namespaces[load.nsid].blocks // self._blocks
        draw = random.Random(load.seed)
        if load.pattern.startswith("rand"):
            # without repetition as far as it goes: two writes of one place could pass each other
            pool = draw.sample(range(places), min(places, load.count))
            order = [pool[number % len(pool)] for number in range(load.count)]
        else:
            order = [number % places for number in range(load.count)]
        self._order = iter(order)
        self._writes = load.pattern.endswith("write")
        self._data = draw.randbytes(load.size + 4096) if self._writes else b""
        self.wrong = 0

    async def work(self) -> None:
        host, nsid, blocks, size = self._host, self._load.nsid, self._blocks, self._load.size
        for place in self._order:
            lba = place * blocks
            if not self._writes:
                await host.read(nsid, lba, blocks)
                continue
            start = place % 4096
            octets = self._data[start : start + size]
            await host.write(nsid, lba, octets)
            if self._load.verify and await host.read(nsid, lba, blocks) != octets:
                self.wrong += 1
