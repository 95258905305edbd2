"""Collectives: their buffers and results, and the trials and columns that they have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from emulator.endpoint.operations.operation_table import WRITE, OperationTable
from emulator.endpoint.operations.schedule import Region, Schedule
from emulator.errors import UserError
from emulator.scenario import Contents, Outcome, Trial
from scenarios.collectives import ring
from scenarios.collectives.algorithm_registry import algorithm_of
from scenarios.collectives.blocks import Block
from scenarios.collectives.collective_call import DIVISOR, CollectiveCall
from scenarios.collectives.collective_parameters import ChannelParameters, CollectiveParameters
from scenarios.collectives.communicators import Communicator, communicators
from scenarios.collectives.data_types import (
    DataType,
    Total,
    Values,
    factors,
    random_reals,
    whole_numbers,
)
from scenarios.collectives.program import Program
from topologies.model import Topology

INPUT, OUTPUT, SCRATCH = "input", "output", "scratch"


@dataclass(frozen=True)
class CollectiveData:
    """What the members of one communicator put into a collective of ``size`` octets."""

    seed: int
    group: int
    members: int
    size: int
    datatype: DataType
    reduction: str
    exact: bool

    @property
    def part(self) -> int:
        """Return the octets of one member's part."""
        return self.size // self.members

    def whole(self, position: int, *, ranks: int = 1) -> Values:
        """Return the buffer of a member; ``ranks`` of them are reduced."""
        key = (self.seed, *((self.group,) if self.group else ()), position, self.size)
        return self._values(key, self.size, ranks, position)

    def operand(self, position: int) -> Values:
        """Return what a member adds to a reduction over all."""
        return self.whole(position, ranks=self.members)

    def piece(self, sender: int, receiver: int) -> Values:
        """Return the part that one member has for another one."""
        key = (self.seed, 1, self.group, sender, receiver, self.part)
        return self._values(key, self.part, 1, sender)

    def _values(self, key: Sequence[int], octets: int, ranks: int, position: int) -> Values:
        count = octets // self.datatype.octets
        if not self.exact:
            product = self.reduction == "prod"
            return random_reals(self.datatype, key, count, ranks=ranks, product=product)
        if self.reduction == "prod":
            return factors(self.datatype, key, count, ranks=ranks, position=position)
        return whole_numbers(self.datatype, key, count, ranks=ranks, position=position)

    @cached_property
    def total(self) -> Total:
        """Return the reduction of all members' buffers."""
        total = Total(self.datatype, self.reduction, exact=self.exact)
        for position in range(self.members):
            total.add(self.operand(position))
        return total

    @cached_property
    def total_value(self) -> Values:
        """Return the result of the reduction; nobody may change it."""
        value = self.total.value()
        value.flags.writeable = False
        return value

    @cached_property
    def total_bound(self) -> Values | None:
        """Return how far elements of the result may be from it, or None for not at all."""
        return self.total.bound()

    @cached_property
    def gathered(self) -> Values:
        """Return the parts of all members, one behind the other."""
        return np.concatenate([self.piece(position, position) for position in range(self.members)])


#: Octets of each buffer of a member; arguments are the data, the root's position and the member's.
BufferSizes = Callable[[CollectiveData, int, int], Mapping[str, int]]
#: Contents of a member's buffers, with these arguments.
Filled = Callable[[CollectiveData, int, int], Contents]
#: What of a member's output is the result of a reduction, with these arguments.
ResultBlock = Callable[[CollectiveData, int, int], Block]


def no_result(data: CollectiveData, root: int, position: int) -> Block:
    """Return the empty block of a collective that reduces nothing."""
    return Block(0, 0)


@dataclass(frozen=True, kw_only=True)
class Collective:
    """What a collective is, whatever its algorithm.

    ``name`` is that of the NCCL tests, ``title`` that of texts, ``key`` that of its algorithms.
    ``bus_factor`` leads from algbw to busbw.  ``by_parts``: the size has a part for each member,
    and ``count`` is that of a part.  ``buffers`` and ``inputs`` are those out of place; in place,
    :data:`INPUT` and :data:`OUTPUT` are one.  ``expected`` is what each output holds at the end,
    and ``result`` the part of it that a reduction makes.
    """

    name: str
    title: str
    key: str
    bus_factor: Callable[[int], float]
    buffers: BufferSizes
    inputs: Filled
    expected: Filled
    result: ResultBlock = no_result
    by_parts: bool = False
    rooted: bool = False


