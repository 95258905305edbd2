"""Trials of training steps: one job, or several beside each other, on one fabric.

Where the time of a step goes at each GPU: computing, and what it waits for.

The times of messages are measured, those of computing are known.  A computation starts when the
last of what it needs is there: its wait counts as that of the exchange which that was part of.
It may be a message of another stage, or the norm that all wait for.  Then the time before its
sender began to send it is the pipeline's bubble.  So is what is left after a GPU's last operation.

Strong scaling: how much faster the same work is done by more GPUs, drawn beside the ideal.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import cast, overload

import numpy as np

from emulator.errors import UserError
from emulator.run.measures.gpu_execution import GpuExecution
from emulator.scenario import Contents, Outcome, Trial, parameter, refuse_idle
from emulator.sim.endpoint.operations.operation_table import (
    APPLY,
    RECEIVE,
    OperationTable,
)
from emulator.sim.endpoint.operations.schedule import (
    Schedule,
    only_operations_of,
)
from scenarios.collectives.collective_parameters import SHARE
from scenarios.collectives.size_sweep import WARMUPS
from scenarios.workloads.network.training_trial import DECIMAL
from scenarios.workloads.transformer.dependent_program import DependentProgram
from scenarios.workloads.transformer.shape import (
    CP,
    DP,
    EP,
    EXPERT_DP,
    ORDERS,
    SHAPES,
    TP,
    ParallelLayout,
    StepShape,
    TransformerShape,
)
from scenarios.workloads.transformer.streams import (
    VERDICTS,
    ComputeStream,
    StepScale,
)
from scenarios.workloads.transformer.training_step import (
    NORM,
    PP,
    STATE,
    Handover,
    StepChoices,
    TrainingStep,
)
from topologies.model import Topology
from topologies.parts.attachment import nic_rate_bps
from topologies.parts.design_parameters import COUNT, NUMBER, SIZE

COMPUTE, BUBBLE = "compute", "bubble"


@dataclass(frozen=True)
class Cause:
    """The last wait of an operation: a message for ``label``, sent at ``start_ns``."""

    label: str
    start_ns: int


@dataclass(frozen=True)
class StepTimes:
    """Times of one iteration (ns): ``shares`` by GPU and by what they were spent on, and ends."""

    shares: Mapping[int, Mapping[str, float]]
    ends_ns: Mapping[int, float]

    def end_ns(self, gpus: Iterable[int]) -> float:
        return max(self.ends_ns[gpu] for gpu in gpus)

    def mean_shares(self, gpus: Sequence[int]) -> dict[str, float]:
        """Return the shares (0..1) of the time of ``gpus``, their mean; idle ends are bubble."""
        whole = self.end_ns(gpus)
        total: dict[str, float] = {}
        for gpu in gpus:
            for what, spent in self.shares[gpu].items():
                total[what] = total.get(what, 0.0) + spent
            idle = whole - self.ends_ns[gpu]
            total[BUBBLE] = total.get(BUBBLE, 0.0) + idle
        return {what: spent / whole / len(gpus) for what, spent in total.items()}


@dataclass(frozen=True)
class GpuOperations:
    """The meaning of a GPU's operations: of receives by index, and which ones compute."""

    labels: Mapping[int, str]
    stream: frozenset[int]


def gpu_times(
    gpu: GpuExecution, what: GpuOperations, waited_for: Collection[str]
) -> tuple[dict[str, float], float]:
    """Return what a GPU's time in an iteration was spent on (ns), and when it was done.

    Messages of ``waited_for`` may come late because their sender had not begun.
    """
    table = OperationTable.of(gpu.schedule.operations)
    sent = (gpu.sent_ns - gpu.origin_ns).tolist()
    received = (gpu.result.operation_end - gpu.origin_ns).tolist()
    labels, stream = what.labels, what.stream
    kinds = table.columns["kind"].tolist()
    numbers = table.columns["number"].tolist()
    begin, after = table.begin.tolist(), table.after.tolist()
    ends = np.zeros(len(kinds)).tolist()
    causes: list[Cause | None] = [None] * len(kinds)
    spent: dict[str, float] = {}
    free = 0.0
    latest: Cause | None = None
    last = 0.0
    for at, kind in enumerate(kinds):
        if kind == RECEIVE:
            ends[at] = received[at]
            causes[at] = Cause(labels[at], sent[at])
        else:
            for one in after[begin[at] : begin[at + 1]]:
                if ends[one] > ends[at]:
                    ends[at], causes[at] = ends[one], causes[one]
        if at in stream:
            _wait(spent, free, ends[at], causes[at], waited_for)
            spent[COMPUTE] = spent.get(COMPUTE, 0.0) + numbers[at]
        if kind == APPLY:
            ends[at] += numbers[at]
        if at in stream:
            free = ends[at]
            causes[at] = None
        if ends[at] > last:
            last, latest = ends[at], causes[at]
    if latest is not None:
        _wait(spent, free, last, latest, waited_for)
    return spent, max(last, free)


