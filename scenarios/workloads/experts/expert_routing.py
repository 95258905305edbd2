"""Routing: which experts a token is sent to.

The r-th most popular expert has a popularity of 1 / r^``skew`` (Zipf's law), and the seed draws
which expert that is.  The affinity of a token to an expert is its popularity over a random number
of the exponential distribution. So the ``top_k`` experts of the highest affinity are a sample
without replacement by popularity (Efraimidis and Spirakis, 2006).

With a ``node_limit`` of M a token goes to experts of M nodes at most. These are the nodes whose
top_k / M highest affinities have the largest sum (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class ExpertRouting:
    """The routing of one layer; ``nodes[e]`` is the node of expert e, from 0 on."""

    nodes: Sequence[int]
    top_k: int
    skew: float
    node_limit: int = 0

    @property
    def experts(self) -> int:
        """Return the number of experts."""
        return len(self.nodes)

    def popularity(self, seed: Sequence[int]) -> npt.NDArray[np.float64]:
        """Return the share of each expert in all choices of a token's first expert."""
        shares = 1 / np.arange(1, self.experts + 1) ** self.skew
        order = np.random.default_rng(seed).permutation(self.experts)
        popular = np.empty(self.experts)
        popular[order] = shares / shares.sum()
        return popular

    def choices(
        self, tokens: int, seed: Sequence[int], popular: npt.NDArray[np.float64]
    ) -> Numbers:
        """Return the experts of each token, ``tokens`` x ``top_k``, in ascending order."""
        rng = np.random.default_rng(seed)
        affinity = popular / rng.exponential(size=(tokens, self.experts))
        if self.node_limit:
            affinity = np.where(self._allowed(affinity), affinity, 0)
        best = np.argsort(-affinity, axis=1, kind="stable")[:, : self.top_k]
        return np.sort(best, axis=1).astype(np.int64)

    def _allowed(self, affinity: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        """Return for each token and expert whether the expert's node is among the chosen ones."""
        node_of = np.asarray(self.nodes)
        count = int(node_of.max()) + 1
        summed = -(-self.top_k // self.node_limit)
        score = np.stack(
            [
                np.sort(affinity[:, node_of == node], axis=1)[:, -summed:].sum(axis=1)
                for node in range(count)
            ],
            axis=1,
        )
        chosen = np.argsort(-score, axis=1, kind="stable")[:, : self.node_limit]
        allowed = np.zeros((len(affinity), count), bool)
        np.put_along_axis(allowed, chosen, True, axis=1)
        return allowed[:, node_of]
