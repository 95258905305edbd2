"""A training of a dense network: its layers, its data, and the grid of its GPUs.

The grid has ``replicas`` (data parallel) times ``stages`` (pipeline or model parallel) times
``parts`` (tensor parallel) GPUs.  A replica has a mini-batch of its own, in ``micro_batches`` of
``samples`` columns each.  A stage has consecutive layers, a part consecutive neurons of each layer
of its stage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emulator.errors import UserError
from scenarios.collectives.ring import split
from scenarios.workloads.network.arithmetic import Matrix
from scenarios.workloads.network.dense import forward

#: Random numbers are whole multiples of one part of so many, which float32 holds exactly.
_GRAIN = 64
_WEIGHTS, _INPUTS, _TEACHER = range(3)


@dataclass(frozen=True)
class NeuronSlice:
    """``count`` neurons of a layer, from neuron ``first`` on."""

    layer: int
    first: int
    count: int


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """One training.  ``widths`` are the inputs of the network, then the neurons of each layer.

    ``layer_ns`` is what all neurons of a layer take to compute a micro-batch forward.  Backward
    they take twice that: one matrix product for the gradient and one for the delta.  ``order`` is
    that of a stage's micro-batches: ``gpipe`` or ``1f1b``.  The training goes on from the weights
    that ``resumed`` epochs before it have left.
    """

    widths: tuple[int, ...]
    replicas: int = 1
    stages: int = 1
    parts: int = 1
    micro_batches: int = 1
    samples: int = 4
    epochs: int = 8
    rate: float = 0.05
    order: str = "gpipe"
    layer_ns: int = 1000
    seed: int = 1
    resumed: int = 0

    def __post_init__(self) -> None:
        layers = len(self.widths) - 1
        if layers < 1:
            raise UserError("a network needs inputs and a layer; give widths such as 4,3,2")
        if self.stages > layers:
            raise UserError(
                f"{layers} layers cannot be divided over {self.stages} stages; give "
                f"{self.stages + 1} widths or more"
            )
        if self.parts > min(self.widths[1:]):
            raise UserError(
                f"a layer of {min(self.widths[1:])} neurons cannot be divided over {self.parts} "
                "GPUs; give wider layers"
            )

    @property
    def layers(self) -> int:
        """Return the number of layers."""
        return len(self.widths) - 1

    @property
    def gpus(self) -> int:
        """Return how many GPUs the grid has."""
        return self.replicas * self.stages * self.parts

    def activation(self, layer: int) -> str:
        """Return the activation of a layer: tanh, and none for the last one."""
        return "linear" if layer == self.layers - 1 else "tanh"

    def stage_layers(self, stage: int) -> range:
        """Return the layers of ``stage``."""
        block = split(self.layers, self.stages, 1)[stage]
        return range(block.offset, block.offset + block.length)

    def neurons(self, layer: int, part: int) -> NeuronSlice:
        """Return the neurons of ``layer`` that ``part`` computes."""
        block = split(self.widths[layer + 1], self.parts, 1)[part]
        return NeuronSlice(layer, block.offset, block.length)

    def slices(self, stage: int, part: int) -> list[NeuronSlice]:
        """Return the neurons of one GPU in the order of its weights."""
        return [self.neurons(layer, part) for layer in self.stage_layers(stage)]

    def weight_count(self, stage: int, part: int) -> int:
        """Return how many weights one GPU has."""
        return sum(one.count * self.widths[one.layer] for one in self.slices(stage, part))

    def first_weights(self) -> list[Matrix]:
        """Return the weight matrices before any epoch."""
        return self._random_weights(_WEIGHTS)

    def inputs(self, replica: int, micro: int) -> Matrix:
        """Return the samples of a micro-batch, one in each column."""
        rng = np.random.default_rng((self.seed, _INPUTS, replica, micro))
        return grains(rng, self.widths[0], self.samples)

    def targets(self, replica: int, micro: int) -> Matrix:
        """Return the outputs that the network learns: those of one with other weights."""
        x = self.inputs(replica, micro)
        for layer, w in enumerate(self._random_weights(_TEACHER)):
            x = forward(w, x, self.activation(layer))
        return x

    def _random_weights(self, which: int) -> list[Matrix]:
        found = []
        for layer in range(self.layers):
            rng = np.random.default_rng((self.seed, which, layer))
            wide = self.widths[layer]
            root = np.float32(max(1, math.isqrt(wide)))  # keeps sums of a wide layer small
            found.append(grains(rng, self.widths[layer + 1], wide) / root)
        return found


def flattened(matrices: Sequence[Matrix]) -> Matrix:
    """Return all elements of ``matrices`` in a row."""
    return np.concatenate([matrix.ravel() for matrix in matrices])


def grains(rng: np.random.Generator, *shape: int) -> Matrix:
    """Return random numbers of -1 to 1 that float32 holds exactly."""
    return rng.integers(-_GRAIN, _GRAIN + 1, shape).astype(np.float32) / np.float32(_GRAIN)
