"""A host that reaches one subsystem by several paths: where one breaks, I/O goes on by another.

Every path is a controller of its own, with its own connections, at a port of the subsystem.  All
commands take one path until it breaks.  It connects again meanwhile, and is then in reserve.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TypeVar

from emulator.cluster.nvme_tcp.initiator.controller_session import ControllerFacts, NamespaceFacts
from emulator.cluster.nvme_tcp.initiator.host_errors import ControllerLostError, QueueBrokenError
from emulator.cluster.nvme_tcp.initiator.host_link import Dialer, dial
from emulator.cluster.nvme_tcp.initiator.host_options import HostOptions
from emulator.cluster.nvme_tcp.initiator.latency_histogram import LatencyHistogram
from emulator.cluster.nvme_tcp.initiator.nvme_host import NvmeHost
from emulator.errors import UserError

T = TypeVar("T")


class MultipathHost:
    """A host of several ``paths`` to one subsystem; made by :meth:`connect`."""

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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Shut all controllers down, and close all connections."""
        await asyncio.gather(*(path.close() for path in self.paths))

    @property
    def controller(self) -> ControllerFacts:
        """Return facts of the controller of the path that is in use."""
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
    """Return a host that is connected by all paths of ``options``."""
    if len(options) == 1:
        return await NvmeHost.connect(options[0])
    return await MultipathHost.connect(options)
