"""Jobstart: a job starts: communicator id, check-in, initial weights, and the first step.

::

    rendezvous     in the kernel, outside fabric time
    id             master ---- 128 octets ----> each rank
    check-in       master <---- 64 octets ----- each rank that has the id: an incast
    weights        master -- broadcast --> all ranks        once all have checked in
    first step     gradient, ring AllReduce, step

Traffic: rank 0 is the master. The ranks find each other at a rendezvous. Here that passes in the
kernel and takes no fabric time (column ``rendezvous``). Over a management network, by TCP and the
host's clock, it is ``uetemu cluster job_bootstrap``. The master then sends the communicator id to
each rank, which answers with its address. 128 and 64 octets are those of ncclUniqueId and of the
bootstrap of NCCL. When all have checked in, the master broadcasts the initial weights by
``algorithms``, one row for each. Each GPU computes the gradient of its mini-batch, a ring AllReduce
adds the gradients, and each GPU steps its weights.

Measured: the time until all is done and acknowledged (``time``), and that of each phase from the
end of the one before. At the end each rank must have the id, and the master all check-ins. Each
rank must have the weights and the loss of one step on one GPU in numpy, to the bit.

What should be seen: id and check-in cost a one-way trip each, however small they are, and the
broadcast is bound by the links. A binomial tree has fewer steps, and sends all weights from the
master several times. A ring sends them once, over all of its links at the same time.

Came out over UET: 67 KiB of weights need 9.4 us by a ring and 7.4 us by a binomial tree. 1 MiB
(``hidden=512``) needs 29.8 us by a ring and 48.4 us by a tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from emulator.errors import UserError
from emulator.result_rows import TableColumn
from emulator.scenario import Outcome, Trial, parameter
from emulator.sim.endpoint.operations.schedule import only_operations_of
from scenarios.collectives.algorithm_registry import algorithms
from scenarios.workloads.checkpointed_training import ReplicaParameters
from scenarios.workloads.starting_job import StartingJob, phases_ns
from topologies.model import Topology
from topologies.parts.design_parameters import SIZE

COLUMNS = (
    TableColumn("algorithm", "broadcast", "", 9),
    TableColumn("gpus", "GPUs", "", 5),
    TableColumn("weight_bytes", "weights", "(B)", 8),
    TableColumn("rendezvous", "rendezvous", "", 11, rank=1),
    TableColumn("id_us", "id", "(us)", 8),
    TableColumn("check_in_us", "check-in", "(us)", 8),
    TableColumn("weights_us", "weights", "(us)", 8, words="the weights took {} us"),
    TableColumn("stepped_us", "step", "(us)", 8),
    TableColumn("time_us", "time", "(us)", 9),
    TableColumn("ideal_us", "ideal", "(us)", 9),
    TableColumn("efficiency", "of ideal", "(%)", 8, 1, percent=True),
    TableColumn("retransmitted_packets", "resent", "", 6),
    TableColumn("wrong", "#wrong", "", 6),
)
_CHOICES = algorithms("broadcast", first="ring")


@dataclass(frozen=True, kw_only=True)
class Parameters(ReplicaParameters):
    algorithms: tuple[str, ...] = parameter(
        _CHOICES, choices=_CHOICES, many=True, help="how the weights travel, one row for each"
    )
    slice_bytes: int = parameter(16 * 2**10, SIZE, help="pieces in which the weights move on")

    def __post_init__(self) -> None:
        if self.slice_bytes % 4:
            raise UserError(
                f"slice_bytes is {self.slice_bytes}, not a whole number of 4-octet elements; take "
                f"{self.slice_bytes + 4 - self.slice_bytes % 4}"
            )


def topology(parameters: Parameters) -> str:
    """Four hosts with two GPUs each, two rail switches, a spine."""
    return "rail_clos:hosts=4,gpus_per_host=2,spines=1"


def _job(parameters: Parameters, topology: Topology, algorithm: str, seed: int) -> StartingJob:
    return StartingJob(
        learning=parameters.learning(len(topology.gpus), epochs=1, seed=seed),
        topology=topology,
        algorithm=algorithm,
        slice_bytes=parameters.slice_bytes,
        gradient_ns=parameters.gradient_time,
    )


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    if len(topology.gpus) < 2:
        raise UserError(f"topology {topology.name} has one GPU, and a job needs two; add a host")
    return [
        _trial(parameters, _job(parameters, topology, algorithm, seed))
        for algorithm in parameters.algorithms
    ]


def _trial(parameters: Parameters, job: StartingJob) -> Trial:
    with only_operations_of(()):
        counted = job.compile()
    octets = 4 * job.learning.weight_count
    return Trial(
        collective="jobstart",
        size_bytes=octets,
        compile=job.compile,
        inputs=job.inputs,
        expected=job.expected,
        memory_bytes=max(sum(one.buffers.values()) for one in counted),
        warmups=parameters.warmups,
        iterations=parameters.iterations,
        fresh=True,
        observe=job.phase_ends_ns,
        facts={
            "algorithm": job.algorithm,
            "gpus": job.learning.replicas,
            "weight_bytes": octets,
            "rendezvous": "in kernel",
        },
    )


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    if not outcome.observed:
        return {}
    return {f"{name}_us": lasted / 1000 for name, lasted in phases_ns(outcome).items()}
