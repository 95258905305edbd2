"""Traffic that changes the rail does so over the scale-up network (NCCL's PXN).

::

    server 0        g0 ---copy over NVLink---> g1          server 1
                                               |
                                             write
                                               |
                                             rail1 ------> g1

A write from GPU to GPU becomes two: a copy to the GPU of the same scale-up network that stands on
the destination's rail, into memory set aside there. From there a write goes over the fabric.  Its
receive completes at the destination as before, only that the data come from another rank.  What
waited for the write at its source waits for the copy: the source's memory is free again then.

Fabrics without spines need it wherever a schedule leaves its rail (``auto``).  On others it keeps
traffic off the spines (``always``).

Operations keep their places in their schedules, and what is added comes behind them: all records of
the original schedules (:mod:`emulator.measures.message_times`) hold for the results.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from emulator.endpoint.operations.operation_table import WRITE, OperationTable
from emulator.endpoint.operations.schedule import Copy, Operation, Receive, Region, Schedule, Write
from emulator.engine.ranks.gpu_owners import GpuOwners
from emulator.errors import UserError
from topologies.model import Node, Topology
from topologies.parts.scale_up import ScaleUpDomains
from topologies.routing.fabric_paths import spans_from

MODES = ("auto", "always", "off")
DEFAULT = "auto"
#: Where the data wait that others are to be sent.
BUFFER = "pxn"
_ALIGNMENT = 64  # octets

Pair = tuple[int, int]  # ranks: source, destination


@dataclass(frozen=True)
class Pxn:
    """The writes that are relayed on ``topology`` by the ``mode`` of ``--pxn``."""

    topology: Topology
    mode: str = DEFAULT

    def relayed(
        self, schedules: Sequence[Schedule], owners: GpuOwners | None = None
    ) -> list[Schedule]:
        """The schedules of all ranks, in rank order, with writes relayed where they have to be.

        Raises :class:`UserError` for a write to a GPU that neither its source reaches, nor anybody
        who may relay it.
        """
        pairs = {
            (schedule.rank, peer)
            for schedule in schedules
            for peer in OperationTable.of(schedule.operations).peers(WRITE)
            if 0 <= peer < len(schedules)
        }
        relays = {pair: relay for pair in sorted(pairs) if (relay := self.relay(*pair)) is not None}
        return _Relaying(schedules, relays).schedules() if relays else list(schedules)

    def relay(self, source: int, destination: int) -> int | None:
        """The rank that sends to ``destination`` what ``source`` writes; None: itself.

        It is ``destination`` where a copy inside the server is all that is needed.
        """
        gpus = self.topology.gpus
        here, there = gpus[source], gpus[destination]
        direct = self._hops(here, there)
        if direct is not None and self.mode != "always":
            return None
        joined = self._scale_up.joins(here.name, there.name)
        mates = {
            rank: far
            for rank, gpu in enumerate(gpus)
            if (rank == source or self._scale_up.joins(here.name, gpu.name))
            and (far := self._hops(gpu, there)) is not None
        }
        if self.mode == "off" or (not mates and not joined and direct is None):
            way_out = (
                "leave --pxn at auto to relay it over NVLink, or take a fabric with spines"
                if mates or joined
                else "and no GPU that it reaches over NVLink does: take a fabric with spines"
            )
            raise UserError(
                f"{here.name} does not reach {there.name} over this fabric, and the schedule has "
                f"it write there; {way_out}"
            )
        if joined:
            return destination
        least = min(mates.values())
        if direct is not None and direct <= least:
            return None
        nearest = [rank for rank, far in mates.items() if far == least]
        # GPUs that share a NIC are equally near: those of the same number take turns
        return nearest[(there.local_rank or 0) % len(nearest)]

    @cached_property
    def _scale_up(self) -> ScaleUpDomains:
        return ScaleUpDomains(self.topology)

    def _hops(self, here: Node, there: Node) -> int | None:
        """Return the number of cables from GPU ``here`` to ``there``; None: no way leads there."""
        span = spans_from(self.topology, here.name).get(there.name)
        return None if span is None else span.hops


def changed(before: Sequence[Schedule], after: Sequence[Schedule]) -> int:
    """Return how many writes of the schedules ``before`` are no longer writes in ``after``."""
    return sum(
        isinstance(one, Write) and not isinstance(other, Write)
        for old, new in zip(before, after, strict=True)
        if old is not new
        for one, other in zip(old.operations, new.operations, strict=False)
    )


class _Relaying:
    """``schedules`` with the writes of some pairs relayed by another rank."""

    def __init__(self, schedules: Sequence[Schedule], relays: Mapping[Pair, int]) -> None:
        self._before = schedules
        self._relays = relays
        self._operations = [list(schedule.operations) for schedule in schedules]
        self._staged = [0] * len(schedules)  # octets
        self._used: dict[Pair, set[int]] = defaultdict(set)  # tags
        self._next_tag: dict[Pair, int] = defaultdict(int)
        self._buffer = BUFFER
        while any(self._buffer in schedule.buffers for schedule in schedules):
            self._buffer += "-"

    def schedules(self) -> list[Schedule]:
        receives: dict[tuple[int, int, int], int] = {}
        for schedule in self._before:
            for index, operation in enumerate(schedule.operations):
                if isinstance(operation, Write | Copy):
                    self._used[schedule.rank, operation.peer].add(operation.tag)
                elif isinstance(operation, Receive):
                    receives[operation.peer, schedule.rank, operation.tag] = index
        for schedule in self._before:
            for index, operation in enumerate(schedule.operations):
                if isinstance(operation, Write):
                    relay = self._relays.get((schedule.rank, operation.peer))
                    if relay is not None:
                        receive = receives.get((schedule.rank, operation.peer, operation.tag))
                        self._relay(schedule.rank, index, operation, relay, receive)
        return [
            replace(
                schedule,
                buffers={**schedule.buffers, self._buffer: staged} if staged else schedule.buffers,
                operations=tuple(operations),
            )
            for schedule, operations, staged in zip(
                self._before, self._operations, self._staged, strict=True
            )
        ]

    def _relay(
        self, source: int, index: int, write: Write, relay: int, receive: int | None
    ) -> None:
        destination, length = write.peer, write.local.length
        if relay == destination:
            self._operations[source][index] = Copy(
                after=write.after,
                peer=relay,
                tag=write.tag,
                local=write.local,
                remote=write.remote,
            )
            return
        stage = Region(self._buffer, self._staged[relay], length)
        self._staged[relay] += -(-length // _ALIGNMENT) * _ALIGNMENT
        inside, outside = self._tag(source, relay), self._tag(relay, destination)
        self._operations[source][index] = Copy(
            after=write.after, peer=relay, tag=inside, local=write.local, remote=stage
        )
        added: list[Operation] = self._operations[relay]
        added.append(Receive(peer=source, tag=inside, into=stage))
        added.append(
            Write(
                after=(len(added) - 1,),
                peer=destination,
                tag=outside,
                local=stage,
                remote=write.remote,
            )
        )
        if receive is not None:
            before = self._operations[destination][receive]
            assert isinstance(before, Receive)
            self._operations[destination][receive] = replace(before, peer=relay, tag=outside)

    def _tag(self, source: int, destination: int) -> int:
        """One that nothing else from ``source`` to ``destination`` has."""
        pair = (source, destination)
        tag = self._next_tag[pair]
        while tag in self._used[pair]:
            tag += 1
        self._next_tag[pair] = tag + 1
        return tag
