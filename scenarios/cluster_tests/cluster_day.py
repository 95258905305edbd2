"""A day of a cluster: a job starts, trains and stores checkpoints, users are served, things die.

::

    management    a file is rolled out by logins; every GPU's rank registers, waits for all, reads
                  addresses; clocks are compared (PTP), and ports scraped, all day
    frontend      the master's first parameters come to all ranks; users send bursts of
                  requests, and again when a spine dies
    storage       servers stream the dataset (NVMe/TCP); a checkpoint after each part of the
                  training (NFS); a storage server dies; other servers restore the first checkpoint,
                  whose weights are then distributed to all; a checkpoint by RDMA, in virtual time
    backend       data-parallel training, with real gradients, in parts; then a link is pulled

A part of the training is a run beside the rest, on its own fabric in virtual time: its row is
exact, has a digest, and comes again.  Each part goes on from the weights of the one before, which
its checkpoint has.  A state of a server is these weights, which the run has compared with every
GPU's to the bit, and random octets in place of the optimizer's.  All other rows are of the host's
clock.  In reality these networks are separate cables, too; what they share here is this machine's
processors, which virtual time does not feel.

Each tenant has a job that starts by itself; with ``tenants=0`` one job has the GPUs of all servers.

Shown, by packets: the day's traffic on the management switch is management's alone, none of the
rendezvous is elsewhere, and what a network lost when something died, and found again by itself.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from emulator.cluster.run.clients import dataset_reader
from emulator.cluster.run.clients.dataset_reader import content
from emulator.cluster.run.clients.rendezvous_rank import layouts
from emulator.cluster.run.cluster_context import (
    DATASET_STREAMING,
    MODEL_DISTRIBUTION,
    ClusterContext,
    FabricRun,
)
from emulator.cluster.run.job_start import JobPlan, started, tenants_servers
from emulator.cluster.run.packet_survey import management_watched
from emulator.cluster.run.processes import printed, run_together
from emulator.cluster.run.storage_nodes import StorageNodes, shared_states
from emulator.cluster.services import kinds, request_load
from emulator.errors import UserError
from emulator.scenario import parameter
from scenarios.cluster_tests import dataset
from scenarios.cluster_tests.storage_compare import storage_alone
from scenarios.neural_training import data_parallel, data_parallel_plan
from scenarios.workloads.network.training_plan import flattened, train
from scenarios.workloads.network.training_trial import DECIMAL
from topologies.cluster import HEAD, MODEL_PORT, TELEMETRY
from topologies.designs.cluster import Cluster
from topologies.model import FRONTEND, MANAGEMENT, STORAGE, CableEnd, Topology
from topologies.parts.design_parameters import COUNT, SIZE

TOPOLOGY = "cluster"
SERVICES = "files,llm,metrics,nfs,nvme@storage0,ptp,rendezvous,ssh"
LIMIT_S = 300.0
#: How long a rank waits for its peers, of this machine's time (s).
WAIT_S = 30.0
SPINE = "front-spine0"
#: Epochs of a part of the training.
EPOCHS = 4
#: What the optimizer's state is drawn from, beside the seed, the part and the server's number.
_OPTIMIZER = 5


@dataclass(frozen=True, kw_only=True)
class Parameters:
    parameters: int = parameter("4MiB", SIZE, help="octets of a job's first parameters")
    layout: str = parameter("tree", choices=layouts(), help="how the parameters travel")
    parts: int = parameter(2, COUNT, help="parts of the training, a checkpoint after each")
    widths: tuple[int, ...] = parameter(
        (128, 512, 256, 64), COUNT, many=True, help="the network: inputs, neurons of each layer"
    )
    rate: int = parameter(20_000, DECIMAL, help="its learning rate")
    state: int = parameter("4MiB", SIZE, help="octets of each server's state in a checkpoint")
    shard: int = parameter("2MiB", SIZE, help="octets of the dataset that each server reads")
    bursts: int = parameter(
        6, COUNT, help="bursts of requests of each user, and again as many when a spine dies"
    )
    burst: int = parameter(20, COUNT, help="requests of a burst")
    fault: str = parameter(
        "link", choices=("link", "none"), help="what befalls the training: an uplink, or none"
    )

    def __post_init__(self) -> None:
        kinds.check_whole_blocks(shard=self.shard)


def conduct(run: ClusterContext, parameters: Parameters) -> Iterator[Mapping[str, object]]:
    """Go through the day and report each part of it."""
    with management_watched(run) as watch, _scraper(run) as scraper:
        yield _rolled_out(run)
        for tenant, servers in tenants_servers(run).items():
            yield from started(run, _job(parameters, tenant or "the job", servers))
        users = list(_users(run, parameters, "requests"))
        for part in range(parameters.parts):
            training = _training(run, parameters, part)
            yield _streamed(run, f"dataset read in part {part + 1}", parameters.shard)
            yield _trained(run, training, part)
            states = _states(run, parameters, part)
            with shared_states(run, states, f"checkpoint{part + 1}-") as checkpoint:
                run.event(f"checkpoint {part + 1}")
                yield checkpoint.write(f"checkpoint {part + 1} stored")
                if part == 0:
                    for one in users:
                        yield _served(*one)
                    users = list(_users(run, parameters, "requests, a spine dies"))
                    yield from _struck(run)
                    run.event("checkpoint 1 is restored")
                    yield checkpoint.restore("checkpoint 1 restored by others")
                    yield _distributed(run)
        for one in users:
            yield _served(*one)
        if run.machines.topology.name == Cluster.NAME:
            yield _by_rdma(run, parameters.state)
        yield _scraped(scraper)
        run.event("the day is over")
    yield from run.samples.total_rows()
    yield from watch.rows()


def _job(parameters: Parameters, name: str, servers: Sequence[str]) -> JobPlan:
    return JobPlan(
        name=name,
        servers=servers,
        octets=parameters.parameters,
        layout=parameters.layout,
        timeout_s=WAIT_S,
    )


def _struck(run: ClusterContext) -> Iterator[Mapping[str, object]]:
    """Let a spine of the frontend and a storage server die."""
    run.strike(FRONTEND, f"switch {SPINE} down")
    if len(run.machines.storage) > 1:
        dead = run.machines.storage[-1]
        run.strike(STORAGE, f"nic {dead} down")
        yield _died(run, dead)


def _rolled_out(run: ClusterContext) -> Mapping[str, object]:
    """Let the head node log in on every server and fetch a file there, all over management."""
    run.event("a file is rolled out")
    offered = run.services.folder(f"{kinds.files.name}@{HEAD}") / kinds.OFFERED / "job.json"
    offered.write_text(json.dumps({"seed": run.seed}))
    url = f"http://{run.machines.address(HEAD, MANAGEMENT)}:{kinds.files.port}/{offered.name}"
    servers, right = run.machines.servers, 0
    for server in servers:
        key = run.services.folder(f"{kinds.ssh.name}@{server}") / kinds.KEY
        login = ["ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"]
        login += ["-o", "UserKnownHostsFile=/dev/null", "-i", str(key)]
        login += [f"root@{run.machines.address(server, MANAGEMENT)}", "curl", "-sf", url]
        right += run.execute(HEAD, login) == offered.read_text()
    return {
        "what": "file rolled out",
        "servers": len(servers),
        "right": right,
        "ok": right == len(servers),
    }


@contextmanager
def _scraper(run: ClusterContext) -> Iterator[subprocess.Popen[str]]:
    """Scrape the head node's metrics every second of the machine's time meanwhile."""
    url = f"http://{run.machines.address(HEAD, MANAGEMENT)}:{kinds.METRICS_PORT}/metrics"
    scrape = f"curl -s -m {WAIT_S:g} -o /dev/null -w '%{{http_code}}\\n' {url}"
    process = run.started(TELEMETRY, ["sh", "-c", f"while sleep 1; do {scrape}; done"])
    try:
        yield process
    finally:
        process.kill()


def _scraped(scraper: subprocess.Popen[str]) -> Mapping[str, object]:
    scraper.kill()
    codes = scraper.communicate()[0].split()
    right = codes.count("200")
    return {
        "what": "telemetry",
        "scrapes": len(codes),
        "failed": len(codes) - right,
        "ok": right == len(codes),
    }


def _training(run: ClusterContext, parameters: Parameters, part: int) -> FabricRun:
    """Begin a part of the training on the backend in virtual time, beside the rest."""
    run.event(f"part {part + 1} of the training begins, in virtual time")
    options = ["--param", f"epochs={EPOCHS}", "--param", f"resumed={part * EPOCHS}"]
    options += ["--param", f"widths={','.join(map(str, parameters.widths))}"]
    options += ["--param", f"rate={DECIMAL.format(parameters.rate)}"]
    if parameters.fault == "link" and part == parameters.parts - 1:
        uplink = _uplink(run.cluster.backend.topology)
        options += ["--fault", f"t=30us link {uplink} down"]
    return run.begin_fabric_run("data_parallel", *options, name=f"training{part + 1}")


def _states(run: ClusterContext, parameters: Parameters, part: int) -> Mapping[str, bytes]:
    """Return the state of each server after ``part``: the weights, then the optimizer's."""
    plan = data_parallel_plan(
        data_parallel.Parameters(
            widths=parameters.widths,
            rate=parameters.rate,
            epochs=EPOCHS,
            resumed=part * EPOCHS,
        ),
        run.cluster.backend.topology,
        run.seed,
    )
    weights = flattened(train(plan).weights).tobytes()
    if len(weights) > parameters.state:
        raise UserError(
            f"the weights have {len(weights)} octets and a state {parameters.state}; take "
            f"--param state={len(weights)} or more"
        )
    left = parameters.state - len(weights)
    return {
        server: weights + content(run.seed, _OPTIMIZER, part, number, octets=left)
        for number, server in enumerate(run.machines.servers)
    }


