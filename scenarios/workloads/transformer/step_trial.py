"""Trials of training steps: one job, or several beside each other, on one fabric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast, overload

import numpy as np

from emulator.errors import UserError
from emulator.run.measures.gpu_execution import GpuExecution
from emulator.scenario import Contents, Outcome, Trial
from emulator.sim.endpoint.operations.schedule import (
    Schedule,
    only_operations_of,
)
from scenarios.workloads.transformer.parallel_layout import CP, DP, EP, EXPERT_DP, TP
from scenarios.workloads.transformer.step_operations.compute_stream import (
    VERDICTS,
    ComputeStream,
)
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
from scenarios.workloads.transformer.step_times import (
    BUBBLE,
    COMPUTE,
    GpuOperations,
    StepTimes,
    gpu_times,
)
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


@dataclass(frozen=True)
class StepSchedules(Sequence[Schedule]):
    """The schedules of all GPUs, with what their receives are for and what they compute.

    ``labels`` are by rank and index of the receive.  ``streams`` are by rank the operations that
    compute.
    """

    schedules: Sequence[Schedule]
    labels: Sequence[Mapping[int, str]]
    streams: Mapping[int, Sequence[int]]

    def __len__(self) -> int:
        return len(self.schedules)

    @overload
    def __getitem__(self, which: int) -> Schedule: ...

    @overload
    def __getitem__(self, which: slice) -> Sequence[Schedule]: ...

    def __getitem__(self, which: int | slice) -> Schedule | Sequence[Schedule]:
        return self.schedules[which]


@dataclass(frozen=True, kw_only=True)
class StepSizes:
    """Sizes of a run, which are counted without keeping its operations.

    Octets go over the fabric (``written``) and inside hosts (``copied``), by source and
    destination.  Each GPU computes for ``busy_ns`` and compares ``results``.
    """

    written: Mapping[tuple[int, int], int]
    copied: Mapping[tuple[int, int], int]
    busy_ns: Mapping[int, int]
    results: Mapping[int, int]
    memory_bytes: int
    exchanges: int
    raised: int


@dataclass
class StepRun:
    """Jobs that run at the same time on ``topology``.

    It keeps no operations: a compile writes them anew.  ``compiled`` is what those of the latest
    compile are for, at GPUs that were compiled and compute.
    """

    topology: Topology
    jobs: Sequence[StepJob]
    scale: StepScale
    choices: StepChoices
    compiled: Mapping[int, GpuOperations] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        there = len(self.topology.gpus)
        needed = max(max(job.touched) for job in self.jobs) + 1
        if needed > there:
            raise UserError(
                f"the step needs {needed} GPUs and topology {self.topology.name} has {there}; "
                "add hosts, or leave --topology out"
            )

    def _written(self, scale: StepScale) -> tuple[DependentProgram, list[ComputeStream]]:
        """Write the operations; ``scale`` counts the exchanges of all."""
        program, computing = DependentProgram.on(self.topology), []
        for job in self.jobs:
            step = TrainingStep(program, self.topology, job.step, job.gpus, scale, self.choices)
            with program.named(job.name) if job.name else nullcontext():
                step.write(job.handovers)
            computing.append(step.computing)
        return program, computing

    def compile(self) -> StepSchedules:
        """Return the schedules of all GPUs; those that are not compiled have buffers alone."""
        program, computing = self._written(replace(self.scale))
        streams = {gpu: stream for one in computing for gpu, stream in one.stream.items()}
        self.compiled = {
            gpu: GpuOperations(program.labels[gpu], frozenset(stream))
            for gpu, stream in streams.items()
        }
        return StepSchedules(program.schedules(), program.labels, streams)

    def observe(self, gpu: GpuExecution) -> tuple[dict[str, float], float] | None:
        """Return where a GPU's time went, and when it was done; None if it does not compute."""
        what = self.compiled.get(gpu.result.rank)
        return None if what is None else gpu_times(gpu, what, (PP, NORM))

    @cached_property
    def sizes(self) -> StepSizes:
        """Return what all GPUs have together, from a walk that keeps no operation."""
        scale = replace(self.scale)
        with only_operations_of(()):
            program, computing = self._written(scale)
        inside = {pair for pair in program.sent if program.joins(*pair)}
        return StepSizes(
            written={pair: sent for pair, sent in program.sent.items() if pair not in inside},
            copied={pair: sent for pair, sent in program.sent.items() if pair in inside},
            busy_ns={gpu: busy for one in computing for gpu, busy in one.busy_ns.items()},
            results={gpu: count for one in computing for gpu, count in one.verdicts.items()},
            memory_bytes=max(sum(program.buffers(gpu).values()) for gpu in range(program.ranks)),
            exchanges=scale.exchanges,
            raised=scale.raised,
        )

    def inputs(self, rank: int) -> Contents:
        """Return what the buffers of ``rank`` hold at the start: nothing is needed."""
        return {}

    def expected(self, rank: int) -> Contents:
        """Return what ``rank`` holds at the end: for each result no wrong element."""
        results = self.sizes.results.get(rank, 0)
        return {VERDICTS: np.zeros(results, np.uint32)} if results else {}

    @cached_property
    def roofline_ns(self) -> float:
        """Return the largest sum of a GPU's computing and of its octets at its NIC's rate.

        JCT's roofline of the BMWG draft on AI training fabrics: nothing overlaps, nothing waits.
        """
        busy, gpus = self.sizes.busy_ns, self.topology.gpus
        octets = dict.fromkeys(range(len(gpus)), 0)
        for (source, _), sent in self.sizes.written.items():
            octets[source] += sent
        return max(
            busy.get(gpu, 0) + sent * 8e9 / nic_rate_bps(self.topology, gpus[gpu].name)
            for gpu, sent in octets.items()
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
        sizes = self.sizes
        octets = sum(sizes.written.values()), sum(sizes.copied.values())
        return StepTrial(
            run=self,
            row=row,
            earlier=earlier,
            collective=name,
            size_bytes=sum(octets),
            compile=self.compile,
            inputs=self.inputs,
            expected=self.expected,
            memory_bytes=sizes.memory_bytes,
            warmups=warmups,
            iterations=iterations,
            fresh=True,
            observe=self.observe,
            facts={
                "scale": self.scale.divisor,
                "exchanges": sizes.exchanges,
                "raised": sizes.raised,
                "compute_us": max(sizes.busy_ns.values()) / 1000,
                "roofline_us": self.roofline_ns / 1000,
                "fabric_bytes_derived": octets[0],
                "nvlink_bytes": octets[1],
                "results": sum(sizes.results.values()),
                **facts,
            },
        )


@dataclass(frozen=True, kw_only=True)
class StepTrial(Trial):
    """A row of the table, with the jobs that it is made of.

    Rows that are compared share ``earlier``: times by the ``row`` that measured them.
    """

    run: StepRun
    row: str
    earlier: dict[str, float]

    def times(self, outcome: Outcome) -> StepTimes | None:
        """Return where the time of the last iteration went, if there was one."""
        if not outcome.observed:
            return None
        observed = cast(
            Mapping[int, tuple[Mapping[str, float], float] | None], outcome.observed[-1]
        )
        computing = {gpu: one for gpu, one in observed.items() if one is not None}
        return StepTimes(
            {gpu: shares for gpu, (shares, _) in computing.items()},
            {gpu: end for gpu, (_, end) in computing.items()},
        )


def measured(
    run: StepRun, outcome: Outcome, times: StepTimes | None, gpus: Iterable[int]
) -> dict[str, object]:
    """Return a row's values for the ``times`` of ``gpus``, and for what crossed the NICs.

    ``fabric_bytes`` are octets of payload that arrived over the fabric in an iteration, from the
    counters of all endpoints.
    """
    row: dict[str, object] = {
        "fabric_bytes": outcome.received_bytes,
        "jct_ratio": outcome.mean_ns / run.roofline_ns,
    }
    if times is not None:
        spent = times.mean_shares(list(gpus))
        for key, kinds in SHARES.items():
            row[f"{key}_share"] = sum(spent.get(kind, 0.0) for kind in kinds)
        row["exposed"] = 1 - spent.get(COMPUTE, 0.0) - spent.get(BUBBLE, 0.0)
    return row
