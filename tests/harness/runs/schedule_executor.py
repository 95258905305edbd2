"""Executes the schedules of all ranks in memory, in any legal order, and as meanly as allowed.

A write or copy starts, later delivers, later completes, each at a moment that the random generator
chooses.  Data is read when it is delivered; the sender's region must hold the same octets from
start to completion, because a transport may read it again at any time until then.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emulator.sim.endpoint.operations.elementwise import ELEMENT_FUNCTIONS, element_type
from emulator.sim.endpoint.operations.gpu_functions import find_gpu_function
from emulator.sim.endpoint.operations.schedule import (
    Apply,
    Compute,
    Copy,
    Operation,
    Receive,
    Reduce,
    Region,
    Schedule,
    Write,
)


@dataclass
class Flight:
    source: int
    index: int
    operation: Write | Copy
    snapshot: bytes
    delivered: bool = False


class Executor:
    def __init__(self, schedules: Sequence[Schedule], rng: random.Random) -> None:
        self.schedules = schedules
        self.rng = rng
        self.memory = [
            {name: np.full(size, 0xFF, np.uint8) for name, size in schedule.buffers.items()}
            for schedule in schedules
        ]
        self.sent: list[tuple[int, int, int]] = []

    def view(self, rank: int, region: Region) -> np.ndarray:
        assert region.length > 0, "an empty operation is a waste"
        end = region.offset + region.length
        assert end <= self.schedules[rank].buffers[region.buffer]
        return self.memory[rank][region.buffer][region.offset : end]

    def run(self) -> None:
        done: list[set[int]] = [set() for _ in self.schedules]
        waiting: list[dict[int, Operation]] = []
        for schedule in self.schedules:
            for index, operation in enumerate(schedule.operations):
                assert all(before < index for before in operation.after)
            waiting.append(dict(enumerate(schedule.operations)))
        arrived: dict[tuple[int, int, int], Region] = {}
        flights: list[Flight] = []
        while True:
            ready = [
                (rank, index)
                for rank, operations in enumerate(waiting)
                for index, operation in operations.items()
                if done[rank].issuperset(operation.after)
                and (
                    not isinstance(operation, Receive)
                    or (operation.peer, rank, operation.tag) in arrived
                )
            ]
            choices = len(ready) + len(flights)
            if not choices:
                break
            choice = self.rng.randrange(choices)
            if choice >= len(ready):
                flight = flights[choice - len(ready)]
                self.progress(flight, arrived)
                if flight.delivered and self.rng.random() < 0.5:
                    assert self.view(flight.source, flight.operation.local).tobytes() == (
                        flight.snapshot
                    ), "a send's region changed before it completed"
                    done[flight.source].add(flight.index)
                    flights.remove(flight)
                continue
            rank, index = ready[choice]
            operation = waiting[rank].pop(index)
            if isinstance(operation, Write | Copy):
                snapshot = self.view(rank, operation.local).tobytes()
                flights.append(Flight(rank, index, operation, snapshot))
                self.sent.append((rank, operation.peer, operation.local.length))
                continue
            if isinstance(operation, Reduce):
                dtype = element_type(operation.dtype)
                ELEMENT_FUNCTIONS[operation.function](
                    self.view(rank, operation.into).view(dtype),
                    self.view(rank, operation.source).view(dtype),
                )
            elif isinstance(operation, Apply):
                find_gpu_function(operation.function)(
                    [self.view(rank, one) for one in operation.inputs],
                    [self.view(rank, one) for one in operation.outputs],
                    *operation.arguments,
                )
            elif isinstance(operation, Receive):
                assert arrived.pop((operation.peer, rank, operation.tag)) == operation.into
            elif not isinstance(operation, Compute):  # which only takes time
                raise AssertionError(f"unexpected {operation}")
            done[rank].add(index)
        assert not any(waiting), "the schedules deadlock"
        assert not arrived, "something was sent that nobody waits for"

    def progress(self, flight: Flight, arrived: dict[tuple[int, int, int], Region]) -> None:
        if flight.delivered:
            return
        operation = flight.operation
        self.view(operation.peer, operation.remote)[:] = self.view(flight.source, operation.local)
        key = (flight.source, operation.peer, operation.tag)
        assert key not in arrived, "two sends carry the same tag"
        arrived[key] = operation.remote
        flight.delivered = True


def happens_before(schedules: Sequence[Schedule]) -> dict[tuple[int, int], int]:
    """For every operation (rank, index) the set, as bits, of operations that are over before it.

    Bits number the operations of all ranks; the completion of a send is not implied by the
    matching receive, only its start is.
    """
    number: dict[tuple[int, int], int] = {}
    for schedule in schedules:
        for index in range(len(schedule.operations)):
            number[schedule.rank, index] = len(number)
    senders = {
        (schedule.rank, operation.peer, operation.tag): (schedule.rank, index)
        for schedule in schedules
        for index, operation in enumerate(schedule.operations)
        if isinstance(operation, Write | Copy)
    }
    before: dict[tuple[int, int], int] = {}

    def visit(key: tuple[int, int]) -> int:
        stack = [key]
        while stack:
            rank, index = stack[-1]
            operation = schedules[rank].operations[index]
            needs = [(rank, after) for after in operation.after]
            starts = []
            if isinstance(operation, Receive):
                starts = [senders[operation.peer, rank, operation.tag]]
            missing = [need for need in (*needs, *starts) if need not in before]
            if missing:
                stack.extend(missing)
                continue
            bits = 0
            for need in needs:
                bits |= before[need] | 1 << number[need]
            for start in starts:
                bits |= before[start]
            before[stack.pop()] = bits
        return before[key]

    for key in number:
        visit(key)
    return before


def hazards(schedules: Sequence[Schedule]) -> list[str]:
    """Pairs of operations that touch the same octets, at least one writing, without an order."""
    before = happens_before(schedules)
    number: dict[tuple[int, int], int] = {}
    for schedule in schedules:
        for index in range(len(schedule.operations)):
            number[schedule.rank, index] = len(number)
    receivers = {
        (operation.peer, schedule.rank, operation.tag): (schedule.rank, index)
        for schedule in schedules
        for index, operation in enumerate(schedule.operations)
        if isinstance(operation, Receive)
    }
    # (start, end, writes, begins at, is over at) by rank and buffer
    uses: dict[tuple[int, str], list[tuple[int, int, bool, tuple[int, int], tuple[int, int]]]] = {}

    def use(
        rank: int,
        region: Region,
        writes: bool,
        begin: tuple[int, int],
        over: tuple[int, int],
    ) -> None:
        end = region.offset + region.length
        uses.setdefault((rank, region.buffer), []).append((region.offset, end, writes, begin, over))

    for schedule in schedules:
        for index, operation in enumerate(schedule.operations):
            key = (schedule.rank, index)
            if isinstance(operation, Write | Copy):
                use(schedule.rank, operation.local, False, key, key)
                arrival = receivers[schedule.rank, operation.peer, operation.tag]
                use(operation.peer, operation.remote, True, key, arrival)
            elif isinstance(operation, Reduce):
                use(schedule.rank, operation.source, False, key, key)
                use(schedule.rank, operation.into, True, key, key)
            elif isinstance(operation, Apply):
                for one in operation.inputs:
                    if one not in operation.outputs:
                        use(schedule.rank, one, False, key, key)
                for one in operation.outputs:
                    use(schedule.rank, one, True, key, key)
    found: list[str] = []
    for (rank, buffer), touches in uses.items():
        touches.sort(key=lambda touch: touch[:2])
        for position, (_, end, writes, begin, over) in enumerate(touches):
            for start, _, also_writes, other_begin, other_over in touches[position + 1 :]:
                if start >= end:
                    break
                if not (writes or also_writes):
                    continue
                ordered = (
                    before[other_begin] >> number[over] & 1
                    or before[begin] >> number[other_over] & 1
                )
                if not ordered:
                    found.append(f"rank {rank} {buffer}[{start}]: {begin} against {other_begin}")
    return found
