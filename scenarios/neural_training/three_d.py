"""Three_d: data, pipeline and tensor parallelism at once, on eight GPUs in two hosts.

::

                  DP group 0: host 0                      DP group 1: host 1
                  x1-x4, x5-x8                            x9-x12, x13-x16
                +-----------------------------+         +-----------------------------+
    stage 0     | GPU 0 <-- TP --> GPU 2      |         | GPU 4 <-- TP --> GPU 6      |
                |   |                |        |  <-DP-> |   |                |        |
    stage 1     | GPU 1 <-- TP --> GPU 3      |         | GPU 5 <-- TP --> GPU 7      |
                +-----------------------------+         +-----------------------------+

Traffic: sixteen samples, x1 to x16, in two mini-batches of two micro-batches.  Each data-parallel
(DP) group learns from one mini-batch.  Its tensor-parallel (TP) ranks {0, 2} have the halves of
stage 0, {1, 3} those of stage 1.  Forward, each TP pair joins its outputs by AllGather after every
layer, and each GPU sends them to its successor in the next stage.  Backward, deltas go the other
way, and TP pairs add their halves of them.  At the end of an epoch each GPU and the one with the
same weights in the other group add their gradients (AllReduce), and step.

Measured: the time of the training, its ideal, the losses, and the octets

- forward: outputs, to the next stage and inside TP pairs; ``crossing``: those of them that leave a
  DP group;
- backward: deltas, likewise; ``gradients`` between the DP groups.

A training on one GPU in numpy gives the reference: losses of all epochs, and weights of all GPUs at
the end, to the bit. Its sums have the same order.

What should be seen: no forward and no backward traffic leaves a DP group, so ``crossing`` is 0: it
stays on NVLink inside a host.  Gradients are synchronised inside the groups (the deltas of TP
pairs) and across them, which is all that the fabric carries.  A GPU sends as many octets of
gradients as it has weights, and its partner is on the same rail: the spines stay idle.

Here, over UET: 95.8 us for eight epochs.  13,312 octets went forward and 16,384 backward, all over
NVLink, and the 3,072 octets of gradients over the fabric.  ``groups=6`` takes 24 GPUs in six
hosts: 173.0 us, and 15,360 octets of gradients over the fabric; over RoCEv2 172.9 us.

``show=steps`` prints the numbers of the first epoch, and draws who sends to whom when.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from emulator.run.report.result_table import TableColumn
from emulator.scenario import Outcome, Trial, parameter
from scenarios.workloads.network import training_trial
from scenarios.workloads.network.parallel_training import (
    DELTAS,
    GRADIENTS,
    JOINED,
    OUTPUTS,
    PARTIAL,
)
from scenarios.workloads.network.tensors import Exchange, octets_of
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
    *training_trial.COLUMNS[:8],
    TableColumn("forward_bytes", "forward", "(B)", 8),
    TableColumn("backward_bytes", "backward", "(B)", 8),
    TableColumn("crossing_bytes", "crossing", "(B)", 8),
    TableColumn("gradient_bytes", "gradients", "(B)", 9),
    *training_trial.COLUMNS[8:],
)
#: GPUs of a DP group, of a TP pair, and stages.
GROUP, PAIR, STAGES = 4, 2, 2


@dataclass(frozen=True, kw_only=True)
class Parameters(TrainingParameters):
    """The parameters of ``three_d``."""

    widths: tuple[int, ...] = parameter(
        (4, 8, 2), COUNT, many=True, help="inputs, then the neurons of each layer"
    )
    groups: int = parameter(2, COUNT, help="data-parallel groups of four GPUs")
    micro_batches: int = parameter(2, COUNT, help="micro-batches of a mini-batch")


def topology(parameters: Parameters) -> str:
    """Return a fabric with a host of four GPUs for each group, four rail switches, a spine."""
    return f"rail_clos:hosts={max(2, parameters.groups)},gpus_per_host=4,spines=1"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    plan = TrainingPlan(
        widths=parameters.widths,
        replicas=parameters.groups,
        stages=STAGES,
        parts=PAIR,
        micro_batches=parameters.micro_batches,
        samples=parameters.samples,
        epochs=parameters.epochs,
        rate=parameters.learning_rate,
        layer_ns=parameters.layer_time,
        seed=seed,
    )
    ranks = grid(topology, plan, lambda group, stage, part: group * GROUP + stage + STAGES * part)
    placed = PlacedTraining("3D parallel", plan, topology, ranks)
    return [placed.trial(parameters, links(placed.work.size.exchanges))]


def links(exchanges: Mapping[Exchange, int]) -> dict[str, object]:
    """Return the octets that pass inside DP groups and between them, by what they are for."""
    inner = {one: times for one, times in exchanges.items() if one.what != GRADIENTS}
    return {
        "forward_bytes": _octets(inner, OUTPUTS, JOINED),
        "backward_bytes": _octets(inner, DELTAS, PARTIAL),
        "crossing_bytes": sum(
            one.octets * times
            for one, times in inner.items()
            if one.source // GROUP != one.destination // GROUP
        ),
        "gradient_bytes": _octets(exchanges, GRADIENTS),
    }


def _octets(exchanges: Mapping[Exchange, int], *kinds: str) -> int:
    return octets_of({one: times for one, times in exchanges.items() if one.what in kinds})


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    return learning_measures(topology, trial, outcome)