def _wait(
    spent: dict[str, float],
    free: float,
    until: float,
    cause: Cause | None,
    waited_for: Collection[str],
) -> None:
    """Count the time from ``free`` to ``until``, in which a GPU did not compute."""
    if until <= free:
        return
    if cause is None:
        spent[BUBBLE] = spent.get(BUBBLE, 0.0) + until - free
        return
    begun = min(until, max(free, cause.start_ns)) if cause.label in waited_for else free
    spent[BUBBLE] = spent.get(BUBBLE, 0.0) + begun - free
    spent[cause.label] = spent.get(cause.label, 0.0) + until - begun


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


LARGE_COUNT = replace(COUNT, maximum=2**20)
_WIDTH = replace(NUMBER, maximum=2**20)
_ZERO = replace(NUMBER, maximum=3)
_SWITCH = ("on", "off")
#: Layers of all GPUs and micro-batches, and slices of messages, beyond which a run takes hours.
MAX_PARTS, MAX_SLICES = 10_000, 500_000


@dataclass(frozen=True, kw_only=True)
class StepParameters:
    """The parameters of a step of one job; ``Parameters`` of a scenario adds its own."""

    model: str = parameter("8b", choices=tuple(SHAPES), help="sizes of the model")
    layers: int = parameter(6, NUMBER, help="layers of the model; 0: all that it has")
    hidden: int = parameter(0, _WIDTH, help="hidden size; 0: that of the model")
    heads: int = parameter(0, NUMBER, help="attention heads; 0: as many as the model has")
    sequence: int = parameter(8192, LARGE_COUNT, help="tokens of a sequence")
    micro_batch: int = parameter(1, COUNT, help="sequences of a micro-batch")
    batch: int = parameter(8, LARGE_COUNT, help="sequences of a step, over all replicas")
    tp: int = parameter(4, COUNT, help="ways of tensor parallelism")
    pp: int = parameter(3, COUNT, help="pipeline stages")
    interleave: int = parameter(1, COUNT, help="chunks of layers of a stage (interleaved 1F1B)")
    ep: int = parameter(1, COUNT, help="ways of expert parallelism, over cp x dp")
    cp: int = parameter(1, COUNT, help="ways of context parallelism")
    sp: str = parameter("on", choices=_SWITCH, help="sequence parallelism, with the ways of tp")
    zero: int = parameter(0, _ZERO, help="ZeRO stage: 0 to 3; 3 is FSDP")
    order: str = parameter("1f1b", choices=ORDERS, help="order of micro-batches in a stage")
    overlap: str = parameter("on", choices=_SWITCH, help="gradients and weights beside computing")
    bucket: int = parameter(25 * 2**20, SIZE, help="gradients exchanged at once, unscaled")
    gradient_bytes: str = parameter(
        "4", choices=("4", "2", "1"), help="octets of a gradient: float32, bfloat16, fp8"
    )
    top: int = parameter(
        0,
        replace(DECIMAL, minimum=0, maximum=10**6),
        help="share of its gradients that a replica sends, with indices (top-k); 0: all are added",
    )
    tflops: int = parameter(989, COUNT, help="TFLOPS that a GPU has at its peak (H100: 989)")
    efficiency: int = parameter(400, SHARE, help="share of the peak that computing reaches")
    scale: int = parameter(256, LARGE_COUNT, help="what octets and computing times are divided by")
    warmups: int = parameter(0, WARMUPS, help="iterations before those that count")
    iterations: int = parameter(1, COUNT, help="iterations that count, for each row")

    @property
    def shape(self) -> TransformerShape:
        """Return the model with the sizes that the user has changed."""
        known = SHAPES[self.model]
        changed = {
            name: value
            for name in ("layers", "hidden", "heads")
            if (value := getattr(self, name)) != 0
        }
        shape = dataclasses.replace(known, **changed)
        if (
            not (shape.stated_head_size or shape.latent_attention) and shape.hidden % shape.heads
        ) or shape.heads % shape.key_value_heads:
            raise UserError(
                f"hidden={shape.hidden} and heads={shape.heads} do not fit: heads divide the "
                f"hidden size, and the model's {shape.key_value_heads} key-value heads divide them"
            )
        return shape

    def layout(self, dp: int) -> ParallelLayout:
        """Return the groups of the job with ``dp`` replicas."""
        return ParallelLayout(tp=self.tp, cp=self.cp, ep=self.ep, dp=dp, pp=self.pp)

    def check(self, replicas: Sequence[int]) -> None:
        """Raise UserError for what is no step with any of ``replicas``, or has no effect on one."""
        for dp in replicas:
            self.step(dp)
        self.new_scale()
        if self.pp == 1:
            refuse_idle(self, ("order",), "beside pp=1")
        if self.tp == 1:
            refuse_idle(self, ("sp",), "beside tp=1")
        if self.zero == 3:
            refuse_idle(self, ("bucket",), "beside zero=3")
        if self.cp == max(replicas) == 1:
            without = ("zero", "overlap", "bucket", "gradient_bytes", "top")
            refuse_idle(self, without, "beside dp=1 and cp=1")

    def step(self, dp: int) -> StepShape:
        """Return the step with ``dp`` replicas.  Raises UserError for what cannot be divided."""
        micro_batches, rest = divmod(self.batch, dp * self.micro_batch)
        if rest or not micro_batches:
            raise UserError(
                f"batch={self.batch} sequences cannot be divided over {dp} replicas in "
                f"micro-batches of {self.micro_batch}; take a multiple of {dp * self.micro_batch}"
            )
        step = StepShape(
            model=self.shape,
            layout=self.layout(dp),
            sequence=self.sequence,
            micro_batch=self.micro_batch,
            micro_batches=micro_batches,
            interleave=self.interleave,
            sequence_parallel=self.sp == "on" and self.tp > 1,
            zero=self.zero,
            gradient_bytes=int(self.gradient_bytes),
            gradient_share=Fraction(self.top, 10**6),
        )
        if self.order == "gpipe" and self.interleave > 1:
            raise UserError("order=gpipe has one chunk a stage; take interleave=1, or order=1f1b")
        parts = step.layout.ranks * micro_batches * step.model.layers // self.pp
        if parts > MAX_PARTS:
            raise UserError(
                f"{step.layout.ranks} GPUs with {micro_batches} micro-batches of "
                f"{step.model.layers} layers have {parts} layers to compute, more than "
                f"{MAX_PARTS}; take fewer layers, or a smaller batch"
            )
        whole = step.layout.ranks * step.sent_bytes
        slices = int(whole / self.scale / self.choices.slice_bytes)
        if slices > MAX_SLICES:
            enough = math.ceil(whole / self.choices.slice_bytes / MAX_SLICES)
            raise UserError(
                f"the GPUs send {float(whole):.3g} octets in a step, which are {slices} slices at "
                f"scale={self.scale}, more than {MAX_SLICES}; take scale={enough} or more"
            )
        return step

    def new_scale(self) -> StepScale:
        """Return what divides sizes and times."""
        if not self.efficiency:
            raise UserError("efficiency=0 never ends; take a share such as 0.4")
        return StepScale(self.scale, self.tflops * self.efficiency)

    @property
    def choices(self) -> StepChoices:
        """Return how a framework runs the step."""
        return StepChoices(order=self.order, overlap=self.overlap == "on", bucket_bytes=self.bucket)


