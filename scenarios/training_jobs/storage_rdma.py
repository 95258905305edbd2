"""Servers read a dataset and store checkpoints by RDMA over the storage network, in virtual time.

::

    storage0   shards 0 2 4 ...  ---+                        +--- h0   cache (LRU)
                                    +== stor-leaf, spine ====+--- h1   cache (LRU)
    storage1   shards 1 3 5 ...  ---+                        +--- h2 ...

Traffic: ``work=dataset`` reads the dataset of the cluster scenario ``dataset``: ``shards`` shards
of ``shard`` octets on the storage nodes in turn, ``epochs`` times, in an order that the seed
shuffles. The servers divide it (``sampling=share``), or each reads all (``whole``). Each has a
cache of ``cache`` octets, whose hits take nothing from the network. An epoch is a row; one that
caches serve alone has none. ``checkpoint`` writes a state of ``state`` octets of each server to one
storage node (server n to node n, modulo their number), and ``restore`` reads it back. A command
moves ``command`` octets, and a server has ``depth`` of them under way. Every octet is compared.

Commands are those of NVMe over RDMA, whose storage nodes begin all RDMA (NVM Express RDMA Transport
Specification 1.0). A server reads by a command capsule of 64 octets. The node answers by an RDMA
WRITE of the data into the server's memory, and a response capsule of 16 octets. No RDMA READ is in
it. A server writes by a capsule as well: the node fetches the data by RDMA READ and responds. Here
that READ is its request, a message of 16 octets, and the server's RDMA WRITE of the data: messages
and octets are those of a READ, its acknowledgements are those of a WRITE. Data in capsules are left
out. Over UET nothing is standardised; its messages are the same.

Disks and processors take no time: the memory of a storage node is its disk. What remains is the
network and the transport.

Measured: time against the ideal; ``GBps``, a server's octets from the network over the time until
its last one was there, as mean and least; Jain's index of the servers; message times;
``port_share``, payload over what the ports of the storage nodes can carry in that time; hits.

What should be seen: the ports of the storage nodes are the narrowest place, with fewer nodes than
servers. Reads are an outcast of each node, checkpoints an incast to it.

``uetemu run dataset`` is this with ``work=dataset``, and ``uetemu run checkpoint --param
over=storage`` with ``work=checkpoint,restore``. Over NVMe/TCP the same is ``uetemu cluster
dataset`` and ``checkpoint_storage``, whose times are of the host's clock. ``uetemu cluster
storage_compare`` has both in one table, and says what of them may be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import numpy as np

from emulator.arithmetic import jain, percentile
from emulator.cluster.run.clients.dataset_reader import SHARE, WHOLE, Dataset, ShardCache, content
from emulator.errors import UserError
from emulator.result_rows import TableColumn
from emulator.scenario import Outcome, Trial, parameter, refuse_idle
from scenarios.workloads.storage_commands import (
    SHORTEST_OCTETS,
    StorageCommand,
    StorageCommands,
)
from topologies.cluster import HEAD, STORAGE_PREFIX
from topologies.model import Topology
from topologies.parts.attachment import nic_rate_bps
from topologies.parts.design_parameters import COUNT, SIZE

COLUMNS = (
    TableColumn("work", "work", "", 10),
    TableColumn("epoch", "epoch", "", 5),
    TableColumn("hit_share", "hits", "(%)", 6, 1, percent=True),
    TableColumn("total_bytes", "network", "(B)", 11),
    TableColumn("time_us", "time", "(us)", 10),
    TableColumn("ideal_us", "ideal", "(us)", 10),
    TableColumn("server_GBps", "a server", "(GB/s)", 8, 2, words="a server moved {} GB/s"),
    TableColumn("least_GBps", "least", "(GB/s)", 7, 2),
    TableColumn("jain", "Jain", "", 6, 3, rank=1),
    TableColumn("port_share", "of ports", "(%)", 8, 1, percent=True),
    TableColumn("message_p50_us", "p50", "(us)", 8, 1),
    TableColumn("message_p99_us", "p99", "(us)", 8, 1),
    TableColumn("retransmitted_packets", "resent", "", 6),
    TableColumn("wrong", "#wrong", "", 6),
)
DATASET, CHECKPOINT, RESTORE = "dataset", "checkpoint", "restore"
#: What the state of a server is drawn from, beside the seed and its number.
STATE = 2
MOST_COMMANDS = 100_000
CACHED = (
    "an epoch that caches serve alone, by what the seed has servers sample, has no row; cache=0 "
    "has all read over the network"
)
#: The commands that do the same over TCP.
OVER_TCP = "uetemu cluster dataset, or uetemu cluster checkpoint_storage"


@dataclass(frozen=True, kw_only=True)
class Parameters:
    work: tuple[str, ...] = parameter(
        (DATASET, CHECKPOINT, RESTORE),
        choices=(DATASET, CHECKPOINT, RESTORE),
        many=True,
        help="what servers do, in this order",
    )
    shards: int = parameter(16, COUNT, help="shards of the dataset")
    shard: int = parameter(256 * 2**10, SIZE, help="octets of each shard")
    epochs: int = parameter(2, COUNT, help="times that the dataset is read")
    sampling: str = parameter(
        SHARE, choices=(SHARE, WHOLE), help="servers divide each epoch's shards, or read all"
    )
    cache: int = parameter(2**20, replace(SIZE, minimum=0), help="octets of each server's cache")
    state: int = parameter(2**20, SIZE, help="octets of each server's state")
    command: int = parameter(64 * 2**10, SIZE, help="octets of a read or write")
    depth: int = parameter(16, COUNT, help="commands of a server at a time")

    def __post_init__(self) -> None:
        beside = f"beside work={','.join(self.work)}"
        if DATASET not in self.work:
            refuse_idle(self, ("shards", "shard", "epochs", "sampling", "cache"), beside)
        if set(self.work) == {DATASET}:
            refuse_idle(self, ("state",), beside)
        if self.epochs == 1:
            refuse_idle(self, ("cache",), "beside epochs=1")
        for name in ("shard", "state", "command"):
            octets = getattr(self, name)
            if octets % SHORTEST_OCTETS:
                raise UserError(
                    f"{name} is {octets} octets; take a multiple of a logical block, "
                    f"{SHORTEST_OCTETS}"
                )


def topology(parameters: Parameters) -> str:
    """The storage network of a cluster: four servers, two storage nodes."""
    return "cluster_storage"


@dataclass(frozen=True)
class StoragePlaces:
    """The ranks of ``topology`` that store, and those that use them."""

    topology: Topology
    nodes: tuple[int, ...] = field(init=False)
    servers: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        names = [gpu.name for gpu in self.topology.gpus]
        nodes = [rank for rank, name in enumerate(names) if name.startswith(STORAGE_PREFIX)]
        object.__setattr__(self, "nodes", tuple(nodes))
        others = set(range(len(names))) - set(nodes)
        servers = tuple(rank for rank in sorted(others) if names[rank] != HEAD)
        object.__setattr__(self, "servers", servers)
        if not nodes or not servers:
            raise UserError(
                f"topology {self.topology.name} has no storage nodes and servers; take --topology "
                "cluster_storage"
            )


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    places = StoragePlaces(topology)
    trials: list[Trial] = []
    for work in parameters.work:
        if work == DATASET:
            read = list(_epochs(parameters, places, seed))
            if len(read) < parameters.epochs:
                read[-1] = replace(read[-1], warnings=(CACHED,))
            trials += read
        else:
            trials.append(_state_trial(parameters, places, seed, work))
    return trials


def _epochs(parameters: Parameters, places: StoragePlaces, seed: int) -> Iterator[Trial]:
    """Yield the trial of each epoch of which the network carries something."""
    dataset = Dataset(
        shards=parameters.shards,
        shard_octets=parameters.shard,
        nodes=len(places.nodes),
        seed=seed,
    )
    disks: dict[int, list[bytes]] = {rank: [] for rank in places.nodes}
    for shard in range(dataset.shards):
        disks[places.nodes[dataset.place(shard)[0]]].append(dataset.content(shard))
    memories = {rank: _octets(b"".join(shards)) for rank, shards in disks.items() if shards}
    caches = [ShardCache(parameters.cache) for _ in places.servers]
    for epoch in range(parameters.epochs):
        commands: list[StorageCommand] = []
        taken = hits = 0
        for number, server in enumerate(places.servers):
            filled = 0
            order = dataset.order(epoch, number, len(places.servers), parameters.sampling)
            for shard in order:
                taken += 1
                if caches[number].get(shard) is not None:
                    hits += 1
                    continue
                caches[number].put(shard, dataset.content(shard))
                node, disk = dataset.place(shard)
                commands += _cut(
                    parameters,
                    StorageCommand(
                        server=server,
                        node=places.nodes[node],
                        data=filled,
                        disk=disk,
                        octets=parameters.shard,
                    ),
                )
                filled += parameters.shard
        facts = {"epoch": epoch + 1, "hits": hits, "hit_share": hits / taken}
        if commands:
            yield _trial(parameters, places, DATASET, commands, memories, facts)


def _state_trial(parameters: Parameters, places: StoragePlaces, seed: int, work: str) -> Trial:
    """Return the trial in which all servers write their states, or read them back."""
    commands: list[StorageCommand] = []
    disks: dict[int, list[np.ndarray]] = {}
    states = {}
    for number, server in enumerate(places.servers):
        node = places.nodes[number % len(places.nodes)]
        states[server] = _octets(content(seed, STATE, number, octets=parameters.state))
        kept = disks.setdefault(node, [])
        whole = StorageCommand(
            server=server,
            node=node,
            data=0,
            disk=len(kept) * parameters.state,
            octets=parameters.state,
        )
        kept.append(states[server])
        commands += _cut(parameters, whole)
    memories = {node: np.concatenate(kept) for node, kept in disks.items()}
    if work == CHECKPOINT:
        memories = states
    return _trial(parameters, places, work, commands, memories, {})


def _trial(
    parameters: Parameters,
    places: StoragePlaces,
    work: str,
    commands: Sequence[StorageCommand],
    memories: Mapping[int, np.ndarray],
    facts: Mapping[str, object],
) -> Trial:
    if len(commands) > MOST_COMMANDS:
        raise UserError(
            f"{work} takes {len(commands)} commands, more than {MOST_COMMANDS}; take a larger "
            "command or fewer octets"
        )
    all_of_them = StorageCommands(
        ranks=len(places.topology.gpus),
        commands=commands,
        depth=parameters.depth,
        writes=work == CHECKPOINT,
        memories=memories,
    )
    return Trial(
        collective=work,
        size_bytes=parameters.shard if work == DATASET else parameters.state,
        compile=all_of_them.schedules,
        inputs=all_of_them.inputs,
        expected=all_of_them.expected,
        memory_bytes=all_of_them.memory_octets,
        warmups=0,
        facts={"work": work, "total_bytes": all_of_them.octets, **facts},
        fresh=True,
    )


def _cut(parameters: Parameters, whole: StorageCommand) -> Iterator[StorageCommand]:
    """Yield ``whole`` in commands of the size that the user chose."""
    for at in range(0, whole.octets, parameters.command):
        yield replace(
            whole,
            data=whole.data + at,
            disk=whole.disk + at,
            octets=min(parameters.command, whole.octets - at),
        )


def _octets(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    places = StoragePlaces(topology)
    if not outcome.iterations:
        return {}
    last = outcome.iterations[-1]
    data = last.length >= SHORTEST_OCTETS
    ends = last.source if trial.facts["work"] == CHECKPOINT else last.destination
    rates = []
    for server in places.servers:
        own = data & (ends == server)
        if own.any():
            rates.append(float(last.length[own].sum() / last.end_ns[own].max()))
    times = [float(time) / 1e3 for time in (last.end_ns - last.start_ns)[data]]
    names = [topology.gpus[rank].name for rank in places.nodes]
    capacity_bps = sum(nic_rate_bps(topology, name) for name in names)
    octets = int(last.length[data].sum())
    return {
        "server_GBps": fmean(rates),
        "least_GBps": min(rates),
        "jain": jain(rates),
        "port_share": octets * 8e9 / outcome.mean_ns / capacity_bps,
        "message_p50_us": percentile(times, 0.5),
        "message_p99_us": percentile(times, 0.99),
    }
