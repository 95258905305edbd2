"""A data loader over NVMe/TCP: ``python -m emulator.cluster.run.clients.dataset_reader JSON``.

It streams shards from storage nodes in the order of each epoch, through a cache of its own, and
compares every octet with what the seed gives.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from emulator.cluster.nvme_tcp.initiator.host_options import HostOptions
from emulator.cluster.run.clients.block_transfer import (
    BlockTransfer,
    connected,
    ended_with_sentence,
    released,
)

SHARE, WHOLE = "share", "whole"
#: What a shuffled order is drawn from, beside the seed and the epoch.
_ORDER = 1


def content(seed: int, *names: int, octets: int) -> bytes:
    return np.random.default_rng((seed, *names)).bytes(octets)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """``shards`` shards of ``shard_octets``, over ``nodes`` storage nodes in turn."""

    shards: int
    shard_octets: int
    nodes: int
    seed: int

    def place(self, shard: int) -> tuple[int, int]:
        """Return the storage node of ``shard`` and its offset there (octets)."""
        return shard % self.nodes, shard // self.nodes * self.shard_octets

    def content(self, shard: int) -> bytes:
        return content(self.seed, 0, shard, octets=self.shard_octets)

    def order(self, epoch: int, reader: int, readers: int, sampling: str) -> Sequence[int]:
        """Return the shards that ``reader`` takes in ``epoch``.

        With ``share`` all readers draw one order and take its shards in turn; with ``whole`` each
        takes all shards in an order of its own.
        """
        if sampling == SHARE:
            drawn = np.random.default_rng((self.seed, _ORDER, epoch)).permutation(self.shards)
            return [int(shard) for shard in drawn[reader::readers]]
        own = np.random.default_rng((self.seed, _ORDER, epoch, reader)).permutation(self.shards)
        return [int(shard) for shard in own]


class ShardCache:
    """A cache of at most ``capacity`` octets: the least recently used shard goes first.

    A shard that is larger is not kept.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.octets = 0
        self._kept: OrderedDict[int, bytes] = OrderedDict()

    def get(self, shard: int) -> bytes | None:
        """Return the content of ``shard`` and note its use; None if it is not here."""
        content = self._kept.get(shard)
        if content is not None:
            self._kept.move_to_end(shard)
        return content

    def put(self, shard: int, content: bytes) -> None:
        """Keep ``content``, and evict what was used longest ago until it fits."""
        if len(content) > self.capacity:
            return
        self.octets += len(content) - len(self._kept.pop(shard, b""))
        self._kept[shard] = content
        while self.octets > self.capacity:
            _, evicted = self._kept.popitem(last=False)
            self.octets -= len(evicted)


@dataclass(frozen=True, kw_only=True)
class ReaderTask:
    """The task of one of ``readers``: epochs over a dataset, behind a cache of ``cache`` octets.

    ``targets`` has address and NQN of each storage node.  With ``held`` it begins when it is
    released, after it has connected.
    """

    targets: Sequence[tuple[str, str]]
    dataset: Dataset
    reader: int
    readers: int
    sampling: str
    epochs: int
    cache: int
    command: int
    depth: int
    held: bool = False


@dataclass(kw_only=True)
class EpochRead:
    """One epoch of a reader: octets of the network and of the cache, times of the machine (s)."""

    shards: int = 0
    hits: int = 0
    octets_read: int = 0
    octets_cached: int = 0
    wrong: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    latencies_s: Sequence[float] = ()


async def read_epochs(task: ReaderTask) -> list[EpochRead]:
    """Carry out ``task``.

    The comparison is of the client, so it stands outside of the times: they are summed over reads.
    """
    options = [
        HostOptions(address, nqn, queue_entries=max(2, task.depth + 1))
        for address, nqn in task.targets
    ]
    cache = ShardCache(task.cache)
    async with connected(options, task.command, task.depth) as nodes:
        if task.held:
            await released()
        return [await _epoch(task, epoch, nodes, cache) for epoch in range(task.epochs)]


async def _epoch(
    task: ReaderTask, epoch: int, nodes: Sequence[BlockTransfer], cache: ShardCache
) -> EpochRead:
    done = EpochRead()
    dataset, marks = task.dataset, [len(node.latencies_s) for node in nodes]
    for shard in dataset.order(epoch, task.reader, task.readers, task.sampling):
        began, cpu = time.perf_counter(), time.process_time()
        found = cache.get(shard)
        done.shards += 1
        if found is None:
            node, offset = dataset.place(shard)
            found = await nodes[node].read(offset, dataset.shard_octets)
            cache.put(shard, found)
            done.octets_read += len(found)
        else:
            done.hits += 1
            done.octets_cached += len(found)
        done.seconds += time.perf_counter() - began
        done.cpu_s += time.process_time() - cpu
        done.wrong += found != dataset.content(shard)
    done.latencies_s = [
        time_s
        for node, mark in zip(nodes, marks, strict=True)
        for time_s in node.latencies_s[mark:]
    ]
    return done


def main(text: str) -> None:
    """Carry out the task in ``text`` and print its epochs."""
    given = json.loads(text)
    task = ReaderTask(**{**given, "dataset": Dataset(**given["dataset"])})
    with ended_with_sentence():
        json.dump([asdict(epoch) for epoch in asyncio.run(read_epochs(task))], sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
