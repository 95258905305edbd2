"""Fnn: a feed-forward network of four layers trains on four GPUs in two hosts, with real numbers.

::

        host 0                              host 1
    +---------------------------+       +---------------------------+
    | GPU 0 ==NVLink==> GPU 1   |       | GPU 0 ==NVLink==> GPU 1   |
    | layer 1           layer 2 |       | layer 3           layer 4 |---> loss
    +---------------------|-----+       +---|-----------------------+
                          +---- RDMA -------+
                         rail1  spine  rail0

Traffic: each GPU computes one layer.  Its outputs travel to the GPU with the next layer, over
NVLink inside a host and over the fabric between the hosts.  The last GPU has the loss.  Then the
deltas travel the way back, each GPU computes gradient = delta x input, and steps its weights by
learning rate x gradient.  So it goes on for ``epochs``.

Every number is computed when its operation runs, from what arrived in the memory of that GPU
before.  The inputs and first weights are drawn by the seed.  The targets are the outputs of a
network of the same shape with other weights.

Measured: the time of the whole training, its ideal (the longest chain of layers and messages), and
the loss of the first and the last epoch.  A training on one GPU in numpy gives the reference: the
loss of every epoch, and the weights of every GPU at the end, to the bit.

What should be seen: only one GPU computes at a time.  With one micro-batch an epoch takes 12 times
``layer_time`` (4 layers forward, twice as long backward) and six messages one after the other.
The two between the hosts, of widths x samples x 4 octets, are small: latency is all that counts.

Here, over UET: 157.2 us for eight epochs, of which 96 are computing; the loss falls from 0.155 to
0.111.

``show=steps`` prints the numbers of the first epoch, and draws who sends to whom when.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from emulator.scenario import Outcome, Trial, parameter
from scenarios.workloads.network.training_plan import TrainingPlan
from scenarios.workloads.network.training_trial import (
    COLUMNS as COLUMNS,
)
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
    """The parameters of ``fnn``."""

    widths: tuple[int, ...] = parameter(
        (4, 8, 8, 4, 2), COUNT, many=True, help="inputs, then the neurons of each layer"
    )


def topology(parameters: Parameters) -> str:
    """Two hosts with two GPUs each, two rail switches, a spine."""
    return "rail_clos:hosts=2,gpus_per_host=2,spines=1"


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
    placed = PlacedTraining("feed-forward", plan, topology, grid(topology, plan))
    return [placed.trial(parameters)]


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    return learning_measures(topology, trial, outcome)
