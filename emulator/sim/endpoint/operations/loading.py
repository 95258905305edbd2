"""Schedules of a pool's GPUs: checked, laid out, and with what each GPU needs of the others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from emulator.sim.endpoint.operations.gpu_memory import GpuMemory, Layout
from emulator.sim.endpoint.operations.operation_table import COPY, WRITE, OperationTable
from emulator.sim.endpoint.operations.schedule import Schedule


def laid_out(
    schedules: Sequence[Schedule], ranks: Collection[int], memories: Mapping[int, GpuMemory]
) -> dict[int, Schedule]:
    """Lay out the ``memories`` of ``ranks`` by their ``schedules``; return these by rank.

    ``memories`` are those that are on this machine.  Raises ValueError unless there is a schedule
    for each rank.
    """
    by_rank = {schedule.rank: schedule for schedule in schedules}
    if set(by_rank) != set(ranks) or len(schedules) != len(by_rank):
        raise ValueError("there must be exactly one schedule for each rank")
    for rank, memory in memories.items():
        memory.lay_out(Layout(by_rank[rank].buffers), reserve=True)
    return by_rank


def layouts_for(rank: int, by_rank: Mapping[int, Schedule]) -> dict[int, dict[str, int]]:
    """The buffers of every rank that ``rank`` writes or copies to."""
    peers = OperationTable.of(by_rank[rank].operations).peers(WRITE, COPY)
    return {peer: dict(by_rank[peer].buffers) for peer in peers if peer in by_rank}


def barrier_members(schedules: Collection[Schedule]) -> dict[str, frozenset[int]]:
    """The ranks that meet at each barrier, by its name."""
    members: dict[str, set[int]] = {}
    for schedule in schedules:
        for name in OperationTable.of(schedule.operations).barriers():
            members.setdefault(name, set()).add(schedule.rank)
    return {name: frozenset(ranks) for name, ranks in members.items()}
