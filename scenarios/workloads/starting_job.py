"""The start of a data-parallel job: communicator id, check-in, initial weights, the first step.

The master rank sends the id of the communicator to every other rank, and each that has it answers
with where it can be reached.  When all have checked in, the master broadcasts the initial weights.
Each rank computes the gradient of its mini-batch, a ring AllReduce adds the gradients, and each
steps its weights.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import numpy as np

from emulator.run.measures.gpu_execution import GpuExecution
from emulator.scenario import Contents, Outcome
from emulator.sim.endpoint.operations.schedule import (
    Region,
    Schedule,
    only_operations_of,
)
from scenarios.collectives.algorithm_registry import algorithm_of
from scenarios.collectives.blocks import Block
from scenarios.collectives.collective_call import CollectiveCall, Pieces
from scenarios.collectives.communicators import Communicator
from scenarios.collectives.data_types import DATA_TYPES
from scenarios.collectives.program import Program
from scenarios.workloads.network import layers
from scenarios.workloads.network.parallel_training import GRADIENTS
from scenarios.workloads.network.replica_training import GRADIENT_OF, ReplicaLearning
from scenarios.workloads.network.tensors import Exchange, TensorProgram
from topologies.model import Topology

MASTER = 0
#: Octets of a communicator id and of a check-in: ncclUniqueId and the bootstrap's extInfo of NCCL.
ID_OCTETS, CHECK_IN_OCTETS = 128, 64
ID, CHECK_IN, CHECK_INS, WEIGHTS = "communicator id", "check-in", "check-ins", "weights"
#: The phases of a start in their order, each a field of :class:`StartedJob`.
PHASES = ("id", "check_in", "weights", "stepped")


@dataclass(frozen=True, kw_only=True)
class _CallAfter(CollectiveCall):
    begin: tuple[int, ...] = ()

    def pieces(self, buffer: str, block: Block, after: tuple[int, ...] = ()) -> Pieces:
        """Return ``block`` in slices, whose contents are there after ``begin``."""
        return super().pieces(buffer, block, (*self.begin, *after))


@dataclass(frozen=True, kw_only=True)
class StartingJob:
    """The start of ``learning``, which has one epoch, on all GPUs of ``topology``.

    ``algorithm`` is that of the broadcast of weights, in slices of ``slice_bytes``.
    ``gradient_ns`` is what a GPU takes for the gradient of its mini-batch.
    """

    learning: ReplicaLearning
    topology: Topology
    algorithm: str
    slice_bytes: int
    gradient_ns: int

    def compile(self) -> Sequence[Schedule]:
        """Return the schedules of all GPUs, with the operations of those that are compiled now."""
        return self.started().schedules

    def started(self) -> StartedJob:
        """Return the operations, of which those that are compiled are kept."""
        program = Program.on(self.topology)
        tensors = TensorProgram(program)
        job = StartedJob()
        with program.named("communicator id"):
            job.id = self._id(program, job)
        with program.named("check-in"):
            job.check_in = self._check_in(program, job)
        with program.named("initial weights"):
            job.weights = self._weights(program, job)
        with program.named("first step"):
            self._step(tensors, job)
        job.schedules = program.schedules()
        job.exchanges.update(tensors.exchanges)
        return job

    @cached_property
    def _phases(self) -> Mapping[int, Mapping[str, Sequence[int]]]:
        """By rank and by the name of each phase the operations that end it there."""
        with only_operations_of(()):
            started = self.started()
        found: dict[int, dict[str, list[int]]] = {}
        for name in PHASES:
            for rank, index in getattr(started, name):
                found.setdefault(rank, {}).setdefault(name, []).append(index)
        return found

    def phase_ends_ns(self, gpu: GpuExecution) -> dict[str, int]:
        """Return when each phase ended at a GPU after the common start, by the phase's name."""
        ends = gpu.result.operation_end
        return {
            name: int(ends[indices].max()) - gpu.origin_ns
            for name, indices in self._phases.get(gpu.result.rank, {}).items()
        }

    def _others(self) -> range:
        return range(1, len(self.topology.gpus))

    def _id(self, program: Program, job: StartedJob) -> list[tuple[int, int]]:
        here = program.allocate(MASTER, ID, ID_OCTETS)
        return [
            (
                rank,
                _moved(
                    program, job, ID, (MASTER, here), (rank, program.allocate(rank, ID, ID_OCTETS))
                ),
            )
            for rank in self._others()
        ]

    def _check_in(self, program: Program, job: StartedJob) -> list[tuple[int, int]]:
        received = dict(job.id)
        found = []
        for rank in self._others():
            here = program.allocate(rank, CHECK_IN, CHECK_IN_OCTETS)
            there = program.allocate(MASTER, CHECK_INS, CHECK_IN_OCTETS)
            after = (received[rank],)
            index = _moved(program, job, CHECK_IN, (rank, here), (MASTER, there), after)
            found.append((MASTER, index))
        return found

    def _weights(self, program: Program, job: StartedJob) -> list[tuple[int, int]]:
        octets = 4 * self.learning.weight_count
        ranks = tuple(range(len(self.topology.gpus)))
        for rank in ranks:
            program.allocate(rank, WEIGHTS, octets)
        before = [program.operations(rank) for rank in ranks]
        call = _CallAfter(
            program=program,
            communicator=Communicator(ranks, self.topology),
            size=octets,
            source=WEIGHTS,
            result=WEIGHTS,
            datatype=DATA_TYPES["float"],
            reduction="sum",
            slice_bytes=self.slice_bytes,
            root=MASTER,
            begin=tuple(index for _, index in job.check_in),
        )
        algorithm_of("broadcast", self.algorithm).run(call)
        return [
            (rank, index)
            for rank in ranks
            for index in range(before[rank], program.operations(rank))
        ]

    def _step(self, tensors: TensorProgram, job: StartedJob) -> None:
        learning, gradients, weights = self.learning, [], []
        count, model = learning.weight_count, learning.model
        for rank in range(learning.replicas):
            whole = Region(WEIGHTS, 0, 4 * count)
            ready = tuple(index for one, index in job.weights if one == rank)
            losses = tensors.new(rank, "losses", 1)
            weights.append(dataclasses.replace(losses, region=whole, shape=(count,), ready=ready))
            x = tensors.new(rank, "inputs", model.inputs, learning.samples)
            y = tensors.new(rank, "targets", model.outputs, learning.samples)
            gradient, _ = tensors.apply(
                GRADIENT_OF[type(model)],
                [weights[rank], x, y],
                [tensors.new(rank, "gradients", count), losses],
                *dataclasses.astuple(model),
                duration_ns=self.gradient_ns,
            )
            gradients.append(gradient)
        for rank, total in enumerate(tensors.all_reduce(gradients, "summed gradients", GRADIENTS)):
            (stepped,) = tensors.apply(
                layers.step, [weights[rank], total], [weights[rank]], learning.rate
            )
            job.stepped += [(rank, index) for index in stepped.ready]

    # -- contents ------------------------------------------------------------------------------

    def _octets(self, what: int, rank: int, count: int) -> np.ndarray:
        rng = np.random.default_rng((self.learning.seed, what, rank))
        return rng.integers(0, 256, count, np.uint8)

    def inputs(self, rank: int) -> Contents:
        """Return what the buffers of ``rank`` hold at the start; only the master has weights."""
        x, target = self.learning.batch(rank)
        found = {"inputs": x.ravel(), "targets": target.ravel()}
        if rank != MASTER:
            return {**found, CHECK_IN: self._octets(1, rank, CHECK_IN_OCTETS)}
        return {
            **found,
            ID: self._octets(0, MASTER, ID_OCTETS),
            WEIGHTS: self.learning.first_weights(),
        }

    def expected(self, rank: int) -> Contents:
        """Return what the buffers of ``rank`` hold after the first step."""
        epoch = self.learning.history[0]
        found: dict[str, np.ndarray] = {
            ID: self._octets(0, MASTER, ID_OCTETS),
            WEIGHTS: epoch.weights,
            "losses": epoch.losses[rank : rank + 1],
        }
        if rank == MASTER and self.learning.replicas > 1:
            heard = [self._octets(1, one, CHECK_IN_OCTETS) for one in self._others()]
            found[CHECK_INS] = np.concatenate(heard)
        return found


