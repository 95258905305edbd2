"""Recurrent: a small recurrent network trains with data parallelism, with real numbers.

::

    x(1)      x(2)      x(3)            x(T)
     | U       | U       | U             | U
    h(1) -V-> h(2) -V-> h(3) -V-> ... -> h(T) -W-> outputs, loss

    GPU 0   sequences 1-4   gradient --+
    GPU 1   sequences 5-8   gradient --+-- ring AllReduce --> the sum at every GPU, a step
    ...                                |
    GPU n   ...             gradient --+

Traffic: every GPU has all weights and a mini-batch of its own.  It computes the gradient of its
mini-batch by back-propagation through time.  A ring AllReduce over all GPUs in rank order adds the
gradients, and each GPU steps its copy of the weights.  A GPU sends 2(n-1)/n of the gradient in each
epoch.

Measured: the time of the training, its ideal, and the losses.  A training on one GPU in numpy gives
the reference: losses of all epochs, and weights of every GPU at the end, to the bit. It adds
the gradients of the mini-batches in the order of the ring.  Inputs and first weights are drawn by
the seed; targets are the outputs of the same network with other weights.

What should be seen: the same matrices are used at every time, so that the gradient does not grow
with the length of the sequences, and the computing does.  With ``gradient_time=0`` the time is that
of the AllReduces alone.

``show=steps`` prints the numbers of the first epoch, and draws who sends to whom when.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from emulator.scenario import Outcome, Trial, parameter
from scenarios.workloads.network.recurrence import RecurrentModel
from scenarios.workloads.network.replica_training import ReplicaTraining
from scenarios.workloads.network.training_trial import COLUMNS as COLUMNS
from scenarios.workloads.network.training_trial import LearningParameters, learning_measures
from topologies.model import Topology
from topologies.parts.design_parameters import COUNT, TIME


@dataclass(frozen=True, kw_only=True)
class Parameters(LearningParameters):
    """The parameters of ``recurrent``."""

    width: int = parameter(4, COUNT, help="numbers of a vector of the sequence")
    hidden: int = parameter(6, COUNT, help="numbers of the hidden state")
    length: int = parameter(5, COUNT, help="vectors of a sequence")
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
        name="recurrent",
        model=RecurrentModel(
            parameters.width, parameters.hidden, parameters.length, parameters.outputs
        ),
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
