"""A day of a cluster: a job starts and trains, users are served, and things die.

::

    management    every server checks in at the rendezvous; a file is rolled out
    storage       every server reads its shard of the dataset; then a storage server dies
    backend       data-parallel training, with real gradients; then a link is pulled
    frontend      users send bursts of requests all day; then a spine dies

The training runs beside the rest, on its own fabric in virtual time: its row is exact, has a
digest, and comes again.  All other rows are of the host's clock.  In reality these networks are
separate cables, too; what they share here is this machine's processors, which virtual time does not
feel.

Shown, by packets: the day's traffic on the management switch is management's alone, and what a
network lost when something died, and found again by itself.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from emulator.cluster_run.clients import rendezvous_rank
from emulator.cluster_run.cluster_context import ClusterContext, FabricRun
from emulator.cluster_run.ended_process import printed
from emulator.cluster_run.packet_survey import survey
from emulator.errors import UserError
from emulator.scenario import parameter
from emulator.services.kinds.files import FILES, OFFERED
from emulator.services.kinds.model_servers import LLM
from emulator.services.kinds.nfs import EXPORT, NFS, SHARED
from emulator.services.kinds.rendezvous import PORT as RENDEZVOUS_PORT
from emulator.services.llm import request_load
from topologies.addressing import NETWORK_BLOCKS
from topologies.cluster.machine_networks import MANAGEMENT_SWITCH, MODEL_PORT
from topologies.model import FRONTEND, MANAGEMENT, STORAGE, CableEnd, Topology
from topologies.parts.design_parameters import COUNT, SIZE

TOPOLOGY = "cluster"
SERVICES = "files,llm,nfs,rendezvous"
LIMIT_S = 300.0
SPINE = "front-spine0"


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The sizes of the day."""

    shard: int = parameter("2MiB", SIZE, help="octets of the dataset that each server reads")
    bursts: int = parameter(6, COUNT, help="bursts of requests of each user's machine")
    burst: int = parameter(20, COUNT, help="requests of a burst")
    fault: str = parameter(
        "link", choices=("link", "none"), help="what befalls the training: an uplink, or none"
    )


def conduct(run: ClusterContext, parameters: Parameters) -> Iterator[Mapping[str, object]]:
    """Go through the day and report each part of it."""
    with run.watched(MANAGEMENT_SWITCH, "management") as capture:
        yield _rolled_out(run)
        yield _started(run)
        training = _training(run, parameters)
        users = list(_users(run, parameters))
        yield _read(run, "dataset read", parameters.shard)
        run.strike(FRONTEND, f"switch {SPINE} down")
        if len(run.machines.storage) > 1:
            dead = run.machines.storage[-1]
            run.strike(STORAGE, f"nic {dead} down")
            yield _died(run, dead)
        yield _read(run, "dataset read, a storage server dead", parameters.shard)
        yield _trained(run, training)
        for user, process in users:
            yield _served(user, process)
        run.event("the day is over")
    yield from run.samples.total_rows()
    yield survey(capture, [NETWORK_BLOCKS[MANAGEMENT]]).row("packets on management")


def _rolled_out(run: ClusterContext) -> Mapping[str, object]:
    """Roll a file out to every server over management."""
    run.event("a file is rolled out")
    offered = run.services.folder(f"{FILES.name}@head0") / OFFERED / "job.json"
    offered.write_text(json.dumps({"seed": run.seed}))
    head = run.machines.address("head0", MANAGEMENT)
    url = f"http://{head}:{FILES.port}/{offered.name}"
    servers = run.machines.servers
    right = sum(run.execute(one, ["curl", "-sf", url]) == offered.read_text() for one in servers)
    return {
        "what": "file rolled out",
        "servers": len(servers),
        "right": right,
        "ok": right == len(servers),
    }


