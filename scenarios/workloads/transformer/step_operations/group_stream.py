"""The exchanges of one group of GPUs, one behind the other, as a CUDA stream has them.

Regions are used again in turns of :data:`TURNS`: exchange n+1 overwrites those of n-2.  A
member begins with n only when its sends of n-2 are acknowledged and its result of n-2 was read.
Nobody gets through n before all members have begun with it.  So nothing of n-2 is needed when n+1
begins anywhere.  This holds for collectives in which every member needs data of all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from emulator.sim.endpoint.operations.schedule import Region
from scenarios.collectives.algorithm_registry import algorithm_of
from scenarios.collectives.collective_call import CollectiveCall
from scenarios.collectives.communicators import Communicator
from scenarios.collectives.data_types import DATA_TYPES
from scenarios.workloads.transformer.step_operations.dependent_program import (
    DependentProgram,
    ExchangeRecord,
    StagingSlots,
)
from scenarios.workloads.transformer.step_operations.synthetic_tensors import (
    EXCHANGED,
    GATHERED,
    NEVER_CHECKED,
    NEVER_FILLED,
    SUMMED,
    CheckedTensor,
    FilledTensor,
)

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
        """Return what of the exchanges before must be over first."""
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
        """Let the buffer ``name`` of ``rank`` have ``octets`` at least."""
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
