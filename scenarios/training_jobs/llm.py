"""Llm: a training step of a transformer, divided by tensor, pipeline, data and other parallelism.

::

                 replica 0                            replica 1
    stage 0   [ TP x4 ] layers 1-2                 [ TP x4 ] layers 1-2
                  | outputs, gradients  <--- DP --->   |
    stage 1   [ TP x4 ] layers 3-4                 [ TP x4 ] layers 3-4
                  |                     <--- DP --->   |
    stage 2   [ TP x4 ] layers 5-6, head           [ TP x4 ] layers 5-6, head

Model: Llama 3 (``8b``, ``70b``, ``405b``), Mixtral 8x7B (``8x7b``), Grok-1 (``grok-1``: 2 of 8
experts), Qwen3-235B-A22B (``qwen3-235b``: 8 of 128) or DeepSeek-V3 (``deepseek-v3``: 8 of 256, a
shared one, the first three layers dense, latent attention, ``tp=1``), with ``layers``, ``hidden``
and ``heads`` as the user has them.  Ranks are in Megatron's order tp-cp-ep-dp-pp, on the GPUs in
the order of the fabric.

Traffic: what the step really exchanges (``scenarios/workloads/transformer``).  Each layer has its
ReduceScatters and AllGathers of ``tp`` (AllReduces with ``sp=off``), AllGathers and ReduceScatters
of keys and values of ``cp``, and AlltoAlls of ``ep``.  Stages send outputs forward and gradients
backward, in the order of 1F1B or GPipe.  Replicas add their gradients in buckets beside backward;
``zero=1`` to ``3`` divides optimiser, gradients and weights.  ``gradient_bytes=2`` and ``1`` are
gradients of bfloat16 and fp8.  With ``top=0.01`` each replica sends the largest hundredth to all
others, with 4 octets of index each (top-k).  At the end all GPUs exchange the norm
of the gradients.  Tensors have synthetic contents.  Each result is compared, element by element,
by the computation that needs it; ``#wrong`` counts results with a wrong element.

Computing takes its FLOPs at ``tflops`` x ``efficiency``; the optimiser and sums take none.
``scale`` divides octets and computing times alike; no message becomes shorter than 4096 octets by
that (``raised`` counts exchanges that it stops).  Delays of links are not divided: they weigh
``scale`` times as much as in a job of full size.

Measured: JCT, the time of the step; its ideal, a lower bound; and

- roofline: the busiest GPU's computing plus its octets at its NIC's rate (BMWG draft on AI training
  fabrics);
- compute, TP, CP, EP, DP, PP, bubble: the share of the time that a GPU computes, waits for an
  exchange, or is idle in the pipeline.  DP has the norm and new replicas as well;
- exposed: the share of all exchanges together.

``dp=1,2,4`` has a row for each number of replicas, with the same batch: strong scaling, drawn with
``show=scaling`` beside the ideal.  With ``elastic=on`` the rows are steps of one job whose replicas
come and go: one that comes gets weights and optimiser states first.

What should be seen: with all of ``tp`` inside a host only PP and DP cross the fabric.  The bubble
is (p-1)/(v m + p-1) and more, since stages with the embedding or the head take longer than others.
``interleave=2`` makes it smaller where each chunk has several layers.
``overlap=off`` exposes more of DP.  With a large ``scale`` the delays of NVLink make TP dear.  More
replicas have fewer micro-batches each, and so a larger bubble: scaling is below the ideal.

Here, over UET: 969 us, 94.7 % of the ideal.  GPUs compute for 42.8 % of it.  They wait for TP
for 13.8 %, for DP for 3.3 and for PP for 1.1.  The bubble is 39.0 %, and 33.3 by the formula.
With ``overlap=off`` it takes 1006 us, and 6.9 % are waits for DP.
With ``tp=2``, ``scale=1024`` and ``dp=1,2,4``, 24 GPUs are 2.49 times as fast as 6.
``show=scaling`` computes as well what a textbook states of 175B parameters and 3.14E23 FLOPs: 165
years on one GPU, and 16 days on 1,024.  The first needs 60 TFLOPS, which
would be 59 days on 1,024 GPUs at best; the second needs 222 TFLOPS of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from emulator.result_rows import TableColumn
from emulator.scenario import Outcome, Trial, parameter, refuse_idle
from scenarios.workloads.transformer import step_trial
from scenarios.workloads.transformer.shape import ParallelLayout, Place
from scenarios.workloads.transformer.step_trial import (
    StepJob,
    StepParameters,
    StepRun,
    StepTrial,
    measured,
)
from scenarios.workloads.transformer.training_step import handovers
from topologies.model import Topology
from topologies.parts.design_parameters import COUNT

COLUMNS = (
    TableColumn("model", "model", "", 5),
    TableColumn("layers", "layers", "", 6, rank=5),
    TableColumn("gpus", "GPUs", "", 5),
    TableColumn("parallel", "TPxCPxDPxPP", "", 12),
    TableColumn("micro_batches", "micro-", "batches", 7, rank=4),
    TableColumn("scale", "scale", "1/", 6, rank=8),
    TableColumn("time_us", "JCT", "(us)", 9),
    TableColumn("roofline_us", "roofline", "(us)", 9, rank=6),
    TableColumn("ideal_us", "ideal", "(us)", 9, rank=7),
    TableColumn("efficiency", "of ideal", "(%)", 8, 1, percent=True),
    TableColumn("compute_share", "compute", "(%)", 7, 1, percent=True),
    TableColumn("tp_share", "TP", "(%)", 5, 1, percent=True),
    TableColumn("cp_share", "CP", "(%)", 5, 1, percent=True, rank=3),
    TableColumn("ep_share", "EP", "(%)", 5, 1, percent=True, rank=2),
    TableColumn("dp_share", "DP", "(%)", 5, 1, percent=True),
    TableColumn("pp_share", "PP", "(%)", 5, 1, percent=True),
    TableColumn("bubble_share", "bubble", "(%)", 6, 1, percent=True),
    TableColumn(
        "exposed",
        "exposed",
        "(%)",
        7,
        1,
        percent=True,
        words="communication was exposed for {} % of the time",
    ),
    TableColumn("fabric_bytes", "NIC data", "(MB)", 8, divisor=1e6, rank=1),
    TableColumn("retransmitted_packets", "resent", "", 6),
    TableColumn("wrong", "#wrong", "results", 7),
)
#: GPUs of a host, and those of one for more tensor-parallel ranks than that.
HOST_GPUS, LARGE_HOST_GPUS = 4, 8


@dataclass(frozen=True, kw_only=True)
class Parameters(StepParameters):
    dp: tuple[int, ...] = parameter((2,), COUNT, many=True, help="replicas; a row for each")
    elastic: str = parameter(
        "off", choices=("off", "on"), help="on: rows are steps of one job, replicas come and go"
    )
    show: str = parameter("table", choices=("table", "scaling"), help="scaling: drawn below")

    def __post_init__(self) -> None:
        self.check(self.dp)
        if len(self.dp) == 1:
            refuse_idle(self, ("elastic",), "beside one row of dp")


def topology(parameters: Parameters) -> str:
    """Return hosts of four GPUs for the largest row, or of eight for more tensor-parallel ranks."""
    gpus = max(parameters.layout(dp).ranks for dp in parameters.dp)
    each = HOST_GPUS if parameters.tp <= HOST_GPUS else LARGE_HOST_GPUS
    return f"rail_clos:hosts={max(2, -(-gpus // each))},gpus_per_host={each}"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    earlier: dict[str, float] = {}
    found: list[Trial] = []
    for number, dp in enumerate(parameters.dp):
        step = parameters.step(dp)
        job = StepJob(step=step, gpus=tuple(_gpus(parameters, step.layout)))
        if parameters.elastic == "on" and number:
            widest = _widest(parameters)
            moved = handovers(parameters.step(parameters.dp[number - 1]), step, widest)
            job = StepJob(step=step, gpus=job.gpus, handovers=tuple(moved))
        run = StepRun(topology, [job], parameters.new_scale(), parameters.choices)
        trial = run.trial(
            "llm",
            {
                "model": parameters.model,
                "layers": step.model.layers,
                "gpus": step.layout.ranks,
                "parallel": f"{step.layout.tp}x{step.layout.cp}x{dp}x{step.layout.pp}",
                "ep": step.layout.ep,
                "zero": step.zero,
                "micro_batches": step.micro_batches,
                "bubble_formula": step.bubble,
                "gpu_flops": float(step.gpu_flops),
                "weights": step.model.weights,
            },
            row=str(number),
            earlier=earlier,
            warmups=parameters.warmups,
            iterations=parameters.iterations,
        )
        found.append(trial)
    return found


def _widest(parameters: Parameters) -> ParallelLayout:
    return parameters.layout(max(parameters.dp))


def _gpus(parameters: Parameters, layout: ParallelLayout) -> Iterator[int]:
    """Yield the GPU of each rank; those of an elastic job stay where they are."""
    widest = _widest(parameters) if parameters.elastic == "on" else layout
    for rank in range(layout.ranks):
        place = layout.place(rank)
        yield widest.rank(Place(tp=place.tp, cp=place.cp, dp=place.dp, pp=place.pp))


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return where the time went, and what more GPUs were good for."""
    assert isinstance(trial, StepTrial)
    run = trial.run
    (job,) = run.jobs
    row = measured(run, outcome, trial.times(outcome), job.gpus)
    time_us = trial.earlier[trial.row] = outcome.mean_ns / 1000
    gpus = [parameters.layout(dp).ranks for dp in parameters.dp]
    whole_s = outcome.mean_ns * parameters.scale / 1e9
    row["mfu"] = float(job.step.gpu_flops) / (whole_s * parameters.tflops * 1e12)
    row["speedup"] = trial.earlier["0"] / time_us
    row["speedup_ideal"] = gpus[int(trial.row)] / gpus[0]
    if int(trial.row) == len(gpus) - 1 and parameters.show == "scaling":
        times = [trial.earlier[str(number)] for number in range(len(gpus))]
        row["steps"] = list(_scaling(parameters, list(zip(gpus, times, strict=True))))
    return row


def _scaling(parameters: Parameters, rows: Sequence[tuple[int, float]]) -> Iterator[str]:
    yield f"Strong scaling: {parameters.batch} sequences a step, {parameters.model}"
    yield from step_trial.drawn(rows)
    yield from step_trial.example(parameters.tflops * parameters.efficiency / 1000)