DAY_S, YEAR_S = 86_400, 365.25 * 86_400
#: FLOPs of the training of GPT-3 with 175B parameters (Brown et al., arXiv 2005.14165, table D.1).
GPT3_FLOPS = 3.14e23
#: A textbook states for it: years on one GPU, and days on so many.
STATED_YEARS, STATED_GPUS, STATED_DAYS = 165, 1024, 16
_COLUMN_WIDTH = 40


def seconds(flops: float, gpus: int, tflops: float) -> float:
    """Return how long ``gpus`` compute ``flops`` if they scale ideally."""
    return flops / (gpus * tflops * 1e12)


def needed_tflops(flops: float, gpus: int, within_s: float) -> float:
    return flops / (gpus * within_s * 1e12)


def drawn(rows: Sequence[tuple[int, float]]) -> Iterator[str]:
    """Yield the drawing of ``rows``: GPUs and the time of a step (us), the first the baseline."""
    gpus, time_us = rows[0]
    most = max(count for count, _ in rows) / gpus
    yield "GPUs  step (us)  speed-up   ideal   # as measured, . what is missing to ideal"
    for count, took_us in rows:
        speed, ideal = time_us / took_us, count / gpus
        filled, whole = (round(_COLUMN_WIDTH * part / most) for part in (min(speed, ideal), ideal))
        bar = "#" * filled + "." * (whole - filled)
        yield f"{count:>4} {took_us:>10.2f} {speed:>9.2f} {ideal:>7.2f}   {bar}"


def example(tflops: float) -> Iterator[str]:
    """Yield the textbook's example: the rates that its two times need, beside ``tflops``."""
    one = needed_tflops(GPT3_FLOPS, 1, STATED_YEARS * YEAR_S)
    many = needed_tflops(GPT3_FLOPS, STATED_GPUS, STATED_DAYS * DAY_S)
    yield f"a training of 175B parameters, {GPT3_FLOPS:.3G} FLOPs, with ideal scaling:"
    for rate, what in (
        (one, f"the rate of {STATED_YEARS} years on one GPU"),
        (many, f"the rate of {STATED_DAYS} days on {STATED_GPUS} GPUs"),
        (tflops, "the rate of this run"),
    ):
        alone = seconds(GPT3_FLOPS, 1, rate) / YEAR_S
        joint = seconds(GPT3_FLOPS, STATED_GPUS, rate) / DAY_S
        yield (
            f"{rate:7.1f} TFLOPS a GPU: {alone:6.1f} years on 1, {joint:5.1f} days on "
            f"{STATED_GPUS:,} GPUs ({what})"
        )
