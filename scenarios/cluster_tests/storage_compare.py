"""Storage over TCP beside storage by RDMA: the same datasets and checkpoints, in one table.

::

    storage0, storage1 === stor-leaf, stor-spine === h0 ... h3

    nvme/tcp        the kernel's TCP, processes in namespaces      host's clock, dilated
    uet, rocev2     the same commands by RDMA (storage_rdma)       virtual time

Traffic: every server reads its shards of a dataset ``epochs`` times behind an LRU cache, as in
``dataset``. Then it writes a state to one storage node and restores it, as in
``checkpoint_storage`` without a fault. Over TCP that happens in the cluster; clients begin
together, once all have started. By each of ``transports`` the same sizes, orders and shares run as
``storage_rdma``, on the cluster's storage network alone: same machines, switches, rates and cables.

Measured: octets from the network, and hits; ``time_us`` of the slowest server, in the network's
time; ``GBps``, a server's octets from the network over its time, as mean; ``port_share``, all
octets over what the ports of the storage nodes can carry in ``time_us``. ``busy_share`` of TCP rows
is the part of this machine's processors that computed meanwhile, or that of its time in which one
client or target did, whichever is more; of a dataset it is over all epochs. A row is ``ok`` if
every octet is right.

``bound_by`` says what set the pace: ``network`` where ``port_share`` is 80 % or more; else
``machine`` where ``busy_share`` is; else ``neither``: commands waited for each other, or for
congestion control. No machine sets the pace of virtual time. ``compare`` has the columns that may
be compared with rows of the other clock; within one clock all may.

What should be seen: octets and hits agree to the last one. RDMA fills the ports, but for RoCEv2 in
the checkpoint's incast. TCP does not at the default dilation: Python processes share this machine,
which sets the pace, and their GB/s say what the machine can. Twice the ``--network-dilation
storage=N`` then gives about twice the GB/s. Where it gives the same, the network sets the pace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from emulator.cluster.run.clients import checkpoint_keeper, dataset_reader
from emulator.cluster.run.clients.checkpoint_keeper import RESTORE
from emulator.cluster.run.cluster_context import (
    CHECKPOINT_RESTORE,
    CHECKPOINT_WRITE,
    DATASET_STREAMING,
    ClusterContext,
)
from emulator.cluster.run.storage_nodes import StorageNodes, WatchedClients, watched
from emulator.errors import UserError
from emulator.scenario import parameter
from scenarios.cluster_tests import checkpoint_storage, dataset
from topologies import catalogue
from topologies.designs.cluster import Cluster, ClusterStorage
from topologies.model import STORAGE, Topology
from topologies.parts.design_parameters import COUNT, SIZE

TOPOLOGY = "cluster"
SERVICES = "nvme"
TCP, VIRTUAL = "nvme/tcp", "virtual"
NETWORK, MACHINE, NEITHER, CACHE = "network", "machine", "neither", "cache"
#: From this use on, ports or processors set the pace.
FULL_SHARE = 0.8
#: How long a storage node may be silent (ns of the machine): nothing fails here.
PATIENCE_NS = 60 * 10**9
SHARED = ("shards", "shard", "epochs", "sampling", "cache", "state", "command", "depth")


@dataclass(frozen=True, kw_only=True)
class Parameters(dataset.Parameters):
    """The dataset, the states and the transports of RDMA."""

    shards: int = parameter(16, COUNT, help="shards of the dataset")
    shard: int = parameter(2**19, SIZE, help="octets of each shard")
    epochs: int = parameter(2, COUNT, help="times that the dataset is read")
    cache: int = parameter(2**21, dataset.CACHE, help="octets of each server's cache")
    state: int = parameter(2**21, SIZE, help="octets of each server's state")
    transports: tuple[str, ...] = parameter(
        ("uet", "rocev2"), choices=("uet", "rocev2"), many=True, help="what RDMA runs over"
    )

    @property
    def checkpoints(self) -> checkpoint_storage.Parameters:
        return checkpoint_storage.Parameters(
            state=self.state,
            command=self.command,
            depth=self.depth,
            kill=checkpoint_storage.NONE,
            timeout=PATIENCE_NS,
            lost=PATIENCE_NS,
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.checkpoints  # whose octets are whole blocks, too


def conduct(run: ClusterContext, parameters: Parameters) -> Iterator[Mapping[str, object]]:
    """Run all by RDMA, then over TCP, and report each work over all of them."""
    topology = storage_alone(run.cluster.backend.topology)
    run.event("RDMA, in virtual time")
    result = run.fabric_run("storage_rdma", *_options(parameters), topology=topology)
    by_rdma = [_rdma_row(row) for row in result["rows"]]
    run.event("TCP, by the host's clock")
    for row in _tcp_rows(run, parameters):
        yield row
        yield from beside(row, by_rdma, parameters.transports)
    run.event("TCP has ended")
    yield from _clocks(run.dilation(STORAGE))
    fidelity = result["fidelity"]["verdict"]
    yield {"what": "rows by RDMA", "fidelity": fidelity, "digest": result["digest"]}


def storage_alone(backend: Topology) -> str:
    """Return the specification of a cluster's storage network as a fabric of its own.

    Raises UserError for a cluster that is not of the design of that name.
    """
    if backend.name != Cluster.NAME:
        raise UserError(
            f"{backend.name} is not the design {Cluster.NAME}, whose storage network can stand "
            f"alone; take --topology {Cluster.NAME}, with parameters"
        )
    given = {**backend.parameters, "hosts": len(backend.servers)}
    return catalogue.spec_of(replace(backend, name=ClusterStorage.NAME, parameters=given))


def beside(
    tcp: Mapping[str, object], by_rdma: Sequence[dict[str, object]], transports: Sequence[str]
) -> Iterator[Mapping[str, object]]:
    """Yield the rows of ``by_rdma`` for the work of the row ``tcp``, one for each transport.

    An epoch that caches serve alone has no run by RDMA: such a row has octets and hits only.
    """
    for transport in transports:
        found = [
            one for one in by_rdma if (one["what"], one["transport"]) == (tcp["what"], transport)
        ]
        row = found[0] if found else _cached(tcp, transport)
        yield row | {"compare": tcp["compare"]}


def bound_by(port_share: float, computing_share: float) -> str:
    """Return what sets the pace, by the use of ports and the busiest of what computes."""
    if port_share >= FULL_SHARE:
        return NETWORK
    return MACHINE if computing_share >= FULL_SHARE else NEITHER


def _options(parameters: Parameters) -> list[str]:
    """Return the options of the run by RDMA."""
    names = [name for name in SHARED if name != "cache" or parameters.epochs > 1]
    given = [f"{name}={getattr(parameters, name)}" for name in names]
    words = [word for pair in given for word in ("--param", pair)]
    return [*words, "--transport", ",".join(parameters.transports), "--capture", "none"]


def _rdma_row(row: Mapping[str, Any]) -> dict[str, object]:
    return {
        "what": f"epoch {row['epoch']}" if row.get("epoch") else row["work"],
        "transport": row["transport"].partition(":")[0],
        "clock": VIRTUAL,
        "octets": row["total_bytes"],
        "hit_share": row.get("hit_share"),
        "time_us": row["time_us"],
        "GBps": row["server_GBps"],
        "port_share": row["port_share"],
        "busy_share": None,
        "bound_by": bound_by(row["port_share"], 0.0),
        "compare": "",
        "ok": row["wrong"] == 0,
    }


def _cached(tcp: Mapping[str, object], transport: str) -> dict[str, object]:
    """Return the row of ``transport`` for an epoch of which the network carries nothing."""
    unknown = ("time_us", "GBps", "port_share", "busy_share")
    known = {"transport": transport, "clock": VIRTUAL, "bound_by": CACHE}
    return {**tcp, **known, **dict.fromkeys(unknown)}


def _tcp_rows(run: ClusterContext, parameters: Parameters) -> Iterator[Mapping[str, object]]:
    """Yield a row for each epoch, then those of the checkpoint and of its restore."""
    nodes = StorageNodes(run)
    data = dataset.staged(run, parameters, nodes)
    readers = dataset.reader_tasks(run, parameters, nodes, data)
    with run.work(DATASET_STREAMING):
        done = watched(run, nodes, dataset_reader.__name__, _fields(readers))
    for epoch in range(parameters.epochs):
        read = [answer[epoch] for answer in done.answers]
        hits = sum(one["hits"] for one in read) / sum(one["shards"] for one in read)
        octets = [one["octets_read"] for one in read]
        wrong = sum(one["wrong"] for one in read)
        row = _tcp_row(nodes, done, read, octets, wrong)
        yield row | {"what": f"epoch {epoch + 1}", "hit_share": hits}
    keepers = checkpoint_storage.keeper_tasks(run, parameters.checkpoints, nodes)
    with run.work(CHECKPOINT_WRITE):
        done = watched(run, nodes, checkpoint_keeper.__name__, _fields(keepers))
    copies = [copy for answer in done.answers for copy in answer]
    octets = [copy["acknowledged"] for copy in copies]
    wrong = sum(not copy["committed"] for copy in copies)
    yield _tcp_row(nodes, done, copies, octets, wrong) | {"what": "checkpoint"}
    keepers = {server: replace(task, phase=RESTORE) for server, task in keepers.items()}
    with run.work(CHECKPOINT_RESTORE):
        done = watched(run, nodes, checkpoint_keeper.__name__, _fields(keepers))
    octets = [0 if one["number"] is None else parameters.state for one in done.answers]
    wrong = sum(one["wrong"] or one["number"] is None for one in done.answers)
    yield _tcp_row(nodes, done, done.answers, octets, wrong) | {"what": "restore"}


def _fields(tasks: Mapping[str, Any]) -> dict[str, dict[str, object]]:
    return {server: asdict(task) for server, task in tasks.items()}


def _tcp_row(
    nodes: StorageNodes,
    done: WatchedClients,
    parts: Sequence[Mapping[str, Any]],
    octets: Sequence[int],
    wrong: int,
) -> dict[str, object]:
    """Return the row of ``parts``, one of each server, which moved ``octets``; ``wrong`` failed.

    The name of the work and hits, where it has them, are the caller's.
    """
    dilation = nodes.run.dilation(STORAGE)
    seconds = [one["seconds"] / dilation for one in parts]
    slowest_s = max(seconds)
    rates = [count / took_s / 1e9 for count, took_s in zip(octets, seconds, strict=True) if took_s]
    clients = [one["cpu_s"] / one["seconds"] for one in parts if one["seconds"]]
    port_share = sum(octets) * 8 / slowest_s / nodes.capacity_bps if slowest_s else 0.0
    busy_share = max([*clients, done.target_share, done.busy_share])
    bound = bound_by(port_share, busy_share) if sum(octets) else CACHE
    return {
        "what": "",
        "transport": TCP,
        "clock": f"host/{dilation:g}",
        "octets": sum(octets),
        "hit_share": None,
        "time_us": slowest_s * 1e6,
        "GBps": fmean(rates) if rates else None,
        "port_share": port_share,
        "busy_share": busy_share,
        "bound_by": bound,
        "compare": "octets, hits" + (", ports" if bound == NETWORK else ""),
        "ok": not wrong,
    }


def _clocks(dilation: float) -> Iterator[Mapping[str, object]]:
    yield {
        "what": f"clock host/{dilation:g}",
        "means": f"this machine's time over {dilation:g}, another in each run; rows that the "
        "machine bounds say how fast it is, not the network",
    }
    yield {
        "what": f"clock {VIRTUAL}",
        "means": "computed, and it waits for the work: exact, the same on every machine; disks and "
        "processors take no time",
    }
    yield {
        "what": "across clocks",
        "means": "only the columns that compare names hold; times and GB/s do not",
    }
