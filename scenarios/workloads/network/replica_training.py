"""Data-parallel training of any model: its gradient on every GPU, a ring AllReduce, a step."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from emulator.scenario import Contents, Trial
from scenarios.workloads.network import gpu_layers
from scenarios.workloads.network.convolution import ConvolutionalModel
from scenarios.workloads.network.parallel_training import GRADIENTS
from scenarios.workloads.network.recurrence import RecurrentModel
from scenarios.workloads.network.replica_learning import GRADIENT_OF, ReplicaLearning
from scenarios.workloads.network.tensors import Tensor, TensorProgram, TensorWork
from scenarios.workloads.network.training_trial import (
    Learned,
    LearningParameters,
    learning_trial,
)
from topologies.model import Topology


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
                        gpu_layers.step, inputs, [weights[rank]], self.rate
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
