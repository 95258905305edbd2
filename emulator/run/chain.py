"""How many messages of a schedule wait for each other, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import TopologicalSorter

from emulator.endpoint.schedule import Copy, Receive, Schedule, Write


def longest_chain(schedules: Sequence[Schedule]) -> int:
    """Return the number of messages in the longest chain of dependent ones.

    At each of them two endpoints compute, whatever the fabric does.  The schedules are sound:
    every receive has its sender, and none waits for itself.
    """
    sender: dict[tuple[int, int, int], tuple[int, int]] = {}
    for schedule in schedules:
        for index, operation in enumerate(schedule.operations):
            if isinstance(operation, Write | Copy):
                sender[schedule.rank, operation.peer, operation.tag] = (schedule.rank, index)
    needs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for schedule in schedules:
        for index, operation in enumerate(schedule.operations):
            before = [(schedule.rank, earlier) for earlier in operation.after]
            if isinstance(operation, Receive):
                before.append(sender[operation.peer, schedule.rank, operation.tag])
            needs[schedule.rank, index] = before
    messages: dict[tuple[int, int], int] = {}
    operations = {schedule.rank: schedule.operations for schedule in schedules}
    for key in TopologicalSorter(needs).static_order():
        longest = max((messages[before] for before in needs[key]), default=0)
        rank, index = key
        messages[key] = longest + isinstance(operations[rank][index], Receive)
    return max(messages.values(), default=0)
