"""A dataset of shards, drawn from a seed: where each lies, who reads it when; a cache of shards."""

from __future__ import annotations

from collections import OrderedDict
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


class ShardCache:
    """A cache of at most ``capacity`` octets: the least recently used shard goes first.

    A shard that is larger is not kept.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.octets = 0
        self._kept: OrderedDict[int, bytes] = OrderedDict()

    def get(self, shard: int) -> bytes | None:
        """Return the content of ``shard`` and note its use; None if it is not here."""
        content = self._kept.get(shard)
        if content is not None:
            self._kept.move_to_end(shard)
        return content

    def put(self, shard: int, content: bytes) -> None:
        """Keep ``content``, and evict what was used longest ago until it fits."""
        if len(content) > self.capacity:
            return
        self.octets += len(content) - len(self._kept.pop(shard, b""))
        self._kept[shard] = content
        while self.octets > self.capacity:
            _, evicted = self._kept.popitem(last=False)
            self.octets -= len(evicted)
