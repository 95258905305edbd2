"""Data-parallel training of any model: its gradient on every GPU, a ring AllReduce, a step.

A model has ``inputs`` and ``outputs`` numbers for each sample, the ``shapes()`` of its weights, and
``forward`` and ``backward``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from emulator.endpoint.operations.gpu_functions import Octets, gpu_function
from emulator.endpoint.operations.schedule import Schedule
from emulator.scenario import Contents, Trial
from scenarios.collectives.program import Program
from scenarios.workloads.network import dense, gpu_layers
from scenarios.workloads.network.arithmetic import Matrix
from scenarios.workloads.network.convolution import ConvolutionalModel
from scenarios.workloads.network.gpu_layers import floats
from scenarios.workloads.network.one_gpu import ring_sum, shown
from scenarios.workloads.network.parallel_training import GRADIENTS
from scenarios.workloads.network.recurrence import RecurrentModel
from scenarios.workloads.network.tensors import Exchange, Tensor, TensorProgram
from scenarios.workloads.network.training_plan import flattened, grains
from scenarios.workloads.network.training_trial import (
    Learned,
    LearningParameters,
    learning_trial,
)
from topologies.model import Topology

_WEIGHTS, _INPUTS, _TEACHER = range(3)


class Model(Protocol):
    """A network whose gradient a GPU computes at once."""

    @property
    def inputs(self) -> int:
        """Return how many numbers a sample has."""
        ...

    @property
    def outputs(self) -> int:
        """Return how many numbers the network makes of a sample."""
        ...

    def shapes(self) -> list[tuple[int, int]]:
        """Return the shapes of all weights."""
        ...

    def forward(self, weights: list[Matrix], x: Matrix) -> Matrix:
        """Return the outputs for samples in columns."""
        ...

    def backward(
        self, weights: list[Matrix], x: Matrix, target: Matrix
    ) -> tuple[np.float32, list[Matrix]]:
        """Return the loss, and the gradient of all weights."""
        ...


@gpu_function
def convolutional_gradient(
    inputs: Sequence[Octets], outputs: Sequence[Octets], *model: int
) -> None:
    """Compute the gradient and the loss of a convolutional network."""
    _gradient(ConvolutionalModel(*model), inputs, outputs)


@gpu_function
def recurrent_gradient(inputs: Sequence[Octets], outputs: Sequence[Octets], *model: int) -> None:
    """Compute the gradient and the loss of a recurrent network."""
    _gradient(RecurrentModel(*model), inputs, outputs)


def _gradient(model: Model, inputs: Sequence[Octets], outputs: Sequence[Octets]) -> None:
    """Fill gradient and loss from weights, samples and targets."""
    weights = matrices(model, floats(inputs[0]))
    x = floats(inputs[1]).reshape(model.inputs, -1)
    loss, gradients = model.backward(weights, x, floats(inputs[2]).reshape(model.outputs, -1))
    floats(outputs[0])[:] = flattened(gradients)
    floats(outputs[1])[:] = loss


_GRADIENT_OF: Mapping[type, Callable[..., None]] = {
    ConvolutionalModel: convolutional_gradient,
    RecurrentModel: recurrent_gradient,
}


def matrices(model: Model, flat: Matrix) -> list[Matrix]:
    """Return the weights of ``model`` that lie in a row."""
    found, at = [], 0
    for shape in model.shapes():
        found.append(flat[at : at + math.prod(shape)].reshape(shape))
        at += math.prod(shape)
    return found


@dataclass(frozen=True, kw_only=True)
class ReplicaTraining:
    """The training of ``model`` on all GPUs of ``topology``, a mini-batch of ``samples`` each.

    ``gradient_ns`` is what a GPU takes for the gradient of its mini-batch, forward and backward.
    """

    name: str
    model: ConvolutionalModel | RecurrentModel
    topology: Topology
    samples: int
    epochs: int
    rate: float
    gradient_ns: int
    seed: int

    def trial(self, parameters: LearningParameters) -> Trial:
        """Return the trial."""
        return learning_trial(self.name, self, parameters)

    # -- on one GPU ----------------------------------------------------------------------------

    @cached_property
    def learned(self) -> Learned:
        """Return the same training on one GPU, and the numbers of its first epoch."""
        flat, steps = flattened(self._weights(_WEIGHTS)), []
        losses: list[list[np.float32]] = []
        for epoch in range(self.epochs):
            weights = matrices(self.model, flat)
            found = [self.model.backward(weights, *self._batch(rank)) for rank in self._ranks]
            losses.append([loss for loss, _ in found])
            flat = dense.step(flat, ring_sum([flattened(one) for _, one in found]), self.rate)
            if epoch == 0:
                for rank, (loss, gradients) in enumerate(found):
                    steps.append(f"mini-batch {rank + 1}: loss = {loss:.6g}")
                    for number, one in enumerate(gradients, 1):
                        steps += shown(f"mini-batch {rank + 1}: gradient of weights {number}", one)
                for number, one in enumerate(matrices(self.model, flat), 1):
                    steps += shown(f"weights {number} - rate x sum of gradients", one)
        return Learned(flat, [np.array(one) for one in losses], steps)

    @property
    def _ranks(self) -> range:
        return range(len(self.topology.gpus))

    def _weights(self, which: int) -> list[Matrix]:
        return [
            grains(np.random.default_rng((self.seed, which, number)), *shape)
            / np.float32(max(1, math.isqrt(shape[1])))
            for number, shape in enumerate(self.model.shapes())
        ]

    def _batch(self, rank: int) -> tuple[Matrix, Matrix]:
        """Return the samples of a mini-batch and their targets: outputs of other weights."""
        rng = np.random.default_rng((self.seed, _INPUTS, rank))
        x = grains(rng, self.model.inputs, self.samples)
        return x, self.model.forward(self._weights(_TEACHER), x)

    # -- on all GPUs ---------------------------------------------------------------------------

    @property
    def exchanges(self) -> Sequence[Exchange]:
        """Return all transfers."""
        return self._compiled[0]

    @property
    def schedules(self) -> Sequence[Schedule]:
        """Return the schedules of all GPUs."""
        return self._compiled[1]

    @cached_property
    def _compiled(self) -> tuple[Sequence[Exchange], Sequence[Schedule]]:
        model, program = self.model, Program.on(self.topology)
        tensors = TensorProgram(program)
        count = sum(math.prod(shape) for shape in model.shapes())
        weights = [tensors.new(rank, "weights", count) for rank in self._ranks]
        x = [tensors.new(rank, "inputs", model.inputs, self.samples) for rank in self._ranks]
        y = [tensors.new(rank, "targets", model.outputs, self.samples) for rank in self._ranks]
        losses = [tensors.new(rank, "losses", self.epochs) for rank in self._ranks]
        for epoch in range(self.epochs):
            gradients: list[Tensor] = []
            for rank in self._ranks:
                gradient, _ = tensors.apply(
                    _GRADIENT_OF[type(model)],
                    [weights[rank], x[rank], y[rank]],
                    [tensors.new(rank, "gradients", count), losses[rank].part(epoch, 1)],
                    *dataclasses.astuple(model),
                    duration_ns=self.gradient_ns,
                )
                gradients.append(gradient)
            with program.named(f"epoch {epoch + 1}, gradients and step"):
                sums = tensors.all_reduce(gradients, "summed gradients", GRADIENTS)
                for rank, total in enumerate(sums):
                    inputs = [weights[rank], total]
                    (weights[rank],) = tensors.apply(
                        gpu_layers.step, inputs, [weights[rank]], self.rate
                    )
        return tensors.exchanges, program.schedules()

    def inputs(self, rank: int) -> Contents:
        """Return what the buffers of ``rank`` hold at the start."""
        x, target = self._batch(rank)
        return {
            "weights": flattened(self._weights(_WEIGHTS)),
            "inputs": x.ravel(),
            "targets": target.ravel(),
        }

    def expected(self, rank: int) -> Contents:
        """Return what the buffers of ``rank`` hold at the end."""
        learned = self.learned
        return {
            "weights": learned.weights,
            "losses": np.array([one[rank] for one in learned.losses]),
        }
