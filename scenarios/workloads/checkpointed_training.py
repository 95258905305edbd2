"""Data-parallel training that writes checkpoints, and goes on from the last one after a loss.

The state of a replica is its weights and losses, which lie in a row in one buffer.  After every
``every`` epochs all replicas write their states at once to the GPUs that store them, and wait until
these are written.  A store keeps the states of all checkpoints.  A checkpoint counts once the
states of all replicas have arrived.

After a loss spares take the places of lost ranks.  Every replica is a new process: it requests its
state of the last checkpoint from its store, which writes it back.  Then the epochs after that one
follow.  Without any checkpoint all begin again, with the weights that the seed gives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np

from emulator.errors import UserError
from emulator.scenario import Contents, Resumption, parameter
from emulator.sim.endpoint.interruption import JobExecution
from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.sim.endpoint.operations.schedule import (
    Schedule,
    only_operations_of,
)
from scenarios.collectives.program import Program
from scenarios.collectives.size_sweep import WARMUPS
from scenarios.workloads.network import layers
from scenarios.workloads.network.layers import Matrix, RecurrentModel
from scenarios.workloads.network.parallel_training import GRADIENTS
from scenarios.workloads.network.replica_training import GRADIENT_OF, ReplicaLearning
from scenarios.workloads.network.tensors import (
    ELEMENT_BYTES,
    Exchange,
    Tensor,
    TensorProgram,
)
from topologies.model import Topology
from topologies.parts.design_parameters import COUNT, TIME


@dataclass(frozen=True)
class JobPlaces:
    """The ranks of ``workers``, one for each replica, of ``spares`` and of ``stores``."""

    workers: tuple[int, ...]
    spares: tuple[int, ...]
    stores: tuple[int, ...]

    @classmethod
    def of(cls, topology: Topology, *, spares: int, stores: int) -> JobPlaces:
        """Let the last GPUs of ``topology`` store, those before them be spares, all others work.

        Raises UserError if fewer than two work.
        """
        there = len(topology.gpus)
        working = there - spares - stores
        if working < 2:
            raise UserError(
                f"{spares} spares and {stores} stores leave {max(0, working)} of the {there} GPUs "
                f"of topology {topology.name} to train, and a job needs two; add hosts or GPUs"
            )
        return cls(
            workers=tuple(range(working)),
            spares=tuple(range(working, working + spares)),
            stores=tuple(range(working + spares, there)),
        )

    def store_of(self, replica: int) -> int:
        return self.stores[replica % len(self.stores)]

    def replaced(self, placed: Sequence[int], lost: Collection[int]) -> tuple[int, ...]:
        """Return the rank of each replica after ``lost`` ranks: a spare takes a lost one's place.

        ``placed`` are those before.  Raises UserError if a store is lost, or too few spares are
        left.
        """
        for store in self.stores:
            if store in lost:
                raise UserError(
                    f"the job cannot go on: rank {store}, which stores states, is lost with them; "
                    "let another GPU fail"
                )
        free = [one for one in self.spares if one not in lost and one not in placed]
        replicas = [replica for replica, rank in enumerate(placed) if rank in lost]
        if len(replicas) > len(free):
            ranks = [placed[replica] for replica in replicas]
            left = {0: "no spare is", 1: "one spare is"}.get(len(free), f"{len(free)} spares are")
            raise UserError(
                f"the job cannot go on: it has lost {_ranks(ranks)} and {left} left; give it more "
                "with --param spares=N, or let less fail"
            )
        instead = dict(zip(replicas, free, strict=False))
        return tuple(instead.get(replica, rank) for replica, rank in enumerate(placed))


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


_WIDTH, _LENGTH, _OUTPUTS = 4, 4, 2
#: The learning rate (millionths).
RATE = 5_000
_MILLION = 10**6


@dataclass(frozen=True, kw_only=True)
class ReplicaParameters:
    """The parameters of the network, its samples, and the iterations of a run."""

    samples: int = parameter(4, COUNT, help="samples of a mini-batch")
    hidden: int = parameter(128, COUNT, help="numbers of the hidden state; weights are its square")
    gradient_time: int = parameter(
        20_000, TIME, help="time of a GPU for the gradient of its mini-batch, forward and backward"
    )
    warmups: int = parameter(0, WARMUPS, help="iterations before those that count")
    iterations: int = parameter(1, COUNT, help="jobs that count, from the same first weights")

    def learning(self, replicas: int, epochs: int, seed: int, rate: int = RATE) -> ReplicaLearning:
        return ReplicaLearning(
            model=RecurrentModel(_WIDTH, self.hidden, _LENGTH, _OUTPUTS),
            replicas=replicas,
            samples=self.samples,
            epochs=epochs,
            rate=rate / _MILLION,
            seed=seed,
        )


#: What transfers are for.
WRITTEN, REQUESTED, READ = "states to stores", "requests for states", "states from stores"
#: The buffer of a store.
STATES = "states"
#: Octets of a request for a state: those of a submission queue entry of NVM Express.
REQUEST_OCTETS = 64
#: Operations as rank and index.
Operations = list[tuple[int, int]]


@dataclass
class JobPart:
    """The part of the job on the ranks ``placed``, from the checkpoint ``checkpoint`` on (0: none).

    Its operations are not kept: :meth:`CheckpointedTraining.compile` writes them.  ``sent`` and
    ``stored`` are the writes and receives of each checkpoint, by its number, and ``restored`` the
    receives of states that are read back.  ``writes`` are all over the fabric, each with its
    octets.  ``memory_bytes`` is the most that the buffers of a GPU take.
    """

    placed: tuple[int, ...]
    checkpoint: int
    exchanges: Mapping[Exchange, int] = field(default_factory=dict)
    memory_bytes: int = 0
    sent: dict[int, Operations] = field(default_factory=dict)
    stored: dict[int, Operations] = field(default_factory=dict)
    restored: Operations = field(default_factory=list)
    writes: list[tuple[int, int, int]] = field(default_factory=list)

    def stored_at(self, results: Sequence[RankResult]) -> dict[int, int]:
        """Return when each checkpoint that was finished was (fabric ns), by its number."""
        ends = {number: _ends(stored, results) for number, stored in self.stored.items()}
        return {number: max(times) for number, times in ends.items() if min(times) >= 0}

    def began_at(self, number: int, results: Sequence[RankResult]) -> int:
        """Return when the first state of a checkpoint began to be written (fabric ns)."""
        return min(int(results[rank].operation_start[one]) for rank, one in self.sent[number])

    def sent_octets(self, results: Sequence[RankResult]) -> int:
        """Return the octets of all writes over the fabric that were done."""
        return sum(
            octets for rank, one, octets in self.writes if results[rank].operation_end[one] >= 0
        )

    def restored_at(self, results: Sequence[RankResult]) -> int | None:
        """Return when the last state was read back (fabric ns); None if none was, or not all."""
        times = _ends(self.restored, results)
        return max(times) if times and min(times) >= 0 else None


def _ends(operations: Operations, results: Sequence[RankResult]) -> list[int]:
    return [int(results[rank].operation_end[one]) for rank, one in operations]


@dataclass(frozen=True, kw_only=True)
class CheckpointedTraining:
    """The training ``learning`` on ``topology``, with a checkpoint after every ``every`` epochs.

    ``gradient_ns`` is what a GPU takes for the gradient of its mini-batch, forward and backward.
    """

    learning: ReplicaLearning
    topology: Topology
    places: JobPlaces
    every: int
    gradient_ns: int

    @property
    def checkpoints(self) -> int:
        return self.learning.epochs // self.every

    @cached_property
    def first(self) -> JobPart:
        return self._part(self.places.workers, 0)

    def part_after(self, executions: Sequence[JobExecution]) -> JobPart:
        """Return what follows after ``executions``, the last of which was interrupted."""
        part, newest = self.first, 0
        for one in executions:
            newest = max([newest, *part.stored_at(one.results)])
            if one.interruption is None:
                break
            part = self._part(self.places.replaced(part.placed, one.interruption.lost), newest)
        return part

    def recover(self, executions: Sequence[JobExecution]) -> Resumption:
        """Return what follows after ``executions``; UserError if the job cannot go on."""
        part = self.part_after(executions)
        return Resumption(
            compile=partial(self.compile, part),
            inputs=lambda rank: self.inputs(rank, part),
            expected=lambda rank: self.expected(rank, part),
            kept=(STATES,),
        )

    # -- contents ------------------------------------------------------------------------------

    def state(self, replica: int, epochs: int) -> Matrix:
        """Return the state of a replica after ``epochs``: weights, and losses so far."""
        history = self.learning.history
        weights = history[epochs - 1].weights if epochs else self.learning.first_weights()
        losses = np.zeros(self.learning.epochs, np.float32)
        losses[:epochs] = [one.losses[replica] for one in history[:epochs]]
        return np.concatenate([weights, losses])

    def inputs(self, rank: int, part: JobPart | None = None) -> Contents:
        """Return what the buffers of ``rank`` hold at the start of ``part``, by default the first.

        Where states are read back there is none before.
        """
        part = part or self.first
        if rank not in part.placed:
            return {}
        replica = part.placed.index(rank)
        x, target = self.learning.batch(replica)
        found = {"inputs": x.ravel(), "targets": target.ravel()}
        return found if part.checkpoint else {**found, "state": self.state(replica, 0)}

    def expected(self, rank: int, part: JobPart | None = None) -> Contents:
        """Return what the buffers of ``rank`` hold at the end of ``part``, by default the first."""
        part = part or self.first
        if rank in part.placed:
            return {"state": self.state(part.placed.index(rank), self.learning.epochs)}
        replicas = [
            one for one in range(self.learning.replicas) if self.places.store_of(one) == rank
        ]
        if not replicas or not self.checkpoints:
            return {}
        stored = [
            self.state(replica, number * self.every)
            for number in range(1, self.checkpoints + 1)
            for replica in replicas
        ]
        return {STATES: np.concatenate(stored)}

    # -- operations ----------------------------------------------------------------------------

    def compile(self, part: JobPart) -> Sequence[Schedule]:
        """Return the schedules of all GPUs in ``part``, with operations that are compiled now."""
        writer = _PartWriter(self, JobPart(part.placed, part.checkpoint))
        writer.write()
        return writer.program.schedules()

    def _part(self, placed: tuple[int, ...], checkpoint: int) -> JobPart:
        part = JobPart(placed, checkpoint)
        with only_operations_of(()):
            writer = _PartWriter(self, part)
            writer.write()
        program = writer.program
        part.exchanges = writer.tensors.exchanges
        part.memory_bytes = max(
            sum(program.buffers(rank).values()) for rank in range(program.ranks)
        )
        return part


class _JobTensors(TensorProgram):
    """Tensors of a job, whose ``writes`` over the fabric are listed: rank, index, octets."""

    def __init__(self, program: Program, writes: list[tuple[int, int, int]]) -> None:
        super().__init__(program)
        self._writes = writes

    def transfer(self, source: Tensor, destination: Tensor, what: str) -> tuple[int, int]:
        """Send ``source``, and list it if it crosses the fabric."""
        send, receive = super().transfer(source, destination, what)
        if not self.program.joins(source.rank, destination.rank):
            self._writes.append((source.rank, send, source.region.length))
        return send, receive


class _PartWriter:
    """Writes ``part`` of ``training``: its operations, and where they are."""

    def __init__(self, training: CheckpointedTraining, part: JobPart) -> None:
        self._training, self._part = training, part
        learning = training.learning
        self.program = Program.on(training.topology)
        self.tensors = _JobTensors(self.program, part.writes)
        self._count = learning.weight_count
        size = self._count + learning.epochs
        self._shards = self._stores(size)
        model, new = learning.model, self.tensors.new
        self._states = [new(rank, "state", size) for rank in part.placed]
        self._x = [new(rank, "inputs", model.inputs, learning.samples) for rank in part.placed]
        self._y = [new(rank, "targets", model.outputs, learning.samples) for rank in part.placed]

    def _stores(self, size: int) -> Mapping[tuple[int, int], Tensor]:
        """Return the place of each state in its store, by checkpoint and replica."""
        places = self._training.places
        return {
            (number, replica): self.tensors.new(places.store_of(replica), STATES, size)
            for number in range(1, self._training.checkpoints + 1)
            for replica in range(self._training.learning.replicas)
        }

    def write(self) -> None:
        training, part = self._training, self._part
        if part.checkpoint:
            with self.program.named(f"checkpoint {part.checkpoint} read back"):
                self._read_back()
        for epoch in range(part.checkpoint * training.every, training.learning.epochs):
            with self.program.named(f"epoch {epoch + 1}"):
                self._epoch(epoch)
            number, left = divmod(epoch + 1, training.every)
            if not left:
                with self.program.named(f"checkpoint {number}"):
                    self._write(number)

    def _read_back(self) -> None:
        for replica, state in enumerate(self._states):
            stored = self._shards[self._part.checkpoint, replica]
            octets = REQUEST_OCTETS // ELEMENT_BYTES
            ask = self.tensors.new(state.rank, "requests", octets)
            asked = self.tensors.new(stored.rank, "requests", octets)
            _, request = self.tensors.transfer(ask, asked, REQUESTED)
            there = dataclasses.replace(stored, ready=(request,))
            _, read = self.tensors.transfer(there, state, READ)
            self._part.restored.append((state.rank, read))
            self._states[replica] = dataclasses.replace(state, ready=(read,))

    def _epoch(self, epoch: int) -> None:
        learning, new = self._training.learning, self.tensors.new
        gradients: list[Tensor] = []
        for replica, state in enumerate(self._states):
            weights = state.part(0, self._count)
            gradient, _ = self.tensors.apply(
                GRADIENT_OF[type(learning.model)],
                [weights, self._x[replica], self._y[replica]],
                [new(state.rank, "gradients", self._count), state.part(self._count + epoch, 1)],
                *dataclasses.astuple(learning.model),
                duration_ns=self._training.gradient_ns,
            )
            gradients.append(gradient)
        sums = self.tensors.all_reduce(gradients, "summed gradients", GRADIENTS)
        for replica, total in enumerate(sums):
            weights = self._states[replica].part(0, self._count)
            (stepped,) = self.tensors.apply(layers.step, [weights, total], [weights], learning.rate)
            self._states[replica] = dataclasses.replace(self._states[replica], ready=stepped.ready)

    def _write(self, number: int) -> None:
        """Write all states; no weight changes before its state is written."""
        self._part.sent[number], self._part.stored[number] = [], []
        for replica, state in enumerate(self._states):
            there = self._shards[number, replica]
            send, receive = self.tensors.transfer(state, there, WRITTEN)
            self._part.sent[number].append((state.rank, send))
            self._part.stored[number].append((there.rank, receive))
            self._states[replica] = dataclasses.replace(state, ready=(send,))
