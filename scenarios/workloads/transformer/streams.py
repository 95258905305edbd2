"""Streams of a GPU in a training step: what it computes, and what it exchanges in each group.

Tensors with contents that every GPU can compute, and the function that checks and makes them.

Element i of the part of member p in exchange ``number`` is

    pattern[i + shift(number)] + p

with whole numbers below 4093 in the pattern, which are the same for all.  Sums over all members are
whole numbers that float32 holds exactly in every order.  A part in a wrong place, of a wrong member
or of another exchange has other elements.

Sizes of messages and times of computing, divided by one number, so that their ratio stays.

A message is not made smaller than one MTU, or than it was before.

The GPUs' own work: computing in order, which reads what has arrived and makes what leaves.

The exchanges of one group of GPUs, one behind the other, as a CUDA stream has them.

Regions are used again in turns of :data:`TURNS`: exchange n+1 overwrites those of n-2.  A
member begins with n only when its sends of n-2 are acknowledged and its result of n-2 was read.
Nobody gets through n before all members have begun with it.  So nothing of n-2 is needed when n+1
begins anywhere.  This holds for collectives in which every member needs data of all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from emulator.sim.endpoint.operations.gpu_functions import Octets, gpu_function, name_of
from emulator.sim.endpoint.operations.schedule import Apply, Region
from scenarios.collectives.algorithm_registry import algorithm_of
from scenarios.collectives.collective_call import CollectiveCall
from scenarios.collectives.communicators import Communicator
from scenarios.collectives.data_types import DATA_TYPES
from scenarios.workloads.transformer.dependent_program import (
    DependentProgram,
    ExchangeRecord,
    StagingSlots,
)

ELEMENT_OCTETS = 4
#: How the elements of a result follow from those of the members.
GATHERED, SUMMED, EXCHANGED, SENT = range(4)
_PERIOD = 4093
_pattern = np.random.default_rng(_PERIOD).permutation(_PERIOD).astype(np.float32)


@dataclass(frozen=True)
class FilledTensor:
    """A region that member ``position`` fills for exchange ``number``, once ``after`` is over."""

    region: Region
    number: int
    position: int
    after: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CheckedTensor:
    """A result of exchange ``number``, complete when ``ready`` is over.

    ``mode`` is the way in which it follows from the ``members``.  ``place`` is the position of the
    member that has it, or of the one that sent it.  Of a sum it is the first element.
    """

    region: Region
    number: int
    mode: int
    members: int
    place: int
    ready: tuple[int, ...]


#: Stand for tensors of GPUs whose operations nobody wants.
NEVER_FILLED = FilledTensor(Region("", 0, 0), number=0, position=0)
NEVER_CHECKED = CheckedTensor(
    region=Region("", 0, 0), number=0, mode=SENT, members=0, place=0, ready=()
)


def values(number: int, position: int, first: int, count: int) -> npt.NDArray[np.float32]:
    """Return ``count`` elements from ``first`` on of a member's part."""
    begin = (first + number * 1009) % _PERIOD
    whole = _repeated(begin + count)
    return whole[begin : begin + count] + np.float32(position)


def _repeated(count: int) -> npt.NDArray[np.float32]:
    global _pattern
    if len(_pattern) < count:
        _pattern = np.resize(_pattern[:_PERIOD], 2 * count)
    return _pattern


