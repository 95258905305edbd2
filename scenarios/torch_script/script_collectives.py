"""The collectives of a script, compiled for a fabric by scenarios.collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from emulator.run.pxn import Pxn
from emulator.sim.endpoint.operations.schedule import Region, Schedule
from emulator.torch_backend.calls import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BROADCAST,
    GATHER,
    REDUCE,
    REDUCESCATTER,
    REDUCING,
    SCATTER,
    SEND,
)
from emulator.torch_backend.compiled_calls import DIVISOR, INPUT, OUTPUT, CallKey, CompiledCall
from scenarios.collectives.algorithm_registry import algorithm_of
from scenarios.collectives.collective_call import CollectiveCall
from scenarios.collectives.communicators import Communicator
from scenarios.collectives.data_types import DataType
from scenarios.collectives.exchange_matrix import busiest
from scenarios.collectives.library import NO_LIBRARY, LibraryChoice, choose
from scenarios.collectives.program import Program
from scenarios.collectives.tuning import AUTO, NCCL_TUNING, choose_allreduce
from topologies.model import Topology

#: Algorithms, as NCCL has them.
ALGORITHMS = {
    ALLREDUCE: AUTO,
    BROADCAST: "ring",
    REDUCE: "ring",
    ALLGATHER: "ring",
    REDUCESCATTER: "ring",
    ALLTOALL: "nccl",
    GATHER: "direct",
    SCATTER: "direct",
    BARRIER: "dissemination",
    SEND: "direct",
}
#: The octets of a barrier's notices.
BARRIER_OCTETS = 4


@dataclass(frozen=True, kw_only=True)
class ScriptCollectives:
    """Compiles calls of ranks on the GPUs of a topology, whose writes ``pxn`` relays.

    Data move on in slices.  ``algorithms`` are other ones than :data:`ALGORITHMS`, by kind.
    ``library`` with its ``protocol`` is the one whose launch and steps GPUs take time for, and
    ``channels`` how many rings or trees work side by side (0: one for each GPU of a host).
    """

    pxn: Pxn
    slice_bytes: int
    algorithms: Mapping[str, str]
    library: str = NO_LIBRARY
    protocol: str = AUTO
    channels: int = 0

    def __call__(self, key: CallKey) -> CompiledCall:
        program = Program.on(self.topology)
        size = key.octets or (BARRIER_OCTETS if key.kind == BARRIER else 0)
        for position, rank in enumerate(key.members):
            for name, octets in _buffers(key, size, position, self.slice_bytes).items():
                if octets:
                    program.allocate(rank, name, octets)
        communicator = Communicator(key.members, self.topology)
        name = self.algorithms.get(key.kind, ALGORITHMS[key.kind])
        library = self._library(key, communicator, name, size)
        if library is not None:
            name = library.algorithm
        elif name == AUTO:
            name = choose_allreduce(NCCL_TUNING, communicator, size).algorithm
        if key.kind == SEND:
            self._write_message(program, key)
            return self._compiled(program, key, name, library)
        kind = "alltoallv" if key.kind == ALLTOALL and key.matrix is not None else key.kind
        algorithm_of(kind, name).run(
            CollectiveCall(
                program=program,
                communicator=communicator,
                size=size,
                source=INPUT,
                result=OUTPUT,
                datatype=_datatype(key),
                reduction=key.reduction,
                slice_bytes=self.slice_bytes,
                root=key.root,
                channels=self.channels or len(communicator.rings),
                matrix=key.matrix,
                **({} if library is None else library.limits),
            )
        )
        return self._compiled(program, key, name, library)

    def _write_message(self, program: Program, key: CallKey) -> None:
        sender, receiver = key.members
        for at in range(0, key.octets, self.slice_bytes):
            length = min(self.slice_bytes, key.octets - at)
            program.transfer(
                sender, receiver, Region(INPUT, at, length), Region(OUTPUT, at, length)
            )

    def _compiled(
        self, program: Program, key: CallKey, algorithm: str, library: LibraryChoice | None
    ) -> CompiledCall:
        compiled: Sequence[Schedule] = program.schedules()
        if library is not None:
            algorithm = f"{algorithm}/{library.protocol}"
            compiled = [replace(one, gpu_time=library.gpu_time) for one in compiled]
        schedules = self.pxn.relayed(compiled)
        relays = [one.rank for one in schedules if one.operations and one.rank not in key.members]
        own = {rank: len(compiled[rank].operations) for rank in (*key.members, *relays)}
        part = key.octets // len(key.members) if key.kind == REDUCESCATTER else 0
        results = {rank: position * part for position, rank in enumerate(key.members)}
        return CompiledCall(
            {rank: schedules[rank] for rank in own}, own, results, algorithm, len(key.members)
        )

    @property
    def topology(self) -> Topology:
        """Return what the GPUs stand in."""
        return self.pxn.topology

    def _library(
        self, key: CallKey, communicator: Communicator, algorithm: str, size: int
    ) -> LibraryChoice | None:
        """Return what the library does, if there is one."""
        if self.library == NO_LIBRARY:
            return None
        return choose(
            self.library,
            communicator,
            size if key.matrix is None else busiest(key.matrix),
            algorithm=algorithm,
            protocol=self.protocol,
        )

    @cached_property
    def hosts(self) -> list[int]:
        """Return the number of the host of each GPU."""
        gpus = self.topology.gpus
        servers = list(dict.fromkeys(gpu.server for gpu in gpus))
        return [servers.index(gpu.server) for gpu in gpus]


def _datatype(key: CallKey) -> DataType:
    """Return the type of elements: octets, where nothing is reduced or all are truth values."""
    reduced = key.kind in REDUCING and key.dtype != "bool"
    return DataType(key.dtype, key.dtype) if reduced else DataType("uint8", "uint8")


def _buffers(key: CallKey, size: int, position: int, slice_bytes: int) -> dict[str, int]:
    """Return the octets of what the member at ``position`` puts in and gets."""
    part, own = size // len(key.members), position == key.root
    match key.kind:
        case "broadcast":
            found = {INPUT: size * own, OUTPUT: size}
        case "reduce":
            found = {INPUT: size, OUTPUT: size * own}
        case "allgather":
            found = {INPUT: part, OUTPUT: size}
        case "reducescatter":
            found = {INPUT: size, OUTPUT: size}
        case "alltoall" if key.matrix is not None:
            received = sum(row[position] for row in key.matrix)
            found = {INPUT: sum(key.matrix[position]), OUTPUT: received}
        case "gather":
            found = {INPUT: part, OUTPUT: size * own}
        case "scatter":
            found = {INPUT: size * own, OUTPUT: part}
        case "send":
            found = {INPUT: size * (position == 0), OUTPUT: size * (position == 1)}
        case "barrier":
            found = {INPUT: size}
        case _:
            found = {INPUT: size, OUTPUT: size}
    if key.kind in REDUCING and key.reduction == "avg":
        found[DIVISOR] = min(slice_bytes, size)
    return found
