"""Pipeline_parallel: micro-batches staggered through stages, as GPipe and 1F1B order them.

::

    GPipe, 4 stages, 4 micro-batches (numbers: forward; letters: backward, twice as long)

    stage 0   1 2 3 4 . . . . . . . . . A A B B C C D D
    stage 1     1 2 3 4 . . . . . . A A B B C C D D
    stage 2       1 2 3 4 . . . A A B B C C D D
    stage 3         1 2 3 4 A A B B C C D D

Traffic: each stage is a GPU in a host of its own, with one layer or more.  It sends the outputs of
a micro-batch to the next stage, and the delta of its inputs to the stage before.  ``gpipe``
computes all micro-batches forward, then all backward.  ``1f1b`` computes as many forward as there
are later stages, then one forward and one backward in turns.  At the end of an epoch each stage
steps its weights by the sum of the gradients of all micro-batches.

Measured: for each order and number of micro-batches

- bubble: the share of the time in which a GPU does not compute, 1 - m (tF + tB) / (time of an
  epoch). There tF and tB = 2 tF are the times of a stage, and m counts micro-batches;
- formula: (p-1) / (m+p-1) with p stages (Huang et al., GPipe, section 2.3; Narayanan et al.,
  SC'21, section 2.2), which leaves the messages out;
- held: of how many micro-batches a stage keeps activations at most: m with GPipe, p with 1F1B.

The losses of all epochs and the weights at the end are compared to the bit with a training on one
GPU in numpy. It adds the gradients of the micro-batches in their order.

What should be seen: both orders have the same bubble, but 1F1B needs less memory.  More
micro-batches make it smaller.  It lies above its formula by the messages: 2(p-1) of them are on the
critical way of each epoch, and 1F1B waits for more of them than GPipe, because forward and backward
alternate.  With ``layer_time=0`` nothing but messages is left.

Here, over UET: 43.1 % (GPipe) and 43.2 % (1F1B) with four micro-batches, and 42.9 by the formula;
27.4 % and 27.7 % with eight, and 27.3 by the formula.  1F1B keeps four micro-batches of the eight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from emulator.errors import UserError
from emulator.run.report.result_table import TableColumn
from emulator.scenario import Outcome, Trial, parameter
from scenarios.workloads.network.parallel_training import most_held
from scenarios.workloads.network.training_plan import TrainingPlan
from scenarios.workloads.network.training_trial import (
    DECIMAL,
    PlacedTraining,
    TrainingParameters,
    grid,
    learning_measures,
)
from topologies.model import Topology
from topologies.parts.design_parameters import COUNT, TIME

COLUMNS = (
    TableColumn("training", "order", "", 8),
    TableColumn("micro_batches", "micro-", "batches", 8),
    TableColumn("held", "held", "", 5),
    TableColumn("loss_first", "loss", "(first)", 9, 5),
    TableColumn("loss_last", "loss", "(last)", 9, 5),
    TableColumn("time_us", "time", "(us)", 9),
    TableColumn("ideal_us", "ideal", "(us)", 9),
    TableColumn("efficiency", "of ideal", "(%)", 8, 1, percent=True),
    TableColumn(
        "bubble", "bubble", "(%)", 7, 1, percent=True, words="the bubble was {} % of the time"
    ),
    TableColumn("bubble_formula", "formula", "(%)", 7, 1, percent=True),
    TableColumn("fabric_bytes", "fabric", "(B)", 9, 0),
    TableColumn("fabric_messages", "messages", "(fabric)", 8, rank=1),
    TableColumn("retransmitted_packets", "resent", "", 6),
    TableColumn("wrong", "#wrong", "", 6),
)


@dataclass(frozen=True, kw_only=True)
class Parameters(TrainingParameters):
    """The parameters of ``pipeline_parallel``."""

    widths: tuple[int, ...] = parameter(
        (8, 8, 8, 8, 4), COUNT, many=True, help="inputs, then the neurons of each layer"
    )
    stages: int = parameter(4, COUNT, help="GPUs over which the layers are spread")
    micro_batches: tuple[int, ...] = parameter(
        (4, 8), COUNT, many=True, help="micro-batches of an epoch; a row for each"
    )
    epochs: int = parameter(2, COUNT, help="times that all samples are learned from")
    rate: int = parameter(10_000, DECIMAL, help="learning rate")
    layer_time: int = parameter(
        100_000, TIME, help="time of a layer forward for a micro-batch; backward takes twice that"
    )

    def __post_init__(self) -> None:
        if (len(self.widths) - 1) % self.stages:
            raise UserError(
                f"{len(self.widths) - 1} layers do not make {self.stages} equal stages; give "
                "widths for a multiple of the stages, and one for the inputs"
            )


def topology(parameters: Parameters) -> str:
    """Return a fabric with one GPU in each host: a host for each stage."""
    return f"rail_clos:hosts={max(2, parameters.stages)},gpus_per_host=1,spines=1"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    return [
        _trial(parameters, topology, seed, order, micro_batches)
        for micro_batches in parameters.micro_batches
        for order in ("gpipe", "1f1b")
    ]


def _trial(
    parameters: Parameters, topology: Topology, seed: int, order: str, micro_batches: int
) -> Trial:
    stages = parameters.stages
    plan = TrainingPlan(
        widths=parameters.widths,
        stages=stages,
        micro_batches=micro_batches,
        samples=parameters.samples,
        epochs=parameters.epochs,
        rate=parameters.learning_rate,
        order=order,
        layer_ns=parameters.layer_time,
        seed=seed,
    )
    placed = PlacedTraining(order, plan, topology, grid(topology, plan))
    facts = {
        "micro_batches": micro_batches,
        "stages": stages,
        "held": max(most_held(order, stage, stages, micro_batches) for stage in range(stages)),
        "bubble_formula": (stages - 1) / (micro_batches + stages - 1),
    }
    return placed.trial(parameters, facts)


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the share of the time in which a stage does not compute."""
    layers = (len(parameters.widths) - 1) // parameters.stages
    micro_batches = trial.facts["micro_batches"]
    assert isinstance(micro_batches, int)
    busy = parameters.epochs * micro_batches * 3 * parameters.layer_time * layers
    return {"bubble": 1 - busy / outcome.mean_ns, **learning_measures(topology, trial, outcome)}
