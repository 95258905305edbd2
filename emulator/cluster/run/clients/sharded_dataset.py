"""A dataset of shards: where each lies, what is in it, and who reads it when, all from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SHARE, WHOLE = "share", "whole"
#: What a shuffled order is drawn from, beside the seed and the epoch.
_ORDER = 1


def content(seed: int, *names: int, octets: int) -> bytes:
    """Return the ``octets`` that ``seed`` gives to what ``names`` number."""
    return np.random.default_rng((seed, *names)).bytes(octets)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """``shards`` shards of ``shard_octets``, over ``nodes`` storage nodes in turn."""

    shards: int
    shard_octets: int
    nodes: int
    seed: int

    def place(self, shard: int) -> tuple[int, int]:
        """Return the storage node of ``shard`` and its offset there (octets)."""
        return shard % self.nodes, shard // self.nodes * self.shard_octets

    def content(self, shard: int) -> bytes:
        """Return the octets of ``shard``."""
        return content(self.seed, 0, shard, octets=self.shard_octets)

    def order(self, epoch: int, reader: int, readers: int, sampling: str) -> Sequence[int]:
        """Return the shards that ``reader`` takes in ``epoch``.

        With ``share`` all readers draw one order and take its shards in turn; with ``whole`` each
        takes all shards in an order of its own.
        """
        if sampling == SHARE:
            drawn = np.random.default_rng((self.seed, _ORDER, epoch)).permutation(self.shards)
            return [int(shard) for shard in drawn[reader::readers]]
        own = np.random.default_rng((self.seed, _ORDER, epoch, reader)).permutation(self.shards)
        return [int(shard) for shard in own]
