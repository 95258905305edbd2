"""Tensors in the memories of GPUs, and the operations between them, written as one program.

Each GPU applies its functions one after the other, in the order in which they are written down, as
a CUDA stream does.  Transfers and sums of arrivals start when what they need is there.  A tensor
gets a region of its own whenever it is made. So no transfer has to wait until a region is free.
Only weights are overwritten, by functions of their own GPU.

Draws who sends to whom, and when: a line for each message, a column for each GPU.

::

    start    end    h0g0    h0g1    h1g0    h1g1
     1.00   1.43      o=======>                     128 B outputs to the next stage
     2.43   5.08              o------->             128 B outputs to the next stage

Times are microseconds of fabric time from the common start: when the message was posted, and when
its data were there.  ``=`` is NVLink, ``-`` the fabric.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from emulator.run.measures.message_times import Iteration
from emulator.sim.endpoint.operations import schedule
from emulator.sim.endpoint.operations.elementwise import element_type
from emulator.sim.endpoint.operations.gpu_functions import name_of
from scenarios.collectives.program import Program
from scenarios.collectives.ring import split
from topologies.model import Topology

ELEMENT_BYTES = 4


@dataclass(frozen=True)
class Tensor:
    """A region of numbers at ``rank``; its octets are there when the operations ``ready`` ended."""

    rank: int
    region: schedule.Region
    shape: tuple[int, ...]
    ready: tuple[int, ...] = ()
    dtype: str = "float32"

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def element_bytes(self) -> int:
        return element_type(self.dtype).itemsize

    def part(self, first: int, *shape: int) -> Tensor:
        octets = math.prod(shape) * self.element_bytes
        at = self.region.offset + first * self.element_bytes
        return replace(self, region=schedule.Region(self.region.buffer, at, octets), shape=shape)


@dataclass(frozen=True)
class Exchange:
    """A transfer of the program, and what it is for."""

    what: str
    source: int
    destination: int
    octets: int
    nvlink: bool


def octets_of(exchanges: Mapping[Exchange, int], *, nvlink: bool | None = None) -> int:
    """Return the octets of ``exchanges``: all, or those over NVLink, or over the fabric."""
    return sum(
        one.octets * times
        for one, times in exchanges.items()
        if nvlink is None or one.nvlink == nvlink
    )


class TensorProgram:
    """Operations over tensors of all GPUs, in ``program``.

    ``listed`` takes all transfers in the order in which they are written down.
    """

    def __init__(self, program: Program, listed: list[Exchange] | None = None) -> None:
        self.program = program
        #: All transfers: how often each was written down.
        self.exchanges: Counter[Exchange] = Counter()
        self._listed = listed
        self._stream: dict[int, int] = {}

    def new(self, rank: int, buffer: str, *shape: int, dtype: str = "float32") -> Tensor:
        """Return a tensor of ``shape`` in a new region of ``buffer``, which nobody has filled."""
        octets = math.prod(shape) * element_type(dtype).itemsize
        return Tensor(rank, self.program.allocate(rank, buffer, octets), shape, dtype=dtype)

    def apply(
        self,
        function: Callable[..., object],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        *arguments: int | float | str,
        duration_ns: int = 0,
    ) -> list[Tensor]:
        """Let the GPU of ``outputs`` fill them by ``function``; return them with their time."""
        rank = outputs[0].rank
        if not self.program.wants(rank):
            counted = (self.program.count(rank),)
            return [replace(tensor, ready=counted) for tensor in outputs]
        after = {index for tensor in (*inputs, *outputs) for index in tensor.ready}
        if rank in self._stream:
            after.add(self._stream[rank])
        operation = schedule.Apply(
            function=name_of(function),
            inputs=tuple(tensor.region for tensor in inputs),
            outputs=tuple(tensor.region for tensor in outputs),
            arguments=arguments,
            duration_ns=duration_ns,
            after=tuple(sorted(after)),
        )
        index = self._stream[rank] = self.program.append(rank, operation)
        return [replace(tensor, ready=(index,)) for tensor in outputs]

    def compute(self, rank: int, duration_ns: int, after: Sequence[int] = ()) -> int:
        """Let the GPU of ``rank`` compute for a time; returns the operation's index."""
        if not self.program.wants(rank):
            return self.program.count(rank)
        waits = {*after, self._stream[rank]} if rank in self._stream else set(after)
        operation = schedule.Compute(duration_ns=duration_ns, after=tuple(sorted(waits)))
        index = self._stream[rank] = self.program.append(rank, operation)
        return index

    def move(self, source: Tensor, destination: Tensor, what: str) -> Tensor:
        """Send ``source`` into the region of ``destination``; return that with its time."""
        _, receive = self.transfer(source, destination, what)
        return replace(destination, ready=(*destination.ready, receive))

    def transfer(self, source: Tensor, destination: Tensor, what: str) -> tuple[int, int]:
        """Send ``source`` into the region of ``destination``, which need not be ready.

        Returns the index of the send at the source, and of the receive at the destination.
        """
        here, there = source.rank, destination.rank
        moved = self.program.transfer(
            here, there, source.region, destination.region, after=source.ready
        )
        exchange = Exchange(
            what, here, there, source.region.length, self.program.joins(here, there)
        )
        self.exchanges[exchange] += 1
        if self._listed is not None:
            self._listed.append(exchange)
        return moved

    def reduce(self, source: Tensor, into: Tensor, function: str = "sum") -> Tensor:
        """Add ``source`` to ``into``; return that with its time.

        ``function`` names another element-wise function.
        """
        if not self.program.wants(into.rank):
            return replace(into, ready=(self.program.count(into.rank),))
        operation = schedule.Reduce(
            source=source.region,
            into=into.region,
            dtype=into.dtype,
            function=function,
            after=tuple(sorted({*source.ready, *into.ready})),
        )
        return replace(into, ready=(self.program.append(into.rank, operation),))

    def gather(self, whole: Sequence[Tensor], parts: Sequence[Tensor], what: str) -> list[Tensor]:
        """AllGather: send each of ``parts`` to every other rank.

        ``parts[i]`` lies in ``whole[i]``, and the parts of a whole lie in it in their order.
        Returns the wholes with their time.
        """
        ready = [list(part.ready) for part in parts]
        first = 0
        for source, part in enumerate(parts):
            for target in _others(len(parts), source):
                place = replace(whole[target].part(first, *part.shape), ready=())
                ready[target] += self.move(part, place, what).ready
            first += part.count
        return [replace(one, ready=tuple(when)) for one, when in zip(whole, ready, strict=True)]

    def all_reduce(self, tensors: Sequence[Tensor], buffer: str, what: str) -> list[Tensor]:
        """Ring AllReduce of ``tensors`` of different ranks; the sums are tensors in ``buffer``.

        Block b of n is the sum of ranks b, b + 1, ... n - 1, 0, ... in this order
        (:func:`ring_sum`).
        """
        ranks, dtype = len(tensors), tensors[0].dtype
        if ranks == 1:
            return list(tensors)
        blocks = [(one.offset, one.length) for one in split(tensors[0].count, ranks, 1)]
        held = [[tensor.part(*block) for block in blocks] for tensor in tensors]
        for turn in range(ranks - 1):
            for place in range(ranks):
                number, after = (place - turn) % ranks, (place + 1) % ranks
                block = held[place][number]
                if block.count:
                    staging = self.new(
                        tensors[after].rank, f"{buffer} arriving", block.count, dtype=dtype
                    )
                    arrived = self.move(block, staging, what)
                    held[after][number] = self.reduce(arrived, held[after][number])
        sums = [self.new(one.rank, buffer, *one.shape, dtype=dtype) for one in tensors]
        done = [[one.part(*block) for block in blocks] for one in sums]
        for place in range(ranks):
            number = (place + 1) % ranks
            if done[place][number].count:
                done[place][number] = self.reduce(
                    held[place][number], done[place][number], "replace"
                )
        for turn in range(ranks - 1):
            for place in range(ranks):
                number, after = (place + 1 - turn) % ranks, (place + 1) % ranks
                if done[place][number].count:
                    done[after][number] = self.move(done[place][number], done[after][number], what)
        return [
            replace(one, ready=tuple(index for block in parts for index in block.ready))
            for one, parts in zip(sums, done, strict=True)
        ]


