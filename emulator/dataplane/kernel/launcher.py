"""The launcher of MPI jobs: by the environment, which of several ranks this process is.

mpirun starts a command as often as it is asked to, on one machine or several, and numbers the
processes by variables of their environment.  No MPI is needed to read them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

#: Variables with the rank, with the number of ranks, and with the rank among those of the machine:
#: of Open MPI; of PMI-1 and PMI-2 (MPICH, srun --mpi=pmi2); of PMIx below Slurm (srun --mpi=pmix).
_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)
#: How the names of variables begin by which a launcher and its MPI find each other.
_PREFIXES = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "MPI_LOCAL")


class Companions(Protocol):
    """The other ranks, as far as whoever ends a command needs them."""

    @property
    def death_reported(self) -> bool:
        """Return whether it has been said why the command ends here: a rank has died."""

    @property
    def exit_reason(self) -> str:
        """Return why this rank's command has ended, in a sentence that names it and its machine."""

    def leave(self, reason: str) -> None:
        """Have them know that this rank's command ends here, and why."""


@dataclass(frozen=True)
class RankPlace:
    """The place of a process in an MPI job: rank ``number``, from 0, of ``count``."""

    number: int
    count: int
    #: whether no other rank of this machine has a lower number, as far as the launcher says
    first_here: bool = False


def place(environment: Mapping[str, str] = os.environ) -> RankPlace | None:
    """Return the place that a launcher gave this process; None without one, or if it is alone."""
    for of_rank, of_ranks, of_local in _VARIABLES:
        given = environment.get(of_rank, ""), environment.get(of_ranks, "")
        if all(text.isascii() and text.isdigit() for text in given):
            number, count = map(int, given)
            first = environment.get(of_local, str(number)) == "0"
            return RankPlace(number, count, first) if number < count and count > 1 else None
    return None


def without_launcher(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of a command that is no rank of the job, though a rank starts it."""
    return {name: value for name, value in environment.items() if not name.startswith(_PREFIXES)}
