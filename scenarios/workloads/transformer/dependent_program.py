"""A program whose collectives begin when other operations are over, and use memory again.

An algorithm of :mod:`scenarios.collectives.algorithms` takes its data for ready from the start.
Inside :meth:`DependentProgram.exchange` each send and each sum of a rank waits for that rank's
``entry`` besides. The record has what ended the exchange at each rank.

An exchange takes memory and sends octets, whoever wants its operations.

An exchange of GPUs that nobody wants is not written down.  It has the footprint of another one of
its shape: of the same collective and size, in a group with the same hosts and rings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from emulator.sim.endpoint.operations.operation_table import (
    COPY,
    RECEIVE,
    REDUCE,
    WRITE,
    OperationTable,
)
from emulator.sim.endpoint.operations.schedule import (
    Copy,
    Operation,
    Receive,
    Reduce,
    Region,
    Write,
    only_operations_of,
)
from scenarios.collectives.algorithm_registry import algorithm_of
from scenarios.collectives.collective_call import STAGING, CollectiveCall
from scenarios.collectives.program import Program


@dataclass(frozen=True)
class ExchangeFootprint:
    """Regions that members allocate, in their order, and octets that they send.

    Regions are (position, buffer, length), and octets are by positions of sender and receiver.
    """

    allocated: Sequence[tuple[int, str, int]]
    sent: Mapping[tuple[int, int], int]


class FootprintProgram(Program):
    """A program that adds up octets, and keeps no operation."""

    def __init__(self, servers: Sequence[object]) -> None:
        with only_operations_of(None):
            super().__init__(servers)
        self.allocated: list[tuple[int, str, int]] = []

    def allocate(self, rank: int, buffer: str, length: int) -> Region:
        """Take note of a region (:meth:`Program.allocate`)."""
        self.allocated.append((rank, buffer, length))
        return super().allocate(rank, buffer, length)

    def extend(self, rank: int, table: OperationTable) -> None:
        """Add up what ``table`` sends (:meth:`Program.extend`)."""
        self.count(rank, len(table))
        sends = table.where(WRITE, COPY)
        peers, octets = (table.columns[name][sends] for name in ("peer", "near_octets"))
        for peer in set(peers.tolist()):
            self.sent[rank, peer] += int(octets[peers == peer].sum(dtype=np.int64))


class ExchangeFootprints:
    """The footprints of exchanges among GPUs of ``servers``, one for each shape."""

    def __init__(self, servers: Sequence[object]) -> None:
        self._servers = servers
        self._known: dict[Hashable, ExchangeFootprint] = {}

    def of(self, collective: str, algorithm: str, call: CollectiveCall) -> ExchangeFootprint:
        """Return the footprint of ``call``, which does ``collective`` by ``algorithm``."""
        shape = (
            *(collective, algorithm, call.size, call.source == call.result),
            *(call.slice_bytes, call.channels, call.peers, _positions(call, algorithm)),
        )
        if shape not in self._known:
            self._known[shape] = self._made(collective, algorithm, call)
        return self._known[shape]

    def _made(self, collective: str, algorithm: str, call: CollectiveCall) -> ExchangeFootprint:
        program = FootprintProgram(self._servers)
        algorithm_of(collective, algorithm).run(replace(call, program=program))
        place = call.communicator.position
        return ExchangeFootprint(
            [(place(rank), buffer, length) for rank, buffer, length in program.allocated],
            {(place(one), place(other)): octets for (one, other), octets in program.sent.items()},
        )


def _positions(call: CollectiveCall, algorithm: str) -> Hashable:
    """Return what an algorithm reads of a group: its members' hosts, and rings of positions."""
    group = call.communicator
    rings = group.rings[: call.channels] if algorithm == "ring" else []
    return (
        len(group),
        tuple(map(tuple, group.hosts)),
        tuple(tuple(map(group.position, ring)) for ring in rings),
    )


@dataclass
class StagingSlots:
    """Places of received parts at each rank, which a later exchange takes again in their order."""

    regions: dict[int, list[Region]] = field(default_factory=lambda: defaultdict(list))
    used: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def rewind(self) -> None:
        """Begin again with the first places."""
        self.used.clear()

    def take(self, rank: int, length: int, allocate: Callable[[], Region]) -> Region:
        """Return a place of ``length`` octets; one that is too small is replaced by a new one."""
        places, at = self.regions[rank], self.used[rank]
        self.used[rank] = at + 1
        if at == len(places):
            places.append(allocate())
        elif places[at].length < length:
            places[at] = allocate()
        return Region(places[at].buffer, places[at].offset, length)


@dataclass
class ExchangeRecord:
    """The operations of an exchange by rank: its sends, and its receives and sums."""

    sends: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    results: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    _awaited: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))

    def awaits(self, rank: int, after: Iterable[int]) -> None:
        """Take note that a sum of the exchange waits for ``after``."""
        self._awaited[rank].update(after)

    def ends(self, rank: int) -> tuple[int, ...]:
        """Return the receives and sums of ``rank`` that no sum of the exchange waits for."""
        awaited = self._awaited[rank]
        return tuple(index for index in self.results[rank] if index not in awaited)