def expected(
    number: int, mode: int, members: int, place: int, count: int
) -> npt.NDArray[np.float32]:
    """Return the ``count`` elements of a result (:class:`CheckedTensor`)."""
    if mode == SENT:
        return values(number, place, 0, count)
    if mode == SUMMED:
        ranks = np.float32(members * (members - 1) // 2)
        return values(number, 0, place, count) * np.float32(members) + ranks
    part = count // members
    first = place * part if mode == EXCHANGED else 0
    parts = [values(number, position, first, part) for position in range(members)]
    return np.concatenate(parts)


@gpu_function
def step_tensors(inputs: Sequence[Octets], outputs: Sequence[Octets], *numbers: int) -> None:
    """Compare each input with what it must be, and fill the outputs.

    The first outputs are counts of wrong elements, one for each input; the rest are tensors.
    ``numbers`` are four of each input, then two of each tensor.
    """
    for one, arrived in enumerate(inputs):
        number, mode, members, place = numbers[4 * one : 4 * one + 4]
        found = arrived.view(np.float32)
        wrong = found != expected(number, mode, members, place, len(found))
        outputs[one].view(np.uint32)[:] = np.count_nonzero(wrong)
    behind = numbers[4 * len(inputs) :]
    for one, tensor in enumerate(outputs[len(inputs) :]):
        number, position = behind[2 * one : 2 * one + 2]
        made = tensor.view(np.float32)
        made[:] = values(number, position, 0, len(made))


#: Payload of a packet that fills an MTU of 4 KiB, as UET and RoCEv2 have it.
MTU_OCTETS = 4096


@dataclass
class StepScale:
    """The divisors of octets and times; ``flops_per_ns`` is the rate of a GPU.

    ``raised`` counts exchanges whose messages would be shorter than an MTU, ``exchanges`` all.
    """

    divisor: int
    flops_per_ns: float
    raised: int = 0
    exchanges: int = 0

    def octets(self, whole: int | Fraction, parts: int) -> int:
        """Return the scaled octets of an exchange in ``parts`` messages of whole elements.

        The parts are equal.
        """
        message = Fraction(whole) / parts
        floor = min(message, Fraction(MTU_OCTETS))
        scaled = message / self.divisor
        self.exchanges += 1
        if scaled < floor:
            self.raised += 1
            scaled = floor
        elements = max(1, int(scaled // ELEMENT_OCTETS))
        return elements * ELEMENT_OCTETS * parts

    def duration_ns(self, flops: Fraction) -> int:
        """Return how long a GPU computes ``flops``."""
        return round(float(flops) / (self.flops_per_ns * self.divisor))


#: The buffer of counts of wrong elements, one of 32 bits for each result.
VERDICTS, VERDICT_OCTETS = "verdicts", 4


class ComputeStream:
    """Computing of all ranks of ``program``, at each rank one operation after the other.

    ``stream`` has their indices by rank, where these are compiled.  All ranks have the number of
    results that they compare (``verdicts``), and the time that they compute.
    """

    def __init__(self, program: DependentProgram) -> None:
        self.program = program
        self.stream: dict[int, list[int]] = {}
        self.busy_ns: dict[int, int] = {}
        self.verdicts: dict[int, int] = {}

    def compute(
        self,
        rank: int,
        duration_ns: int,
        checks: Sequence[CheckedTensor] = (),
        fills: Sequence[FilledTensor] = (),
        after: Sequence[int] = (),
    ) -> int:
        """Let a GPU compute, which compares ``checks`` and fills ``fills``; return its index."""
        self.busy_ns[rank] = self.busy_ns.get(rank, 0) + duration_ns
        if not self.program.wants(rank):
            return self._append(rank, duration_ns, checks, fills, after)
        before = self.stream.setdefault(rank, [])
        index = self._append(rank, duration_ns, checks, fills, (*before[-1:], *after))
        before.append(index)
        return index

    def beside(
        self,
        rank: int,
        checks: Sequence[CheckedTensor] = (),
        fills: Sequence[FilledTensor] = (),
        after: Sequence[int] = (),
    ) -> int:
        """Compare and fill beside the computing, in no time; return the operation's index."""
        return self._append(rank, 0, checks, fills, after)

    def last(self, rank: int) -> tuple[int, ...]:
        """Return the latest computing of ``rank``, if there is any."""
        return tuple(self.stream.get(rank, ())[-1:])

    def _append(
        self,
        rank: int,
        duration_ns: int,
        checks: Sequence[CheckedTensor],
        fills: Sequence[FilledTensor],
        after: Sequence[int],
    ) -> int:
        self.verdicts[rank] = self.verdicts.get(rank, 0) + len(checks)
        if not self.program.wants(rank):
            if checks:
                self.program.allocate(rank, VERDICTS, len(checks) * VERDICT_OCTETS)
            return self.program.count(rank)
        waits = {*after}
        for check in checks:
            waits.update(check.ready)
        for fill in fills:
            waits.update(fill.after)
        counts = [self.program.allocate(rank, VERDICTS, VERDICT_OCTETS) for _ in checks]
        numbers = [
            *(n for one in checks for n in (one.number, one.mode, one.members, one.place)),
            *(n for one in fills for n in (one.number, one.position)),
        ]
        operation = Apply(
            function=name_of(step_tensors),
            inputs=tuple(check.region for check in checks),
            outputs=(*counts, *(fill.region for fill in fills)),
            arguments=tuple(numbers),
            duration_ns=duration_ns,
            after=tuple(sorted(waits)),
        )
        return self.program.append(rank, operation)


#: Sets of regions that exchanges take in turns.
TURNS = 3
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "allreduce", "allgather", "reducescatter"
ALL_TO_ALL = "alltoall"
TITLES = {
    ALL_REDUCE: "AllReduce",
    ALL_GATHER: "AllGather",
    REDUCE_SCATTER: "ReduceScatter",
    ALL_TO_ALL: "AlltoAll",
}
#: Algorithms by default: across hosts, and in one host with a power of two of members.
ACROSS = {ALL_REDUCE: "ring", ALL_GATHER: "ring", REDUCE_SCATTER: "ring", ALL_TO_ALL: "shift"}
INSIDE = {
    ALL_REDUCE: "halving-doubling",
    ALL_GATHER: "recursive-doubling",
    REDUCE_SCATTER: "recursive-halving",
    ALL_TO_ALL: "shift",
}
#: Rounds of an AlltoAll that are under way at a time, as NCCL has eight.
PEERS = 8


def algorithm_for(collective: str, communicator: Communicator) -> str:
    """Return the algorithm by which a group does ``collective``.

    Rings are best for large sizes; inside a host, partners at distances 1, 2, 4 have fewer steps.
    """
    members = len(communicator)
    inside = len(communicator.hosts) == 1 and not members & (members - 1)
    return (INSIDE if inside else ACROSS)[collective]


def message_count(collective: str, communicator: Communicator) -> int:
    """Return into how many messages the size of ``collective`` is divided, at most."""
    if algorithm_for(collective, communicator) == "ring":
        return len(communicator) * _channels(communicator)
    return len(communicator)


def _channels(communicator: Communicator) -> int:
    return 1 if len(communicator.hosts) == 1 else len(communicator.rings)


@dataclass
class PendingExchange:
    """One exchange that its members have not begun: what they fill, and what they get.

    ``consumed`` has by rank the operation that read the result.
    """

    stream: GroupStream
    collective: str
    octets: int
    number: int
    turn: int
    label: str
    before: tuple[PendingExchange, ...]
    algorithm: str
    record: ExchangeRecord = field(default_factory=ExchangeRecord)
    consumed: dict[int, int] = field(default_factory=dict)

    @property
    def _buffers(self) -> tuple[str, str]:
        # an AllGather has its own part in its place of the result
        name = f"{self.stream.name} {self.turn}"
        whole = f"{name} result"
        return (whole if self.collective == ALL_GATHER else f"{name} source"), whole

    def fills(self) -> dict[int, FilledTensor]:
        """Return what each member fills before it begins; regions exist from now on."""
        source, result = self._buffers
        stream, made = self.stream, {}
        members = len(stream.communicator)
        for position, rank in enumerate(stream.communicator.ranks):
            for name in (source, result):
                stream.memory.reserve(rank, name, self.octets)
            if not stream.program.wants(rank):
                made[rank] = NEVER_FILLED
                continue
            region = Region(source, 0, self.octets)
            if self.collective == ALL_GATHER:
                part = self.octets // members
                region = Region(source, position * part, part)
            made[rank] = FilledTensor(
                region=region, number=self.number, position=position, after=self._free(rank)
            )
        return made

    def _free(self, rank: int) -> tuple[int, ...]:
        """Return the operations of ``rank`` after which the regions are nobody's."""
        if len(self.before) < TURNS:
            return ()
        old = self.before[-TURNS]
        return (*old.record.sends[rank], *old.record.ends(rank), old.consumed[rank])

    def begin(self, entry: Mapping[int, int]) -> dict[int, CheckedTensor]:
        """Write the operations; a member begins after its operation in ``entry``.

        Of members that are not compiled nothing is written.
        """
        stream, program, ranks = self.stream, self.stream.program, self.stream.communicator.ranks
        waits = {
            rank: (index, *self._order(rank))
            for rank, index in entry.items()
            if program.wants(rank)
        }
        title = TITLES.get(self.collective, self.collective)
        call = self._call()
        with (
            program.named(f"{self.label} {title}", ranks),
            program.exchange(stream.kind, waits, stream.staging[self.turn]) as record,
        ):
            program.leave(program.footprints.of(self.collective, self.algorithm, call), ranks)
            if waits:
                algorithm_of(self.collective, self.algorithm).run(call)
        self.record = record
        self.before = ()  # nothing reads them any more, nor for those before them
        return {
            rank: self._result(position, rank, entry[rank]) if rank in waits else NEVER_CHECKED
            for position, rank in enumerate(ranks)
        }

    def _call(self) -> CollectiveCall:
        stream = self.stream
        source, result = self._buffers
        return CollectiveCall(
            program=stream.program,
            communicator=stream.communicator,
            size=self.octets,
            source=source,
            result=result,
            datatype=DATA_TYPES["float"],
            reduction="sum",
            slice_bytes=stream.slice_bytes,
            channels=_channels(stream.communicator),
            peers=PEERS,
        )

    def _order(self, rank: int) -> tuple[int, ...]:
        waits: list[int] = []
        if self.before:
            waits += self.before[-1].record.ends(rank)
        if len(self.before) > 1:
            old = self.before[-2]
            waits += (*old.record.sends[rank], old.consumed[rank])
        return tuple(waits)

    def _result(self, position: int, rank: int, filled: int) -> CheckedTensor:
        members, octets = len(self.stream.communicator), self.octets
        part = octets // members
        region, mode, place = Region(self._buffers[1], 0, octets), GATHERED, 0
        if self.collective == ALL_TO_ALL:
            mode, place = EXCHANGED, position
        elif self.collective == ALL_REDUCE:
            mode = SUMMED
        elif self.collective == REDUCE_SCATTER:
            mode, place = SUMMED, position * part // DATA_TYPES["float"].octets
            region = replace(region, offset=position * part, length=part)
        return CheckedTensor(
            region=region,
            number=self.number,
            mode=mode,
            members=members,
            place=place,
            ready=(filled, *self.record.ends(rank)),
        )


class GpuBuffers:
    """Buffers of all ranks that begin at their first octet, as large as requested."""

    def __init__(self, program: DependentProgram) -> None:
        self._program = program
        self._sizes: dict[tuple[int, str], int] = {}

    def reserve(self, rank: int, name: str, octets: int) -> None:
        have = self._sizes.get((rank, name), 0)
        if octets > have:
            self._program.allocate(rank, name, octets - have)
            self._sizes[rank, name] = octets


@dataclass
class GroupStream:
    """Exchanges of ``communicator``; ``kind`` is what they count as.

    ``name`` is that of its buffers.  With ``fresh`` each exchange has regions of its own.
    """

    program: DependentProgram
    memory: GpuBuffers
    communicator: Communicator
    kind: str
    name: str
    slice_bytes: int
    fresh: bool = False
    staging: list[StagingSlots] = field(default_factory=list)
    _latest: list[PendingExchange] = field(default_factory=list)
    _count: int = 0

    def open(
        self, collective: str, octets: int, number: int, label: str, algorithm: str = ""
    ) -> PendingExchange:
        """Return the next exchange, of ``octets``, whose contents have ``number``.

        ``algorithm`` replaces the one of :func:`algorithm_for`.
        """
        turn = self._count if self.fresh else self._count % TURNS
        self._count += 1
        if turn == len(self.staging):
            self.staging.append(StagingSlots())
        before = tuple(self._latest[-1:] if self.fresh else self._latest[-TURNS:])
        made = PendingExchange(
            self,
            collective,
            octets,
            number,
            turn,
            label,
            before,
            algorithm or algorithm_for(collective, self.communicator),
        )
        self._latest = [*self._latest[-TURNS + 1 :], made]
        return made
