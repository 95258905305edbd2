"""Trials of training steps: one job, or several beside each other, on one fabric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from emulator.endpoint.operations.operation_table import COPY, WRITE, OperationTable
from emulator.endpoint.operations.schedule import Schedule
from emulator.errors import UserError
from emulator.scenario import Contents, Outcome, Trial
from scenarios.workloads.transformer.parallel_layout import CP, DP, EP, EXPERT_DP, TP
from scenarios.workloads.transformer.step_operations.compute_stream import VERDICTS
from scenarios.workloads.transformer.step_operations.dependent_program import DependentProgram
from scenarios.workloads.transformer.step_operations.training_step import (
    NORM,
    PP,
    STATE,
    Handover,
    StepChoices,
    TrainingStep,
)
from scenarios.workloads.transformer.step_scale import StepScale
from scenarios.workloads.transformer.step_shape import StepShape
from scenarios.workloads.transformer.step_times import BUBBLE, COMPUTE, StepTimes, step_times
from topologies.model import Topology
from topologies.parts.attachment import nic_rate_bps

#: Kinds of exchanges by the key of their share of the time.
SHARES = {
    COMPUTE: (COMPUTE,),
    "tp": (TP,),
    "cp": (CP,),
    "ep": (EP,),
    "dp": (DP, EXPERT_DP, NORM, STATE),
    "pp": (PP,),
    BUBBLE: (BUBBLE,),
}


@dataclass(frozen=True, kw_only=True)
class StepJob:
    """One job: ``step`` on ``gpus``, by the ranks of its layout; ``name`` stands in timelines."""

    step: StepShape
    gpus: tuple[int, ...]
    name: str = ""
    handovers: Sequence[Handover] = ()

    @property
    def touched(self) -> set[int]:
        """Return all GPUs that do anything."""
        others = {rank for one in self.handovers for rank in (one.source, one.destination)}
        return {*self.gpus, *others}


@dataclass
class StepRun:
    """Jobs that run at the same time on ``topology``."""

    topology: Topology
    jobs: Sequence[StepJob]
    scale: StepScale
    choices: StepChoices

    def __post_init__(self) -> None:
        there = len(self.topology.gpus)
        needed = max(max(job.touched) for job in self.jobs) + 1
        if needed > there:
            raise UserError(
                f"the step needs {needed} GPUs and topology {self.topology.name} has {there}; "
                "add hosts, or leave --topology out"
            )

    @cached_property
    def _written(self) -> tuple[DependentProgram, list[TrainingStep]]:
        program, steps = DependentProgram.on(self.topology), []
        for job in self.jobs:
            step = TrainingStep(
                program, self.topology, job.step, job.gpus, self.scale, self.choices
            )
            with program.named(job.name) if job.name else nullcontext():
                step.write(job.handovers)
            steps.append(step)
        return program, steps

    @property
    def program(self) -> DependentProgram:
        """Return the program of all jobs."""
        return self._written[0]

    @property
    def steps(self) -> list[TrainingStep]:
        """Return the step of each job, as it is written down."""
        return self._written[1]

    @cached_property
    def schedules(self) -> Sequence[Schedule]:
        """Return the schedules of all GPUs."""
        return self.program.schedules()

    def inputs(self, rank: int) -> Contents:
        """Return what the buffers of ``rank`` hold at the start: nothing is needed."""
        return {}

    def expected(self, rank: int) -> Contents:
        """Return what ``rank`` holds at the end: for each result no wrong element."""
        octets = self.schedules[rank].buffers.get(VERDICTS, 0)
        return {VERDICTS: np.zeros(octets // 4, np.uint32)} if octets else {}

    def sent(self, kind: int) -> dict[int, int]:
        """Return the octets that each GPU writes (or copies, by ``kind``)."""
        found = {}
        for schedule in self.schedules:
            table = OperationTable.of(schedule.operations)
            octets = table.columns["near_octets"][table.where(kind)]
            found[schedule.rank] = int(octets.sum(dtype=np.int64))
        return found

    def busy_ns(self) -> dict[int, int]:
        """Return how long each GPU computes."""
        return {gpu: busy for step in self.steps for gpu, busy in step.computing.busy_ns.items()}

    def roofline_ns(self) -> float:
        """Return the largest sum of a GPU's computing and of its octets at its NIC's rate.

        JCT's roofline of the BMWG draft on AI training fabrics: nothing overlaps, nothing waits.
        """
        busy, gpus = self.busy_ns(), self.topology.gpus
        return max(
            busy.get(gpu, 0) + octets * 8e9 / nic_rate_bps(self.topology, gpus[gpu].name)
            for gpu, octets in self.sent(WRITE).items()
        )

    def trial(
        self,
        name: str,
        facts: Mapping[str, object],
        *,
        row: str,
        earlier: dict[str, float],
        warmups: int,
        iterations: int,
    ) -> StepTrial:
        """Return the trial; ``facts`` go into its row beside those of the traffic.

        ``row`` and ``earlier`` are those of :class:`StepTrial`.
        """
        schedules = self.schedules
        octets = sum(self.sent(WRITE).values()), sum(self.sent(COPY).values())
        return StepTrial(
            run=self,
            row=row,
            earlier=earlier,
            collective=name,
            size_bytes=sum(octets),
            compile=lambda: schedules,
            inputs=self.inputs,
            expected=self.expected,
            memory_bytes=max(sum(one.buffers.values()) for one in schedules),
            warmups=warmups,
            iterations=iterations,
            fresh=True,
            facts={
                "scale": self.scale.divisor,
                "exchanges": self.scale.exchanges,
                "raised": self.scale.raised,
                "compute_us": max(self.busy_ns().values()) / 1000,
                "roofline_us": self.roofline_ns() / 1000,
                "fabric_bytes_derived": octets[0],
                "nvlink_bytes": octets[1],
                "results": sum(sum(step.computing.verdicts.values()) for step in self.steps),
                **facts,
            },
        )

    def times(self, outcome: Outcome) -> StepTimes:
        """Return where the time of the last iteration went."""
        return step_times(
            self.schedules,
            outcome.iterations[-1],
            self.program.labels,
            {gpu: one for step in self.steps for gpu, one in step.computing.stream.items()},
            (PP, NORM),
        )


@dataclass(frozen=True, kw_only=True)
class StepTrial(Trial):
    """A row of the table, with the jobs that it is made of.

    Rows that are compared share ``earlier``: times by the ``row`` that measured them.
    """

    run: StepRun
    row: str
    earlier: dict[str, float]


def measured(run: StepRun, outcome: Outcome, gpus: Iterable[int]) -> dict[str, object]:
    """Return a row's values for the time of ``gpus``, and for what crossed the NICs.

    ``fabric_bytes`` are octets of payload that arrived over the fabric in an iteration, from the
    counters of all endpoints.
    """
    row: dict[str, object] = {
        "fabric_bytes": outcome.received_bytes,
        "jct_ratio": outcome.mean_ns / run.roofline_ns(),
    }
    if outcome.iterations:
        spent = run.times(outcome).mean_shares(list(gpus))
        for key, kinds in SHARES.items():
            row[f"{key}_share"] = sum(spent.get(kind, 0.0) for kind in kinds)
        row["exposed"] = 1 - spent.get(COMPUTE, 0.0) - spent.get(BUBBLE, 0.0)
    return row
