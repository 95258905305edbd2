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
the original schedules (:mod:`emulator.run.measures.message_times`) hold for the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from emulator.errors import UserError
from emulator.run.plan.variants import PXN_MODES
from emulator.run.relayed_writes import Pair, RelayedWrites
from emulator.sim.endpoint.operations.operation_table import WRITE, OperationTable
from emulator.sim.endpoint.operations.schedule import Operation, Schedule, Write
from emulator.workers.division import Division, JobSchedules
from topologies.model import Node, Topology
from topologies.parts.scale_up import ScaleUpDomains
from topologies.routing.paths import spans_from


@dataclass(frozen=True)
class Pxn:
    """The writes that are relayed on ``topology`` by the ``mode`` of ``--pxn``."""

    topology: Topology
    mode: str = PXN_MODES[0]

    def relayed(self, schedules: Sequence[Schedule]) -> JobSchedules:
        """The schedules of all ranks, in rank order, with writes relayed where they have to be.

        All processes call it, and each has the operations of its own GPUs.  Of others' it gets and
        returns the buffers.
        Raises :class:`UserError` in all of them for a write to a GPU that neither its source
        reaches, nor anybody who may relay it.
        """
        job = JobSchedules.of(schedules)
        own = sorted(job.division.own)
        tables = {rank: OperationTable.of(job[rank].operations) for rank in own}
        relays = self._relays(tables, job.division)
        return job.changed(RelayedWrites(job, tables, relays).schedules())

    def _relays(
        self, tables: Mapping[int, OperationTable], division: Division
    ) -> Mapping[Pair, int]:
        """Return the relay of each pair that has one, for writes in ``tables``."""
        pairs = [
            (rank, peer)
            for rank, table in tables.items()
            for peer in table.peers(WRITE)
            if 0 <= peer < len(division.home)
        ]
        relays: dict[Pair, int] = {}
        failure: tuple[Pair, str] | None = None
        for pair in pairs:
            try:
                relay = self.relay(*pair)
            except UserError as error:
                failure = pair, str(error)
                break
            if relay is not None:
                relays[pair] = relay
        if (sentence := division.first_failure("relays of writes", failure)) is not None:
            raise UserError(sentence)
        return relays

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
        near = [source, *(self._ranks[name] for name in self._scale_up.peers(here.name))]
        mates = {
            rank: far for rank in sorted(near) if (far := self._hops(gpus[rank], there)) is not None
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

    @cached_property
    def _ranks(self) -> Mapping[str, int]:
        return {gpu.name: rank for rank, gpu in enumerate(self.topology.gpus)}

    def _hops(self, here: Node, there: Node) -> int | None:
        """Return the number of cables from GPU ``here`` to ``there``; None: no way leads there."""
        span = spans_from(self.topology, here.name).get(there.name)
        return None if span is None else span.hops


def changed(before: Sequence[Schedule], after: Sequence[Schedule]) -> int:
    """Return how many writes of the schedules ``before`` are no longer writes in ``after``.

    What has no operations there counts nothing, so that processes may add up those of their GPUs.
    """
    count = 0
    for old, new in zip(before, after, strict=True):
        if old is not new:
            writes = np.flatnonzero(_are_writes(old.operations))
            still = _are_writes(new.operations)
            count += int(np.count_nonzero(~still[writes[writes < len(still)]]))
    return count


def _are_writes(operations: Sequence[Operation]) -> npt.NDArray[np.bool_]:
    """Return which of ``operations`` are writes, without a table made for it."""
    if isinstance(operations, OperationTable):
        writes: npt.NDArray[np.bool_] = operations.columns["kind"] == WRITE
        return writes
    return np.fromiter((isinstance(one, Write) for one in operations), bool, len(operations))