def _uplink(backend: Topology) -> CableEnd:
    """Return the lower end of the first cable between switches; UserError if there is none."""
    for link in backend.links:
        if all(backend.node(end.node).is_switch for end in link.ends):
            return link.a
    raise UserError("the backend has no link between switches to pull: take --param fault=none")


def _trained(run: ClusterContext, training: FabricRun, part: int) -> Mapping[str, object]:
    """Await the end of a part of the training and report it."""
    result = training.result()
    row = result["rows"][-1]
    run.event(f"part {part + 1} of the training has ended")
    return {
        "what": f"training, part {part + 1}, in virtual time",
        "GPUs": row["gpus"],
        "loss_first": row["loss_first"],
        "loss_last": row["loss_last"],
        "time_us": row["time_us"],
        "slowdown": row.get("slowdown"),
        "wrong": row["wrong"],
        "verdict": result["fidelity"]["verdict"],
        "digest": result["digest"][:16],
        "ok": row["wrong"] == 0 and result["fidelity"]["verdict"] == "exact",
    }


def _streamed(run: ClusterContext, what: str, octets: int) -> Mapping[str, object]:
    """Let every server read its shard of the dataset over NVMe/TCP, and compare it."""
    run.event(what)
    servers = run.machines.servers
    of_dataset = dataset.Parameters(shards=len(servers), shard=octets, epochs=1, cache=0)
    nodes = StorageNodes(run)
    tasks = dataset.reader_tasks(run, of_dataset, nodes, dataset.staged(run, of_dataset, nodes))
    with run.work(DATASET_STREAMING):
        read = run.together(
            dataset_reader.__name__, {server: asdict(task) for server, task in tasks.items()}
        )
    epochs = [epoch for (epoch,) in read.values()]
    took = max(epoch["seconds"] for epoch in epochs) / run.dilation(STORAGE)
    wrong = sum(epoch["wrong"] for epoch in epochs)
    return {
        "what": what,
        "servers": len(servers),
        "octets": octets * len(servers),
        "GBps": octets * len(servers) / took / 1e9,
        "wrong": wrong,
        "ok": not wrong,
    }


