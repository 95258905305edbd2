"""The schedules of all ranks, written side by side.

A collective is easiest to read as one program: "rank 3 sends this to rank 7, then rank 7 adds it".
:class:`Program` keeps one list of operations per rank while such a text is compiled. It pairs every
send with its receive under a tag of its own, and chooses the network: the scale-up network between
GPUs that it joins, the fabric between others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self

import numpy as np

from emulator.sim.endpoint.operations import schedule
from emulator.sim.endpoint.operations.operation_table import (
    COPY,
    RECEIVE,
    REDUCE,
    WRITE,
    Names,
    OperationTable,
)
from topologies.model import Topology
from topologies.parts.scale_up import ScaleUpDomains


class Program:
    """Collects the operations of ranks; ``servers[rank]`` names the server of a rank.

    ``joins`` returns whether a scale-up network joins two ranks, by default those of one server.
    Operations of ranks that are not compiled (:func:`only_operations_of`) are counted and not kept;
    their buffers are.
    """

    def __init__(
        self,
        servers: Sequence[object],
        *,
        joins: Callable[[int, int], bool] | None = None,
    ) -> None:
        self.servers = tuple(servers)
        self._joins = joins or self._same_server
        self._compiled = [schedule.has_operations(rank) for rank in range(len(self.servers))]
        self._kept = frozenset(rank for rank, kept in enumerate(self._compiled) if kept)
        #: of what :meth:`extend` takes
        self.names = Names()
        self._tables: list[list[OperationTable]] = [[] for _ in self.servers]
        self._operations: list[list[schedule.Operation]] = [
            [] for _ in self.servers
        ]  # behind the tables
        self._counts = [0] * len(self.servers)
        self._spans: list[list[schedule.ScheduleSpan]] = [[] for _ in self.servers]
        self._blocks: list[str] = []
        self._buffers: list[dict[str, int]] = [{} for _ in self.servers]
        self._tags: dict[tuple[int, int], int] = {}
        #: Octets that :meth:`transfer` sends, kept or not, by source and destination.
        self.sent: dict[tuple[int, int], int] = defaultdict(int)

    @classmethod
    def on(cls, topology: Topology) -> Self:
        """A program for all GPUs of ``topology`` in rank order."""
        gpus, domains = topology.gpus, ScaleUpDomains(topology)
        return cls(
            [gpu.server for gpu in gpus],
            joins=lambda one, other: domains.joins(gpus[one].name, gpus[other].name),
        )

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return len(self.servers)

    def wants(self, *ranks: int) -> bool:
        """Return whether operations of one of ``ranks`` are kept."""
        return not self._kept.isdisjoint(ranks)

    def allocate(self, rank: int, buffer: str, length: int) -> schedule.Region:
        """Let ``buffer`` of ``rank`` grow by ``length`` octets and return the new region."""
        offset = self._buffers[rank].get(buffer, 0)
        self._buffers[rank][buffer] = offset + length
        return schedule.Region(buffer, offset, length)

    def transfer(
        self,
        source: int,
        destination: int,
        local: schedule.Region,
        remote: schedule.Region,
        *,
        after: Iterable[int] = (),
        fan_in: int = 1,
        fan_out: int = 1,
    ) -> tuple[int, int]:
        """Move ``local`` of rank ``source`` into ``remote`` of rank ``destination``.

        ``after`` are operations of the source; ``fan_in`` and ``fan_out`` are those of a
        :class:`~emulator.sim.endpoint.operations.schedule.Copy`.  Returns the index of the send
        (in the source's schedule) and of the receive (in the destination's).
        """
        if local.length != remote.length:
            raise ValueError(f"cannot move {local.length} octets into {remote.length}")
        self._add_sent(source, destination, local.length)
        sends, receives = self._compiled[source], self._compiled[destination]
        if not (sends or receives):
            return self.count(source), self.count(destination)
        tag = self.take_tags(source, destination, 1)
        if sends:
            one: schedule.Operation
            if self.joins(source, destination):
                one = schedule.Copy(
                    peer=destination,
                    tag=tag,
                    local=local,
                    remote=remote,
                    fan_in=fan_in,
                    fan_out=fan_out,
                    after=tuple(after),
                )
            else:
                one = schedule.Write(
                    peer=destination, tag=tag, local=local, remote=remote, after=tuple(after)
                )
            sent = self._append(source, one)
        else:
            sent = self.count(source)
        if not receives:
            return sent, self.count(destination)
        return sent, self._append(destination, schedule.Receive(peer=source, tag=tag, into=remote))

    def reduce(
        self,
        rank: int,
        source: schedule.Region,
        into: schedule.Region,
        *,
        dtype: str,
        function: str = "sum",
        after: Iterable[int] = (),
    ) -> int:
        """Add ``source`` to ``into`` at ``rank``; return the operation's index."""
        if not self._compiled[rank]:
            return self.count(rank)
        return self._append(
            rank,
            schedule.Reduce(
                source=source, into=into, dtype=dtype, function=function, after=tuple(after)
            ),
        )

    def count(self, rank: int, operations: int = 1) -> int:
        """Count ``operations`` of ``rank``, kept or not; return the index of the last."""
        self._counts[rank] += operations
        return self._counts[rank] - 1

    def append(self, rank: int, operation: schedule.Operation) -> int:
        """Append ``operation`` at ``rank``; returns its index."""
        return self._append(rank, operation) if self._compiled[rank] else self.count(rank)

    def take_tags(self, source: int, destination: int, count: int) -> int:
        """Use ``count`` tags for what goes from one to the other; returns the first.

        Between two ranks that are not compiled nobody asks for them.
        """
        tag = self._tags.get((source, destination), 0)
        self._tags[source, destination] = tag + count
        return tag

    def joins(self, rank: int, other: int) -> bool:
        """Return whether a scale-up network joins the two."""
        return self._joins(rank, other)

    @contextmanager
    def named(self, name: str, ranks: Iterable[int] | None = None) -> Iterator[None]:
        """Give ``name`` to the operations that the block appends, at every rank or at ``ranks``.

        The timeline shows it.  A block in another one adds its name to the outer one's, such as
        "micro-batch 1, layer 3 forward".
        """
        before = [
            (rank, self._counts[rank])
            for rank in (self._kept if ranks is None else ranks)
            if self._compiled[rank]
        ]
        self._blocks.append(name)
        yield
        name = ", ".join(self._blocks)
        self._blocks.pop()
        for rank, first in before:
            self.name(rank, first, name)

    def name(self, rank: int, first: int, name: str) -> None:
        """Give ``name`` to the operations of ``rank`` from ``first`` on, as :meth:`named` does."""
        if self._compiled[rank] and self._counts[rank] > first:
            self._spans[rank].append(schedule.ScheduleSpan(name, first, self._counts[rank]))

    def operations(self, rank: int) -> int:
        """Return how many operations ``rank`` has so far, which is the index of the next one."""
        return self._counts[rank]

    def extend(self, rank: int, table: OperationTable) -> None:
        """Append the operations of ``table``, whose names have the numbers of :attr:`names`."""
        self._counts[rank] += len(table)
        if self._compiled[rank]:
            self._flush(rank)
            self._tables[rank].append(table)

    def users(self, rank: int, *buffers: str) -> list[int]:
        """Return the operations of ``rank`` that read or write one of its ``buffers``."""
        self._flush(rank)
        if not self._tables[rank]:
            return []
        table = OperationTable.joined(self._tables[rank], self.names)
        self._tables[rank] = [table]
        numbers = [self.names.number(buffer) for buffer in buffers]
        columns = table.columns
        near = np.isin(columns["kind"], (WRITE, COPY, RECEIVE, REDUCE))
        touched = near & np.isin(columns["near_buffer"], numbers)
        touched |= (columns["kind"] == REDUCE) & np.isin(columns["far_buffer"], numbers)
        indices: list[int] = np.flatnonzero(touched).tolist()
        return indices

    def buffers(self, rank: int) -> Mapping[str, int]:
        """Return the buffers of ``rank`` so far, with their sizes in octets."""
        return self._buffers[rank]

    def schedules(self) -> tuple[schedule.Schedule, ...]:
        """Return the schedule of each rank, without operations where they are not compiled."""
        made = []
        for rank, buffers in enumerate(self._buffers):
            operations: Sequence[schedule.Operation] = tuple(self._operations[rank])
            if self._tables[rank]:
                self._flush(rank)
                operations = OperationTable.joined(self._tables[rank], self.names)
                self._tables[rank] = [operations]
            spans = tuple(self._spans[rank])
            made.append(
                schedule.Schedule(
                    rank=rank, buffers=dict(buffers), operations=operations, spans=spans
                )
            )
        return tuple(made)

    def _flush(self, rank: int) -> None:
        if self._operations[rank]:
            self._tables[rank].append(OperationTable.of(self._operations[rank], self.names))
            self._operations[rank] = []

    def _same_server(self, rank: int, other: int) -> bool:
        return self.servers[rank] == self.servers[other]

    def _add_sent(self, source: int, destination: int, octets: int) -> None:
        self.sent[source, destination] += octets

    def _append(self, rank: int, operation: schedule.Operation) -> int:
        self._operations[rank].append(operation)
        return self.count(rank)
