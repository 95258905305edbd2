"""Checkpoint: states are stored over the fabric, GPUs are lost, and the job goes on without them.

::

    h0  g0 g1     h1  g0 g1       h2  g0 g1      h3  g0 g1
    replicas 0,1  replicas 2,3    spares         store states
        |             |               |              |
        +--- state ---+-----------------------> all at once: an incast
                      X lost in a later epoch
        |             |               |
        +-- wait for data, or retry --+              |
        |                             |              |
        +<----- state of the last checkpoint --------+  read back; a spare is replica 2 now

Traffic: a recurrent network trains with data parallelism: a gradient on each GPU, a ring AllReduce
over the replicas, a step. After every ``every`` epochs all replicas write their states (weights and
losses) at once to the GPUs that store them. They wait until all is written. At ``fail_at`` a fault
comes. With ``gpu`` the process on a GPU dies, and its NIC keeps carrier. With ``nic`` its NIC loses
carrier, and with ``server`` all of its GPUs and NICs fail. ``victim`` names the replica whose GPU
it is. ``--fault`` adds others.

No transport is notified. A rank learns it when a write to the lost GPU has no answer and all
retries are over: RTO_RETRIES_EXHAUSTED over UET, RETRY_EXC_ERR over RoCEv2. In a ring that is the
rank before the lost one. If it sits in the server of a dead GPU, its next NVLink copy fails at
once. A GPU whose NIC is down learns it by its own writes. The step ends once all transports with
such a write under way have reported the loss. The launcher aborts it at the others, which wait for
data. Until there is a management network, that takes no fabric time. Then all begin as new
processes, on new connections. A spare takes the replica's place. Each replica requests its state of
the last whole checkpoint, its store writes it back, and the epochs since then follow.

Measured: the time of the job (JCT) with all of it, beside that without a loss. ``write`` is the
mean time of a checkpoint's incast. ``detected`` is the time from the fault until the last transport
has reported it, and ``read`` that of reading states back. ``lost`` is the work since the checkpoint
that is done again. ``result.json`` has error and time of each rank that reported the loss
(``reported_by``). The states at the end, and those of every checkpoint, are compared to the bit
with the same training on one GPU without any failure.

What should be seen: the job loses by far the most time to detection. The work since the checkpoint
is little beside it, and reading states back is about an incast the other way round. Meta's Llama 3
report (arXiv 2407.21783, 3.3.4) counts 419 unexpected interruptions in 54 days on 16,384 GPUs.
About 78 % of them are by hardware, confirmed or suspected.

With ``over=storage`` servers write their states to storage nodes and restore them, over a storage
network of their own; nothing is trained or lost. That is the scenario ``storage_rdma``.

Size: in an epoch each replica sends 2 (replicas - 1) parts of the gradient, so the work grows with
the square of the replicas. Every row runs the job twice. More than 150,000 parts are refused.

Came out: 203.6 us without a loss become 6.74 ms over UET and 537 ms over RoCEv2 with a dead GPU.
6.48 and 537 ms of that are detection, by the default timers and retries of each: eight of 67 ms,
which outlast pauses (1.05 ms with ``rto=100us`` on ``lossless:pfc=off``). 28 us of work are
lost, and reading back takes 5.3 us. With ``victim=3`` the rank before the dead one is its mate in
the server: detection takes 0.5 us, and the job 244 us.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from emulator.errors import UserError
from emulator.result_rows import TableColumn
from emulator.scenario import Outcome, Trial, parameter, refuse_idle
from scenarios.workloads.checkpointed_training import (
    RATE,
    CheckpointedTraining,
    JobPlaces,
    ReplicaParameters,
)
from scenarios.workloads.network.tensors import octets_of
from scenarios.workloads.network.training_trial import DECIMAL, check_learning
from topologies.model import Topology
from topologies.parts.design_parameters import COUNT, NUMBER, TIME

COLUMNS = (
    TableColumn("fail", "fail", "", 7),
    TableColumn("gpus", "GPUs", "", 5),
    TableColumn("time_us", "JCT", "(us)", 10),
    TableColumn("undisturbed_us", "without", "(us)", 9),
    TableColumn("ideal_us", "ideal", "(us)", 9, rank=3),
    TableColumn("write_us", "write", "(us)", 8),
    TableColumn(
        "detected_us", "detected", "(us)", 10, words="transports had reported the loss after {} us"
    ),
    TableColumn("read_us", "read", "(us)", 8),
    TableColumn("lost_us", "lost", "(us)", 8),
    TableColumn("from_epoch", "from", "(epoch)", 7),
    TableColumn("reported", "reported", "", 8, rank=1),
    TableColumn("aborted", "aborted", "", 7, rank=2),
    TableColumn("fabric_bytes", "fabric", "(B)", 10),
    TableColumn("retransmitted_packets", "resent", "", 6),
    TableColumn("wrong", "#wrong", "", 6),
)


BACKEND, STORAGE = "backend", "storage"
#: The scenario that runs instead, by the value of a parameter.
INSTEAD = {"over": {STORAGE: ("storage_rdma", {"work": "checkpoint,restore"})}}
#: Parts of gradients that a job may send.
MOST_PARTS = 150_000
SMALLER = "rail_clos:hosts=8,gpus_per_host=4"


@dataclass(frozen=True, kw_only=True)
class Parameters(ReplicaParameters):
    rate: int = parameter(RATE, DECIMAL, help="learning rate")
    over: str = parameter(
        BACKEND,
        choices=(BACKEND, STORAGE),
        help="states go to GPUs, or to storage nodes: that is storage_rdma, with its parameters",
    )
    epochs: int = parameter(6, COUNT, help="times that all samples are learned from")
    every: int = parameter(2, COUNT, help="epochs from one checkpoint to the next")
    spares: int = parameter(2, NUMBER, help="GPUs that wait to take the place of lost ones")
    stores: int = parameter(2, COUNT, help="GPUs that store states")
    fail: tuple[str, ...] = parameter(
        ("gpu", "nic", "server"),
        choices=("none", "gpu", "nic", "server"),
        many=True,
        help="what is lost, one row for each",
    )
    fail_at: int = parameter(95_000, TIME, help="when it is lost")
    victim: int = parameter(2, NUMBER, help="replica whose GPU is lost")

    def __post_init__(self) -> None:
        if self.over != BACKEND:
            raise UserError("states go to storage nodes in the scenario storage_rdma; run that one")
        if set(self.fail) == {"none"}:
            refuse_idle(self, ("fail_at", "victim"), "beside fail=none")


def topology(parameters: Parameters) -> str:
    """Four hosts with two GPUs each: two that train, one of spares, one that stores states."""
    return "rail_clos:hosts=4,gpus_per_host=2,spines=1"


def training(parameters: Parameters, topology: Topology, seed: int) -> CheckpointedTraining:
    places = JobPlaces.of(topology, spares=parameters.spares, stores=parameters.stores)
    return CheckpointedTraining(
        learning=parameters.learning(len(places.workers), parameters.epochs, seed, parameters.rate),
        topology=topology,
        places=places,
        every=parameters.every,
        gradient_ns=parameters.gradient_time,
    )


def check_size(replicas: int, epochs: int) -> None:
    """Raise UserError for a job whose rows would take many minutes each."""
    an_epoch = 2 * replicas * (replicas - 1)
    if epochs * an_epoch > MOST_PARTS:
        fewer = f"epochs={MOST_PARTS // an_epoch}" if an_epoch <= MOST_PARTS else "fewer GPUs"
        raise UserError(
            f"{replicas} replicas send {epochs * an_epoch} parts of gradients in {epochs} epochs, "
            f"which takes many minutes for each row (the limit is {MOST_PARTS}): take {fewer}, or "
            f"a smaller topology, such as {SMALLER}"
        )


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    job = training(parameters, topology, seed)
    check_size(len(job.places.workers), parameters.epochs)
    history = job.learning.history
    losses = [float(one.losses.sum(dtype=float)) for one in history]
    check_learning(losses, job.learning.rate)
    workers = job.places.workers
    if parameters.victim >= len(workers):
        raise UserError(
            f"victim is replica {parameters.victim} and there are {len(workers)}; "
            f"take 0 to {len(workers) - 1}"
        )
    gpu = topology.gpus[workers[parameters.victim]]
    clauses = {
        "gpu": f"gpu {gpu.name} dead",
        "nic": f"nic {gpu.name} down",
        "server": f"server {gpu.server} dead",
    }
    part = job.first
    fabric = octets_of(part.exchanges, nvlink=False)
    trial = Trial(
        collective="checkpoint",
        size_bytes=octets_of(part.exchanges),
        compile=partial(job.compile, part),
        inputs=job.inputs,
        expected=job.expected,
        memory_bytes=part.memory_bytes,
        warmups=parameters.warmups,
        iterations=parameters.iterations,
        fresh=True,
        recover=job.recover,
    )
    facts = {
        "gpus": len(workers),
        "checkpoints": job.checkpoints,
        "state_bytes": 4 * (job.learning.weight_count + parameters.epochs),
        "fabric_bytes": fabric,
        "loss_first": losses[0],
        "loss_last": losses[-1],
    }
    return [
        replace(
            trial,
            facts={**facts, "fail": fail},
            fault_clauses=() if fail == "none" else (f"t={parameters.fail_at}ns {clauses[fail]}",),
        )
        for fail in parameters.fail
    ]


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    job = training(parameters, topology, seed=0)  # operations do not depend on it
    executions = outcome.executions
    if not executions:
        return {}
    names = [gpu.name for gpu in topology.gpus]
    start = min(one.start_ns for one in executions[0].results)
    found: list[dict[str, float]] = []
    reported: list[dict[str, object]] = []
    aborted: list[str] = []
    written: dict[int, int] = {}
    writes: list[int] = []
    octets, epoch = 0, 1
    for place, one in enumerate(executions):
        part = job.part_after(executions[:place])
        epoch = part.checkpoint * parameters.every + 1
        sent = part.sent_octets(one.results)
        octets += sent
        for number, at in part.stored_at(one.results).items():
            writes.append(at - part.began_at(number, one.results))
            written.setdefault(number, at - start)
        if place and (read := part.restored_at(one.results)) is not None:
            found[-1]["read"] = read - min(result.start_ns for result in one.results)
        loss = one.interruption
        if loss is None:
            continue
        begin = min(result.start_ns for result in one.results) - start
        kept = written.get(job.part_after(executions[: place + 1]).checkpoint, 0)
        found.append(
            {
                "detected": loss.known_ns - loss.fault_ns,
                "lost": max(0, loss.fault_ns - max(begin, kept)),
            }
        )
        aborted += [names[rank] for rank in loss.aborted]
        reported += [
            {"gpu": names[one.rank], "at_us": (one.end_ns - start) / 1000, "error": one.detail}
            for one in loss.reported
        ]
    row: dict[str, object] = {
        "fabric_bytes": octets,
        "write_us": fmean(writes) / 1000 if writes else None,
        "reported": len(reported),
        "reported_by": reported,
        "aborted": len(aborted),
        "aborted_gpus": aborted,
        "from_epoch": epoch if found else None,
    }
    for key in ("detected", "lost", "read"):
        times = [loss[key] for loss in found if key in loss]
        row[f"{key}_us"] = sum(times) / 1000 if times else None
    return row
