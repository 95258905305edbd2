"""Collectives: their buffers and results, and the trials and columns that they have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import cast

import numpy as np

from emulator.errors import UserError
from emulator.result_rows import NCCL_COLUMNS, TableColumn
from emulator.run.measures.gpu_execution import GpuExecution
from emulator.run.report.result_table import FABRIC_COLUMNS
from emulator.scenario import Contents, Outcome, Trial, refuse_idle
from emulator.sim.endpoint.operations.operation_table import WRITE, OperationTable
from emulator.sim.endpoint.operations.schedule import (
    Region,
    Schedule,
)
from scenarios.collectives import ring
from scenarios.collectives.algorithm_registry import algorithm_of
from scenarios.collectives.blocks import Block
from scenarios.collectives.collective_call import DIVISOR, CollectiveCall
from scenarios.collectives.collective_data import CollectiveData
from scenarios.collectives.collective_parameters import (
    ChannelParameters,
    CollectiveParameters,
    InPlaceParameters,
)
from scenarios.collectives.communicators import Communicator, communicators
from scenarios.collectives.data_types import Values
from scenarios.collectives.exchange_matrix import busiest, imbalance
from scenarios.collectives.library import NO_LIBRARY, LibraryChoice, choose
from scenarios.collectives.program import Program
from scenarios.collectives.tuning import (
    AUTO,
    NCCL_TUNING,
    Choice,
    choose_allreduce,
    read_tuning,
)
from topologies.model import Topology

_COLUMNS = (
    *NCCL_COLUMNS,
    *FABRIC_COLUMNS,
    TableColumn("fabric_bytes", "NIC data", "(MB)", 9, divisor=1e6, rank=3),
    TableColumn("algorithm", "algorithm", "", 18),
)
#: The column of collectives whose result may replace the source.
_PLACE = TableColumn("place", "place", "", 5)
INPUT, OUTPUT, SCRATCH = "input", "output", "scratch"

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
class CollectiveBenchmark:
    """A collective, whatever its algorithm: a scenario with its buffers, contents, factor of busbw.

    ``sheet`` describes the scenario, and ``Parameters`` are those of a user.  ``name`` is that of
    the NCCL tests, ``title`` that of texts, ``key`` that of its algorithms.
    ``bus_factor`` leads from algbw to busbw.  ``by_parts``: the size has a part for each member,
    and ``count`` is that of a part.  ``buffers`` and ``inputs`` are those out of place; in place,
    :data:`INPUT` and :data:`OUTPUT` are one.  ``expected`` is what each output holds at the end,
    and ``result`` the part of it that a reduction makes.
    """

    sheet: str
    name: str
    title: str
    key: str
    Parameters: type[CollectiveParameters]
    bus_factor: Callable[[int], float]
    buffers: BufferSizes
    inputs: Filled
    expected: Filled
    result: ResultBlock = no_result
    by_parts: bool = False
    rooted: bool = False
    more_columns: tuple[TableColumn, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "__doc__", self.sheet)

    @property
    def COLUMNS(self) -> tuple[TableColumn, ...]:
        """What the table has for each size: columns of the NCCL tests, then our own."""
        placed = issubclass(self.Parameters, InPlaceParameters)
        return (*_COLUMNS, *((_PLACE,) if placed else ()), *self.more_columns)

    def topology(self, parameters: CollectiveParameters) -> str:
        """Six hosts with four GPUs each, four rail switches, two spines."""
        return "rail_clos"

    def schedules(
        self, parameters: CollectiveParameters, topology: Topology, seed: int
    ) -> list[Trial]:
        """Return the trials, one for each row of the table."""
        if (name := parameters.algorithm) != AUTO:
            refuse_idle(parameters, algorithm_of(self.key, name).idle, f"beside algorithm={name}")
        groups = communicators(
            topology,
            parameters.ranks,
            self.title,
            shuffled_by=seed if parameters.is_shuffled else None,
        )
        members = {len(group) for group in groups}
        if len(members) > 1:
            raise UserError(
                f"ranks={parameters.ranks} makes communicators of {min(members)} to {max(members)} "
                "GPUs, and a row has one size; name ranks, or choose a uniform topology"
            )
        (count,) = members
        if self.rooted and parameters.root_position >= count:
            raise UserError(
                f"root is {parameters.root_position}, and the communicator has positions 0 to "
                f"{count - 1}; take one of these"
            )
        if not parameters.exact and not parameters.element.boundable(count):
            raise UserError(
                f"data=random with {parameters.datatype} leaves nothing to check over {count} "
                "GPUs: rounding may change every digit; take data=whole, or another datatype"
            )
        sizes = parameters.parts(count) if self.by_parts else parameters.sweep
        cuts = parameters.cut * (1 if len(parameters.cut) > 1 else len(sizes))
        whole = count if self.by_parts else 1
        return [
            _Run(self, one, groups, size * whole, seed, cut).trial(topology)
            for size, cut in zip(sizes, cuts, strict=True)
            for one in parameters.placed()
        ]

    def measures(
        self,
        parameters: CollectiveParameters,
        topology: Topology,
        trial: Trial,
        outcome: Outcome,
    ) -> Mapping[str, object]:
        """Return the values of a row as the NCCL tests define them, and what crossed the NICs.

        algbw is the size over the time, and busbw is ``bus_factor`` times that, in GB/s.
        ``fabric_bytes`` are octets of payload that arrived over the fabric in an iteration, from
        the counters of all endpoints; ``fabric_bytes_derived`` are those that schedules name.
        """
        members = trial.facts["members"]
        algbw = trial.size_bytes / outcome.mean_ns  # octets per ns are GB/s
        element = parameters.element
        return {
            "count": trial.size_bytes // (members if self.by_parts else 1) // element.octets,
            "type": element.name,
            "redop": parameters.reduction,
            "root": parameters.root_position if self.rooted else -1,
            "algbw_gbps": algbw,
            "busbw_gbps": algbw * self.bus_factor(members),
            "fabric_bytes": outcome.received_bytes,
            "fabric_bytes_derived": _written_octets(outcome),
        }


def all_peers(members: int) -> float:
    """Return (n-1)/n, the part of the data that goes to others."""
    return (members - 1) / members


def same(members: int) -> float:
    """Return 1: busbw is algbw."""
    return 1


@dataclass
class _Run:
    """One size of a collective over all communicators."""

    collective: CollectiveBenchmark
    parameters: CollectiveParameters
    groups: Sequence[Communicator]
    size: int
    seed: int
    cut: int

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
                given.matrix(len(group), self.size, self.seed),
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
            size_bytes=self._row_size,
            compile=partial(self._compiled, topology),
            inputs=self._inputs,
            expected=self._expected,
            tolerance=None if given.exact else self._tolerance,
            checked=bool(given.check),
            observe=written_octets,
            memory_bytes=3 * self.size,
            warmups=given.warmups,
            iterations=given.iterations,
            facts={
                "algorithm": self.algorithm,
                **self._choice_facts,
                **self._exchange_facts,
                "members": len(self.groups[0]),
                "communicators": len(self.groups),
                "in_place": given.is_in_place,
                "place": "in" if given.is_in_place else "out",
                **self._channel_facts(topology),
            },
        )

    @property
    def _row_size(self) -> int:
        """Return the size of the row: of unequal parts that of the busiest member."""
        matrix = self.data[0].matrix
        return self.size if matrix is None else busiest(matrix)

    @cached_property
    def _choice(self) -> Choice | None:
        """Return the choice of NCCL's model, if the user leaves it to that."""
        given = self.parameters
        if given.algorithm != AUTO:
            return None
        tuning = read_tuning(Path(given.tuning_file)) if given.tuning_file else NCCL_TUNING
        return choose_allreduce(tuning, self.groups[0], self.size)

    @cached_property
    def _library(self) -> LibraryChoice | None:
        """Return what the library does, if there is one."""
        given = self.parameters
        if given.library == NO_LIBRARY:
            return None
        return choose(
            given.library,
            self.groups[0],
            self.size,
            algorithm=given.algorithm,
            protocol=given.protocol,
            cut=self.cut,
        )

    @property
    def algorithm(self) -> str:
        """Return the name of the algorithm that runs."""
        if self._library is not None:
            return self._library.algorithm
        return self._choice.algorithm if self._choice else self.parameters.algorithm

    @property
    def _choice_facts(self) -> dict[str, object]:
        if self._library is not None:
            chosen = self._library
            return {
                "model_us": dict(chosen.times_us),
                "library": self.parameters.library,
                "protocol": chosen.protocol,
            }
        return {"model_us": dict(self._choice.times_us)} if self._choice else {}

    @property
    def _exchange_facts(self) -> dict[str, object]:
        matrix = self.data[0].matrix
        return {"imbalance": imbalance(matrix)} if matrix is not None else {}

    def _channel_facts(self, topology: Topology) -> dict[str, object]:
        given = self.parameters
        if not isinstance(given, ChannelParameters):
            return {}
        facts: dict[str, object] = {
            "order": given.order,
            "channels": self._channels(self.groups[0]),
        }
        for idle in algorithm_of(self.collective.key, self.algorithm).idle:
            facts.pop(idle, None)
        if self.algorithm == "ring":
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
        schedules = program.schedules()
        if self._library is None:
            return schedules
        return [replace(one, gpu_time=self._library.gpu_time) for one in schedules]

    def _write(self, program: Program, number: int, group: Communicator) -> None:
        given = self.parameters
        chosen = algorithm_of(self.collective.key, self.algorithm)
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
                matrix=self.data[number].matrix,
                **({} if self._library is None else self._library.limits),
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
        """Return whether a result is made beside the source, and replaces it at the end."""
        given = self.parameters
        chosen = algorithm_of(self.collective.key, self.algorithm)
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
    return slice(block.offset // octets, (block.offset + block.length) // octets)


def written_octets(gpu: GpuExecution) -> int:
    """Return the octets of payload that a GPU writes over the fabric, for ``Trial.observe``."""
    return fabric_octets([gpu.schedule])


def _written_octets(outcome: Outcome) -> int | None:
    """Return what all GPUs write over the fabric in an iteration, if one was observed."""
    if not outcome.observed:
        return None
    return sum(cast(Iterable[int], outcome.observed[-1].values()))


def fabric_octets(schedules: Sequence[Schedule]) -> int:
    """Return the octets of payload that ``schedules`` write over the fabric."""
    total = 0
    for schedule in schedules:
        table = OperationTable.of(schedule.operations)
        chosen = table.where(WRITE)
        total += int(table.columns["near_octets"][chosen].sum(dtype=np.int64))
    return total
