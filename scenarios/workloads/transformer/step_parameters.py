"""Parameters of a training step, which its scenarios share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from emulator.errors import UserError
from emulator.scenario import parameter, refuse_idle
from scenarios.collectives.collective_parameters import SHARE
from scenarios.collectives.size_sweep import WARMUPS
from scenarios.workloads.transformer.parallel_layout import ParallelLayout
from scenarios.workloads.transformer.pipeline_order import ORDERS
from scenarios.workloads.transformer.step_operations.training_step import StepChoices
from scenarios.workloads.transformer.step_scale import StepScale
from scenarios.workloads.transformer.step_shape import StepShape
from scenarios.workloads.transformer_shapes import SHAPES, TransformerShape
from topologies.parts.design_parameters import COUNT, NUMBER, SIZE

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
    gradient_bytes: str = parameter("4", choices=("4", "2"), help="octets of a gradient")
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
        if shape.hidden % shape.heads or shape.heads % shape.key_value_heads:
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
            without = ("zero", "overlap", "bucket", "gradient_bytes")
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
