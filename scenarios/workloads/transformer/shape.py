"""A training step in numbers: shapes of models, groups of GPUs, orders of pipelines, octets.

Shapes of transformer language models: layers, widths, heads, experts, and what follows of them.

A layer is that of Llama 3 (Grattafiori et al., arXiv 2407.21783). Attention has h x (heads x head
size) weights for queries and outputs, and h x (KV heads x head size) for keys and for values. A
gated feed-forward network has three h x f matrices, and there are two norms of h weights. The
embedding and the output head have V x h weights each. A mixture of experts has a feed-forward
network for each expert, and a router of h weights for each (Jiang et al., arXiv 2401.04088).

Groups of ranks that divide a model: tensor, context, expert, data and pipeline parallelism.

The order is Megatron's ``tp-cp-ep-dp-pp``: the tensor-parallel index of a rank varies fastest, the
pipeline stage slowest::

    rank = tp + TP * (cp + CP * (dp + DP * pp))

Experts are spread over the ranks that have the same weights of attention, cp and dp together, in
blocks of EP.  Those with the same experts are one group for their gradients.

The order in which a pipeline stage computes micro-batches, forward and backward.

``gpipe``: all forward, then all backward (Huang et al., arXiv 1811.06965).  ``1f1b``: as many
forward as there are later stages, then one forward and one backward in turns.  Interleaved
1F1B has several chunks of layers in each stage (Narayanan et al., SC'21, section 2.2).
Micro-batches then go through chunk 0 of all stages, and after that through chunk 1.  They go in
groups of as many as there are stages.

The computing and the traffic of a training step, in FLOPs and octets, by closed formulas.

FLOPs are 2 for each weight and token forward, and twice that backward (Kaplan et al., arXiv
2001.08361, section 2.1). Causal attention adds 2 s^2 a for each sequence of s tokens, each layer
with a = heads x head size, forward: half of what full attention computes. The lookup of the
embedding counts like the product of the output head. The rule of 6 FLOPs for each weight and token
has it so.

Octets are those that a GPU sends.  AllGather and ReduceScatter over n ranks send (n-1)/n of the
size, AllReduce twice that (Thakur et al., 2005).  Tensor parallelism has four AllReduces of the
activations in each layer (Shoeybi et al., arXiv 1909.08053).  With sequence parallelism these are
as many pairs of ReduceScatter and AllGather (Korthikanti et al., arXiv 2205.05198).  ZeRO stages:
Rajbhandari et al., SC'20.  Context parallelism gathers keys and values (Grattafiori et al., arXiv
2407.21783, section 3.3.2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from emulator.errors import UserError
from scenarios.workloads.network.parallel_training import FORWARD, micro_batch_order


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Attention over a latent of keys and values (MLA; DeepSeek-V3, arXiv 2412.19437, 2.1.1).

    ``query_rank`` and ``latent`` are the sizes of the compressed queries, and of keys and values.
    A head has ``head`` elements without and ``rotary`` with a position, and ``value`` of a value.
    """

    query_rank: int
    latent: int
    head: int
    rotary: int
    value: int

    def weights(self, hidden: int, heads: int) -> int:
        queries = self.query_rank * (hidden + heads * (self.head + self.rotary))
        keys = hidden * (self.latent + self.rotary)
        return (
            queries + keys + heads * (self.latent * (self.head + self.value) + self.value * hidden)
        )


