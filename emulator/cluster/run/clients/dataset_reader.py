"""A data loader over NVMe/TCP: ``python -m emulator.cluster.run.clients.dataset_reader JSON``.

It streams shards from storage nodes in the order of each epoch, through a cache of its own, and
compares every octet with what the seed gives.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from emulator.cluster.nvme_tcp.initiator.host_options import HostOptions
from emulator.cluster.run.clients.block_transfer import BlockTransfer, connected
from emulator.cluster.run.clients.client_end import ended_with_sentence, released
from emulator.cluster.run.clients.sharded_dataset import Dataset, ShardCache


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
