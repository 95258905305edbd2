"""An exchange takes memory and sends octets, whoever wants its operations.

An exchange of GPUs that nobody wants is not written down.  It has the footprint of another one of
its shape: of the same collective and size, in a group with the same hosts and rings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from emulator.sim.endpoint.operations.operation_table import COPY, WRITE, OperationTable
from emulator.sim.endpoint.operations.schedule import Region, only_operations_of
from scenarios.collectives.algorithm_registry import algorithm_of
from scenarios.collectives.collective_call import CollectiveCall
from scenarios.collectives.program import Program


@dataclass(frozen=True)
class ExchangeFootprint:
    """Regions that members allocate, in their order, and octets that they send.

    Regions are (position, buffer, length), and octets are by positions of sender and receiver.
    """

    allocated: Sequence[tuple[int, str, int]]
    sent: Mapping[tuple[int, int], int]


class FootprintProgram(Program):
    """A program that adds up octets, and keeps no operation."""

    def __init__(self, servers: Sequence[object]) -> None:
        super().__init__(servers)
        self.allocated: list[tuple[int, str, int]] = []
        self.sent: dict[tuple[int, int], int] = defaultdict(int)

    def allocate(self, rank: int, buffer: str, length: int) -> Region:
        """Take note of a region (:meth:`Program.allocate`)."""
        self.allocated.append((rank, buffer, length))
        return super().allocate(rank, buffer, length)

    def transfer(
        self,
        source: int,
        destination: int,
        local: Region,
        remote: Region,
        *,
        after: Iterable[int] = (),
    ) -> tuple[int, int]:
        """Add up what is sent (:meth:`Program.transfer`)."""
        self.sent[source, destination] += local.length
        return self.count(source), self.count(destination)

    def reduce(
        self,
        rank: int,
        source: Region,
        into: Region,
        *,
        dtype: str,
        function: str = "sum",
        after: Iterable[int] = (),
    ) -> int:
        """Count an operation (:meth:`Program.reduce`)."""
        return self.count(rank)

    def extend(self, rank: int, table: OperationTable) -> None:
        """Add up what ``table`` sends (:meth:`Program.extend`)."""
        self.count(rank, len(table))
        sends = table.where(WRITE, COPY)
        peers, octets = (table.columns[name][sends] for name in ("peer", "near_octets"))
        for peer in set(peers.tolist()):
            self.sent[rank, peer] += int(octets[peers == peer].sum(dtype=np.int64))


class ExchangeFootprints:
    """The footprints of exchanges among GPUs of ``servers``, one for each shape."""

    def __init__(self, servers: Sequence[object]) -> None:
        self._servers = servers
        self._known: dict[Hashable, ExchangeFootprint] = {}

    def of(self, collective: str, algorithm: str, call: CollectiveCall) -> ExchangeFootprint:
        """Return the footprint of ``call``, which does ``collective`` by ``algorithm``."""
        shape = (
            *(collective, algorithm, call.size, call.source == call.result),
            *(call.slice_bytes, call.channels, call.peers, _positions(call, algorithm)),
        )
        if shape not in self._known:
            self._known[shape] = self._made(collective, algorithm, call)
        return self._known[shape]

    def _made(self, collective: str, algorithm: str, call: CollectiveCall) -> ExchangeFootprint:
        with only_operations_of(None):
            program = FootprintProgram(self._servers)
        algorithm_of(collective, algorithm).run(replace(call, program=program))
        place = call.communicator.position
        return ExchangeFootprint(
            [(place(rank), buffer, length) for rank, buffer, length in program.allocated],
            {(place(one), place(other)): octets for (one, other), octets in program.sent.items()},
        )


def _positions(call: CollectiveCall, algorithm: str) -> Hashable:
    """Return what an algorithm reads of a group: its members' hosts, and rings of positions."""
    group = call.communicator
    rings = group.rings[: call.channels] if algorithm == "ring" else []
    return (
        len(group),
        tuple(map(tuple, group.hosts)),
        tuple(tuple(map(group.position, ring)) for ring in rings),
    )
