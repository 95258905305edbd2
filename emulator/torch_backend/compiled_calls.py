"""A collective compiled once for all of its calls, and put in its place for each of them.

All members lay their memory out as one buffer; a call has places in it for each of its buffers.
Each rank's operations stand between two barriers: ``go`` is passed when the rank has called, and
``over`` is reached when its part is done.  Receives begin before, as data of others may come before
the rank has called.  What a GPU sends on for others (:mod:`emulator.run.pxn`) waits for neither,
and ``relayed`` is reached when that is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emulator.sim.endpoint.operations.operation_table import (
    BARRIER,
    COLUMNS,
    COPY,
    RECEIVE,
    REDUCE,
    WRITE,
    OperationTable,
    of_kinds,
)
from emulator.sim.endpoint.operations.schedule import Schedule
from emulator.sim.endpoint.operations.schedule_program import TAG_BITS

MEMORY = "memory"
#: Names of the buffers of every compiled collective.
INPUT, OUTPUT, DIVISOR = "input", "output", "divisor"


@dataclass(frozen=True, slots=True)
class CallKey:
    """What a compiled collective depends on; ``members`` are ranks by position.

    ``matrix`` has octets from each position to each, if they differ.  Of a message there are two
    members, the sender and the receiver.
    """

    kind: str
    members: tuple[int, ...]
    octets: int
    dtype: str
    reduction: str
    root: int
    matrix: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class CompiledCall:
    """The schedule of each member, where its result begins in ``output``, and the ``algorithm``.

    Relays that are no members have schedules too.  Of a rank's operations the first ``own`` are its
    part, and the others send on what others write.  Buffers have the names above, or are the
    algorithm's own.  ``divided_by`` fills the buffer ``divisor``, if there is one.
    """

    schedules: Mapping[int, Schedule]
    own: Mapping[int, int]
    results: Mapping[int, int]
    algorithm: str
    divided_by: int = 1

    @property
    def launch_ns(self) -> int:
        """Return how long the library takes to launch it."""
        times = [one.gpu_time.launch_ns for one in self.schedules.values() if one.gpu_time]
        return max(times, default=0)

    @property
    def relays(self) -> set[int]:
        """Return the ranks that send on what others write."""
        return {
            rank for rank, one in self.schedules.items() if len(one.operations) > self.own[rank]
        }


#: Compiles a collective for a fabric; raises UserError where it has no way.
Compile = Callable[[CallKey], CompiledCall]


class PlacedCalls:
    """Puts compiled collectives in their places; ``capacity`` is that of each GPU's memory."""

    def __init__(self, compile_call: Compile, capacity: int) -> None:
        self._compile, self.layout = compile_call, {MEMORY: capacity}
        self._compiled: dict[CallKey, tuple[CompiledCall, dict[int, _Template]]] = {}
        self._tags: dict[tuple[int, int], int] = {}

    def compiled(self, key: CallKey) -> CompiledCall:
        return self._of(key)[0]

    def _of(self, key: CallKey) -> tuple[CompiledCall, dict[int, _Template]]:
        known = self._compiled.get(key)
        if known is None:
            compiled = self._compile(key)
            templates = {
                rank: _Template(one, compiled.own[rank]) for rank, one in compiled.schedules.items()
            }
            known = self._compiled[key] = compiled, templates
        return known

    def placed(
        self, key: CallKey, places: Mapping[int, Mapping[str, int]], barriers: Sequence[str]
    ) -> list[Schedule]:
        """Return the schedule of each rank, whose buffers lie at ``places``.

        ``barriers`` are the names of go, over and relayed.
        """
        _, templates = self._of(key)
        schedules = []
        first_tags = self._take_tags(templates)
        for rank, template in templates.items():
            table = template.placed(places, first_tags, barriers)
            schedules.append(
                Schedule(
                    rank=rank,
                    buffers=self.layout,
                    operations=table,
                    gpu_time=template.gpu_time,
                )
            )
        return schedules

    def _take_tags(self, templates: Mapping[int, _Template]) -> dict[tuple[int, int], int]:
        first: dict[tuple[int, int], int] = {}
        for template in templates.values():
            for peer, count in template.sent.items():
                pair = template.rank, peer
                tag = self._tags.get(pair, 0)
                if tag + count > 1 << TAG_BITS:
                    tag = 0
                first[pair] = tag
                self._tags[pair] = tag + count
        return first


