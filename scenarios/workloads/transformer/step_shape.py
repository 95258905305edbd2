"""The computing and the traffic of a training step, in FLOPs and octets, by closed formulas.

FLOPs are 2 for each weight and token forward, and twice that backward (Kaplan et al., arXiv
2001.08361, section 2.1).  Causal attention adds 2 s^2 h for each sequence of s tokens, each layer
of hidden size h, forward: half of what full attention computes.  The lookup of the embedding counts
like the product of the output head.  The rule of 6 FLOPs for each weight and token has it so.

Octets are those that a GPU sends.  AllGather and ReduceScatter over n ranks send (n-1)/n of the
size, AllReduce twice that (Thakur et al., 2005).  Tensor parallelism has four AllReduces of the
activations in each layer (Shoeybi et al., arXiv 1909.08053).  With sequence parallelism these are
as many pairs of ReduceScatter and AllGather (Korthikanti et al., arXiv 2205.05198).  ZeRO stages:
Rajbhandari et al., SC'20.  Context parallelism gathers keys and values (Grattafiori et al., arXiv
2407.21783, section 3.3.2).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from emulator.errors import UserError
from scenarios.workloads.transformer.parallel_layout import ParallelLayout
from scenarios.workloads.transformer.pipeline_order import bubble, stage_layers
from scenarios.workloads.transformer_shapes import TransformerShape

#: Octets of activations and of weights, in 16 bits.
ELEMENT_BYTES = WEIGHT_BYTES = 2
#: Octets of a weight's state that a new replica needs: Adam in mixed precision (SC'20, 3.1).
STATE_BYTES = 14
#: FLOPs backward for each one forward.
BACKWARD = 2


@dataclass(frozen=True, kw_only=True)
class StepShape:
    """A training step of ``model`` on the GPUs of ``layout``.

    ``micro_batch`` is sequences of ``sequence`` tokens, and a replica has ``micro_batches`` of
    them.  ``interleave`` is the chunks of layers that a stage has.  ``zero`` is the ZeRO stage.
    Raises UserError for what cannot be divided.
    """

    model: TransformerShape
    layout: ParallelLayout = field(default_factory=ParallelLayout)
    sequence: int = 8192
    micro_batch: int = 1
    micro_batches: int = 1
    interleave: int = 1
    sequence_parallel: bool = False
    zero: int = 0
    gradient_bytes: int = 4

    def __post_init__(self) -> None:
        model, layout = self.model, self.layout
        chunks = layout.pp * self.interleave
        for number, parts, what in (
            (model.heads, layout.tp, "heads"),
            (model.key_value_heads, layout.tp, "key-value heads"),
            (self.sequence, layout.cp, "tokens"),
            (model.experts, layout.ep, "experts"),
        ):
            if number % parts:
                raise UserError(
                    f"{number} {what} cannot be divided over {parts} GPUs; choose a divisor"
                )
        if chunks > model.layers:
            raise UserError(
                f"{model.layers} layers cannot be divided over {chunks} stages; take at most "
                f"pp x interleave = {model.layers}, or more layers"
            )
        if self.interleave > 1 and (layout.pp == 1 or self.micro_batches % layout.pp):
            raise UserError(
                f"interleave={self.interleave} needs several stages, and micro-batches in "
                f"multiples of them; there are {layout.pp} stages and {self.micro_batches} "
                "micro-batches of a replica; change pp, batch or interleave=1"
            )
        if layout.ep > 1 and layout.tp > 1 and not self.sequence_parallel:
            raise UserError(
                f"ep={layout.ep} with tp={layout.tp} sends every token {layout.tp} times; take "
                "sp=on, as Megatron requires"
            )

    # -- computing -----------------------------------------------------------------------------

    @property
    def tokens(self) -> Fraction:
        """Return the tokens of a micro-batch that each context-parallel rank computes."""
        return Fraction(self.micro_batch * self.sequence, self.layout.cp)

    @property
    def global_batch(self) -> int:
        """Return the sequences of a step."""
        return self.micro_batch * self.micro_batches * self.layout.dp

    def score_flops(self) -> Fraction:
        """Return the FLOPs of attention scores of a layer and micro-batch forward, on one GPU."""
        whole = 2 * self.micro_batch * self.sequence**2 * self.model.hidden
        return Fraction(whole, self.layout.cp * self.layout.tp)

    def weight_flops(self, weights: int) -> Fraction:
        """Return the FLOPs of ``weights`` for a micro-batch forward, on one GPU."""
        return 2 * weights * self.tokens / self.layout.tp

    @property
    def gpu_flops(self) -> Fraction:
        """Return the FLOPs of a step on one GPU, the mean of all."""
        model = self.model
        active = (
            model.layers * (model.active_layer_weights + 2 * model.hidden)
            + 2 * model.head_weights
            + model.hidden
        )
        forward = self.weight_flops(active) + model.layers * self.score_flops()
        return (1 + BACKWARD) * forward * self.micro_batches / self.layout.pp

    @property
    def bubble(self) -> float:
        """Return the share of the time that the pipeline leaves a stage idle, by its formula."""
        return bubble(self.layout.pp, self.micro_batches, self.interleave)

    # -- weights -------------------------------------------------------------------------------

    @property
    def dense_layer_weights(self) -> int:
        """Return the weights of a layer that are not experts', on one GPU."""
        model = self.model
        experts = 0 if model.experts == 1 else model.experts * model.feed_forward_weights
        return (model.layer_weights - experts) // self.layout.tp

    @property
    def expert_layer_weights(self) -> int:
        """Return the weights of a layer's experts, on one GPU; a dense model has none."""
        model = self.model
        if model.experts == 1:
            return 0
        held = model.experts // self.layout.ep * model.feed_forward_weights
        return held // self.layout.tp

    @property
    def head_weights(self) -> int:
        """Return the weights of the output head and of the norm before it, on one GPU."""
        return (self.model.head_weights + self.model.hidden) // self.layout.tp

    @property
    def embedding_weights(self) -> int:
        """Return the weights of the embedding, on one GPU."""
        return self.model.head_weights // self.layout.tp

    @property
    def gpu_weights(self) -> Fraction:
        """Return the weights of a GPU, the mean over the stages."""
        layer = self.dense_layer_weights + self.expert_layer_weights
        whole = self.model.layers * layer + self.embedding_weights + self.head_weights
        return Fraction(whole, self.layout.pp)

    # -- octets --------------------------------------------------------------------------------

    @property
    def activation_bytes(self) -> int:
        """Return the octets between two layers of a micro-batch."""
        return int(self.tokens) * self.model.hidden * ELEMENT_BYTES

    @property
    def tensor_layer_bytes(self) -> Fraction:
        """Return what tensor parallelism sends in a layer for a micro-batch."""
        return 8 * _others(self.layout.tp) * self.activation_bytes

    @property
    def tensor_step_bytes(self) -> Fraction:
        """Return what tensor parallelism sends in the layers of a stage in a step (mean)."""
        layers = Fraction(self.model.layers, self.layout.pp)
        return self.tensor_layer_bytes * layers * self.micro_batches

    @property
    def stage_bytes(self) -> int:
        """Return what a GPU sends to the next stage for a micro-batch, or to the one before."""
        parts = self.layout.tp if self.sequence_parallel else 1
        return self.activation_bytes // parts

    @property
    def stage_step_bytes(self) -> int:
        """Return what an inner stage's GPU sends to other stages in a step, both ways."""
        if self.layout.pp == 1:
            return 0
        return 2 * self.interleave * self.micro_batches * self.stage_bytes

    @property
    def gradient_step_bytes(self) -> Fraction:
        """Return what the exchange of gradients sends in a step, weights of ZeRO 1 to 3 included.

        The group is that of data and context parallelism together.  Experts are left out: their
        group is another one.
        """
        ranks = self.layout.dp * self.layout.cp
        others = _others(ranks) * self.gpu_weights
        if self.zero == 3:
            return others * (2 * WEIGHT_BYTES + self.gradient_bytes) * self.micro_batches
        if self.zero:
            return others * (self.gradient_bytes + WEIGHT_BYTES)
        return 2 * others * self.gradient_bytes

    @property
    def key_value_bytes(self) -> int:
        """Return the keys and values of a layer and micro-batch that context ranks gather."""
        each = self.model.key_value_bytes(ELEMENT_BYTES)
        return self.micro_batch * self.sequence * each // self.layout.tp

    @property
    def context_layer_bytes(self) -> Fraction:
        """Return what context parallelism sends in a layer for a micro-batch forward."""
        return _others(self.layout.cp) * self.key_value_bytes

    @property
    def dispatch_bytes(self) -> int:
        """Return the octets of a GPU's tokens for all of their experts, in one layer."""
        parts = self.layout.tp if self.sequence_parallel else 1
        return self.activation_bytes * self.model.experts_per_token // parts

    @property
    def expert_layer_bytes(self) -> Fraction:
        """Return what one of the four AlltoAlls of a layer and micro-batch sends."""
        return _others(self.layout.ep) * self.dispatch_bytes

    @property
    def sent_bytes(self) -> Fraction:
        """Estimate what a GPU sends in a step, all exchanges together.

        Context parallelism scatters the gradients of what it gathers; experts have four AlltoAlls.
        """
        layers = Fraction(self.model.layers, self.layout.pp) * self.micro_batches
        on_the_way = 2 * self.context_layer_bytes + 4 * self.expert_layer_bytes
        return (
            self.tensor_step_bytes
            + self.stage_step_bytes
            + self.gradient_step_bytes
            + layers * on_the_way
        )

    def stage_layers(self) -> list[range]:
        """Return the layers of each chunk of the model, in the order of the model."""
        return stage_layers(self.model.layers, self.layout.pp * self.interleave)


def _others(ranks: int) -> Fraction:
    return Fraction(ranks - 1, ranks)
