"""The computations and exchanges of a GPU in a layer, the embedding and the output head.

Forward, with sequence parallelism (SP; without, an AllReduce at the end of each half)::

    attention     AllGather - q, k, v - [AllGather of keys and values: CP] - scores - ReduceScatter
    feed-forward  AllGather - three products - ReduceScatter
    experts       router - AlltoAll: EP - AllGather - three products - ReduceScatter - AlltoAll

Backward goes the other way, takes twice the computing, and has a ReduceScatter for each AllGather
and the reverse.  That each GPU keeps only its part of a layer's inputs, and gathers them again
backward, is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from scenarios.workloads.transformer.parallel_layout import CP, EP, TP
from scenarios.workloads.transformer.step_operations.group_stream import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
)
from scenarios.workloads.transformer.step_shape import BACKWARD, StepShape

#: The loss needs the largest score of each token, the sum over the vocabulary, and the target's.
_LOSS_SUMS, _LOSS_BYTES = 3, 4


@dataclass(frozen=True)
class Computing:
    """FLOPs of one GPU."""

    flops: Fraction


@dataclass(frozen=True)
class Exchanging:
    """A collective over the GPU's group of ``kind``, of ``octets`` in all."""

    kind: str
    collective: str
    octets: int


Work = Computing | Exchanging
_REVERSED = {ALL_GATHER: REDUCE_SCATTER, REDUCE_SCATTER: ALL_GATHER}


class LayerWork:
    """The work of one micro-batch in the parts of the model of ``step``."""

    def __init__(self, step: StepShape) -> None:
        self.step = step

    def attention(self) -> list[Work]:
        """Return the work of a layer's attention, forward."""
        step, model = self.step, self.step.model
        output = model.hidden**2
        projections = model.attention_weights - output + model.hidden  # and a norm
        scores = step.weight_flops(output) + step.score_flops()
        return self._divided(
            step.activation_bytes,
            [
                Computing(step.weight_flops(projections)),
                Exchanging(CP, ALL_GATHER, step.key_value_bytes),
                Computing(scores),
            ],
        )

    def feed_forward(self) -> list[Work]:
        """Return the work of a layer's feed-forward network, or of its experts, forward."""
        step, model = self.step, self.step.model
        weights = model.experts_per_token * model.feed_forward_weights
        if model.experts == 1:
            return self._divided(
                step.activation_bytes, [Computing(step.weight_flops(weights + model.hidden))]
            )
        dispatch = Exchanging(EP, ALL_TO_ALL, step.dispatch_bytes)
        octets = step.activation_bytes * model.experts_per_token
        return [
            Computing(step.weight_flops(model.router_weights + model.hidden)),
            dispatch,
            *self._divided(octets, [Computing(step.weight_flops(weights))]),
            dispatch,
        ]

    def embedding(self) -> list[Work]:
        """Return the work of the lookup, whose table is divided by the words of the vocabulary."""
        step = self.step
        joined = REDUCE_SCATTER if step.sequence_parallel else ALL_REDUCE
        return [
            Computing(step.weight_flops(step.model.head_weights)),
            Exchanging(TP, joined, step.activation_bytes),
        ]

    def embedding_backward(self) -> list[Work]:
        """Return the work of the embedding's gradients."""
        gathered = [Exchanging(TP, ALL_GATHER, self.step.activation_bytes)]
        computing = BACKWARD * self.step.weight_flops(self.step.model.head_weights)
        return [*(gathered if self.step.sequence_parallel else []), Computing(computing)]

    def head(self) -> list[Work]:
        """Return the work of the last norm, the output head and the loss."""
        step = self.step
        gathered = [Exchanging(TP, ALL_GATHER, step.activation_bytes)]
        loss = Exchanging(TP, ALL_REDUCE, int(step.tokens) * _LOSS_BYTES)
        return [
            *(gathered if step.sequence_parallel else []),
            Computing(step.weight_flops(step.model.head_weights + step.model.hidden)),
            *[loss] * _LOSS_SUMS,
        ]

    def head_backward(self) -> list[Work]:
        """Return the work of the head's gradients."""
        step = self.step
        joined = REDUCE_SCATTER if step.sequence_parallel else ALL_REDUCE
        weights = step.model.head_weights + step.model.hidden
        return [
            Computing(BACKWARD * step.weight_flops(weights)),
            Exchanging(TP, joined, step.activation_bytes),
        ]

    def _divided(self, octets: int, inner: list[Work]) -> list[Work]:
        """Return ``inner`` between the exchanges of tensor parallelism."""
        if not self.step.sequence_parallel:
            return [*inner, Exchanging(TP, ALL_REDUCE, octets)]
        return [
            Exchanging(TP, ALL_GATHER, octets),
            *inner,
            Exchanging(TP, REDUCE_SCATTER, octets),
        ]


def backward(work: Sequence[Work]) -> list[Work]:
    """Return the work backward of what was done forward."""
    inner: list[Work] = []
    summed: list[Work] = []
    for one in reversed(work):
        if isinstance(one, Computing):
            inner.append(Computing(BACKWARD * one.flops))
        elif one.collective == ALL_REDUCE:
            summed.append(one)  # of the gradients of what went in, at the end
        else:
            other = _REVERSED.get(one.collective, one.collective)
            inner.append(Exchanging(one.kind, other, one.octets))
    return [*inner, *summed]
