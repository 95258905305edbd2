"""The place that a launcher (mpirun, srun) gave this process among the ranks of a run.

It is read from the environment alone, so that a process without a launcher loads nothing of MPI.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

#: The variables of a rank's number and of how many there are, by what sets them: Open MPI; PMI-1
#: and PMI-2 (MPICH, srun --mpi=pmi2); PMIx below Slurm (srun --mpi=pmix).
_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
)


class Companions(Protocol):
    """The other ranks, as far as whoever ends a command needs them."""

    def leave(self, reason: str) -> None:
        """Have them know that this rank's command ends here, and why."""


@dataclass(frozen=True)
class RankPlace:
    """Rank ``number`` of ``count``."""

    number: int
    count: int


def place(environment: Mapping[str, str]) -> RankPlace | None:
    """The place that ``environment`` names; None if there is no launcher, or one rank alone."""
    for number, count in _VARIABLES:
        given = environment.get(number, ""), environment.get(count, "")
        if all(text.isascii() and text.isdigit() for text in given):
            found = RankPlace(*map(int, given))
            return found if found.number < found.count and found.count > 1 else None
    return None
