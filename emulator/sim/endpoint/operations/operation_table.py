"""The operations of a schedule in columns: some forty octets each, where objects take a kilobyte.

A table is a sequence of :class:`~emulator.sim.endpoint.operations.schedule.Operation`, made anew at
each access; whoever goes through all of them reads the columns.

==========  ====================  =============================  ======================
kind        ``near``, octets      ``far``                        ``number``
==========  ====================  =============================  ======================
WRITE       local region          remote region
COPY        local region          remote region                  fans (:func:`fans`)
RECEIVE     into
REDUCE      into                  source                         name of the dtype
COMPUTE                                                          duration (ns)
BARRIER                                                          name of the barrier
APPLY                                                            duration (ns)
==========  ====================  =============================  ======================

Buffers, dtypes and barriers are numbers of ``names``.  The ``tag`` of a REDUCE is the number of its
function (:data:`emulator.sim.endpoint.operations.elementwise.FUNCTION_NUMBERS`).  That of an APPLY
is the index of its call in ``calls``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar, overload

import numpy as np
import numpy.typing as npt

from emulator.sim.endpoint.operations.elementwise import FUNCTION_NAMES, FUNCTION_NUMBERS
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

WRITE: Final = 0
COPY: Final = 1
RECEIVE: Final = 2
REDUCE: Final = 3
COMPUTE: Final = 4
BARRIER: Final = 5
APPLY: Final = 6
#: The columns, and what an operation has where its kind sets nothing.
COLUMNS = (
    "kind",
    "peer",
    "tag",
    "near_buffer",
    "near_at",
    "near_octets",
    "far_buffer",
    "far_at",
    "far_octets",
    "number",
)
#: ``fan_in`` and ``fan_out`` of a COPY have so many bits each, and stand there less one.
_FAN_BITS: Final = 15
_LEAST, _MOST = -(1 << 31), (1 << 31) - 1  # of four octets

_Scalar = TypeVar("_Scalar", bound=np.generic)
Column = npt.NDArray[np.signedinteger[Any] | np.unsignedinteger[Any]]


class Names:
    """Numbers for names, in the order of their first look-up; ``names`` have theirs already."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._numbers: dict[str, int] = {}
        for name in names:
            self.number(name)

    def number(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    def all(self) -> tuple[str, ...]:
        """All names by number."""
        return tuple(self._numbers)


@dataclass(frozen=True, slots=True)
class Call:
    """The fields of an Apply that are too many for columns."""

    function: str
    inputs: tuple[Region, ...]
    outputs: tuple[Region, ...]
    arguments: tuple[int | float | str, ...]


class OperationTable(Sequence[Operation]):
    """Operations in ``columns`` (:data:`COLUMNS`), all as long as ``kind``.

    Operation ``i`` waits for ``after[begin[i]:begin[i + 1]]``.
    """

    __slots__ = ("after", "begin", "calls", "columns", "names")

    def __init__(
        self,
        columns: Mapping[str, npt.ArrayLike],
        begin: npt.ArrayLike,
        after: npt.ArrayLike,
        names: Sequence[str],
        calls: Sequence[Call] = (),
    ) -> None:
        self.columns: dict[str, Column] = {name: _fitting(columns[name]) for name in COLUMNS}
        self.columns["kind"] = np.asarray(columns["kind"], np.uint8)
        self.begin = _fitting(begin)
        self.after = _fitting(after)
        self.names = tuple(names)
        self.calls = tuple(calls)

    @classmethod
    def of(cls, operations: Iterable[Operation], names: Names | None = None) -> OperationTable:
        """``operations``, if they are no table already; ``names`` may have some to begin with."""
        if isinstance(operations, OperationTable):
            return operations
        names = Names() if names is None else names
        rows: list[tuple[int, ...]] = []
        begin: list[int] = [0]
        after: list[int] = []
        calls: list[Call] = []
        for operation in operations:
            rows.append(_row(operation, names, calls))
            after += operation.after
            begin.append(len(after))
        table = np.array(rows, np.int64).reshape(-1, len(COLUMNS))
        columns = dict(zip(COLUMNS, table.T, strict=True))
        return cls(columns, begin, after, names.all(), calls)

    @classmethod
    def joined(cls, tables: Sequence[OperationTable], names: Names) -> OperationTable:
        """``tables``, which have their names from ``names``, one behind the other."""
        if len(tables) == 1:
            return tables[0]
        columns = {
            name: np.concatenate([table.columns[name] for table in tables]) for name in COLUMNS
        }
        shifts = np.cumsum([0, *(len(table.after) for table in tables)])
        begins = [table.begin[:-1] + shift for table, shift in zip(tables, shifts, strict=False)]
        begin = np.concatenate([*begins, shifts[-1:]])
        after = np.concatenate([table.after for table in tables])
        calls = [call for table in tables for call in table.calls]
        if calls:
            earlier = np.cumsum([0, *(len(table.calls) for table in tables[:-1])])
            shift = np.repeat(earlier, [len(table) for table in tables])
            columns["tag"] = columns["tag"] + np.where(columns["kind"] == APPLY, shift, 0)
        return cls(columns, begin, after, names.all(), calls)

    # -- a sequence ----------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.columns["kind"])

    @overload
    def __getitem__(self, index: int) -> Operation: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Operation, ...]: ...

    def __getitem__(self, index: int | slice) -> Operation | tuple[Operation, ...]:
        if isinstance(index, slice):
            return tuple(self[at] for at in range(*index.indices(len(self))))
        index = range(len(self))[index]
        row = [int(self.columns[name][index]) for name in COLUMNS]
        after = self.after[self.begin[index] : self.begin[index + 1]].tolist()
        return self._operation(row, tuple(after))

    def __iter__(self) -> Iterator[Operation]:
        rows = zip(*(self.columns[name].tolist() for name in COLUMNS), strict=True)
        begin, after = self.begin.tolist(), self.after.tolist()
        for index, row in enumerate(rows):
            yield self._operation(row, tuple(after[begin[index] : begin[index + 1]]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(
            one == two for one, two in zip(self, other, strict=True)
        )

    def __reduce__(self) -> tuple[object, ...]:
        return OperationTable, (
            self.columns,
            self.begin,
            self.after,
            self.names,
            self.calls,
        )

    def _operation(self, row: Sequence[int], after: tuple[int, ...]) -> Operation:
        kind, peer, tag, buffer, at, octets, far_buffer, far_at, far_octets, number = row
        names = self.names
        if kind == COMPUTE:
            return Compute(duration_ns=number, after=after)
        if kind == BARRIER:
            return Barrier(name=names[number], after=after)
        if kind == APPLY:
            call = self.calls[tag]
            return Apply(
                function=call.function,
                inputs=call.inputs,
                outputs=call.outputs,
                arguments=call.arguments,
                duration_ns=number,
                after=after,
            )
        near = Region(names[buffer], at, octets)
        if kind == RECEIVE:
            return Receive(peer=peer, tag=tag, into=near, after=after)
        far = Region(names[far_buffer], far_at, far_octets)
        if kind == REDUCE:
            function = FUNCTION_NAMES[tag]
            dtype = names[number]
            return Reduce(source=far, into=near, dtype=dtype, function=function, after=after)
        if kind == WRITE:
            return Write(peer=peer, tag=tag, local=near, remote=far, after=after)
        into, out = fans(number)
        return Copy(
            peer=peer, tag=tag, local=near, remote=far, fan_in=into, fan_out=out, after=after
        )

    # -- what is read of all -------------------------------------------------------------------

    def where(self, *kinds: int) -> npt.NDArray[np.intp]:
        """The indices of all operations of ``kinds``, in order."""
        return np.flatnonzero(of_kinds(self.columns["kind"], *kinds))

    def peers(self, *kinds: int) -> list[int]:
        """The peers of all operations of ``kinds``, each once, in order."""
        found: list[int] = distinct(self.columns["peer"][self.where(*kinds)]).tolist()
        return found

    def barriers(self) -> list[str]:
        """The names of all barriers, each once."""
        numbers = distinct(self.columns["number"][self.where(BARRIER)]).tolist()
        return [self.names[number] for number in numbers]


def in_columns(schedules: Sequence[Schedule]) -> Sequence[Schedule]:
    """Return ``schedules`` with their operations in tables, made once for all who read them.

    Schedules with operations that fit no table stay: who executes them names what is wrong.
    """
    try:
        return tuple(
            replace(one, operations=OperationTable.of(one.operations)) for one in schedules
        )
    except (ValueError, OverflowError):
        return schedules


@overload
def fans(number: int) -> tuple[int, int]: ...


@overload
def fans(number: npt.NDArray[np.integer]) -> tuple[Column, Column]: ...


def fans(number: Any) -> tuple[Any, Any]:
    """Return ``fan_in`` and ``fan_out`` of a COPY, or of several, from its ``number``."""
    return (number >> _FAN_BITS) + 1, (number & ((1 << _FAN_BITS) - 1)) + 1


def of_kinds(column: Column, *kinds: int) -> npt.NDArray[np.bool_]:
    """Whether each of a ``column`` of kinds is one of ``kinds``: ``np.isin``, for a tenth of it."""
    chosen: npt.NDArray[np.bool_] = column == kinds[0]
    for kind in kinds[1:]:
        chosen |= column == kind
    return chosen


def distinct(values: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
    """Each of ``values`` once, in order: ``np.unique``, which would load masked arrays for it."""
    ordered = np.sort(values)
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def _fitting(values: npt.ArrayLike) -> Column:
    """``values`` in four octets each, if they fit."""
    array = np.asarray(values)
    if array.dtype == np.int32:
        return array
    array = array.astype(np.int64, copy=False)
    if not len(array) or (array.min() >= _LEAST and array.max() <= _MOST):
        return array.astype(np.int32)
    return array


def _row(operation: Operation, names: Names, calls: list[Call]) -> tuple[int, ...]:
    match operation:
        case Write(peer=peer, tag=tag, local=local, remote=remote):
            return WRITE, peer, tag, *_region(local, names), *_region(remote, names), 0
        case Copy(peer=peer, tag=tag, local=local, remote=remote, fan_in=into, fan_out=out):
            fans = (into - 1) << _FAN_BITS | (out - 1)
            return COPY, peer, tag, *_region(local, names), *_region(remote, names), fans
        case Receive(peer=peer, tag=tag, into=into):
            return RECEIVE, peer, tag, *_region(into, names), 0, 0, 0, 0
        case Reduce(source=source, into=into, dtype=dtype, function=function):
            if function not in FUNCTION_NUMBERS:
                raise ValueError(f"a Reduce has no function {function!r}")
            regions = (*_region(into, names), *_region(source, names))
            return REDUCE, 0, FUNCTION_NUMBERS[function], *regions, names.number(dtype)
        case Compute(duration_ns=duration):
            return COMPUTE, 0, 0, 0, 0, 0, 0, 0, 0, duration
        case Barrier(name=name):
            return BARRIER, 0, 0, 0, 0, 0, 0, 0, 0, names.number(name)
        case Apply(function=named, inputs=inputs, outputs=outputs, arguments=arguments):
            calls.append(Call(named, inputs, outputs, arguments))
            return APPLY, 0, len(calls) - 1, 0, 0, 0, 0, 0, 0, operation.duration_ns
        case _:
            raise ValueError(f"{type(operation).__name__}: this kind of operation is unknown")


def _region(region: Region, names: Names) -> tuple[int, int, int]:
    return names.number(region.buffer), region.offset, region.length
