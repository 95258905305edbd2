"""Data_parallel: every GPU learns from a mini-batch of its own, and AllReduce joins the gradients.

::

      mini-batch 1     mini-batch 2     mini-batch 3     mini-batch 4
           |                |                |                |
        +-------+        +-------+        +-------+        +-------+
        | all W |        | all W |        | all W |        | all W |     forward, backward
        +-------+        +-------+        +-------+        +-------+
         gradient         gradient         gradient         gradient
           +----------------+-- AllReduce ---+----------------+
         step             step             step             step         the same W again

Traffic: all GPUs have all weights.  In each epoch every GPU computes the gradient of its
mini-batch.  A ring AllReduce over the GPUs in rank order adds the gradients, and each GPU steps its
own copy of the weights by the sum.  A GPU sends 2(n-1)/n of its gradient (all weights x 4 octets).

Measured: the time of the training, its ideal, and the losses.  A training on one GPU in numpy gives
the reference: losses of all epochs, and weights of every GPU at the end, to the bit. It adds
the gradients of the mini-batches in the order of the ring.

A GPU that learns from the whole batch at once adds the same products in another order.  ``apart``
is the largest difference of any weight from that, after one epoch, and ``bound`` the largest that
rounding allows.  Let g(N) = N u / (1 - N u). A sum of N products in any order is within g(N) of the
sum of their absolute values. Here u = 2^-24.  Two orders are thus within 2 g(N) of each other, and
the step multiplies that by the learning rate and rounds twice more.  The run fails if ``apart``
exceeds it.

What should be seen: all GPUs compute at the same time, and then the links are full at the same
time: the bursts of a data-parallel job.  The weights are the same on all GPUs after every epoch.

Here, over UET: 125.2 us for eight epochs, of which 48 are computing.  ``apart`` is 15 of the 334
billionths that rounding allows.

With ``resumed=N`` the training goes on from the weights that its first N epochs have left, as a job
does from a checkpoint: it comes to the same bits as one that was not interrupted.

``show=steps`` prints the numbers of the first epoch, and draws who sends to whom when.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from emulator.errors import UserError
from emulator.run.report.result_table import TableColumn
from emulator.scenario import Outcome, Trial, parameter
from scenarios.collectives.size_sweep import WARMUPS
from scenarios.workloads.network import training_trial
from scenarios.workloads.network.rounding import first_step_apart
from scenarios.workloads.network.training_plan import TrainingPlan
from scenarios.workloads.network.training_trial import (
    PlacedTraining,
    TrainingParameters,
    grid,
    learning_measures,
)
from topologies.model import Topology
from topologies.parts.design_parameters import COUNT

COLUMNS = (
    *training_trial.COLUMNS,
    TableColumn("apart", "apart", "(1e-9)", 8, divisor=1e-9),
    TableColumn("bound", "bound", "(1e-9)", 8, divisor=1e-9),
)


@dataclass(frozen=True, kw_only=True)
class Parameters(TrainingParameters):
    """The parameters of ``data_parallel``."""

    widths: tuple[int, ...] = parameter(
        (4, 8, 2), COUNT, many=True, help="inputs, then the neurons of each layer"
    )
    resumed: int = parameter(
        0, WARMUPS, help="epochs before, from whose weights (a checkpoint) the training goes on"
    )


def training_plan(parameters: Parameters, topology: Topology, seed: int) -> TrainingPlan:
    """Return the training of all GPUs of ``topology``."""
    return TrainingPlan(
        widths=parameters.widths,
        replicas=len(topology.gpus),
        samples=parameters.samples,
        epochs=parameters.epochs,
        rate=parameters.learning_rate,
        layer_ns=parameters.layer_time,
        seed=seed,
        resumed=parameters.resumed,
    )


def topology(parameters: Parameters) -> str:
    """Two hosts with two GPUs each, two rail switches, a spine."""
    return "rail_clos:hosts=2,gpus_per_host=2,spines=1"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    plan = training_plan(parameters, topology, seed)
    apart, bound = first_step_apart(plan)
    if apart > bound:
        raise UserError(
            f"the first step is {apart:g} from that of the whole batch, and rounding explains "
            f"{bound:g} at most: a defect of the network library; please report it"
        )
    placed = PlacedTraining("data parallel", plan, topology, grid(topology, plan))
    return [placed.trial(parameters, {"apart": apart, "bound": bound})]


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    return learning_measures(topology, trial, outcome)
