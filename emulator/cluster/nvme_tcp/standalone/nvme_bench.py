"""``uetemu nvme bench``: many commands at a time, their rate, latencies and data."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass

from emulator.cluster.nvme_tcp.initiator.multipath_host import BlockHost
from emulator.cluster.nvme_tcp.standalone.nvme_host_run import HostAlone, carried_out
from emulator.errors import UserError

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
        """Carry out commands until there are none."""
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