def _distributed(run: ClusterContext) -> Mapping[str, object]:
    """Let every server get one server's state of the first checkpoint, and compare it."""
    run.event("the model is distributed")
    (store,) = run.services.of_kind(kinds.nfs)
    servers = run.machines.servers
    model = run.services.folder(store.name) / kinds.SHARED / f"checkpoint1-{servers[0]}"
    get = f'nfs-cat "nfs://{store.address}{kinds.EXPORT}/{model.name}" | cmp - "{model}"'
    with run.work(MODEL_DISTRIBUTION):
        run_together(run, dict.fromkeys(servers, ("sh", "-c", get)), "get the model")
    return {
        "what": "model distributed",
        "servers": len(servers),
        "octets": len(servers) * model.stat().st_size,
        "ok": True,
    }


def _by_rdma(run: ClusterContext, octets: int) -> Mapping[str, object]:
    """Write a checkpoint over the storage network by RDMA, in virtual time, and report it."""
    run.event("a checkpoint by RDMA, in virtual time")
    options = ["--param", "work=checkpoint", "--param", f"state={octets}"]
    topology = storage_alone(run.machines.topology)
    result = run.fabric_run("storage_rdma", *options, topology=topology)
    row = result["rows"][-1]
    return {
        "what": "checkpoint by RDMA, in virtual time",
        "octets": row["total_bytes"],
        "time_us": row["time_us"],
        "GBps": row["server_GBps"],
        "port_share": row["port_share"],
        "wrong": row["wrong"],
        "ok": row["wrong"] == 0,
    }