@dataclass(frozen=True)
class WorkSize:
    """The size of work over tensors: how often each transfer, octets of a GPU, busy GPUs."""

    exchanges: Mapping[Exchange, int]
    memory_bytes: int
    gpus: int


@dataclass(frozen=True)
class TensorWork:
    """Operations over tensors on ``topology``, which ``write`` writes down.

    Nothing of them is kept: each caller has them written again, and gets those that it wants.
    """

    topology: Topology
    write: Callable[[TensorProgram], object]

    def compile(self) -> Sequence[schedule.Schedule]:
        """Return the schedules of all GPUs, with the operations of those that are compiled now."""
        return self._written().program.schedules()

    @cached_property
    def size(self) -> WorkSize:
        """Return what is counted while no operation is kept."""
        with schedule.only_operations_of(()):
            tensors = self._written()
        program = tensors.program
        ranks = range(program.ranks)
        return WorkSize(
            exchanges=tensors.exchanges,
            memory_bytes=max(sum(program.buffers(rank).values()) for rank in ranks),
            gpus=sum(program.operations(rank) > 0 for rank in ranks),
        )

    def transfers(self) -> list[Exchange]:
        listed: list[Exchange] = []
        with schedule.only_operations_of(()):
            self._written(listed)
        return listed

    def _written(self, listed: list[Exchange] | None = None) -> TensorProgram:
        tensors = TensorProgram(Program.on(self.topology), listed)
        self.write(tensors)
        return tensors


