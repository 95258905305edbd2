"""The part of a run that this process has: all of it, or what one of several MPI ranks has.

Rank 0 writes the run folder.  It does alone what needs the counters or messages of all GPUs, and
sends the others what they have to know of it (:meth:`RunShare.from_first`).  Schedules each rank
has of its own GPUs (:class:`GpuOwners`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypeVar

from emulator.errors import UserError
from emulator.scenario import Trial
from emulator.sim.endpoint.operations.schedule import Schedule, only_operations_of, without_others
from emulator.workers.ranks.gpu_owners import Alone, GpuOwners
from emulator.workers.ranks.rank_exchange import Ranks

T = TypeVar("T")


@dataclass(frozen=True)
class RunShare:
    """The share of this process in a run, which it carries out alone, or with other ``ranks``."""

    ranks: Ranks | None = None

    @property
    def reports(self) -> bool:
        """Return whether this process writes the run folder."""
        return self.ranks is None or self.ranks.number == 0

    def from_first(self, what: str, make: Callable[[], T]) -> T:
        """Return what ``make`` returns in the process that reports, which alone calls it."""
        return make() if self.ranks is None else self.ranks.from_first(what, make)

    def blocks(self, gpus: int) -> GpuOwners:
        """Return equal parts of ``gpus`` GPUs for all processes, before the fabric is divided."""
        return GpuOwners.in_blocks(self.ranks or Alone(), gpus)

    def owners(self, worker_of: Mapping[str, int], gpus: Sequence[str]) -> GpuOwners:
        """Return who has each of ``gpus`` (by rank); MPI ranks have their workers'."""
        if self.ranks is None:
            return GpuOwners.alone(len(gpus))
        return GpuOwners(self.ranks, [worker_of[gpu] for gpu in gpus])

    def beside(self, worker_of: Mapping[str, int], gpus: Sequence[str]) -> list[int]:
        """Return which of ``gpus`` are on this machine, by rank; MPI ranks have their workers'."""
        if self.ranks is None:
            return list(range(len(gpus)))
        return [rank for rank, gpu in enumerate(gpus) if worker_of[gpu] in self._neighbours]

    @property
    def _neighbours(self) -> frozenset[int]:
        """The MPI ranks on this machine, by number; 0 where there are none."""
        if self.ranks is None:
            return frozenset({0})
        machines = self.ranks.machines
        own = machines[self.ranks.number]
        return frozenset(number for number, name in enumerate(machines) if name == own)


def compiled_for(trial: Trial, owners: GpuOwners) -> Sequence[Schedule]:
    """Return the schedules of all GPUs, those of other processes' without operations.

    All processes call it.  Raises UserError, in all of them, unless there is one for each GPU.
    """
    compiled: Sequence[Schedule] = ()
    refusal: tuple[object, str] | None = None
    try:
        with nullcontext() if owners.peers.count == 1 else only_operations_of(owners.own):
            compiled = without_others(trial.compile())
        if [schedule.rank for schedule in compiled] != list(range(len(owners.owner))):
            raise UserError(
                f"{trial.collective} of {trial.size_bytes} B has {len(compiled)} schedules and "
                f"the fabric {len(owners.owner)} GPUs; compile one for each, in rank order"
            )
    except UserError as error:
        refusal = owners.peers.number, str(error)
    stated = owners.first_failure("compiled", refusal)
    if stated is not None:
        raise UserError(stated)
    return compiled