@dataclass(frozen=True, kw_only=True)
class TransformerShape:
    """The sizes of a model; a dense one has one expert.

    Each token passes ``shared_experts`` beside those that its router chooses.  The first
    ``dense_layers`` have one network, as wide as all experts of a token together.
    """

    name: str
    layers: int
    hidden: int
    feed_forward: int
    heads: int
    key_value_heads: int
    vocabulary: int
    experts: int = 1
    experts_per_token: int = 1
    shared_experts: int = 0
    dense_layers: int = 0
    stated_head_size: int = 0  # 0: hidden size over heads
    latent_attention: LatentAttention | None = None

    @property
    def head_size(self) -> int:
        """Return the elements of a head: with a latent, the mean of those of a key and a value."""
        if latent := self.latent_attention:
            return (latent.head + latent.rotary + latent.value) // 2
        return self.stated_head_size or self.hidden // self.heads

    @property
    def attention_size(self) -> int:
        """Return the elements of the queries of one token in one layer."""
        return self.heads * self.head_size

    @property
    def key_value_size(self) -> int:
        """Return the elements of the keys of one token in one layer; its values have as many.

        A latent with its rotary part is both.
        """
        if latent := self.latent_attention:
            return (latent.latent + latent.rotary) // 2
        return self.key_value_heads * self.head_size

    @property
    def attention_weights(self) -> int:
        if latent := self.latent_attention:
            return latent.weights(self.hidden, self.heads)
        return 2 * self.hidden * (self.attention_size + self.key_value_size)

    @property
    def feed_forward_weights(self) -> int:
        """Return the weights of one expert's feed-forward network in a layer."""
        return 3 * self.hidden * self.feed_forward

    @property
    def router_weights(self) -> int:
        """Return the weights of a layer's router; a dense model has none."""
        return self.experts * self.hidden if self.experts > 1 else 0

    @property
    def expert_layers(self) -> int:
        """Return how many layers have experts; a dense model has none."""
        return max(0, self.layers - self.dense_layers) if self.experts > 1 else 0

    @property
    def shared_weights(self) -> int:
        """Return the weights that each token passes in a layer with experts, beside its own."""
        return self.shared_experts * self.feed_forward_weights

    @property
    def layer_weights(self) -> int:
        """Return the weights of a layer, all experts and the norms included."""
        experts = self.experts * self.feed_forward_weights + self.shared_weights
        return self.attention_weights + experts + self.router_weights + 2 * self.hidden

    @property
    def active_layer_weights(self) -> int:
        """Return the weights of a layer with experts that a token passes."""
        experts = self.experts_per_token * self.feed_forward_weights + self.shared_weights
        return self.attention_weights + experts + self.router_weights

    @property
    def active_weights(self) -> int:
        """Return the weights of all layers that a token passes, without norms."""
        without_router = (self.layers - self.expert_layers) * self.router_weights
        return self.layers * self.active_layer_weights - without_router

    @property
    def dense_layer_weights(self) -> int:
        """Return the weights of one of the first layers, which have no experts."""
        return self.active_layer_weights - self.router_weights + 2 * self.hidden

    @property
    def head_weights(self) -> int:
        """Return the weights of the output head; the embedding has as many."""
        return self.vocabulary * self.hidden

    @property
    def weights(self) -> int:
        dense = min(self.layers, self.dense_layers)
        layers = (self.layers - dense) * self.layer_weights + dense * self.dense_layer_weights
        return layers + 2 * self.head_weights + self.hidden

    def key_value_bytes(self, element_bytes: int = 2) -> int:
        """Return the octets of the keys and values that one token leaves in one layer."""
        return 2 * self.key_value_size * element_bytes


#: Llama 3 (arXiv 2407.21783, table 3), Mixtral 8x7B (arXiv 2401.04088, table 1), Grok-1 (README.md
#: and model.py of github.com/xai-org/grok-1: a feed-forward width of 2/3 x 8 x 6144),
#: Qwen3-235B-A22B (arXiv 2505.09388, table 2, and config.json of the model) and DeepSeek-V3
#: (arXiv 2412.19437, section 4.2, and config.json; without multi-token prediction), by name.
SHAPES = {
    one.name: one
    for one in (
        TransformerShape(
            name="8b",
            layers=32,
            hidden=4096,
            feed_forward=14336,
            heads=32,
            key_value_heads=8,
            vocabulary=128256,
        ),
        TransformerShape(
            name="70b",
            layers=80,
            hidden=8192,
            feed_forward=28672,
            heads=64,
            key_value_heads=8,
            vocabulary=128256,
        ),
        TransformerShape(
            name="405b",
            layers=126,
            hidden=16384,
            feed_forward=53248,
            heads=128,
            key_value_heads=8,
            vocabulary=128256,
        ),
        TransformerShape(
            name="8x7b",
            layers=32,
            hidden=4096,
            feed_forward=14336,
            heads=32,
            key_value_heads=8,
            vocabulary=32000,
            experts=8,
            experts_per_token=2,
        ),
        TransformerShape(
            name="grok-1",
            layers=64,
            hidden=6144,
            feed_forward=32768,
            heads=48,
            key_value_heads=8,
            vocabulary=131072,
            experts=8,
            experts_per_token=2,
        ),
        TransformerShape(
            name="qwen3-235b",
            layers=94,
            hidden=4096,
            feed_forward=1536,
            heads=64,
            key_value_heads=4,
            vocabulary=151936,
            experts=128,
            experts_per_token=8,
            stated_head_size=128,
        ),
        TransformerShape(
            name="deepseek-v3",
            layers=61,
            hidden=7168,
            feed_forward=2048,
            heads=128,
            key_value_heads=1,  # the latent, which all heads share
            vocabulary=129280,
            experts=256,
            experts_per_token=8,
            shared_experts=1,
            dense_layers=3,
            latent_attention=LatentAttention(
                query_rank=1536, latent=512, head=128, rotary=64, value=128
            ),
        ),
    )
}


