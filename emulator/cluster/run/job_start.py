"""The start of a job on a running cluster: a rank for each GPU, on the namespace of its server.

The ranks find each other at the rendezvous over the management network.  The master's parameters
come to all over the frontend, or over another network where a cluster has none.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256

from emulator.cluster.run.clients import rendezvous_rank
from emulator.cluster.run.clients.rendezvous_rank import MASTER, RankTask, first_parameters
from emulator.cluster.run.cluster_context import ClusterContext
from emulator.cluster.run.processes import await_ready, last_words, release
from emulator.cluster.services import kinds
from emulator.errors import UserError
from topologies.model import FRONTEND, MANAGEMENT, STORAGE

#: Networks for the parameters, the first that a cluster has.
_CARRIERS = (FRONTEND, STORAGE, MANAGEMENT)
#: What a rank may take beside its own waits, of the machine's time (s).
MARGIN_S = 60.0
#: Waits of a rank, one after another: to connect, barrier, addresses, parameters.
WAITS = 6


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """A job called ``name`` on all GPUs of ``servers``.

    Its parameters have ``octets`` and travel in the ``layout``.  A rank waits ``timeout_s`` of the
    machine's time for its peers.
    """

    name: str
    servers: Sequence[str]
    octets: int
    layout: str
    timeout_s: float


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    """The end of the process of a rank: what it printed, or the last line of why it failed."""

    task: RankTask
    printed: str
    error: str | None
    took_s: float


def tenants_servers(run: ClusterContext) -> Mapping[str | None, Sequence[str]]:
    """Return the servers of each tenant, all under None where there are no tenants."""
    found: dict[str | None, list[str]] = {}
    for server in run.machines.servers:
        found.setdefault(run.machines.tenant(server), []).append(server)
    return found


def carrier(run: ClusterContext) -> str:
    """Return the network that parameters travel over."""
    return next(one for one in _CARRIERS if one in run.cluster.labs)


def rank_tasks(run: ClusterContext, job: JobPlan) -> list[RankTask]:
    """Return the tasks of all ranks: those of a server's GPUs follow each other."""
    (store,) = run.services.of_kind(kinds.rendezvous)
    backend = run.machines.topology
    gpus = {server.name: server.gpus for server in backend.servers}
    places = [(gpu, server) for server in job.servers for gpu in gpus[server]]
    return [
        RankTask(
            job=job.name,
            rank=rank,
            ranks=len(places),
            gpu=gpu,
            host=server,
            own=run.machines.address(server, carrier(run)),
            store=store.address,
            port=kinds.RENDEZVOUS_PORT,
            octets=job.octets,
            layout=job.layout,
            seed=run.seed,
            timeout_s=job.timeout_s,
            held=True,
        )
        for rank, (gpu, server) in enumerate(places)
    ]


def started(run: ClusterContext, job: JobPlan) -> Iterator[Mapping[str, object]]:
    """Start ``job`` and yield the row of its phases, of the host's clock.

    Raises UserError, which names the ranks that have not come, if it does not start.
    """
    run.event(f"{job.name} starts")
    ends = ranks_ended(run, rank_tasks(run, job))
    _check(ends)
    answers = [json.loads(end.printed) for end in ends]
    digest = sha256(first_parameters(run.seed, job.octets)).hexdigest()
    right = sum(one["sha256"] == digest for one in answers)
    slowest = {
        phase: max(float(one[f"{phase}_s"]) for one in answers)
        for phase in ("register", "barrier", "exchange", "broadcast")
    }
    network = carrier(run)
    yield {
        "what": f"start of {job.name}",
        "clock": "host",
        "ranks": len(answers),
        **{f"{phase}_ms": 1e3 * taken_s for phase, taken_s in slowest.items()},
        "layout": job.layout,
        "over": network,
        "octets": job.octets,
        "GBps": job.octets
        * (len(answers) - 1)
        / slowest["broadcast"]
        * run.dilation(network)
        / 1e9,
        "right": right,
        "ok": right == len(answers) and all(one["peers"] == len(answers) for one in answers),
    }


def without_a_rank(run: ClusterContext, job: JobPlan) -> Mapping[str, object]:
    """Start ``job`` without its last rank; the row has the sentence of those that wait for it."""
    tasks = rank_tasks(run, job)
    run.event(f"{job.name} starts without rank {tasks[-1].rank}")
    ends = ranks_ended(run, tasks[:-1])
    named = f"rank {tasks[-1].rank} of {job.name} has not registered"
    return {
        "what": f"rank {tasks[-1].rank} missing",
        "ranks": len(tasks),
        "reported": next((end.error for end in ends if end.error), None),
        "reporting": sum(named in (end.error or "") for end in ends),
        "slowest_s": max(end.took_s for end in ends),
        "ok": all(named in (end.error or "") for end in ends),
    }


def with_a_rank_twice(run: ClusterContext, job: JobPlan) -> Mapping[str, object]:
    """Start ``job`` with two processes for the master's rank: one is refused, all others start."""
    tasks = rank_tasks(run, job)
    run.event(f"{job.name} starts with rank {MASTER} twice")
    again = replace(tasks[MASTER], gpu=tasks[-1].gpu, host=tasks[-1].host, own=tasks[-1].own)
    ends = ranks_ended(run, [*tasks, again])
    refused = [end for end in ends if end.error]
    return {
        "what": f"rank {MASTER} twice",
        "ranks": len(tasks),
        "reported": refused[0].error if refused else None,
        "reporting": len(refused),
        "slowest_s": max(end.took_s for end in ends),
        "ok": len(refused) == 1
        and f"rank {MASTER} of {job.name} is refused" in str(refused[0].error),
    }


def ranks_ended(run: ClusterContext, tasks: Sequence[RankTask]) -> list[RankEnd]:
    """Begin a process for each of ``tasks``, release all at once, and return their ends in order.

    Raises UserError if one is hung; none runs afterwards.
    """
    limit_s = WAITS * tasks[0].timeout_s + MARGIN_S
    begun: list[subprocess.Popen[str]] = []
    try:
        for task in tasks:
            begun.append(run.begin(task.host, rendezvous_rank.__name__, asdict(task)))
        for task, process in zip(tasks, begun, strict=True):
            await_ready(_named(task), process, limit_s)
        began = time.monotonic()
        for process in begun:
            release(process)
        return [
            _ended(task, process, began, limit_s)
            for task, process in zip(tasks, begun, strict=True)
        ]
    finally:
        for process in begun:
            if process.poll() is None:
                process.kill()
                process.communicate()


def _ended(task: RankTask, process: subprocess.Popen[str], began: float, limit_s: float) -> RankEnd:
    try:
        out, err = process.communicate(timeout=max(0.0, began + limit_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise UserError(f"{_named(task)} has not ended after {limit_s:g} s") from None
    error = last_words(err) if process.returncode else None
    return RankEnd(task=task, printed=out, error=error, took_s=time.monotonic() - began)


def _check(ends: Sequence[RankEnd]) -> None:
    """Raise UserError unless all have started: why others waited, and what the late ones said."""
    failed = [end for end in ends if end.error is not None]
    if not failed:
        return
    waiting = next((end for end in failed if "not registered" in str(end.error)), failed[0])
    others = [end for end in failed if "not registered" not in str(end.error)]
    reasons = "; ".join(f"{_named(end.task)}: {end.error}" for end in others if end is not waiting)
    raise UserError(f"{waiting.error}{f' ({reasons})' if reasons else ''}")


def _named(task: RankTask) -> str:
    return f"rank {task.rank} of {task.job} ({task.gpu} on {task.host})"
