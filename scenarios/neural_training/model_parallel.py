"""Model_parallel: three layers on three GPUs, whose outputs and deltas cross the fabric.

::

      4 inputs       3 neurons      2 neurons      1 neuron
                    GPU 0          GPU 1          GPU 2
                   +-------+      +-------+      +-------+
      x (4) -----> | W 3x4 | ---> | W 2x3 | ---> | W 1x2 | ---> loss
                   +-------+ <--- +-------+ <--- +-------+
                             delta          delta

Traffic: the weight matrices have a row for each neuron.  Each GPU has one of them, multiplies it
with what arrives, and sends the outputs on.  With ``samples`` columns a message has neurons x
samples x 4 octets.  Backward each GPU sends the delta of its inputs.  GPUs stand in hosts of their
own, so that every message crosses the fabric.

Measured: the time of the training, its ideal, and the losses.  The losses of all epochs and the
weights at the end are compared to the bit with a training on one GPU in numpy.

What should be seen: four messages for each epoch, two forward and two backward, and a GPU that
waits most of the time.  The messages fit in one packet each.  Pipeline parallelism
(``pipeline_parallel``) fills the waiting with other micro-batches.

Here, over UET: 110.6 us for eight epochs, of which 72 are computing.

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
    """The parameters of ``model_parallel``."""

    widths: tuple[int, ...] = parameter(
        (4, 3, 2, 1), COUNT, many=True, help="inputs, then the neurons of each layer"
    )


def topology(parameters: Parameters) -> str:
    """Return a fabric with one GPU in each host: a host for each layer."""
    return f"rail_clos:hosts={len(parameters.widths) - 1},gpus_per_host=1,spines=1"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    plan = TrainingPlan(
        widths=parameters.widths,
        stages=len(parameters.widths) - 1,
        samples=parameters.samples,
        epochs=parameters.epochs,
        rate=parameters.learning_rate,
        layer_ns=parameters.layer_time,
        seed=seed,
    )
    placed = PlacedTraining("model parallel", plan, topology, grid(topology, plan))
    return [placed.trial(parameters)]


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    return learning_measures(topology, trial, outcome)
