"""Training plans as trials of a run: their parameters, their table, and what is compared.

The weights of every GPU at the end, and the loss of every micro-batch, are compared to the bit with
those of :mod:`scenarios.workloads.network.training_plan`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cached_property
from typing import Protocol

import numpy as np

from emulator.errors import UserError
from emulator.result_rows import TableColumn
from emulator.scenario import Contents, Outcome, Trial, parameter
from scenarios.collectives.size_sweep import WARMUPS
from scenarios.workloads.network.compression import RESIDUALS
from scenarios.workloads.network.parallel_training import ParallelTraining
from scenarios.workloads.network.tensors import (
    Exchange,
    TensorProgram,
    TensorWork,
    drawn,
    octets_of,
)
from scenarios.workloads.network.training_plan import (
    Trained,
    TrainingPlan,
    flattened,
    train,
    weights_before,
)
from topologies.model import Topology, TopologyError
from topologies.parts.design_parameters import COUNT, TIME, ParameterKind

#: ``ranks[replica][stage][part]``
Grid = Sequence[Sequence[Sequence[int]]]
_MILLION = 10**6


def _parse_decimal(text: str) -> int:
    try:
        return int(Decimal(text) * _MILLION)
    except (InvalidOperation, ValueError, OverflowError):
        raise TopologyError(f"{text!r} is not a number; write for example 0.05") from None


#: A number such as 0.05, in millionths.
DECIMAL = ParameterKind(
    "number", "millionths", 1, 10 * _MILLION, _parse_decimal, lambda value: f"{value / _MILLION:g}"
)

COLUMNS = (
    TableColumn("training", "training", "", 18),
    TableColumn("gpus", "GPUs", "", 5),
    TableColumn("epochs", "epochs", "", 6, rank=3),
    TableColumn("loss_first", "loss", "(first)", 9, 5),
    TableColumn("loss_last", "loss", "(last)", 9, 5, words="the last epoch's loss was {}"),
    TableColumn("time_us", "time", "(us)", 9),
    TableColumn("ideal_us", "ideal", "(us)", 9, rank=1),
    TableColumn("efficiency", "of ideal", "(%)", 8, 1, percent=True),
    TableColumn("fabric_bytes", "fabric", "(B)", 9, 0),
    TableColumn("nvlink_bytes", "NVLink", "(B)", 9, rank=4),
    TableColumn("fabric_messages", "messages", "(fabric)", 8, rank=2),
    TableColumn("retransmitted_packets", "resent", "", 6),
    TableColumn("wrong", "#wrong", "", 6),
)


@dataclass(frozen=True, kw_only=True)
class LearningParameters:
    epochs: int = parameter(8, COUNT, help="times that all samples are learned from")
    samples: int = parameter(4, COUNT, help="samples of a micro-batch")
    rate: int = parameter(50_000, DECIMAL, help="learning rate")
    show: str = parameter("no", choices=("no", "steps"), help="print the first epoch")
    warmups: int = parameter(0, WARMUPS, help="iterations before those that count")
    iterations: int = parameter(1, COUNT, help="trainings that count, from the same first weights")

    @property
    def learning_rate(self) -> float:
        return self.rate / _MILLION


@dataclass(frozen=True, kw_only=True)
class TrainingParameters(LearningParameters):
    """The parameters of a dense network's training."""

    layer_time: int = parameter(
        1000, TIME, help="time of a layer forward for a micro-batch; backward takes twice that"
    )


def check_learning(losses: Sequence[float], rate: float) -> None:
    """Raise UserError unless the loss has fallen from the first epoch to the last."""
    if len(losses) > 1 and not losses[-1] < losses[0]:
        raise UserError(
            f"with a learning rate of {rate:g} the loss goes from {losses[0]:g} to {losses[-1]:g} "
            f"in {len(losses)} epochs; take a smaller rate, such as --param rate={rate / 4:g}"
        )


def grid(
    topology: Topology, plan: TrainingPlan, place: Callable[[int, int, int], int] | None = None
) -> Grid:
    """Return the rank of each place of the plan's grid; UserError if there are too few GPUs.

    ``place(replica, stage, part)`` numbers the places, by default with parts next to each other,
    then stages.
    """
    there = len(topology.gpus)
    if there < plan.gpus:
        raise UserError(
            f"the training needs {plan.gpus} GPUs and topology {topology.name} has {there}; "
            "add hosts or GPUs"
        )
    place = place or (
        lambda replica, stage, part: (replica * plan.stages + stage) * plan.parts + part
    )
    return [
        [
            [place(replica, stage, part) for part in range(plan.parts)]
            for stage in range(plan.stages)
        ]
        for replica in range(plan.replicas)
    ]


@dataclass(frozen=True)
class Learned:
    """The result of one GPU: weights, losses of each epoch, and the numbers of the first."""

    weights: np.ndarray
    losses: Sequence[np.ndarray]
    steps: Sequence[str] = ()


class Training(Protocol):
    """A training that is compiled for a fabric, and known from one GPU."""

    @property
    def epochs(self) -> int:
        """Return how often all samples are learned from."""
        ...

    @property
    def rate(self) -> float: ...

    @property
    def learned(self) -> Learned:
        """Return the same training on one GPU."""
        ...

    @property
    def work(self) -> TensorWork:
        """Return the operations of all GPUs."""
        ...

    def inputs(self, rank: int) -> Contents:
        """Return what the buffers of ``rank`` hold at the start."""
        ...

    def expected(self, rank: int) -> Contents:
        """Return what the buffers of ``rank`` hold at the end."""
        ...


