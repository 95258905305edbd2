"""All operations of all ranks as one graph: who waits for whom, and which send goes with a receive.

An operation of rank r has the number ``first[r]`` plus its index.  Whatever goes through all of
them does so a level at a time: the operations of a level wait for none of the same or a later one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from emulator.endpoint.operations.operation_table import (
    COPY,
    RECEIVE,
    WRITE,
    Column,
    OperationTable,
)
from emulator.endpoint.operations.schedule import Operation, Schedule
from emulator.endpoint.operations.schedule_program import TAG_BITS

Numbers = npt.NDArray[np.integer]

_RANK_BITS = 20


@dataclass(frozen=True)
class Edges:
    """Edges from operation ``i`` to each of ``flat[begin[i]:begin[i + 1]]``."""

    begin: Numbers
    flat: Numbers

    def of(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        """Return the targets of all edges of ``numbers`` in a row, and the count of each."""
        low = self.begin[numbers]
        counts = self.begin[numbers + 1] - low
        before = np.cumsum(counts) - counts
        return self.flat[np.repeat(low - before, counts) + np.arange(counts.sum())], counts

    def largest(
        self, numbers: Numbers, values: npt.NDArray[np.generic], into: npt.NDArray[np.generic]
    ) -> None:
        """Set ``into`` for each of ``numbers`` to the largest of ``values`` where its edges lead.

        What has none stays as it is.
        """
        ends, counts = self.of(numbers)
        some = counts > 0
        begins = (np.cumsum(counts) - counts)[some]
        if len(begins):
            into[numbers[some]] = np.maximum.reduceat(values[ends], begins)


class MessageGraph:
    """The graph of ``schedules``, which need not be sound."""

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        self.schedules = schedules
        self.tables = [OperationTable.of(schedule.operations) for schedule in schedules]
        sizes = [len(table) for table in self.tables]
        self._firsts = np.concatenate([[0], np.cumsum(sizes)])
        self.kind = self.column("kind")
        self._rank = np.repeat(np.array([one.rank for one in schedules], np.int32), sizes)
        self.sends = np.flatnonzero(np.isin(self.kind, (WRITE, COPY)))
        receives = np.flatnonzero(self.kind == RECEIVE)
        peer, tag = self.column("peer"), self.column("tag")
        sent = _key(self._rank[self.sends], peer[self.sends], tag[self.sends])
        requested = _key(peer[receives], self._rank[receives], tag[receives])
        order = np.argsort(sent, kind="stable")
        place = np.searchsorted(sent[order], requested, side="right") - 1
        match = np.zeros(len(receives), bool)
        if len(order):
            match = (place >= 0) & (sent[order[place]] == requested)
        #: receives that have a sender, in their order, and the send of each
        self.receive = receives[match]
        self.send = self.sends[order[place[match]]]
        #: receives for which nobody sends
        self.unmatched = receives[~match]

    def __len__(self) -> int:
        return len(self.kind)

    def column(self, name: str) -> Column:
        """A column of all tables."""
        columns = [table.columns[name] for table in self.tables]
        return np.concatenate(columns) if columns else np.zeros(0, np.int32)

    def rank(self, numbers: Numbers) -> Numbers:
        """The ranks whose operations ``numbers`` are."""
        return self._rank[numbers]

    def index(self, numbers: Numbers) -> Numbers:
        """Return the indices of operations in the schedules of these ranks."""
        place = np.searchsorted(self._firsts, numbers, side="right") - 1
        return numbers - self._firsts[place]

    def operation(self, number: int) -> tuple[int, int, Operation]:
        """The rank of operation ``number``, its index, and itself."""
        place = int(np.searchsorted(self._firsts, number, side="right")) - 1
        index = int(number - self._firsts[place])
        return self.schedules[place].rank, index, self.tables[place][index]

    @cached_property
    def needs(self) -> Edges:
        """Return edges from each operation to those of its rank that it waits for."""
        shifts = np.cumsum([0, *(len(table.after) for table in self.tables)])
        begin = np.empty(len(self) + 1, _smallest(shifts[-1]))
        flat = np.empty(shifts[-1], np.int32)
        # Filled table by table: no second copy of all, in wider numbers, is made on the way.
        for place, table in enumerate(self.tables):
            first, end = self._firsts[place : place + 2]
            begin[first:end] = table.begin[:-1] + np.int64(shifts[place])
            flat[shifts[place] : shifts[place + 1]] = table.after + np.int64(first)
        begin[-1] = shifts[-1]
        return Edges(begin, flat)

    @cached_property
    def followers(self) -> Edges:
        """Return edges from each operation to those of its rank that wait for it."""
        needs = self.needs
        later = np.repeat(np.arange(len(self), dtype=np.int32), np.diff(needs.begin))
        counts = np.bincount(needs.flat, minlength=len(self))
        order = np.argsort(needs.flat, kind="stable")
        begin = np.zeros(len(self) + 1, needs.begin.dtype)
        np.cumsum(counts, out=begin[1:])
        return Edges(begin, later[order])

    @cached_property
    def levels(self) -> list[Numbers]:
        """All operations, each level behind those that it waits for.

        Raises ValueError if they wait for each other in a circle.
        """
        received = np.full(len(self), -1, np.int32)
        received[self.send] = self.receive
        waits = np.diff(self.needs.begin).astype(np.int32)
        waits[self.receive] += 1
        level = np.flatnonzero(waits == 0).astype(np.int32)
        place = np.empty(len(self), np.int32)
        found: list[Numbers] = []
        done = 0
        while len(level):
            found.append(level)
            done += len(level)
            following, _ = self.followers.of(level)
            np.subtract.at(waits, following, 1)
            arriving = received[level]
            arriving = arriving[arriving >= 0]
            waits[arriving] -= 1  # each has one sender
            level = np.concatenate([following, arriving])
            level = level[waits[level] == 0]
            order = np.arange(len(level), dtype=np.int32)
            place[level] = order
            level = level[place[level] == order]  # each once
        if done != len(self):
            raise ValueError("the schedules wait for each other in a circle")
        return found


def _smallest(largest: int) -> type[np.signedinteger]:
    """Return the type of indices up to ``largest``."""
    return np.int32 if largest <= np.iinfo(np.int32).max else np.int64


def _key(source: Numbers, destination: Numbers, tag: Numbers) -> npt.NDArray[np.int64]:
    return (
        source.astype(np.int64) << (_RANK_BITS + TAG_BITS)
        | destination.astype(np.int64) << TAG_BITS
        | tag.astype(np.int64)
    )


def longest_chain(graph: MessageGraph) -> int:
    """Return the number of messages in the longest chain of dependent ones.

    At each of them two endpoints compute, whatever the fabric does.  The schedules are sound:
    every receive has its sender, and none waits for itself.
    """
    messages = np.zeros(len(graph), np.int32)
    sender = np.full(len(graph), -1, np.int32)
    sender[graph.receive] = graph.send
    for level in graph.levels:
        graph.needs.largest(level, messages, messages)
        receives = level[sender[level] >= 0]
        sent = messages[sender[receives]]
        messages[receives] = np.maximum(messages[receives], sent) + 1
    return int(messages.max(initial=0))