def _died(run: ClusterContext, machine: str) -> Mapping[str, object]:
    """Report whether ``machine`` is really cut off from storage, and still managed."""
    server = run.machines.servers[0]

    def reached(network: str) -> bool:
        argv = ["ping", "-c", "1", "-W", "1", run.machines.address(machine, network)]
        return run.cluster.lab_of(server).exec(server, argv, timeout=LIMIT_S).returncode == 0

    storage, management = reached(STORAGE), reached(MANAGEMENT)
    return {
        "what": f"{machine} dead on storage",
        "reached_by_storage": storage,
        "reached_by_management": management,
        "ok": not storage and management,
    }


def _users(
    run: ClusterContext, parameters: Parameters, what: str
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Begin requests of all users, beside the other parts of the day; yield what they are."""
    servers = [(record.address, MODEL_PORT) for record in run.services.of_kind(kinds.llm)]
    for number, user in enumerate(run.machines.users):
        run.event(f"{user} begins its {what}")
        given = {
            "servers": servers,
            "bursts": parameters.bursts,
            "burst": parameters.burst,
            "tokens": 6,
            "prompt_bytes": 2048,
            "pause_s": 1.0,
            "seed": run.seed + number,
        }
        yield f"{user}: {what}", run.begin(user, request_load.__name__, given)


def _served(what: str, process: subprocess.Popen[str]) -> Mapping[str, object]:
    """Await the end of a user's requests and report them."""
    answer = printed(what, process, LIMIT_S)
    records: list[Mapping[str, Any]] = json.loads(answer)
    waits = [record["token_s"][0] for record in records if record["token_s"]]
    failed = [record["error"] for record in records if record["error"]]
    return {
        "what": what,
        "sent": len(records),
        "failed": len(failed),
        "slowest_first_token_s": max(waits, default=None),
        "first_error": failed[0] if failed else None,
        "ok": not failed,
    }
