"""Convolutional: a small convolutional network trains with data parallelism, with real numbers.

::

    image (6x6) -> 3x3 kernels -> tanh -> 3x3 kernels -> tanh -> dense -> outputs, loss
                   4 channels             4 channels

    GPU 0   images 1-4   gradient --+
    GPU 1   images 5-8   gradient --+-- ring AllReduce --> the sum at every GPU, a step
    ...                             |
    GPU n   ...          gradient --+

Traffic: every GPU has all weights and a mini-batch of its own.  It computes the gradient of its
mini-batch.  A ring AllReduce over all GPUs in rank order adds the gradients, and each GPU steps its
copy of the weights.  A GPU sends 2(n-1)/n of the gradient in each epoch.

Measured: the time of the training, its ideal, and the losses.  A training on one GPU in numpy gives
the reference: losses of all epochs, and weights of every GPU at the end, to the bit. It adds
the gradients of the mini-batches in the order of the ring.  Inputs and first weights are drawn by
the seed; targets are the outputs of the same network with other weights.

What should be seen: the kernels are few numbers that are used at every place of the image, so that
the gradient is small beside the computing.  Krizhevsky (arXiv 1404.5997) takes data parallelism for
convolutions for that reason.  With ``gradient_time=0`` the time is that of the AllReduces alone.

``show=steps`` prints the numbers of the first epoch, and draws who sends to whom when.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from emulator.scenario import Outcome, Trial, parameter
from scenarios.workloads.network.convolution import ConvolutionalModel
from scenarios.workloads.network.replica_training import ReplicaTraining
from scenarios.workloads.network.training_trial import COLUMNS as COLUMNS
from scenarios.workloads.network.training_trial import LearningParameters, learning_measures
from topologies.model import Topology
from topologies.parts.design_parameters import COUNT, TIME

#: Two kernels of 3x3 leave a point of such an image.
SIDE = replace(COUNT, minimum=5)


@dataclass(frozen=True, kw_only=True)
class Parameters(LearningParameters):
    """The parameters of ``convolutional``."""

    side: int = parameter(6, SIDE, help="points of a side of the image")
    channels: int = parameter(4, COUNT, help="kernels of each convolution")
    outputs: int = parameter(2, COUNT, help="outputs of the network")
    gradient_time: int = parameter(
        10_000, TIME, help="time of a GPU for the gradient of its mini-batch, forward and backward"
    )


def topology(parameters: Parameters) -> str:
    """Two hosts with two GPUs each, two rail switches, a spine."""
    return "rail_clos:hosts=2,gpus_per_host=2,spines=1"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    training = ReplicaTraining(
        name="convolutional",
        model=ConvolutionalModel(parameters.side, parameters.channels, parameters.outputs),
        topology=topology,
        samples=parameters.samples,
        epochs=parameters.epochs,
        rate=parameters.learning_rate,
        gradient_ns=parameters.gradient_time,
        seed=seed,
    )
    return [training.trial(parameters)]


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    return learning_measures(topology, trial, outcome)