@dataclass
class StartedJob:
    """The operations of a start; those that end each phase as rank and index."""

    schedules: Sequence[Schedule] = ()
    exchanges: Counter[Exchange] = field(default_factory=Counter)
    id: list[tuple[int, int]] = field(default_factory=list)
    check_in: list[tuple[int, int]] = field(default_factory=list)
    weights: list[tuple[int, int]] = field(default_factory=list)
    stepped: list[tuple[int, int]] = field(default_factory=list)


def phases_ns(outcome: Outcome) -> dict[str, int]:
    """Return how long each phase of the last iteration lasted from the end of the one before.

    Its trial observed :meth:`StartingJob.phase_ends_ns`.
    """
    gpus = cast(Iterable[Mapping[str, int]], outcome.observed[-1].values())
    ends = list(gpus)
    start = 0
    lasted: dict[str, int] = {}
    for name in PHASES:
        end = max((one[name] for one in ends if name in one), default=start)
        lasted[name], start = end - start, end
    return lasted


def _moved(
    program: Program,
    job: StartedJob,
    what: str,
    source: tuple[int, Region],
    destination: tuple[int, Region],
    after: tuple[int, ...] = (),
) -> int:
    """Move a region; return the index of the receive."""
    (here, local), (there, remote) = source, destination
    _, receive = program.transfer(here, there, local, remote, after=after)
    job.exchanges[Exchange(what, here, there, local.length, program.joins(here, there))] += 1
    return receive
