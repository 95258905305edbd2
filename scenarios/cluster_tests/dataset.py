"""Servers stream a dataset from the storage nodes over NVMe/TCP, behind a cache of their own.

::

    storage0   shards 0 2 4 ...  ---+                        +--- h0  cache (LRU) -- data loader
                                    +== stor-leaf, spine ====+--- h1  cache (LRU) -- data loader
    storage1   shards 1 3 5 ...  ---+                        +--- h2 ...

Traffic: the dataset is ``shards`` shards of ``shard`` octets, which lie on the storage nodes in
turn. In each of ``epochs`` epochs a server reads its shards in an order that the seed shuffles.
With ``sampling=share`` all servers divide one order among them, as a distributed sampler does. With
``whole`` each reads all shards, in an order of its own. A shard is read by NVMe commands of
``command`` octets, ``depth`` of them at a time, over one connection to each storage node, before
the next shard begins: no more commands are under way than a shard has. Then it is compared with
what the seed gives, outside of the measured time.

The cache tier is memory of each server, of ``cache`` octets. It keeps whole shards and evicts the
least recently used one. A hit takes nothing from the network.

Measured, for each epoch: shards, hits and their share; octets from the network; GB/s of a server
(its octets, cached ones included, over the time that it spent reading) as mean, least and most;
Jain's index of the servers; times of NVMe commands by percentile. Times are those of the storage
network: the machine's divided by its dilation. ``cpu_share`` is the part of the reading time in
which a client's process computed. Then octets and use of each storage node's port over all epochs,
comparing included, with ``cpu_share`` of its target; and what each network carried.

What should be seen: the first epoch has no hit. With ``whole`` and a cache for the whole dataset
every later one has hits alone. With ``share`` a server gets other shards in each epoch, so the hit
rate stays below the part of the dataset that its cache holds.

Both ends are Python on this machine's processors, which others use as well. Where ports are little
used, the machine or the depth sets the pace, not the network, whatever ``cpu_share`` is: a larger
``--network-dilation storage=N`` gives it time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from emulator.arithmetic import jain, percentile
from emulator.cluster.run.clients import dataset_reader
from emulator.cluster.run.clients.dataset_reader import SHARE, WHOLE, Dataset, ReaderTask
from emulator.cluster.run.cluster_context import DATASET_STREAMING, ClusterContext
from emulator.cluster.run.storage_nodes import StorageNodes
from emulator.cluster.services import kinds
from emulator.errors import UserError
from emulator.scenario import parameter
from topologies.model import STORAGE
from topologies.parts.design_parameters import COUNT, SIZE

TOPOLOGY = "cluster"
SERVICES = "nvme"
BY_RDMA = ("storage_rdma", {"work": "dataset"})
RUN_BY_RDMA = "uetemu run dataset"
CACHE = replace(SIZE, minimum=0)


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The dataset, the loaders and their caches."""

    shards: int = parameter(32, COUNT, help="shards of the dataset")
    shard: int = parameter(2**20, SIZE, help="octets of each shard")
    epochs: int = parameter(3, COUNT, help="times that the dataset is read")
    sampling: str = parameter(
        SHARE, choices=(SHARE, WHOLE), help="servers divide each epoch's shards, or read all"
    )
    cache: int = parameter(8 * 2**20, CACHE, help="octets of each server's cache")
    command: int = parameter(128 * 2**10, SIZE, help="octets of an NVMe read")
    depth: int = parameter(16, COUNT, help="reads at a time")

    def __post_init__(self) -> None:
        kinds.check_whole_blocks(shard=self.shard, command=self.command)


def conduct(run: ClusterContext, parameters: Parameters) -> Iterator[Mapping[str, object]]:
    """Stage the dataset, let all servers read it, and report epochs, ports and networks."""
    nodes = StorageNodes(run)
    dataset = staged(run, parameters, nodes)
    run.event("epochs begin")
    before, totals = nodes.usage(), run.samples.totals()
    tasks = reader_tasks(run, parameters, nodes, dataset)
    with run.work(DATASET_STREAMING):
        read = run.together(
            dataset_reader.__name__, {server: asdict(task) for server, task in tasks.items()}
        )
    servers = list(tasks)
    ports = list(nodes.port_rows(before))
    run.event("epochs have ended")
    dilation = run.dilation(STORAGE)
    for epoch in range(parameters.epochs):
        yield _octets(epoch, [read[server][epoch] for server in servers])
    for epoch in range(parameters.epochs):
        yield _speed(epoch, [read[server][epoch] for server in servers], dilation)
    yield from ports
    for network, (octets, drops) in run.samples.totals().items():
        yield {
            "what": f"octets of {network}",
            "octets": octets - totals[network][0],
            "drops": drops - totals[network][1],
        }


def staged(run: ClusterContext, parameters: Parameters, nodes: StorageNodes) -> Dataset:
    """Put the dataset on the disks of ``nodes``, before anything is measured, and return it."""
    dataset = Dataset(
        shards=parameters.shards,
        shard_octets=parameters.shard,
        nodes=len(nodes.names),
        seed=run.seed,
    )
    servers = len(run.machines.servers)
    if parameters.sampling == SHARE and parameters.shards < servers:
        raise UserError(
            f"{parameters.shards} shards do not give each of {servers} servers one; take "
            "more shards, or sampling=whole"
        )
    for shard in range(dataset.shards):
        node, offset = dataset.place(shard)
        nodes.stage(node, offset, dataset.content(shard))
    return dataset


def reader_tasks(
    run: ClusterContext, parameters: Parameters, nodes: StorageNodes, dataset: Dataset
) -> dict[str, ReaderTask]:
    servers = run.machines.servers
    return {
        server: ReaderTask(
            targets=nodes.targets,
            dataset=dataset,
            reader=number,
            readers=len(servers),
            sampling=parameters.sampling,
            epochs=parameters.epochs,
            cache=parameters.cache,
            command=parameters.command,
            depth=parameters.depth,
        )
        for number, server in enumerate(servers)
    }


def _octets(epoch: int, readers: Sequence[Mapping[str, Any]]) -> Mapping[str, object]:
    """Return what all ``readers`` have read in an epoch, and from where."""
    shards = sum(one["shards"] for one in readers)
    hits = sum(one["hits"] for one in readers)
    wrong = sum(one["wrong"] for one in readers)
    return {
        "what": f"epoch {epoch + 1}",
        "shards": shards,
        "hits": hits,
        "hit_share": hits / shards,
        "network_octets": sum(one["octets_read"] for one in readers),
        "wrong": wrong,
        "ok": wrong == 0,
    }


def _speed(
    epoch: int, readers: Sequence[Mapping[str, Any]], dilation: float
) -> Mapping[str, object]:
    """Return how fast all ``readers`` were in an epoch, in the network's time."""
    rates = [
        (one["octets_read"] + one["octets_cached"]) / (one["seconds"] / dilation) / 1e9
        for one in readers
    ]
    times = [time_s / dilation * 1e6 for one in readers for time_s in one["latencies_s"]]
    return {
        "what": f"epoch {epoch + 1}, a server",
        "mean_GBps": fmean(rates),
        "least_GBps": min(rates),
        "most_GBps": max(rates),
        "jain": jain(rates),
        "p50_us": percentile(times, 0.5),
        "p99_us": percentile(times, 0.99),
        "cpu_share": sum(one["cpu_s"] for one in readers) / sum(one["seconds"] for one in readers),
    }
