"""A schedule made ready to execute: checked against the memories, dependencies turned round."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from librt.vecs import append, vec
from mypy_extensions import i64

from emulator.sim.endpoint.operations.elementwise import (
    ELEMENT_FUNCTIONS,
    ElementFunction,
    element_type,
)
from emulator.sim.endpoint.operations.gpu_functions import LocatedCall, find_gpu_function
from emulator.sim.endpoint.operations.gpu_memory import Layout
from emulator.sim.endpoint.operations.gpu_time import GpuTime
from emulator.sim.endpoint.operations.operation_table import (
    APPLY,
    COMPUTE,
    COPY,
    RECEIVE,
    REDUCE,
    WRITE,
    OperationTable,
    distinct,
    of_kinds,
)
from emulator.sim.endpoint.operations.schedule import (
    Apply,
    Barrier,
    Compute,
    Copy,
    Operation,
    Receive,
    Reduce,
    Region,
    Schedule,
    Write,
)

#: A tag travels in this many bits of a write's header data.
TAG_BITS: Final = 24

_FUNCTIONS = tuple(ELEMENT_FUNCTIONS.values())
#: Words of an operation in ``rows``: a line of the cache.
ROW: Final = 8
KIND: Final = 0
PEER: Final = 1
TAG: Final = 2
OCTETS: Final = 3
AT: Final = 4
FAR: Final = 5
NUMBER: Final = 6
FOLLOWERS: Final = 7

Mask = npt.NDArray[np.bool_]


class ScheduleProgram:
    """The operations of one rank, each with how many others it waits for and who waits for it.

    ``layouts`` has the layout of every rank that is written to, ``fabric`` the ranks reachable
    over the fabric and ``scale_up`` those that it copies to; both are kept as they are, for a copy
    would have all ranks at each of them.  ``ValueError`` names the operation when the schedule
    contradicts itself, a region does not fit its buffer, or a peer is not there.

    What operation i works on stands side by side in ``rows``, from ``i * ROW`` on: ``KIND``,
    ``PEER``, ``TAG``, ``OCTETS`` and ``AT`` (its own memory), ``FAR`` (the peer's memory; of a sum
    its source), ``NUMBER`` (:mod:`emulator.sim.endpoint.operations.operation_table`), and
    ``FOLLOWERS``: who waits for it stands in ``followers`` from there to what the next row has.
    The last row has that alone.

    :meth:`add` puts the operations of a later program behind these; ``count`` counts them all.
    """

    def __init__(
        self,
        schedule: Schedule,
        layouts: Mapping[int, Layout],
        *,
        fabric: Collection[int] = (),
        scale_up: Collection[int] = (),
    ) -> None:
        self.rank = schedule.rank
        self.layout = Layout(schedule.buffers)
        self.gpu_time = schedule.gpu_time
        self.layouts = dict(layouts)
        self._fabric, self._scale_up = fabric, scale_up
        self._tags: set[tuple[str, int, int]] = set()
        self._types: dict[int, np.dtype[np.generic]] = {}
        #: made when somebody asks for one
        self._receives: dict[int, _Receives] | None = None
        self.operations = table = self._table(schedule)
        self.count = len(table)
        #: what was added: where its operations begin, and itself
        self._later: list[tuple[int, ScheduleProgram]] = []
        columns = table.columns
        self._wrong = np.zeros(len(table), bool)
        at, far = self._places(columns["near_octets"])
        self._check_kinds()
        #: What each Apply calls, by its index.
        self.calls = self._calls()
        follow = self._follow()
        wrong = np.flatnonzero(self._wrong)
        if len(wrong):
            for index, operation in enumerate(table):
                self._check(index, operation)
            raise AssertionError(f"operation {wrong[0]} of rank {self.rank} is sound after all")
        #: How many operations must complete before operation i starts.
        self.before = _words(np.bincount(follow[1], minlength=len(table)))
        self.followers = _words(follow[1])
        rows = np.zeros((len(table) + 1, ROW), np.int64)
        rows[:-1, KIND], rows[:-1, NUMBER] = columns["kind"], columns["number"]
        rows[:-1, PEER], rows[:-1, TAG] = columns["peer"], columns["tag"]
        rows[:-1, OCTETS], rows[:-1, AT], rows[:-1, FAR] = columns["near_octets"], at, far
        rows[1:, FOLLOWERS] = np.cumsum(np.bincount(follow[0], minlength=len(table)))
        self.rows = _words(rows.ravel())

    def operation(self, index: int) -> Operation:
        """Return operation ``index``."""
        for first, program in reversed(self._later):
            if index >= first:
                return program.operations[index - first]
        return self.operations[index]

    def barrier(self, index: int) -> str:
        """Return the name of the Barrier ``index``."""
        number = int(self.rows[index * ROW + NUMBER])
        for first, program in reversed(self._later):
            if index >= first:
                return program.operations.names[number]
        return self.operations.names[number]

    def time_of(self, index: int) -> GpuTime | None:
        """Return what the GPU takes for the schedule of operation ``index``."""
        for first, program in reversed(self._later):
            if index >= first:
                return program.gpu_time
        return self.gpu_time

    def add(self, later: ScheduleProgram) -> None:
        """Put the operations of ``later`` behind these; they wait for each other alone.

        ``later`` is of the same rank, lies in the same memory, and has tags of its own.
        """
        first = self.count
        numbers = self._numbers(later)
        followers, rows = self.followers, self.rows
        shift: i64 = first
        behind: i64 = len(followers)
        word: i64
        for word in later.followers:
            followers = append(followers, word + shift)
        before = self.before
        for word in later.before:
            before = append(before, word)
        place: i64 = 0
        end: i64 = shift * ROW
        theirs = later.rows
        while place < len(theirs):
            word = theirs[place]
            column = place % ROW
            if column == FOLLOWERS:
                word += behind
            elif column == NUMBER and theirs[place - NUMBER + KIND] == REDUCE:
                word = numbers[int(word)]
            if place < ROW:
                rows[end + place] = word  # in the last row, which had its FOLLOWERS alone
            else:
                rows = append(rows, word)
            place += 1
        self.followers, self.before, self.rows = followers, before, rows
        for index, call in later.calls.items():
            self.calls[first + index] = call
        self._later.append((first, later))
        self.count = first + later.count
        self._add_receives(first, later)

    def _numbers(self, later: ScheduleProgram) -> dict[int, int]:
        """Return the number here of each number that ``later`` has for an element type."""
        own = {dtype: number for number, dtype in self._types.items()}
        found: dict[int, int] = {}
        for theirs, dtype in later._types.items():
            number = own.get(dtype)
            if number is None:
                number = own[dtype] = 1 + max(self._types, default=-1)
                self._types[number] = dtype
            found[theirs] = number
        return found

    def _add_receives(self, shift: i64, later: ScheduleProgram) -> None:
        known = self._receives
        if known is None:
            known = self._receives = self._receives_by_peer()
        for peer, more in later._receives_by_peer().items():
            had = known.get(peer)
            ends = [more.first + len(more.indices)]
            first = more.first
            if had is not None:
                ends.append(had.first + len(had.indices))
                first = min(first, had.first)
            by_tag = [-1] * (max(ends) - int(first))
            tag: i64 = 0
            if had is not None:
                while tag < len(had.indices):
                    by_tag[int(had.first - first + tag)] = int(had.indices[tag])
                    tag += 1
            tag = 0
            while tag < len(more.indices):
                if more.indices[tag] >= 0:
                    by_tag[int(more.first - first + tag)] = int(more.indices[tag] + shift)
                tag += 1
            known[peer] = _Receives(first, _words(np.array(by_tag, np.int64)))

    def dtype(self, index: int) -> np.dtype[np.generic]:
        """Return the element type of the Reduce ``index``."""
        return self._types[int(self.rows[index * ROW + NUMBER])]

    def function(self, index: int) -> ElementFunction:
        """Return what the Reduce ``index`` does to its elements."""
        return _FUNCTIONS[int(self.rows[index * ROW + TAG])]

    def receive_of(self, peer: int, tag: i64) -> i64:
        """The operation that waits for what ``peer`` sends with ``tag``; -1: there is none."""
        known = self._receives
        if known is None:
            known = self._receives = self._receives_by_peer()
        receives = known.get(peer)
        if receives is None:
            return -1
        place = tag - receives.first
        return receives.indices[place] if 0 <= place < len(receives.indices) else -1

    def _receives_by_peer(self) -> dict[int, _Receives]:
        """Return for each peer its lowest tag and the receive of each tag from there on (-1: none).

        Tags are numbers that begin with 0 at each pair; who leaves gaps pays for them.
        """
        columns = self.operations.columns
        receives = self.operations.where(RECEIVE)
        of = columns["peer"][receives]
        found: dict[int, _Receives] = {}
        if not len(receives):
            return found
        order = np.argsort(of, kind="stable")
        peers, begins = np.unique(of[order], return_index=True)
        for peer, chosen in zip(peers.tolist(), np.split(order, begins[1:]), strict=True):
            tags = columns["tag"][receives[chosen]].astype(np.int64)
            first = int(tags.min())
            by_tag = np.full(int(tags.max()) - first + 1, -1, np.int32)
            by_tag[tags - first] = receives[chosen]
            found[peer] = _Receives(first, _words(by_tag))
        return found

    # -- all at once ---------------------------------------------------------------------------

    def _table(self, schedule: Schedule) -> OperationTable:
        try:
            return OperationTable.of(schedule.operations)
        except ValueError:
            for index, operation in enumerate(schedule.operations):
                self._check(index, operation)
            raise

    def _places(self, octets: npt.NDArray[np.integer]) -> tuple[np.ndarray, np.ndarray]:
        """Return where the near and the far region of each operation begin in their memories."""
        columns, kind = self.operations.columns, self.operations.columns["kind"]
        at = np.zeros(len(kind), np.int64)
        far = np.zeros(len(kind), np.int64)
        here = self.layout
        near = of_kinds(kind, WRITE, COPY, RECEIVE, REDUCE)
        self._locate(at, near, here, "near")
        self._locate(far, kind == REDUCE, here, "far")
        sends = of_kinds(kind, WRITE, COPY)
        for peer in self.operations.peers(WRITE, COPY):
            layout = self.layouts.get(peer)
            to = sends & (columns["peer"] == peer)
            if layout is not None:
                self._locate(far, to, layout, "far")
            reachable = {WRITE: self._fabric, COPY: self._scale_up}
            for each, ranks in reachable.items():
                if layout is None or peer not in ranks:
                    self._wrong |= to & (kind == each)
        pairs = sends | (kind == REDUCE)
        self._wrong |= pairs & (octets != columns["far_octets"])
        return at, far

    def _locate(self, into: np.ndarray, which: Mask, layout: Layout, side: str) -> None:
        columns, names = self.operations.columns, self.operations.names
        chosen = np.flatnonzero(which)
        buffer = columns[f"{side}_buffer"][chosen]
        begin = columns[f"{side}_at"][chosen].astype(np.int64)
        length = columns[f"{side}_octets"][chosen].astype(np.int64)
        sizes = np.array([layout.buffers.get(name, -1) for name in names] or [-1], np.int64)
        known = [
            layout.locate(Region(name, 0, 0)) if name in layout.buffers else 0 for name in names
        ]
        into[chosen] = np.array(known or [0], np.int64)[buffer] + begin
        fits = (begin >= 0) & (length >= 0) & (begin + length <= sizes[buffer])
        self._wrong[chosen[~fits]] = True

    def _check_kinds(self) -> None:
        columns, names = self.operations.columns, self.operations.names
        kind = columns["kind"]
        for ways in ((WRITE, COPY), (RECEIVE,)):
            chosen = np.flatnonzero(of_kinds(kind, *ways))
            tag = columns["tag"][chosen].astype(np.int64)
            self._wrong[chosen[(tag < 0) | (tag >= 1 << TAG_BITS)]] = True
            key = columns["peer"][chosen].astype(np.int64) << TAG_BITS | tag
            order = np.argsort(key, kind="stable")
            self._wrong[chosen[order[1:][key[order[1:]] == key[order[:-1]]]]] = True
        self._wrong |= of_kinds(kind, COMPUTE, APPLY) & (columns["number"] < 0)
        sums = np.flatnonzero(kind == REDUCE)
        if len(sums):
            sizes = np.ones(len(names), np.int64)
            for number in distinct(columns["number"][sums]).tolist():
                try:
                    self._types[number] = element_type(names[number])
                except ValueError:
                    self._wrong[sums[columns["number"][sums] == number]] = True
                    continue
                sizes[number] = self._types[number].itemsize
            size = sizes[columns["number"][sums]]
            for column in ("near_at", "near_octets", "far_at", "far_octets"):
                self._wrong[sums[columns[column][sums] % size != 0]] = True

    def _calls(self) -> dict[int, LocatedCall]:
        calls: dict[int, LocatedCall] = {}
        for index in self.operations.where(APPLY).tolist():
            call = self.operations.calls[self.operations.columns["tag"][index]]
            try:
                calls[index] = LocatedCall(
                    find_gpu_function(call.function),
                    self._located(call.inputs),
                    self._located(call.outputs),
                    call.arguments,
                )
            except ValueError:
                self._wrong[index] = True
        return calls

    def _located(self, regions: Sequence[Region]) -> tuple[tuple[int, int], ...]:
        return tuple((self.layout.locate(one), one.length) for one in regions)

    def _follow(self) -> np.ndarray:
        """Pairs of an operation and one that waits for it, in their order."""
        table = self.operations
        later = np.repeat(np.arange(len(table)), np.diff(table.begin))
        earlier = table.after.astype(np.int64)
        bad = (earlier < 0) | (earlier >= later)
        self._wrong[later[bad]] = True
        if bad.any():
            return np.zeros((2, 0), np.int64)
        count = max(1, len(table))
        pairs = distinct(earlier * count + later)
        return np.stack([pairs // count, pairs % count])

    # -- one by one, to name what is wrong -----------------------------------------------------

    def _check(self, index: int, operation: Operation) -> None:
        try:
            self._check_operation(operation)
            for earlier in operation.after:
                if not 0 <= earlier < index:
                    raise ValueError(
                        f"it waits for operation {earlier}, which is not an earlier one"
                    )
        except ValueError as wrong:
            raise ValueError(f"rank {self.rank}: {describe(index, operation)}: {wrong}") from None

    def _check_operation(self, operation: Operation) -> None:
        match operation:
            case Write():
                self._check_transfer(operation, self._fabric, "has no fabric address")
            case Copy():
                self._check_transfer(
                    operation, self._scale_up, "is not in the same scale-up network"
                )
            case Receive():
                self.layout.locate(operation.into)
                self._check_tag("from", operation.peer, operation.tag)
            case Reduce():
                self._check_reduce(operation)
            case Compute():
                if operation.duration_ns < 0:
                    raise ValueError("its duration is negative")
            case Barrier():
                pass
            case Apply():
                find_gpu_function(operation.function)
                self._located((*operation.inputs, *operation.outputs))
                if operation.duration_ns < 0:
                    raise ValueError("its duration is negative")
            case _:
                raise ValueError("this kind of operation is unknown")

    def _check_transfer(
        self, operation: Write | Copy, reachable: Collection[int], why_not: str
    ) -> None:
        if operation.peer not in reachable or operation.peer not in self.layouts:
            raise ValueError(f"rank {operation.peer} {why_not}")
        if operation.local.length != operation.remote.length:
            raise ValueError("its local and remote regions differ in length")
        self.layout.locate(operation.local)
        self.layouts[operation.peer].locate(operation.remote)
        self._check_tag("to", operation.peer, operation.tag)

    def _check_reduce(self, operation: Reduce) -> None:
        size = element_type(operation.dtype).itemsize
        if operation.function not in ELEMENT_FUNCTIONS:
            known = ", ".join(ELEMENT_FUNCTIONS)
            raise ValueError(f"it has a function {operation.function!r}; known are {known}")
        for region in (operation.source, operation.into):
            self.layout.locate(region)
            if region.length % size or region.offset % size:
                raise ValueError(f"its regions are not whole {operation.dtype} elements")
        if operation.source.length != operation.into.length:
            raise ValueError("its regions differ in length")

    def _check_tag(self, way: str, peer: int, tag: int) -> None:
        if not 0 <= tag < 1 << TAG_BITS:
            raise ValueError(f"tag {tag} does not fit in {TAG_BITS} bits")
        if (way, peer, tag) in self._tags:
            raise ValueError(f"tag {tag} {way} rank {peer} is used twice")
        self._tags.add((way, peer, tag))


class _Receives:
    """Receives from one peer, by tag from the ``first`` on; -1 where there is none."""

    __slots__ = ("first", "indices")

    def __init__(self, first: i64, indices: vec[i64]) -> None:
        self.first, self.indices = first, indices


def _words(column: np.ndarray) -> vec[i64]:
    """``column`` as what compiled code reads without an object."""
    words = vec[i64]()
    number: i64
    for number in column.tolist():
        words = append(words, number)
    return words


def describe(index: int, operation: Operation) -> str:
    """An operation as a user finds it in the schedule."""
    match operation:
        case Write(peer=peer, tag=tag):
            what = f"Write to rank {peer} with tag {tag}"
        case Copy(peer=peer, tag=tag):
            what = f"Copy to rank {peer} with tag {tag}"
        case Receive(peer=peer, tag=tag):
            what = f"Receive from rank {peer} with tag {tag}"
        case Apply(function=function):
            what = f"Apply {function}"
        case Barrier(name=name):
            what = f"Barrier {name!r}"
        case _:
            what = type(operation).__name__
    return f"operation {index} ({what})"
