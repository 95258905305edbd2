"""What clients share: a held begin, one sentence at the end, and ranges of NVMe namespaces.

Ranges are read and written by commands of one size at a queue depth.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import click

from emulator.cluster.nvme_tcp.initiator.host_options import HostOptions
from emulator.cluster.nvme_tcp.initiator.nvme_host import NvmeHost
from emulator.errors import UserError

#: The only namespace of a storage node.
NSID = 1


@dataclass
class BlockTransfer:
    """Transfers of ``host``: commands of ``command`` octets, at most ``depth`` at a time.

    ``latencies_s`` has the time of each command, and ``acknowledged`` the octets of those that
    completed.
    """

    host: NvmeHost
    command: int
    depth: int
    latencies_s: list[float] = field(default_factory=list)
    acknowledged: int = 0

    @property
    def block(self) -> int:
        return self.host.namespaces[NSID].block_size

    async def read(self, offset: int, octets: int) -> bytes:
        """Return ``octets`` from ``offset``, both of whole blocks."""
        parts: dict[int, bytes] = {}

        async def one(at: int, length: int) -> None:
            parts[at] = await self.host.read(NSID, at // self.block, length // self.block)

        await self._carried_out(one, offset, octets)
        return b"".join(parts[at] for at in sorted(parts))

    async def write(self, offset: int, data: bytes) -> None:
        """Write ``data``, whole blocks, from ``offset`` on."""

        async def one(at: int, length: int) -> None:
            piece = data[at - offset : at - offset + length]
            await self.host.write(NSID, at // self.block, piece)

        await self._carried_out(one, offset, len(data))

    async def _carried_out(
        self, one: Callable[[int, int], Awaitable[None]], offset: int, octets: int
    ) -> None:
        """Carry out ``one`` for each command of the range; its first error ends all."""
        self._check(offset, octets)
        starts = iter(range(offset, offset + octets, self.command))

        async def work() -> None:
            for at in starts:
                length = min(self.command, offset + octets - at)
                began = time.perf_counter()
                await one(at, length)
                self.latencies_s.append(time.perf_counter() - began)
                self.acknowledged += length

        workers = [asyncio.ensure_future(work()) for _ in range(self.depth)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    def _check(self, offset: int, octets: int) -> None:
        for number in (offset, octets, self.command):
            if number % self.block:
                raise UserError(
                    f"{number} octets are no whole blocks of {self.block}; take a multiple"
                )
        have = self.host.namespaces[NSID].octets
        if offset + octets > have:
            raise UserError(
                f"{offset + octets} octets do not fit into a storage node's {have}; take a larger "
                "one: --service-param nvme.size=OCTETS"
            )


@asynccontextmanager
async def connected(
    options: Iterable[HostOptions], command: int, depth: int
) -> AsyncIterator[Sequence[BlockTransfer]]:
    """Connect to the subsystems of ``options``, and close all connections at the end."""
    async with AsyncExitStack() as opened:
        yield [
            BlockTransfer(
                await opened.enter_async_context(await NvmeHost.connect(one)), command, depth
            )
            for one in options
        ]


#: The line that a client prints once it could begin.
READY = "ready"


def wait_for_release() -> None:
    """Print that this client is ready, and return when a line comes on standard input.

    So all clients of a measurement begin at once, however long each took to start.
    """
    click.echo(READY)
    sys.stdin.readline()


async def released() -> None:
    """Do as :func:`wait_for_release` does, while the loop goes on."""
    await asyncio.to_thread(wait_for_release)


@contextmanager
def ended_with_sentence() -> Iterator[None]:
    """Print a UserError of the block and leave the process with status 1."""
    try:
        yield
    except UserError as error:
        click.echo(error, err=True)
        raise SystemExit(1) from None