def learning_trial(
    name: str,
    training: Training,
    parameters: LearningParameters,
    facts: Mapping[str, object] | None = None,
) -> Trial:
    """Return the trial of ``training``; ``facts`` go into its row.

    Raises UserError if its loss does not fall.
    """
    learned, work = training.learned, training.work
    exchanges = work.size.exchanges
    losses = [float(np.sum(one, dtype=np.float64)) for one in learned.losses]
    check_learning(losses, training.rate)
    steps: dict[str, object] = {}
    if parameters.show == "steps":
        transfers = work.transfers()
        first = transfers[: len(transfers) // training.epochs]
        steps = {
            "steps": list(learned.steps),
            "first_exchanges": [dataclasses.asdict(one) for one in first],
        }
    return Trial(
        collective=name,
        size_bytes=octets_of(exchanges),
        compile=work.compile,
        inputs=training.inputs,
        expected=training.expected,
        memory_bytes=work.size.memory_bytes,
        warmups=parameters.warmups,
        iterations=parameters.iterations,
        fresh=True,
        facts={
            "training": name,
            "gpus": work.size.gpus,
            "epochs": training.epochs,
            "loss_first": losses[0],
            "loss_last": losses[-1],
            "losses": losses,
            "fabric_bytes_derived": octets_of(exchanges, nvlink=False),
            "nvlink_bytes": octets_of(exchanges, nvlink=True),
            "fabric_messages": sum(times for one, times in exchanges.items() if not one.nvlink),
            **steps,
            **(facts or {}),
        },
    )


def learning_measures(topology: Topology, trial: Trial, outcome: Outcome) -> dict[str, object]:
    """Return what every training measures: octets that arrived over the fabric, and shown steps."""
    return {"fabric_bytes": outcome.received_bytes, **_steps(topology, trial, outcome)}


def _steps(topology: Topology, trial: Trial, outcome: Outcome) -> dict[str, object]:
    """Return the numbers of the first epoch, and who sent to whom when, if requested."""
    steps, first = trial.facts.get("steps"), trial.facts.get("first_exchanges")
    if not isinstance(steps, list) or not isinstance(first, list) or not outcome.iterations:
        return {}
    exchanges = [Exchange(**one) for one in first]
    names = [gpu.name for gpu in topology.gpus]
    return {"steps": [*steps, *drawn(names, exchanges, outcome.iterations[0])]}


@dataclass(frozen=True)
class PlacedTraining:
    """A plan on the GPUs of a fabric, under a name for the table."""

    name: str
    plan: TrainingPlan
    topology: Topology
    ranks: Grid

    def trial(
        self, parameters: TrainingParameters, facts: Mapping[str, object] | None = None
    ) -> Trial:
        """Return the trial; ``facts`` go into its row."""
        return learning_trial(self.name, self, parameters, facts)

    @property
    def epochs(self) -> int:
        """Return how often all samples are learned from."""
        return self.plan.epochs

    @property
    def rate(self) -> float:
        return self.plan.rate

    @cached_property
    def learned(self) -> Learned:
        """Return the same training on one GPU."""
        trained = train(self.plan)
        losses = [np.array(one).ravel() for one in trained.losses]
        return Learned(flattened(trained.weights), losses, trained.steps)

    @cached_property
    def work(self) -> TensorWork:
        """Return the operations of all GPUs."""
        return TensorWork(self.topology, self._write)

    def _write(self, tensors: TensorProgram) -> None:
        ParallelTraining(self.plan, tensors, self.ranks)

    def _place(self, rank: int) -> tuple[int, int, int] | None:
        for replica, stages in enumerate(self.ranks):
            for stage, parts in enumerate(stages):
                if rank in parts:
                    return replica, stage, list(parts).index(rank)
        return None

    def _weights(self, matrices: Sequence[np.ndarray], stage: int, part: int) -> np.ndarray:
        """Return what one GPU has of the weight ``matrices``."""
        return flattened(
            [
                matrices[one.layer][one.first : one.first + one.count]
                for one in self.plan.slices(stage, part)
            ]
        )

    def inputs(self, rank: int) -> Contents:
        """Return what the buffers of ``rank`` hold at the start."""
        place = self._place(rank)
        if place is None:
            return {}
        plan, (replica, stage, part) = self.plan, place
        found = {"weights": self._weights(weights_before(plan), stage, part)}
        if plan.compression and plan.compression.feedback:
            found[RESIDUALS] = np.zeros(plan.weight_count(stage, part), np.float32)
        micros = range(plan.micro_batches)
        if stage == 0:
            found["inputs"] = flattened([plan.inputs(replica, micro) for micro in micros])
        if stage == plan.stages - 1:
            found["targets"] = flattened([plan.targets(replica, micro) for micro in micros])
        return found

    def expected(self, rank: int) -> Contents:
        """Return what the buffers of ``rank`` hold at the end."""
        place = self._place(rank)
        if place is None:
            return {}
        replica, stage, part = place
        trained: Trained = train(self.plan)
        found = {"weights": self._weights(trained.weights, stage, part)}
        if stage == self.plan.stages - 1:
            found["losses"] = np.array([one[replica] for one in trained.losses]).ravel()
        return found
