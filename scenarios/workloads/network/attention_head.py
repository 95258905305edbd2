"""An attention head: its outputs and its gradient.

A sequence X has a column for each token, ``hidden`` numbers high.  A head of size h has weights
Q, K, V (h x hidden) and O (hidden x h), and makes of the sequence

    q = Q X,  k = K X,  v = V X
    P = softmax over the keys of k^T q / sqrt(h)      a column for each query
    out = O v P

A block adds the outputs of all its heads to X.  So heads can be computed on different GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scenarios.workloads.network.arithmetic import Matrix, exponential, in_order, product


@dataclass(frozen=True)
class AttentionHead:
    """The weights of a head."""

    q: Matrix
    k: Matrix
    v: Matrix
    o: Matrix

    @classmethod
    def of(cls, flat: Matrix, hidden: int) -> AttentionHead:
        """Return the head whose weights lie in a row: Q, K, V and O."""
        q, k, v = (one.reshape(-1, hidden) for one in np.split(flat, 4)[:3])
        return cls(q, k, v, np.split(flat, 4)[3].reshape(hidden, -1))

    def forward(self, x: Matrix) -> Matrix:
        """Return what the head adds to the sequence ``x``."""
        _, _, v, p = self._attention(x)
        return product(self.o, product(v, p))

    def backward(self, x: Matrix, delta: Matrix) -> tuple[Matrix, Matrix]:
        """Return the gradient of the weights, in a row, and what the head adds to the delta of x.

        ``delta`` is that of the head's outputs.
        """
        q, k, v, p = self._attention(x)
        before = product(self.o.T, delta)
        delta_v = product(before, p.T)
        delta_p = product(v.T, before)
        scale = np.float32(1 / math.sqrt(len(q)))
        delta_s = p * (delta_p - _over_keys(p * delta_p)) * scale
        delta_q, delta_k = product(k, delta_s), product(q, delta_s.T)
        deltas = (self.q, delta_q), (self.k, delta_k), (self.v, delta_v)
        gradients = [product(one, x.T) for _, one in deltas]
        gradients.append(product(delta, product(v, p).T))
        flat = np.concatenate([one.ravel() for one in gradients])
        return flat, in_order([product(weight.T, one) for weight, one in deltas])

    def _attention(self, x: Matrix) -> tuple[Matrix, Matrix, Matrix, Matrix]:
        """Return queries, keys, values, and how much each query takes of each value."""
        q, k, v = product(self.q, x), product(self.k, x), product(self.v, x)
        scores = product(k.T, q) * np.float32(1 / math.sqrt(len(q)))
        power = exponential(scores - scores.max(axis=0))
        return q, k, v, power / _over_keys(power)


def _over_keys(values: Matrix) -> Matrix:
    """Return the sum over all keys, in their order."""
    total: Matrix = np.cumsum(values, axis=0, dtype=np.float32)[-1]
    return total


def heads_of(flat: Matrix, hidden: int, heads: int) -> list[AttentionHead]:
    """Return ``heads`` whose weights lie in a row."""
    return [AttentionHead.of(one, hidden) for one in np.split(flat, heads)]


def heads_forward(heads: Sequence[AttentionHead], sequences: Sequence[Matrix]) -> list[Matrix]:
    """Return what ``heads`` add to each sequence, added up in the order of the heads."""
    return [in_order([head.forward(x) for head in heads]) for x in sequences]


def heads_backward(
    heads: Sequence[AttentionHead], sequences: Sequence[Matrix], deltas: Sequence[Matrix]
) -> tuple[Matrix, list[Matrix]]:
    """Return the gradient of the weights of ``heads``, in a row, and their part of all deltas.

    Gradients are added up in the order of the sequences, deltas in that of the heads.
    """
    gradients, before = [], []
    for x, delta in zip(sequences, deltas, strict=True):
        found = [head.backward(x, delta) for head in heads]
        gradients.append(np.concatenate([gradient for gradient, _ in found]))
        before.append(in_order([one for _, one in found]))
    return in_order(gradients), before
