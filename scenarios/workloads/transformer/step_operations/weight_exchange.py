"""Gradients and weights that replicas exchange: buckets beside backward, shards before a layer.

Without ZeRO, buckets of gradients are added up by AllReduce while backward goes on, as PyTorch's
DistributedDataParallel and Megatron do.  ZeRO 1 and 2 have a ReduceScatter instead, and an
AllGather of the weights after the optimiser.  With ZeRO 3 (FSDP) the weights of a layer are
gathered before it, forward and backward, one layer ahead of the computing.  Its gradients are
scattered after each micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from scenarios.workloads.transformer.step_operations.compute_stream import ComputeStream
from scenarios.workloads.transformer.step_operations.group_stream import (
    ALL_GATHER,
    ALL_REDUCE,
    REDUCE_SCATTER,
    GroupStream,
    PendingExchange,
    message_count,
)
from scenarios.workloads.transformer.step_operations.synthetic_tensors import (
    CheckedTensor,
    FilledTensor,
)
from scenarios.workloads.transformer.step_scale import StepScale
from scenarios.workloads.transformer.step_shape import WEIGHT_BYTES


@dataclass(frozen=True)
class WeightUnit:
    """Weights that are exchanged together: a layer's, the embedding's or the head's.

    ``experts`` are those that another group of replicas has.
    """

    name: str
    dense: int
    experts: int = 0

    def joined(self, other: WeightUnit) -> WeightUnit:
        """Return both as one unit."""
        name = f"{self.name}, {other.name}"
        return WeightUnit(name, self.dense + other.dense, self.experts + other.experts)


@dataclass
class ReplicaStreams:
    """The exchanges of a set of replicas: of gradients, and of weights.

    ``of_experts``: they have the experts' weights, and not the others.
    """

    ranks: tuple[int, ...]
    gradients: GroupStream
    weights: GroupStream
    of_experts: bool

    def count(self, unit: WeightUnit) -> int:
        """Return the weights of ``unit`` that these replicas have in common."""
        return unit.experts if self.of_experts else unit.dense


@dataclass
class OpenGradients:
    """Gradients that a computation is to fill; ``by_gpu`` is what it fills."""

    exchanges: list[PendingExchange] = field(default_factory=list)
    by_gpu: dict[int, list[FilledTensor]] = field(default_factory=dict)


#: Exchanges of weights, each with the whole weights that GPUs get of it.
GatheredWeights = list[tuple[PendingExchange, dict[int, CheckedTensor]]]


class WeightExchange:
    """Exchanges of ``streams``; ``numbers`` gives each a number for its contents."""

    def __init__(
        self,
        computing: ComputeStream,
        scale: StepScale,
        numbers: Iterator[int],
        streams: Sequence[ReplicaStreams],
        *,
        zero: int,
        gradient_bytes: int,
    ) -> None:
        self._computing, self._scale = computing, scale
        self._numbers, self._streams = numbers, streams
        self._zero, self._gradient_bytes = zero, gradient_bytes
        #: results that the optimiser waits for, by rank
        self.reduced: dict[int, list[CheckedTensor]] = {}
        #: weights that ZeRO 1 and 2 gather after the optimiser
        self._sharded: list[tuple[ReplicaStreams, WeightUnit]] = []

    def _of_stage(self, ranks: Iterable[int]) -> list[ReplicaStreams]:
        """Return the sets of replicas among ``ranks`` that have anything to exchange."""
        stage = set(ranks)
        return [one for one in self._streams if one.ranks[0] in stage and len(one.ranks) > 1]

    def open_gradients(self, ranks: Iterable[int], unit: WeightUnit) -> OpenGradients:
        """Return the gradients of ``unit``, for the computation that makes them to fill."""
        opened = OpenGradients()
        collective = REDUCE_SCATTER if self._zero else ALL_REDUCE
        for replicas in self._of_stage(ranks):
            count = replicas.count(unit)
            if not count:
                continue
            stream = replicas.gradients
            octets = self._octets(stream, collective, count * self._gradient_bytes)
            label = f"{unit.name} gradients {stream.kind}"
            pending = stream.open(collective, octets, next(self._numbers), label)
            opened.exchanges.append(pending)
            for rank, fill in pending.fills().items():
                opened.by_gpu.setdefault(rank, []).append(fill)
            if self._zero in (1, 2):
                self._sharded.append((replicas, unit))
        return opened

    def exchange_gradients(self, opened: OpenGradients, filled: Mapping[int, int]) -> None:
        """Begin the exchanges; ``filled`` is the operation of each rank that filled them."""
        for pending in opened.exchanges:
            ranks = pending.stream.communicator.ranks
            results = pending.begin({rank: filled[rank] for rank in ranks})
            for rank, check in results.items():
                if self._zero == 3:  # regions are used again, and nobody else reads this
                    pending.consumed[rank] = self._computing.beside(rank, [check])
                else:
                    self.reduced.setdefault(rank, []).append(check)

    def gather_weights(
        self, ranks: Iterable[int], unit: WeightUnit, after: Mapping[int, tuple[int, ...]]
    ) -> GatheredWeights:
        """Gather the weights of ``unit`` from the shards of all replicas, after operations."""
        found = []
        for replicas in self._of_stage(ranks):
            if count := replicas.count(unit):
                found.append(self._gather(replicas, unit.name, count, after))
        return found

    def gather_updated(self) -> None:
        """Gather the weights that the optimiser has changed, where shards of them lie apart."""
        for replicas, unit in self._sharded:
            after = {rank: self._computing.last(rank) for rank in replicas.ranks}
            pending, results = self._gather(replicas, unit.name, replicas.count(unit), after)
            for rank, check in results.items():
                pending.consumed[rank] = self._computing.beside(rank, [check])

    def _gather(
        self,
        replicas: ReplicaStreams,
        name: str,
        count: int,
        after: Mapping[int, tuple[int, ...]],
    ) -> tuple[PendingExchange, dict[int, CheckedTensor]]:
        stream = replicas.weights
        octets = self._octets(stream, ALL_GATHER, count * WEIGHT_BYTES)
        label = f"{name} weights {stream.kind}"
        pending = stream.open(ALL_GATHER, octets, next(self._numbers), label)
        filled = {
            rank: self._computing.beside(rank, fills=[fill], after=after.get(rank, ()))
            for rank, fill in pending.fills().items()
        }
        return pending, pending.begin(filled)

    def _octets(self, stream: GroupStream, collective: str, whole: int) -> int:
        return self._scale.octets(whole, message_count(collective, stream.communicator))
