"""The operations of all ranks as one graph: who waits for whom, and which send goes with a receive.

An operation of rank r has the number ``first[r]`` plus its index.  Where several processes share
the GPUs (:class:`~emulator.workers.division.Division`), each has the graph of its own.  Of the
others' operations it knows those that its own exchange messages with.

Whatever goes through all operations does so a level at a time: the operations of a level wait for
none of the same or a later one.  Levels that need nothing from other processes in between are a
wave.  After a wave the processes trade what they have of the messages that were sent in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from emulator.run.measures.matched_messages import Messages, Numbers
from emulator.sim.endpoint.operations.operation_table import (
    COPY,
    WRITE,
    Column,
    OperationTable,
    of_kinds,
)
from emulator.sim.endpoint.operations.schedule import Operation, Schedule
from emulator.workers.division import JobSchedules

_Scalar = TypeVar("_Scalar", bound=np.generic)


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

    @cached_property
    def single(self) -> Numbers | None:
        """The one target of each operation, -1 where it has none; None: some have several."""
        counts = np.diff(self.begin)
        if counts.max(initial=0) > 1:
            return None
        found = np.full(len(counts), -1, np.int32)
        found[counts > 0] = self.flat
        return found

    def largest(self, numbers: Numbers, values: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
        """Return for each of ``numbers`` the largest of ``values`` where its edges lead; else 0.

        Behind the values of all operations stands a 0.
        """
        if self.single is not None:
            return values[self.single[numbers]]
        ends, counts = self.of(numbers)
        found = np.zeros(len(numbers), values.dtype)
        some = counts > 0
        begins = (np.cumsum(counts) - counts)[some]
        if len(begins):
            found[some] = np.maximum.reduceat(values[ends], begins)
        return found


@dataclass(frozen=True)
class Wave:
    """Levels of operations in a row.

    ``sent`` are the messages, by process, that other processes have to know of afterwards, and
    ``received`` those that this one has to know of.
    """

    levels: Sequence[Numbers]
    sent: Sequence[Numbers]
    received: Sequence[Numbers]


class MessageGraph:
    """The graph of ``schedules``, which need not be sound.

    Those of GPUs that other processes have are without operations.
    """

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        self.schedules = schedules
        self.division = JobSchedules.of(schedules).division
        self.tables = [OperationTable.of(schedule.operations) for schedule in schedules]
        sizes = [len(table) for table in self.tables]
        self._firsts = np.concatenate([[0], np.cumsum(sizes)])
        self.kind = self.column("kind")
        self._rank = np.repeat(np.array([one.rank for one in schedules], np.int32), sizes)
        sends = np.flatnonzero(of_kinds(self.kind, WRITE, COPY))
        self.sends: Numbers = sends.astype(np.int32)
        #: the messages that have a sender and a receiver, of which one at least is here
        self.messages = Messages.of(self, self.division)
        self._waves: list[Wave] | None = None

    @property
    def send(self) -> Numbers:
        """The send of each message; -1 where another process has it."""
        return self.messages.send

    @property
    def receive(self) -> Numbers:
        """The receive of each message; -1 where another process has it."""
        return self.messages.receive

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
        index: Numbers = (numbers - self._firsts[place]).astype(np.int32)
        return index

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

    @property
    def waves(self) -> list[Wave]:
        """All operations, each level behind those that it waits for.

        Raises ValueError if they wait for each other in a circle.  All processes call it.
        """
        if self._waves is None:
            self._waves = _Sorting(self).waves()
        return self._waves

    def send_on(self, wave: Wave, values: npt.NDArray[_Scalar]) -> None:
        """Have ``values`` of the messages sent in ``wave`` where they are received."""
        self.messages.trade(wave.sent, wave.received, values)

    def send_back(self, wave: Wave, values: npt.NDArray[_Scalar]) -> None:
        """Have ``values`` of the messages sent in ``wave``, from where they are received."""
        self.messages.trade(wave.received, wave.sent, values)


class _Sorting:
    """The operations of ``graph`` put into waves."""

    def __init__(self, graph: MessageGraph) -> None:
        self._graph, self._messages = graph, graph.messages
        self._sending = graph.messages.of_sends(len(graph))
        self._waits = np.diff(graph.needs.begin).astype(np.int32)
        received = graph.receive[graph.receive >= 0]
        self._waits[received] += 1
        self._place = np.empty(len(graph), np.int32)
        self._done = 0

    def waves(self) -> list[Wave]:
        messages = self._messages
        ready: Numbers = np.flatnonzero(self._waits == 0).astype(np.int32)
        found: list[Wave] = []
        while True:
            levels, leaving = self._levels(ready)
            state = self._done < len(self._graph), len(leaving) > 0
            sent, received, states = messages.announce(leaving, state)
            found.append(Wave(levels, sent, received))
            if not any(is_open for is_open, _ in states):
                return found
            if not any(has_moved for _, has_moved in states):
                raise ValueError("the schedules wait for each other in a circle")
            arrived = np.concatenate([np.zeros(0, np.int32), *received])
            ready = self._now_ready(self._graph.receive[arrived])

    def _levels(self, level: Numbers) -> tuple[list[Numbers], Numbers]:
        """Return all levels that can follow before another process has sent anything more.

        With them go the messages in them that other processes receive.
        """
        graph, found = self._graph, []
        single = None if graph.needs.single is None else graph.followers.single
        leaving: list[Numbers] = [np.zeros(0, np.int32)]
        while len(level):
            found.append(level)
            self._done += len(level)
            if single is None:
                following, _ = graph.followers.of(level)
                np.subtract.at(self._waits, following, 1)
            else:  # and nothing waits for two of them
                following = single[level]
                following = following[following >= 0]
                self._waits[following] -= 1
            carried = self._sending[level]
            carried = carried[carried >= 0]
            arriving = graph.receive[carried]
            leaving.append(carried[arriving < 0])
            arriving = arriving[arriving >= 0]
            self._waits[arriving] -= 1  # each has one sender
            level = self._once(np.concatenate([following, arriving]))
        return found, np.concatenate(leaving)

    def _now_ready(self, receives: Numbers) -> Numbers:
        self._waits[receives] -= 1
        return self._once(receives)

    def _once(self, level: Numbers) -> Numbers:
        """Return those of ``level`` that wait for nothing any more, each once."""
        level = level[self._waits[level] == 0]
        order = np.arange(len(level), dtype=np.int32)
        self._place[level] = order
        once: Numbers = level[self._place[level] == order]
        return once


def _smallest(largest: int) -> type[np.signedinteger]:
    """Return the type of indices up to ``largest``."""
    return np.int32 if largest <= np.iinfo(np.int32).max else np.int64
