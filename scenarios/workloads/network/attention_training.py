"""Attention blocks whose heads are divided over tensor-parallel GPUs, and their training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from emulator.errors import UserError
from emulator.scenario import Contents
from emulator.sim.endpoint.operations.gpu_functions import Octets, gpu_function
from scenarios.workloads.network import layers
from scenarios.workloads.network.layers import (
    Matrix,
    floats,
    heads_backward,
    heads_forward,
    heads_of,
    in_order,
    ring_sum,
)
from scenarios.workloads.network.tensors import Tensor, TensorProgram, TensorWork
from scenarios.workloads.network.training_plan import grains, shown
from scenarios.workloads.network.training_trial import Learned
from topologies.model import Topology

#: What transfers are for.
OUTPUTS, DELTAS = "outputs of the heads", "deltas of the heads"
_WEIGHTS, _INPUTS, _TEACHER = range(3)


@gpu_function
def attention_forward(
    inputs: Sequence[Octets], outputs: Sequence[Octets], hidden: int, heads: int, sequences: int
) -> None:
    """Compute what a GPU's heads add to the sequences."""
    own = heads_of(floats(inputs[0]), hidden, heads)
    x = floats(inputs[1]).reshape(sequences, hidden, -1)
    floats(outputs[0])[:] = np.concatenate(heads_forward(own, list(x))).ravel()


@gpu_function
def attention_backward(
    inputs: Sequence[Octets], outputs: Sequence[Octets], hidden: int, heads: int, sequences: int
) -> None:
    """Compute the gradient of a GPU's heads and their part of the delta of the sequences.

    Inputs are weights, sequences and the delta of the block's outputs.
    """
    own = heads_of(floats(inputs[0]), hidden, heads)
    x, delta = (list(floats(one).reshape(sequences, hidden, -1)) for one in inputs[1:])
    gradient, before = heads_backward(own, x, delta)
    floats(outputs[0])[:] = gradient
    floats(outputs[1])[:] = np.concatenate(before).ravel()