@dataclass(frozen=True)
class _Exchange:
    label: str
    entry: Mapping[int, tuple[int, ...]]
    staging: StagingSlots
    record: ExchangeRecord


class DependentProgram(Program):
    """A program that records what each receive is for (``labels``, by rank and index).

    It does so for ranks that are compiled.  What an exchange sends is in its footprint
    (:meth:`leave`), all else in ``sent`` at once.
    """

    def __init__(
        self, servers: Sequence[object], *, joins: Callable[[int, int], bool] | None = None
    ) -> None:
        super().__init__(servers, joins=joins)
        self.labels: list[dict[int, str]] = [{} for _ in servers]
        self.footprints = ExchangeFootprints(servers)
        self._exchange: _Exchange | None = None

    @contextmanager
    def exchange(
        self, label: str, entry: Mapping[int, tuple[int, ...]], staging: StagingSlots
    ) -> Iterator[ExchangeRecord]:
        """Let all that the block appends wait for ``entry``; received parts go to ``staging``."""
        record = ExchangeRecord()
        staging.rewind()
        self._exchange = _Exchange(label, entry, staging, record)
        try:
            yield record
        finally:
            self._exchange = None

    def leave(self, footprint: ExchangeFootprint, ranks: Sequence[int]) -> None:
        """Add up what an exchange of ``ranks`` sends; allocate where none is compiled."""
        for (source, destination), octets in footprint.sent.items():
            self.sent[ranks[source], ranks[destination]] += octets
        if not self.wants(*ranks):
            for position, buffer, length in footprint.allocated:
                self.allocate(ranks[position], buffer, length)

    def allocate(self, rank: int, buffer: str, length: int) -> Region:
        """Let ``buffer`` grow; inside an exchange received parts get places that are used again."""
        if self._exchange is None or buffer != STAGING:
            return super().allocate(rank, buffer, length)
        grow = super().allocate
        return self._exchange.staging.take(rank, length, lambda: grow(rank, buffer, length))

    def send(
        self, label: str, source: int, destination: int, local: Region, remote: Region, after: int
    ) -> int:
        """Move a region by itself, for ``label``; return the index of its receive."""
        _, received = self.transfer(source, destination, local, remote, after=(after,))
        if self.wants(destination):
            self.labels[destination][received] = label
        return received

    def _add_sent(self, source: int, destination: int, octets: int) -> None:
        if self._exchange is None:
            super()._add_sent(source, destination, octets)

    def _append(self, rank: int, operation: Operation) -> int:
        """Let sends and sums of an exchange wait for its entry, and record them."""
        now = self._exchange
        if now is None or not isinstance(operation, Write | Copy | Receive | Reduce):
            return super()._append(rank, operation)
        if not isinstance(operation, Receive):
            after = tuple(dict.fromkeys((*operation.after, *now.entry.get(rank, ()))))
            operation = replace(operation, after=after)
        index = super()._append(rank, operation)
        if isinstance(operation, Write | Copy):
            now.record.sends[rank].append(index)
            return index
        now.record.results[rank].append(index)
        if isinstance(operation, Reduce):
            now.record.awaits(rank, operation.after)
        else:
            self.labels[rank][index] = now.label
        return index

    def extend(self, rank: int, table: OperationTable) -> None:
        """Append the operations of ``table`` (:meth:`Program.extend`)."""
        now = self._exchange
        if now is None or not self.wants(rank):
            super().extend(rank, table)
            return
        first = self.operations(rank)
        later = _waiting(table, now.entry.get(rank, ()))
        super().extend(rank, later)
        sums = later.where(REDUCE)
        for row in sums.tolist():
            now.record.awaits(rank, later.after[later.begin[row] : later.begin[row + 1]].tolist())
        now.record.sends[rank] += (first + later.where(WRITE, COPY)).tolist()
        now.record.results[rank] += (first + later.where(RECEIVE, REDUCE)).tolist()
        self.labels[rank].update(dict.fromkeys((first + later.where(RECEIVE)).tolist(), now.label))


def _waiting(table: OperationTable, entry: tuple[int, ...]) -> OperationTable:
    """Return ``table``, in which sends and sums wait for ``entry`` besides."""
    if not entry:
        return table
    rows = table.where(WRITE, COPY, REDUCE)
    counts = np.diff(table.begin)
    counts[rows] += len(entry)
    behind = np.repeat(table.begin[rows + 1], len(entry))
    after = np.insert(table.after, behind, np.tile(np.array(entry), len(rows)))
    begin = np.concatenate([[0], np.cumsum(counts)])
    return OperationTable(table.columns, begin, after, table.names, table.calls)
