"""Places of a job: which ranks train, which wait as spares, and which store the states."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from emulator.errors import UserError
from topologies.model import Topology


@dataclass(frozen=True)
class JobPlaces:
    """The ranks of ``workers``, one for each replica, of ``spares`` and of ``stores``."""

    workers: tuple[int, ...]
    spares: tuple[int, ...]
    stores: tuple[int, ...]

    @classmethod
    def of(cls, topology: Topology, *, spares: int, stores: int) -> JobPlaces:
        """Let the last GPUs of ``topology`` store, those before them be spares, all others work.

        Raises UserError if fewer than two work.
        """
        there = len(topology.gpus)
        working = there - spares - stores
        if working < 2:
            raise UserError(
                f"{spares} spares and {stores} stores leave {max(0, working)} of the {there} GPUs "
                f"of topology {topology.name} to train, and a job needs two; add hosts or GPUs"
            )
        return cls(
            workers=tuple(range(working)),
            spares=tuple(range(working, working + spares)),
            stores=tuple(range(working + spares, there)),
        )

    def store_of(self, replica: int) -> int:
        """Return the rank that stores the states of ``replica``."""
        return self.stores[replica % len(self.stores)]

    def replaced(self, placed: Sequence[int], lost: Collection[int]) -> tuple[int, ...]:
        """Return the rank of each replica after ``lost`` ranks: a spare takes a lost one's place.

        ``placed`` are those before.  Raises UserError if a store is lost, or too few spares are
        left.
        """
        for store in self.stores:
            if store in lost:
                raise UserError(
                    f"the job cannot go on: rank {store}, which stores states, is lost with them; "
                    "let another GPU fail"
                )
        free = [one for one in self.spares if one not in lost and one not in placed]
        replicas = [replica for replica, rank in enumerate(placed) if rank in lost]
        if len(replicas) > len(free):
            ranks = [placed[replica] for replica in replicas]
            left = {0: "no spare is", 1: "one spare is"}.get(len(free), f"{len(free)} spares are")
            raise UserError(
                f"the job cannot go on: it has lost {_ranks(ranks)} and {left} left; give it more "
                "with --param spares=N, or let less fail"
            )
        instead = dict(zip(replicas, free, strict=False))
        return tuple(instead.get(replica, rank) for replica, rank in enumerate(placed))


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