class _Template:
    """The operations of ``schedule`` among their barriers, wherever buffers lie.

    The first ``own`` are the rank's part.
    """

    def __init__(self, schedule: Schedule, own: int) -> None:
        self.rank, self.gpu_time = schedule.rank, schedule.gpu_time
        table = OperationTable.of(schedule.operations)
        count = len(table)
        kind = table.columns["kind"]
        self.columns: dict[str, npt.NDArray[np.int64]] = {}
        parts = [np.arange(own + 1), np.arange(own + 1, count + 1)]  # of over, of relayed
        ends = [one for one in parts if len(one)]
        barriers = [0, *range(count + 1, count + 1 + len(ends))]
        for name in COLUMNS:
            column = np.zeros(count + 1 + len(ends), np.int64)
            column[1 : count + 1] = table.columns[name]
            self.columns[name] = column
        self.columns["kind"][barriers] = BARRIER
        self._named = table.names
        self.names = [*table.names, *[""] * len(barriers), MEMORY]
        self.columns["number"][barriers] = np.arange(len(barriers)) + len(table.names)
        waits = [table.after[a:b] for a, b in zip(table.begin, table.begin[1:], strict=False)]
        after = [np.zeros(0, np.int64)]
        for number, before in enumerate(waits):
            gate = [] if kind[number] == RECEIVE or number >= own else [0]
            after.append(np.concatenate([np.array(gate, np.int64), before.astype(np.int64) + 1]))
        after += ends
        self.after = np.concatenate(after)
        self.begin = np.cumsum([0, *(len(one) for one in after)])
        kind = self.columns["kind"]
        self._local = of_kinds(kind, WRITE, COPY, RECEIVE, REDUCE)
        sends = of_kinds(kind, WRITE, COPY)
        peers = self.columns["peer"]
        self._to = {int(p): np.flatnonzero(sends & (peers == p)) for p in set(peers[sends])}
        receives = kind == RECEIVE
        self._from = {int(p): np.flatnonzero(receives & (peers == p)) for p in set(peers[receives])}
        self._sums = kind == REDUCE
        self.sent = {peer: int(self.columns["tag"][at].max()) + 1 for peer, at in self._to.items()}

    def placed(
        self,
        places: Mapping[int, Mapping[str, int]],
        first_tags: Mapping[tuple[int, int], int],
        barriers: Sequence[str],
    ) -> OperationTable:
        columns = dict(self.columns)
        for name in ("near_at", "far_at", "tag"):
            columns[name] = columns[name].copy()
        own = self._begins(places[self.rank])
        local = self._local
        columns["near_at"][local] += own[columns["near_buffer"][local]]
        columns["far_at"][self._sums] += own[columns["far_buffer"][self._sums]]
        for peer, at in self._to.items():
            columns["far_at"][at] += self._begins(places[peer])[columns["far_buffer"][at]]
            columns["tag"][at] += first_tags[self.rank, peer]
        for peer, at in self._from.items():
            columns["tag"][at] += first_tags[peer, self.rank]
        memory = np.full(len(local), len(self.names) - 1, np.int64)
        columns["near_buffer"] = columns["far_buffer"] = memory
        count = len(self.names) - len(self._named) - 1
        names = [*self._named, *barriers[:count], MEMORY]
        return OperationTable(columns, self.begin, self.after, names)

    def _begins(self, places: Mapping[str, int]) -> npt.NDArray[np.int64]:
        return np.array([places.get(name, 0) for name in self.names], np.int64)