def all_peers(members: int) -> float:
    """Return (n-1)/n, the part of the data that goes to others."""
    return (members - 1) / members


def collective_trials(
    collective: Collective, parameters: CollectiveParameters, topology: Topology, seed: int
) -> list[Trial]:
    """Return the trials of ``collective``, one for each size."""
    groups = communicators(
        topology,
        parameters.ranks,
        collective.title,
        shuffled_by=seed if parameters.is_shuffled else None,
    )
    members = {len(group) for group in groups}
    if len(members) > 1:
        raise UserError(
            f"ranks={parameters.ranks} makes communicators of {min(members)} to {max(members)} "
            "GPUs, and a row has one size; name ranks, or choose a uniform topology"
        )
    (count,) = members
    if collective.rooted and parameters.root_position >= count:
        raise UserError(
            f"root is {parameters.root_position}, and the communicator has positions 0 to "
            f"{count - 1}; take one of these"
        )
    if not parameters.exact and not parameters.element.boundable(count):
        raise UserError(
            f"data=random with {parameters.datatype} leaves nothing to check over {count} GPUs: "
            "rounding may change every digit; take data=whole, or another datatype"
        )
    sizes = parameters.parts(count) if collective.by_parts else parameters.sweep
    return [
        _Run(
            collective, parameters, groups, size * (count if collective.by_parts else 1), seed
        ).trial(topology)
        for size in sizes
    ]