@dataclass(frozen=True, kw_only=True)
class AttentionTraining:
    """The training of ``blocks`` of ``heads`` on the first ``parts`` GPUs of ``topology``.

    ``block_ns`` is what all heads of a block take forward; backward they take twice that.
    """

    topology: Topology
    hidden: int
    heads: int
    blocks: int
    length: int
    sequences: int
    parts: int
    epochs: int
    rate: float
    block_ns: int
    seed: int

    def __post_init__(self) -> None:
        if self.heads % self.parts:
            raise UserError(
                f"{self.heads} heads cannot be divided alike over {self.parts} GPUs; give "
                f"heads={self.parts * math.ceil(self.heads / self.parts)}"
            )
        if self.hidden % self.heads:
            raise UserError(
                f"a hidden size of {self.hidden} cannot be divided over {self.heads} heads; give "
                f"hidden={self.heads * math.ceil(self.hidden / self.heads)}"
            )
        if len(self.topology.gpus) < self.parts:
            raise UserError(
                f"the training needs {self.parts} GPUs and topology {self.topology.name} has "
                f"{len(self.topology.gpus)}; add hosts or GPUs"
            )

    @property
    def _own_heads(self) -> int:
        return self.heads // self.parts

    @property
    def _block_weights(self) -> int:
        """Return how many weights a GPU has of a block: four matrices for each of its heads."""
        return 4 * self.hidden * (self.hidden // self.heads) * self._own_heads

    def _weights(self, which: int, part: int) -> list[Matrix]:
        """Return the weights of a GPU's heads, a row for each block."""
        root = np.float32(max(1, math.isqrt(self.hidden)))
        count = self._block_weights // self._own_heads
        first = part * self._own_heads
        return [
            np.concatenate(
                [
                    grains(np.random.default_rng((self.seed, which, block, head)), count) / root
                    for head in range(first, first + self._own_heads)
                ]
            )
            for block in range(self.blocks)
        ]

    def _sequences(self) -> list[Matrix]:
        rng = np.random.default_rng((self.seed, _INPUTS))
        return list(grains(rng, self.sequences, self.hidden, self.length))

    def _targets(self) -> list[Matrix]:
        """Return the outputs of blocks with other weights."""
        weights = [self._weights(_TEACHER, part) for part in range(self.parts)]
        return self._forward(weights)[-1]

    # -- on one GPU ----------------------------------------------------------------------------

    def _forward(self, weights: Sequence[Sequence[Matrix]]) -> list[list[Matrix]]:
        """Return the sequences before the first block, and after each."""
        values = [self._sequences()]
        for block in range(self.blocks):
            parts = [
                heads_forward(heads_of(one[block], self.hidden, self._own_heads), values[-1])
                for one in weights
            ]
            values.append(self._added(values[-1], parts))
        return values

    def _added(self, to: Sequence[Matrix], parts: Sequence[Sequence[Matrix]]) -> list[Matrix]:
        """Return ``to`` with the sum of the ``parts`` of all GPUs, in the order of their ring."""
        total = ring_sum([np.concatenate([one.ravel() for one in part]) for part in parts])
        shape = len(to), *to[0].shape
        return [in_order([one, more]) for one, more in zip(to, total.reshape(shape), strict=True)]

    @cached_property
    def learned(self) -> Learned:
        """Return the same training on one GPU; weights are those of the GPUs, one after the other.

        The outputs of heads are added up in the order of the GPUs' ring.
        """
        weights = [self._weights(_WEIGHTS, part) for part in range(self.parts)]
        targets, losses, steps = self._targets(), [], []
        for epoch in range(self.epochs):
            values = self._forward(weights)
            loss, flat = layers.squared_error(_flat(values[-1]), _flat(targets))
            losses.append(np.array([loss]))
            delta = list(flat.reshape(len(targets), *targets[0].shape))
            stepped: list[list[Matrix]] = [[] for _ in weights]
            for block in reversed(range(self.blocks)):
                found = [
                    heads_backward(
                        heads_of(one[block], self.hidden, self._own_heads), values[block], delta
                    )
                    for one in weights
                ]
                for part, (gradient, _) in enumerate(found):
                    stepped[part].insert(
                        0, layers.stepped(weights[part][block], gradient, self.rate)
                    )
                delta = self._added(delta, [before for _, before in found])
            weights = stepped
            if epoch == 0:
                for block, value in enumerate(values):
                    steps += shown(f"sequence 1 after {block} blocks", value[0])
                steps.append(f"loss = {loss:.6g}")
        return Learned(np.concatenate([_flat(one) for one in weights]), losses, steps)

    # -- on all GPUs ---------------------------------------------------------------------------

    @cached_property
    def work(self) -> TensorWork:
        """Return the operations of all GPUs."""
        return TensorWork(self.topology, self._write)

    def _write(self, tensors: TensorProgram) -> None:
        program = tensors.program
        ranks = range(self.parts)
        own = self._block_weights
        by_rank = [
            [tensors.new(rank, "weights", own) for _ in range(self.blocks)] for rank in ranks
        ]
        weights = [list(block) for block in zip(*by_rank, strict=True)]
        first, targets = self._everywhere(tensors, "inputs"), self._everywhere(tensors, "targets")
        losses = [tensors.new(rank, "losses", self.epochs) for rank in ranks]
        for epoch in range(self.epochs):
            values = [first]
            for number, block in enumerate(weights, 1):
                with program.named(f"epoch {epoch + 1}, block {number} forward"):
                    values.append(self._forward_written(tensors, block, values[-1]))
            deltas = [
                tensors.apply(layers.loss, [y, target], [loss.part(epoch, 1), delta])[1]
                for y, target, loss, delta in zip(
                    values[-1],
                    targets,
                    losses,
                    self._everywhere(tensors, "deltas"),
                    strict=True,
                )
            ]
            for number in reversed(range(self.blocks)):
                block, x = weights[number], values[number]
                with program.named(f"epoch {epoch + 1}, block {number + 1} backward"):
                    parts = self._backward_written(tensors, block, x, deltas)
                    if number:
                        deltas = self._total_written(tensors, deltas, parts, DELTAS)

    def _everywhere(self, tensors: TensorProgram, buffer: str) -> list[Tensor]:
        """Return room for all sequences at every GPU."""
        shape = self.sequences, self.hidden, self.length
        return [tensors.new(rank, buffer, *shape) for rank in range(self.parts)]

    def _total_written(
        self, tensors: TensorProgram, to: Sequence[Tensor], parts: Sequence[Tensor], what: str
    ) -> list[Tensor]:
        """Write down an AllReduce of ``parts`` that is added ``to`` each GPU's tensor."""
        totals = tensors.all_reduce(parts, "summed parts", what)
        return [
            tensors.apply(layers.sum_of_parts, [one, total], [room])[0]
            for one, total, room in zip(
                to, totals, self._everywhere(tensors, "activations"), strict=True
            )
        ]

    def _forward_written(
        self, tensors: TensorProgram, weights: Sequence[Tensor], values: Sequence[Tensor]
    ) -> list[Tensor]:
        """Write down a block forward; return its outputs at each GPU."""
        parts = [
            tensors.apply(
                attention_forward,
                [own, x],
                [room],
                *(self.hidden, self._own_heads, self.sequences),
                duration_ns=self.block_ns // self.parts,
            )[0]
            for own, x, room in zip(
                weights, values, self._everywhere(tensors, "parts"), strict=True
            )
        ]
        return self._total_written(tensors, values, parts, OUTPUTS)

    def _backward_written(
        self,
        tensors: TensorProgram,
        weights: list[Tensor],
        values: Sequence[Tensor],
        deltas: Sequence[Tensor],
    ) -> list[Tensor]:
        """Write down a block backward and the step of its ``weights``.

        Returns each GPU's part of the delta of the block's inputs.
        """
        parts = []
        for rank, room in enumerate(self._everywhere(tensors, "parts of deltas")):
            gradient, part = tensors.apply(
                attention_backward,
                [weights[rank], values[rank], deltas[rank]],
                [tensors.new(rank, "gradients", self._block_weights), room],
                *(self.hidden, self._own_heads, self.sequences),
                duration_ns=2 * self.block_ns // self.parts,
            )
            parts.append(part)
            (weights[rank],) = tensors.apply(
                layers.step, [weights[rank], gradient], [weights[rank]], self.rate
            )
        return parts

    def inputs(self, rank: int) -> Contents:
        """Return what the buffers of ``rank`` hold at the start."""
        if rank >= self.parts:
            return {}
        return {
            "weights": _flat(self._weights(_WEIGHTS, rank)),
            "inputs": _flat(self._sequences()),
            "targets": _flat(self._targets()),
        }

    def expected(self, rank: int) -> Contents:
        """Return what the buffers of ``rank`` hold at the end."""
        if rank >= self.parts:
            return {}
        weights = np.split(self.learned.weights, self.parts)[rank]
        return {"weights": weights, "losses": np.concatenate(self.learned.losses)}


def _flat(matrices: Sequence[Matrix]) -> Matrix:
    return np.concatenate([one.ravel() for one in matrices])
