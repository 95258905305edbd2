"""Shards of a dataset lie apart from each other, and every epoch reads each as it should."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.cluster.run.clients.dataset_reader import SHARE, WHOLE, Dataset, ShardCache

DATASET = Dataset(shards=10, shard_octets=64, nodes=3, seed=5)


def test_no_two_shards_share_a_place() -> None:
    places = [DATASET.place(shard) for shard in range(DATASET.shards)]
    assert len(set(places)) == DATASET.shards
    assert {node for node, _ in places} == {0, 1, 2}
    assert all(offset % 64 == 0 for _, offset in places)


@pytest.mark.parametrize(("sampling", "times"), [(SHARE, 1), (WHOLE, 4)])
def test_an_epoch_reads_every_shard(sampling: str, times: int) -> None:
    taken = [shard for reader in range(4) for shard in DATASET.order(0, reader, 4, sampling)]
    assert sorted(taken) == sorted(list(range(10)) * times)


def test_epochs_differ_and_come_again() -> None:
    orders = [DATASET.order(epoch, 0, 1, SHARE) for epoch in range(3)]
    assert orders[0] != orders[1] != orders[2]
    assert orders == [DATASET.order(epoch, 0, 1, SHARE) for epoch in range(3)]


def test_content_follows_from_seed_and_shard() -> None:
    other = Dataset(shards=10, shard_octets=64, nodes=3, seed=6)
    assert DATASET.content(1) == DATASET.content(1)
    assert len({DATASET.content(1), DATASET.content(2), other.content(1)}) == 3


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
