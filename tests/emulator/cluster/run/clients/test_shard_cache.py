"""The cache of a data loader keeps to its bound, and evicts what was used longest ago."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from emulator.cluster.run.clients.shard_cache import ShardCache


def test_the_least_recently_used_goes_first() -> None:
    cache = ShardCache(2)
    cache.put(1, b"a")
    cache.put(2, b"b")
    assert cache.get(1) == b"a"
    cache.put(3, b"c")
    assert [cache.get(shard) for shard in (1, 2, 3)] == [b"a", None, b"c"]


def test_a_shard_that_is_too_large_is_not_kept() -> None:
    cache = ShardCache(2)
    cache.put(1, b"a")
    cache.put(2, b"long")
    assert (cache.get(1), cache.get(2)) == (b"a", None)


@given(
    st.integers(0, 20),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 8)), max_size=40),
)
def test_a_cache_never_exceeds_its_bound_nor_forgets_the_last(
    capacity: int, puts: list[tuple[int, int]]
) -> None:
    cache, kept = ShardCache(capacity), {}
    for shard, length in puts:
        cache.put(shard, bytes(length))
        if length <= capacity:
            kept[shard] = length
            assert cache.get(shard) == bytes(length)
        assert cache.octets <= capacity
        held = sum(len(found) for one in kept if (found := cache.get(one)) is not None)
        assert held == cache.octets
