"""Schedules that were compiled for some of the GPUs are compared with those of all."""

from collections.abc import Sequence

from emulator.sim.endpoint.operations.schedule import Schedule


def assert_parts(
    some: Sequence[Schedule], whole: Sequence[Schedule], ranks: frozenset[int]
) -> None:
    """Assert that ``some`` has the buffers of all, and the operations of ``ranks`` alone."""
    assert [one.buffers for one in some] == [one.buffers for one in whole]
    for one, other in zip(some, whole, strict=True):
        kept = other if one.rank in ranks else Schedule(rank=one.rank, buffers={})
        assert list(one.operations) == list(kept.operations)
        assert one.spans == kept.spans