@dataclass
class _Run:
    """One size of a collective over all communicators."""

    collective: Collective
    parameters: CollectiveParameters
    groups: Sequence[Communicator]
    size: int
    seed: int

    def __post_init__(self) -> None:
        given = self.parameters
        self.data = [
            CollectiveData(
                self.seed,
                number,
                len(group),
                self.size,
                given.element,
                given.reduction,
                given.exact,
            )
            for number, group in enumerate(self.groups)
        ]
        self.member = {
            rank: (number, position)
            for number, group in enumerate(self.groups)
            for position, rank in enumerate(group.ranks)
        }

    def trial(self, topology: Topology) -> Trial:
        given = self.parameters
        return Trial(
            collective=self.collective.name,
            size_bytes=self.size,
            compile=lambda: self._compiled(topology),
            inputs=self._inputs,
            expected=self._expected,
            tolerance=None if given.exact else self._tolerance,
            checked=bool(given.check),
            memory_bytes=3 * self.size,
            warmups=given.warmups,
            iterations=given.iterations,
            facts={
                "algorithm": given.algorithm,
                "members": len(self.groups[0]),
                "communicators": len(self.groups),
                "in_place": given.is_in_place,
                **self._channel_facts(topology),
            },
        )

    def _channel_facts(self, topology: Topology) -> dict[str, object]:
        given = self.parameters
        if not isinstance(given, ChannelParameters):
            return {}
        facts: dict[str, object] = {
            "order": given.order,
            "channels": self._channels(self.groups[0]),
        }
        if given.algorithm == "ring":
            facts["cross_rail_hops"] = sum(
                ring.cross_rail_hops(group.rings, topology) for group in self.groups
            )
        return facts

    def _channels(self, group: Communicator) -> int:
        return self.parameters.channel_count or len(group.rings)

    def _compiled(self, topology: Topology) -> Sequence[Schedule]:
        program = Program.on(topology)
        for number, group in enumerate(self.groups):
            for position, rank in enumerate(group.ranks):
                for name, octets in self._buffers(number, position).items():
                    program.allocate(rank, name, octets)
            self._write(program, number, group)
        return program.schedules()

    def _write(self, program: Program, number: int, group: Communicator) -> None:
        given = self.parameters
        chosen = algorithm_of(self.collective.key, given.algorithm)
        result = SCRATCH if self._by_scratch else OUTPUT
        chosen.run(
            CollectiveCall(
                program=program,
                communicator=group,
                size=self.size,
                source=OUTPUT if given.is_in_place else INPUT,
                result=result,
                datatype=given.element,
                reduction=given.reduction,
                slice_bytes=given.slice_octets,
                root=given.root_position,
                channels=self._channels(group),
                peers=given.peers_at_once,
            )
        )
        if not self._by_scratch:
            return
        for position, rank in enumerate(group.ranks):
            block = self.collective.result(self.data[number], given.root_position, position)
            if block.length:
                program.reduce(
                    rank,
                    Region(SCRATCH, block.offset, block.length),
                    Region(OUTPUT, block.offset, block.length),
                    dtype=given.element.numpy_name,
                    function="replace",
                    after=program.users(rank, SCRATCH, OUTPUT),
                )

    @property
    def _by_scratch(self) -> bool:
        """Whether a result is made beside the source, and takes its place at the end."""
        given = self.parameters
        chosen = algorithm_of(self.collective.key, given.algorithm)
        return given.is_in_place and not chosen.in_place

    def _buffers(self, number: int, position: int) -> Mapping[str, int]:
        given, data = self.parameters, self.data[number]
        made = dict(self.collective.buffers(data, given.root_position, position))
        if given.is_in_place:
            made[OUTPUT] = max(made.pop(INPUT, 0), made.get(OUTPUT, 0))
        if self._by_scratch:
            made[SCRATCH] = made[OUTPUT]
        if given.reduction == "avg":
            made[DIVISOR] = min(given.slice_octets, self.size)
        return {name: octets for name, octets in made.items() if octets}

    def _inputs(self, rank: int) -> Contents:
        if rank not in self.member:
            return {}
        number, position = self.member[rank]
        given, data = self.parameters, self.data[number]
        filled = dict(self.collective.inputs(data, given.root_position, position))
        if given.is_in_place and INPUT in filled:
            filled[OUTPUT] = self._in_place(number, position, filled.pop(INPUT))
        if (octets := self._buffers(number, position).get(DIVISOR)) is not None:
            elements = octets // given.element.octets
            filled[DIVISOR] = np.full(elements, data.members, given.element.dtype)
        return filled

    def _in_place(self, number: int, position: int, own: Values) -> Values:
        """Return the buffer in which a member's input lies where its part of the result does."""
        octets = self._buffers(number, position)[OUTPUT]
        if own.nbytes == octets:
            return own
        whole = np.zeros(octets // own.itemsize, own.dtype)
        begin = position * len(own)
        whole[begin : begin + len(own)] = own
        return whole

    def _expected(self, rank: int) -> Contents:
        if rank not in self.member or not self.parameters.check:
            return {}
        number, position = self.member[rank]
        root, data = self.parameters.root_position, self.data[number]
        expected = self.collective.expected(data, root, position)
        block = self.collective.result(data, root, position)
        if block.length in (0, self.size):
            return expected
        # A part of the output is the result; the rest stays as it was.
        before = self._inputs(rank)[OUTPUT].copy()
        octets = self.parameters.element.octets
        before[_elements(block, octets)] = expected[OUTPUT]
        return {OUTPUT: before}

    def _tolerance(self, rank: int) -> Contents:
        if rank not in self.member:
            return {}
        number, position = self.member[rank]
        bound = self.data[number].total_bound
        block = self.collective.result(self.data[number], self.parameters.root_position, position)
        if bound is None or not block.length:
            return {}
        own = np.zeros(len(bound))
        chosen = _elements(block, self.parameters.element.octets)
        own[chosen] = bound[chosen]
        return {OUTPUT: own}


def _elements(block: Block, octets: int) -> slice:
    """Return the elements of ``octets`` each that ``block`` has."""
    return slice(block.offset // octets, (block.offset + block.length) // octets)


def collective_measures(
    collective: Collective, parameters: CollectiveParameters, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row as the NCCL tests define them, and what crossed the NICs.

    algbw is the size over the time, and busbw is the collective's factor times that, in GB/s.
    ``fabric_bytes`` are octets of payload that arrived over the fabric in an iteration, from the
    counters of all endpoints; ``fabric_bytes_derived`` are those that the schedules name.
    """
    members = trial.facts["members"]
    assert isinstance(members, int)
    algbw = trial.size_bytes / outcome.mean_ns  # octets per ns are GB/s
    element = parameters.element
    received = outcome.counters.get("rx_message_octets")
    return {
        "count": trial.size_bytes // (members if collective.by_parts else 1) // element.octets,
        "type": element.name,
        "redop": parameters.reduction,
        "root": parameters.root_position if collective.rooted else -1,
        "algbw_gbps": algbw,
        "busbw_gbps": algbw * collective.bus_factor(members),
        "fabric_bytes": None if received is None else received / len(outcome.times_ns),
        "fabric_bytes_derived": fabric_octets(trial.compile()),
    }


def fabric_octets(schedules: Sequence[Schedule]) -> int:
    """Return the octets of payload that ``schedules`` write over the fabric."""
    total = 0
    for schedule in schedules:
        table = OperationTable.of(schedule.operations)
        chosen = table.where(WRITE)
        total += int(table.columns["near_octets"][chosen].sum(dtype=np.int64))
    return total
