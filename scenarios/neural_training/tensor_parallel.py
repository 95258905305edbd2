"""Tensor_parallel: each weight matrix is cut into halves, and an AllGather joins the outputs.

::

                       GPU 0                             GPU 1
                     +-----------------+               +-----------------+
    x (8) on both -> | W rows 1-2: 2x8 |            -> | W rows 3-4: 2x8 |
                     +-----------------+               +-----------------+
                        y1 y2 ----------- AllGather --------- y3 y4
                        y1 y2 y3 y4                     y1 y2 y3 y4      next layer

Traffic: the weight matrices have a row for each neuron: 4x8, and a 2x4 behind it.  Each GPU has
1/``parts`` of the rows of every matrix, and computes those neurons from all inputs.  The outputs
are joined by an AllGather, in which each GPU sends its share to each other one.  Backward a GPU has
only what its own neurons contribute to the delta of a layer's inputs.  So the GPUs exchange these
deltas, and each adds all of them in the order of the GPUs.  The first layer needs no such delta.

Measured: the time of the training, its ideal, and the losses.  The losses of all epochs and the
weights at the end are compared to the bit with a training on one GPU in numpy. Its sums have the
same order.

What should be seen: two collectives for each layer and epoch, one forward and one backward (but for
the first), on the way of every sample.  They cannot be hidden behind computing, which is why tensor
parallelism stays on NVLink where it can.  Here the GPUs are in hosts of their own; with
``--topology rail_clos:hosts=1,gpus_per_host=2,spines=1`` they share one.  A layer takes 1/``parts``
of ``layer_time``.

Here, over UET: 53.2 us for eight epochs, of which 24 are computing; with NVLink 40.8 us.

``show=steps`` prints the numbers of the first epoch, and draws who sends to whom when.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from emulator.scenario import Outcome, Trial, parameter
from scenarios.workloads.network.training_plan import TrainingPlan
from scenarios.workloads.network.training_trial import COLUMNS as COLUMNS
from scenarios.workloads.network.training_trial import (
    PlacedTraining,
    TrainingParameters,
    grid,
    learning_measures,
)
from topologies.model import Topology
from topologies.parts.design_parameters import COUNT


@dataclass(frozen=True, kw_only=True)
class Parameters(TrainingParameters):
    """The parameters of ``tensor_parallel``."""

    widths: tuple[int, ...] = parameter(
        (8, 4, 2), COUNT, many=True, help="inputs, then the neurons of each layer"
    )
    parts: int = parameter(2, COUNT, help="GPUs over which each matrix is cut")


def topology(parameters: Parameters) -> str:
    """Return a fabric with one GPU in each host: a host for each part."""
    return f"rail_clos:hosts={max(2, parameters.parts)},gpus_per_host=1,spines=1"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    plan = TrainingPlan(
        widths=parameters.widths,
        parts=parameters.parts,
        samples=parameters.samples,
        epochs=parameters.epochs,
        rate=parameters.learning_rate,
        layer_ns=parameters.layer_time,
        seed=seed,
    )
    placed = PlacedTraining("tensor parallel", plan, topology, grid(topology, plan))
    return [placed.trial(parameters)]


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    return learning_measures(topology, trial, outcome)
