"""Schedules: each rank's operations of a collective, a DAG over named buffers, as plain data.

A schedule is compiled by a scenario, given to the rank's endpoint and executed there.  An operation
starts when all operations in ``after`` have completed; among ready ones the order of the list
decides.  Regions are (buffer, offset, length) in octets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from emulator.sim.endpoint.operations.gpu_time import GpuTime


@dataclass(frozen=True, slots=True)
class Region:
    """``length`` octets at ``offset`` of the buffer ``buffer`` of some rank."""

    buffer: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """``after`` holds indices of earlier operations in the same schedule."""

    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Write(Operation):
    """RDMA write over the fabric; the peer's :class:`Receive` with the same tag completes."""

    peer: int
    tag: int
    local: Region
    remote: Region


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy(Operation):
    """Write over the scale-up network (NVLink) to a rank that it reaches.

    ``fan_in``: its switch sums what so many ranks copy to this place, and ``peer``'s port carries
    the sum alone.  ``fan_out``: its switch makes so many copies of it, and this rank's port carries
    one.  All are operations of their own, here and there.
    """

    peer: int
    tag: int
    local: Region
    remote: Region
    fan_in: int = 1
    fan_out: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Receive(Operation):
    """Wait until ``peer``'s write or copy with ``tag`` has filled ``into``; verify its checksum."""

    peer: int
    tag: int
    into: Region


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce(Operation):
    """Add ``source`` to ``into`` element by element (``dtype`` is a numpy type name).

    ``function`` names another one of
    :data:`emulator.sim.endpoint.operations.elementwise.ELEMENT_FUNCTIONS`.
    """

    source: Region
    into: Region
    dtype: str = "float32"
    function: str = "sum"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute(Operation):
    """The GPU is busy for ``duration_ns`` of fabric time."""

    duration_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply(Operation):
    """Apply the registered ``function`` to regions of the GPU's memory.

    ``function`` is its name (:mod:`emulator.sim.endpoint.operations.gpu_functions`).  It reads
    ``inputs`` when the operation starts, and the operation ends ``duration_ns`` of fabric time
    later.  ``outputs`` may be regions of ``inputs``.
    """

    function: str
    inputs: tuple[Region, ...]
    outputs: tuple[Region, ...]
    arguments: tuple[int | float | str, ...] = ()
    duration_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier(Operation):
    """Wait until every rank has reached its barrier ``name`` (out of band, not on the fabric)."""

    name: str


@dataclass(frozen=True, slots=True)
class ScheduleSpan:
    """The operations from index ``first`` to before ``end``, which ``name`` stands for.

    A name describes for people what they do, such as the layer, the micro-batch and the collective.
    """

    name: str
    first: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """All operations of one rank.  ``buffers`` maps buffer names to sizes in octets.

    ``spans`` name operations in the timeline, and have no effect on what is executed.
    ``gpu_time`` is what the GPU takes for it; None: no time.
    Many operations are a :class:`~emulator.sim.endpoint.operations.operation_table.OperationTable`.
    """

    rank: int
    buffers: Mapping[str, int]
    operations: Sequence[Operation] = field(default=())
    spans: tuple[ScheduleSpan, ...] = ()
    gpu_time: GpuTime | None = None


#: The ranks whose operations are compiled now; None: those of all.
_compiled: ContextVar[frozenset[int] | None] = ContextVar("_compiled", default=None)


@contextmanager
def only_operations_of(ranks: Iterable[int] | None) -> Iterator[None]:
    """Have schedules that are compiled in the block without the operations of other ``ranks``.

    A process that runs some of the GPUs needs no more of the others than their buffers.  None: it
    needs all; without any rank a compile only counts.
    """
    before = _compiled.set(None if ranks is None else frozenset(ranks))
    try:
        yield
    finally:
        _compiled.reset(before)


def compiled_ranks() -> frozenset[int] | None:
    """Return the ranks whose operations are compiled now; None: those of all."""
    return _compiled.get()


def has_operations(rank: int) -> bool:
    """Return whether the operations of ``rank`` are compiled now."""
    ranks = _compiled.get()
    return ranks is None or rank in ranks


def without_others(schedules: Sequence[Schedule]) -> Sequence[Schedule]:
    """Return ``schedules`` without operations of ranks that are not compiled now."""
    ranks = _compiled.get()
    if ranks is None:
        return schedules
    return tuple(
        one if one.rank in ranks else replace(one, operations=(), spans=()) for one in schedules
    )