#: Kinds of groups: tensor, context, expert and data parallel, and those with the same experts.
TP, CP, EP, DP, EXPERT_DP = "TP", "CP", "EP", "DP", "EDP"
#: Ranks of the job by their positions.
Group = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Place:
    """The indices of a rank in each dimension."""

    tp: int
    cp: int
    dp: int
    pp: int


@dataclass(frozen=True, kw_only=True)
class ParallelLayout:
    """How many ways each dimension has; EP divides CP x DP.  Raises UserError for what does not."""

    tp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1

    def __post_init__(self) -> None:
        if self.cp * self.dp % self.ep:
            raise UserError(
                f"ep={self.ep} does not divide the {self.cp * self.dp} ranks of cp={self.cp} and "
                f"dp={self.dp}, over which experts are spread; choose a divisor of it"
            )

    @property
    def ranks(self) -> int:
        """Return the number of GPUs."""
        return self.tp * self.cp * self.dp * self.pp

    def rank(self, place: Place) -> int:
        return place.tp + self.tp * (place.cp + self.cp * (place.dp + self.dp * place.pp))

    def place(self, rank: int) -> Place:
        rest, tp = divmod(rank, self.tp)
        rest, cp = divmod(rest, self.cp)
        pp, dp = divmod(rest, self.dp)
        return Place(tp=tp, cp=cp, dp=dp, pp=pp)

    def stage(self, pp: int) -> range:
        width = self.tp * self.cp * self.dp
        return range(pp * width, (pp + 1) * width)

    def groups(self, kind: str) -> list[Group]:
        """Return all groups of ``kind``; each rank is in one of them."""
        return list(self._groups(kind))

    def _groups(self, kind: str) -> Iterator[Group]:
        for pp in range(self.pp):
            if kind == TP:
                stage = self.stage(pp)
                for first in stage[:: self.tp]:
                    yield tuple(range(first, first + self.tp))
                continue
            for tp in range(self.tp):
                # cp varies faster than dp
                same = tuple(self.stage(pp)[tp :: self.tp])
                if kind == CP:
                    yield from _blocks(same, self.cp)
                elif kind == DP:
                    yield same
                elif kind == EP:
                    yield from _blocks(same, self.ep)
                elif kind == EXPERT_DP:
                    for first in range(self.ep):
                        yield same[first :: self.ep]
                else:
                    raise ValueError(f"there is no kind of group {kind!r}")


def _blocks(ranks: Group, size: int) -> Iterator[Group]:
    for first in range(0, len(ranks), size):
        yield ranks[first : first + size]


GPIPE, ONE_F_ONE_B = "gpipe", "1f1b"
ORDERS = (ONE_F_ONE_B, GPIPE)


class Task(NamedTuple):
    """One micro-batch through one chunk of a stage, forward or not."""

    forward: bool
    chunk: int
    micro: int


def pipeline_order(
    order: str, stage: int, stages: int, micro_batches: int, chunks: int = 1
) -> list[Task]:
    """Return the tasks of ``stage`` in their order.

    Raises UserError for an order that has no chunks.
    """
    if chunks == 1:
        found = micro_batch_order(order, stage, stages, micro_batches)
        return [Task(what == FORWARD, 0, micro) for what, micro in found]
    if order == GPIPE:
        raise UserError("order=gpipe has one chunk of layers a stage; take interleave=1, or 1f1b")
    forward = [_interleaved(True, turn, stages, chunks) for turn in range(micro_batches * chunks)]
    backward = [_interleaved(False, turn, stages, chunks) for turn in range(micro_batches * chunks)]
    early = min(len(forward), 2 * (stages - 1 - stage) + (chunks - 1) * stages)
    tasks = forward[:early]
    for one, other in zip(forward[early:], backward, strict=False):
        tasks += [one, other]
    return tasks + backward[len(forward) - early :]


def _interleaved(forward: bool, turn: int, stages: int, chunks: int) -> Task:
    groups, within = divmod(turn, stages * chunks)
    chunk = within // stages
    micro = groups * stages + within % stages
    return Task(forward, chunk if forward else chunks - 1 - chunk, micro)


