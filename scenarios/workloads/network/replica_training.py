"""Data-parallel training of any model: its gradient on every GPU, a ring AllReduce, a step.

Data-parallel replicas of any model: their data, and their training on one GPU.

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

from emulator.scenario import Contents, Trial
from emulator.sim.endpoint.operations.gpu_functions import Octets, gpu_function
from scenarios.workloads.network import layers
from scenarios.workloads.network.layers import (
    ConvolutionalModel,
    Matrix,
    RecurrentModel,
    floats,
    ring_sum,
)
from scenarios.workloads.network.parallel_training import GRADIENTS
from scenarios.workloads.network.tensors import Tensor, TensorProgram, TensorWork
from scenarios.workloads.network.training_plan import flattened, grains, shown
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

    def shapes(self) -> list[tuple[int, int]]: ...

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


#: What a GPU applies for the gradient of a model: weights, samples, targets to gradient, loss.
GRADIENT_OF: Mapping[type, Callable[..., None]] = {
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


@dataclass(frozen=True)
class LearnedEpoch:
    """The weights after an epoch, in a row, and the loss of each replica in it."""

    weights: Matrix
    losses: Matrix


@dataclass(frozen=True, kw_only=True)
class ReplicaLearning:
    """The training of ``model`` by ``replicas``, a mini-batch of ``samples`` each."""

    model: ConvolutionalModel | RecurrentModel
    replicas: int
    samples: int
    epochs: int
    rate: float
    seed: int

    @property
    def weight_count(self) -> int:
        return sum(math.prod(shape) for shape in self.model.shapes())

    def first_weights(self) -> Matrix:
        """Return the weights before the training, in a row."""
        return flattened(self._random_weights(_WEIGHTS))

    def batch(self, replica: int) -> tuple[Matrix, Matrix]:
        """Return the samples of a mini-batch and their targets: outputs of other weights."""
        rng = np.random.default_rng((self.seed, _INPUTS, replica))
        x = grains(rng, self.model.inputs, self.samples)
        return x, self.model.forward(self._random_weights(_TEACHER), x)

    def _random_weights(self, which: int) -> list[Matrix]:
        return [
            grains(np.random.default_rng((self.seed, which, number)), *shape)
            / np.float32(max(1, math.isqrt(shape[1])))
            for number, shape in enumerate(self.model.shapes())
        ]

    @cached_property
    def history(self) -> Sequence[LearnedEpoch]:
        """Return every epoch of the same training on one GPU.

        It adds the gradients of the replicas in the order of their ring.
        """
        flat, found = self.first_weights(), []
        for _ in range(self.epochs):
            losses, gradients = self._backward(flat)
            flat = layers.stepped(flat, ring_sum([flattened(one) for one in gradients]), self.rate)
            found.append(LearnedEpoch(flat, np.array(losses)))
        return found

    def first_steps(self) -> list[str]:
        """Return the lines that show the numbers of the first epoch."""
        steps = []
        for replica, (loss, gradients) in enumerate(
            zip(*self._backward(self.first_weights()), strict=True), 1
        ):
            steps.append(f"mini-batch {replica}: loss = {loss:.6g}")
            for number, one in enumerate(gradients, 1):
                steps += shown(f"mini-batch {replica}: gradient of weights {number}", one)
        for number, one in enumerate(matrices(self.model, self.history[0].weights), 1):
            steps += shown(f"weights {number} - rate x sum of gradients", one)
        return steps

    def _backward(self, flat: Matrix) -> tuple[list[np.float32], list[list[Matrix]]]:
        weights = matrices(self.model, flat)
        found = [
            self.model.backward(weights, *self.batch(replica)) for replica in range(self.replicas)
        ]
        return [loss for loss, _ in found], [gradients for _, gradients in found]


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
        return learning_trial(self.name, self, parameters)

    # -- on one GPU ----------------------------------------------------------------------------

    @cached_property
    def _learning(self) -> ReplicaLearning:
        return ReplicaLearning(
            model=self.model,
            replicas=len(self.topology.gpus),
            samples=self.samples,
            epochs=self.epochs,
            rate=self.rate,
            seed=self.seed,
        )

    @cached_property
    def learned(self) -> Learned:
        """Return the same training on one GPU, and the numbers of its first epoch."""
        history = self._learning.history
        losses = [one.losses for one in history]
        return Learned(history[-1].weights, losses, self._learning.first_steps())

    @property
    def _ranks(self) -> range:
        return range(len(self.topology.gpus))

    # -- on all GPUs ---------------------------------------------------------------------------

    @cached_property
    def work(self) -> TensorWork:
        """Return the operations of all GPUs."""
        return TensorWork(self.topology, self._write)

    def _write(self, tensors: TensorProgram) -> None:
        model, program = self.model, tensors.program
        count = self._learning.weight_count
        weights = [tensors.new(rank, "weights", count) for rank in self._ranks]
        x = [tensors.new(rank, "inputs", model.inputs, self.samples) for rank in self._ranks]
        y = [tensors.new(rank, "targets", model.outputs, self.samples) for rank in self._ranks]
        losses = [tensors.new(rank, "losses", self.epochs) for rank in self._ranks]
        for epoch in range(self.epochs):
            gradients: list[Tensor] = []
            for rank in self._ranks:
                gradient, _ = tensors.apply(
                    GRADIENT_OF[type(model)],
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
                        layers.step, inputs, [weights[rank]], self.rate
                    )

    def inputs(self, rank: int) -> Contents:
        """Return what the buffers of ``rank`` hold at the start."""
        x, target = self._learning.batch(rank)
        return {
            "weights": self._learning.first_weights(),
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
