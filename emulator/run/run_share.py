"""The part of a run that this process has: all of it, or what one of several MPI ranks has.

Rank 0 writes the run folder.  What needs the schedules, times or messages of all GPUs, it does
alone, and tells the others what they have to know of it (:meth:`RunShare.from_first`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from emulator.endpoint.operations.schedule import Schedule, WantedSchedules
from emulator.engine.ranks.gpu_owners import Alone, GpuOwners
from emulator.engine.ranks.rank_exchange import Ranks
from emulator.run.pxn import Pxn
from emulator.scenario import Trial

T = TypeVar("T")


@dataclass(frozen=True)
class RunShare:
    """The share of this process in a run, which it carries out alone, or with other ``ranks``."""

    ranks: Ranks | None = None

    @property
    def reports(self) -> bool:
        """Return whether this process writes the run folder."""
        return self.ranks is None or self.ranks.number == 0

    def from_first(
        self, what: str, make: Callable[[], T], brief: Callable[[T], T] = lambda made: made
    ) -> T:
        """Return what ``make`` returns in the process that reports; others get it ``brief``."""
        return make() if self.ranks is None else self.ranks.from_first(what, make, brief)

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
    def compiles_all_here(self) -> bool:
        """Return whether this machine has the process that compiles for all GPUs."""
        return 0 in self._neighbours

    @property
    def _neighbours(self) -> frozenset[int]:
        """The MPI ranks on this machine, by number; 0 where there are none."""
        if self.ranks is None:
            return frozenset({0})
        machines = self.ranks.machines
        own = machines[self.ranks.number]
        return frozenset(number for number, name in enumerate(machines) if name == own)

    def keeps_all(self, trial: Trial) -> bool:
        """Return whether this process has the schedules and times of all GPUs in ``trial``.

        Where a trial goes on after GPUs were lost, all ranks reckon how from what was done.
        """
        return self.reports or trial.recover is not None

    def schedules(
        self, trial: Trial, own: Collection[int], pxn: Pxn, *, relayed: bool
    ) -> tuple[Sequence[Schedule], Sequence[Schedule]]:
        """Return the schedules of ``trial`` as they were compiled, and as ``pxn`` has relayed them.

        Unless this process keeps all, they have operations of the GPUs ``own`` alone (by rank).
        ``relayed``: some writes are.
        """
        if self.keeps_all(trial):
            compiled = trial.compile()
            return compiled, pxn.relayed(compiled)
        wanted = WantedSchedules(frozenset(own))
        if relayed:  # in the order of all writes, so that all are compiled here and none kept
            everybody = frozenset(range(len(pxn.topology.gpus)))
            compiled = trial.compile(wanted=WantedSchedules(everybody))
            return wanted.of(compiled), wanted.of(pxn.relayed(compiled))
        compiled = trial.compile(wanted=wanted)
        return compiled, compiled
