"""``uetemu nvme target``: namespaces served on kernel TCP until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from emulator.cluster.nvme_tcp.target.block_store import BlockStore
from emulator.cluster.nvme_tcp.target.nvme_target import NvmeTarget
from emulator.cluster.nvme_tcp.target.subsystem_model import NvmeSubsystem
from emulator.cluster.nvme_tcp.target.target_connection import TargetConnection
from emulator.cluster.nvme_tcp.target.target_settings import TargetSettings
from emulator.cluster.nvme_tcp.target_server import TargetServer
from emulator.cluster.nvme_tcp.wire.layouts import IO_PORT
from emulator.errors import UserError
from emulator.lab.standalone.events import EventReport
from emulator.lab.standalone.script.phrases import host_and_port, number
from emulator.lab.standalone.session import enter_namespace

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
    for number_of in _SIGNALS:
        loop.add_signal_handler(number_of, stop.set)
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
