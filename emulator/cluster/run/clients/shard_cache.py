"""A node-local cache of shards with a bound in octets: the least recently used goes first."""

from __future__ import annotations

from collections import OrderedDict


class ShardCache:
    """A cache of at most ``capacity`` octets.  A shard that is larger is not kept."""

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