def _others(count: int, one: int) -> list[int]:
    """Return the places from that after ``one`` on, round to that before it."""
    return [(one + distance) % count for distance in range(1, count)]


_COLUMN = 8


def drawn(names: Sequence[str], exchanges: Sequence[Exchange], iteration: Iteration) -> list[str]:
    """Return the lines for ``exchanges``, which are the first of each pair in ``iteration``.

    ``names`` are those of the GPUs by rank.  Only GPUs that send or receive have a column.
    """
    if not exchanges:
        return []
    ranks = sorted({rank for one in exchanges for rank in (one.source, one.destination)})
    at = {rank: _COLUMN * place + _COLUMN // 2 for place, rank in enumerate(ranks)}
    places = _places(exchanges, iteration)
    lines = []
    for exchange, place in zip(exchanges, places, strict=True):
        start, end = (int(times[place]) / 1000 for times in (iteration.start_ns, iteration.end_ns))
        arrow = _arrow(at[exchange.source], at[exchange.destination], exchange.nvlink)
        picture = arrow.ljust(_COLUMN * len(ranks))
        lines.append(
            (start, f"{start:9.2f} {end:9.2f} {picture} {exchange.octets} B {exchange.what}")
        )
    heading = "".join(f"{names[rank]:^{_COLUMN}}" for rank in ranks)
    ordered = [line for _, line in sorted(lines, key=lambda one: one[0])]
    return ["", f"{'start':>9} {'end':>9} {heading} (us; = NVLink, - fabric)", *ordered]


def _places(exchanges: Sequence[Exchange], iteration: Iteration) -> list[int]:
    """Return where the message of each exchange stands: a pair's are in their order."""
    sent: dict[tuple[int, int], int] = defaultdict(int)
    of: dict[tuple[int, int], np.ndarray] = {}
    places = []
    for one in exchanges:
        pair = one.source, one.destination
        if pair not in of:
            chosen = (iteration.source == one.source) & (iteration.destination == one.destination)
            of[pair] = np.flatnonzero(chosen)
        places.append(int(of[pair][sent[pair]]))
        sent[pair] += 1
    return places


def _arrow(source: int, destination: int, nvlink: bool) -> str:
    """Return an arrow from one column to another, with the blanks before it."""
    line = ("=" if nvlink else "-") * (abs(source - destination) - 1)
    if source < destination:
        return " " * source + "o" + line + ">"
    return " " * destination + "<" + line + "o"