def bubble(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Return the share of the time in which a stage is idle, messages left out.

    (p-1) / (v m + p-1) with p stages, v chunks and m micro-batches (SC'21, section 2.2).
    """
    return (stages - 1) / (chunks * micro_batches + stages - 1)


def stage_layers(layers: int, chunks: int) -> list[range]:
    """Divide ``layers`` over ``chunks``; chunks at the ends, with embedding and head, have fewer.

    Llama 3 takes a layer from the first and from the last of 16 stages, of 126 layers (arXiv
    2407.21783, section 3.3.2).
    """
    least, larger = divmod(layers, chunks)
    counts = [least + 1] * chunks
    for number in range(chunks - larger if larger else chunks):
        counts[number // 2 if number % 2 else -1 - number // 2] = least
    return _ranges(counts)


def _ranges(counts: Sequence[int]) -> list[range]:
    first, found = 0, []
    for count in counts:
        found.append(range(first, first + count))
        first += count
    return found


#: Octets of activations and of weights, in 16 bits.
ELEMENT_BYTES = WEIGHT_BYTES = 2
#: Octets of the index of a gradient.
INDEX_BYTES = 4
#: Octets of a weight's state that a new replica needs: Adam in mixed precision (SC'20, 3.1).
STATE_BYTES = 14
#: FLOPs backward for each one forward.
BACKWARD = 2


@dataclass(frozen=True, kw_only=True)
class StepShape:
    """A training step of ``model`` on the GPUs of ``layout``.

    ``micro_batch`` is sequences of ``sequence`` tokens, and a replica has ``micro_batches`` of
    them.  ``interleave`` is the chunks of layers that a stage has.  ``zero`` is the ZeRO stage.
    Replicas gather ``gradient_share`` of their gradients with indices (top-k); with 0 they add up
    all.  Raises UserError for what cannot be divided.
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
    gradient_share: Fraction = Fraction(0)

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
        if self.gradient_share and self.zero:
            raise UserError(
                f"zero={self.zero} scatters sums of gradients, and replicas that gather the "
                "largest have none; take zero=0, or all gradients (top=0)"
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
        return self.micro_batch * self.micro_batches * self.layout.dp

    def score_flops(self) -> Fraction:
        """Return the FLOPs of attention scores of a layer and micro-batch forward, on one GPU."""
        whole = 2 * self.micro_batch * self.sequence**2 * self.model.attention_size
        return Fraction(whole, self.layout.cp * self.layout.tp)

    def weight_flops(self, weights: int) -> Fraction:
        """Return the FLOPs of ``weights`` for a micro-batch forward, on one GPU."""
        return 2 * weights * self.tokens / self.layout.tp

    @property
    def gpu_flops(self) -> Fraction:
        """Return the FLOPs of a step on one GPU, the mean of all."""
        model = self.model
        active = (
            model.active_weights
            + 2 * model.layers * model.hidden
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
        """Return the weights of a layer that are not those of its experts, on one GPU."""
        model = self.model
        experts = 0 if model.experts == 1 else model.experts * model.feed_forward_weights
        return (model.layer_weights - experts) // self.layout.tp

    @property
    def first_layer_weights(self) -> int:
        """Return the weights of one of the first layers without experts, on one GPU."""
        return self.model.dense_layer_weights // self.layout.tp

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
        first = min(self.model.layers, self.model.dense_layers)
        layer = self.dense_layer_weights + self.expert_layer_weights
        layers = (self.model.layers - first) * layer + first * self.first_layer_weights
        whole = layers + self.embedding_weights + self.head_weights
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
        if self.gradient_share:
            return Fraction((ranks - 1) * self.chosen_bytes(math.ceil(self.gpu_weights)))
        return 2 * others * self.gradient_bytes

    def chosen_bytes(self, gradients: int) -> int:
        """Return the octets of the largest of so many gradients, with an index for each."""
        kept = math.ceil(gradients * self.gradient_share)
        return kept * (self.gradient_bytes + INDEX_BYTES)

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
        each = Fraction(self.micro_batches, self.layout.pp)
        on_the_way = 2 * self.model.layers * self.context_layer_bytes
        on_the_way += 4 * self.model.expert_layers * self.expert_layer_bytes
        return (
            self.tensor_step_bytes
            + self.stage_step_bytes
            + self.gradient_step_bytes
            + each * on_the_way
        )

    def stage_layers(self) -> list[range]:
        """Return the layers of each chunk of the model, in the order of the model."""
        return stage_layers(self.model.layers, self.layout.pp * self.interleave)


def _others(ranks: int) -> Fraction:
    return Fraction(ranks - 1, ranks)