def _started(run: ClusterContext) -> Mapping[str, object]:
    """Let every server check in at the rendezvous."""
    run.event("the job starts")
    head, servers = run.machines.address("head0", MANAGEMENT), run.machines.servers
    ranks = []
    for server in servers:
        given = {
            "address": head,
            "port": RENDEZVOUS_PORT,
            "own": run.machines.address(server, FRONTEND),
            "ranks": len(servers),
        }
        ranks.append(run.begin(server, rendezvous_rank.__name__, given))
    answers = [
        json.loads(printed("a rank of the rendezvous", process, LIMIT_S)) for process in ranks
    ]
    masters = {answer["master"] for answer in answers}
    return {
        "what": "job start, over management",
        "ranks": len(answers),
        "masters": len(masters),
        "slowest_s": max(float(answer["took_s"]) for answer in answers),
        "ok": len(masters) == 1 and {a["rank"] for a in answers} == set(range(len(servers))),
    }


def _training(run: ClusterContext, parameters: Parameters) -> FabricRun:
    """Begin a training on the backend in virtual time, beside the rest."""
    run.event("training begins, in virtual time")
    options = []
    if parameters.fault == "link":
        uplink = _uplink(run.cluster.backend.topology)
        options = ["--fault", f"t=30us link {uplink} down"]
    return run.begin_fabric_run("data_parallel", *options, name="training")


def _uplink(backend: Topology) -> CableEnd:
    """Return the lower end of the first cable between switches; UserError if there is none."""
    for link in backend.links:
        if all(backend.node(end.node).is_switch for end in link.ends):
            return link.a
    raise UserError("the backend has no link between switches to pull: take --param fault=none")


def _trained(run: ClusterContext, training: FabricRun) -> Mapping[str, object]:
    result = training.result()
    row = result["rows"][-1]
    run.event("training has ended")
    return {
        "what": "training, in virtual time",
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


def _read(run: ClusterContext, what: str, octets: int) -> Mapping[str, object]:
    """Let every server read its shard from the shared file system, and compare it."""
    run.event(what)
    (store,) = run.services.of_kind(NFS)
    folder = run.services.folder(store.name) / SHARED
    readers = []
    for number, server in enumerate(run.machines.servers):
        shard = folder / f"shard{number}"
        if not shard.exists():
            shard.write_bytes(np.random.default_rng([run.seed, number]).bytes(octets))
        remote = f"nfs://{store.address}{EXPORT}/{shard.name}?version=4"
        readers.append(run.started(server, ["sh", "-c", f'nfs-cat "{remote}" | cmp - "{shard}"']))
    began = run.samples.now_s
    equal = sum(reader.wait(LIMIT_S) == 0 for reader in readers)
    took = (run.samples.now_s - began) / run.dilation(STORAGE)
    for reader in readers:
        reader.communicate()
    return {
        "what": what,
        "servers": len(readers),
        "equal": equal,
        "octets": octets * len(readers),
        "gbps": octets * len(readers) / took / 1e9 if took > 0 else None,
        "ok": equal == len(readers),
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
    run: ClusterContext, parameters: Parameters
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Begin the users' requests, which last as long as the other parts of the day."""
    servers = [(record.address, MODEL_PORT) for record in run.services.of_kind(LLM)]
    for number, user in enumerate(run.machines.users):
        run.event(f"{user} begins its requests")
        given = {
            "servers": servers,
            "bursts": parameters.bursts,
            "burst": parameters.burst,
            "tokens": 6,
            "prompt_bytes": 2048,
            "pause_s": 1.0,
            "seed": run.seed + number,
        }
        yield user, run.begin(user, request_load.__name__, given)


def _served(user: str, process: subprocess.Popen[str]) -> Mapping[str, object]:
    answer = printed(f"the requests of {user}", process, LIMIT_S)
    records: list[Mapping[str, Any]] = json.loads(answer)
    waits = [record["token_s"][0] for record in records if record["token_s"]]
    failed = [record["error"] for record in records if record["error"]]
    return {
        "what": f"requests of {user}, a spine dies",
        "sent": len(records),
        "failed": len(failed),
        "slowest_first_token_s": max(waits, default=None),
        "first_error": failed[0] if failed else None,
        "ok": not failed,
    }
