"""The processes that share the GPUs of a run, and what they exchange about them.

A process that runs alone has all GPUs.  Its exchanges bring back what it gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol


class RunProcesses(Protocol):
    """All processes of a run, as the one of them with ``number`` sees them."""

    number: int
    count: int

    def trade(self, what: str, parcels: Sequence[object]) -> list[Any]:
        """Send ``parcels[n]`` to process n; return what each process has for this one, by number.

        All processes call it.  ``what`` is the step's name.
        """

    def gather(self, what: str, value: object) -> list[Any]:
        """Return the ``value`` of every process, by number; all call it."""

    def to_first(self, what: str, value: object) -> list[Any]:
        """Return the ``value`` of every process, by number, at process 0; others get nothing.

        All call it.
        """


class Alone:
    """The one process of a run."""

    number, count = 0, 1

    def trade(self, what: str, parcels: Sequence[object]) -> list[Any]:
        """Return ``parcels``, which are one."""
        return list(parcels)

    def gather(self, what: str, value: object) -> list[Any]:
        """Return ``value`` alone."""
        return [value]

    def to_first(self, what: str, value: object) -> list[Any]:
        """Return ``value`` alone."""
        return [value]


@dataclass(frozen=True)
class GpuOwners:
    """The process that has each GPU: ``owner[r]`` is the number among ``peers`` of that of rank r.

    Who has a GPU has its schedule, and the times of its operations.
    """

    peers: RunProcesses
    owner: Sequence[int]

    @classmethod
    def alone(cls, count: int) -> GpuOwners:
        """Return the owners of ``count`` GPUs where this process has all."""
        return cls(Alone(), (0,) * count)

    @classmethod
    def in_blocks(cls, peers: RunProcesses, count: int) -> GpuOwners:
        """Return owners that have equal parts of ``count`` GPUs, each GPUs in a row."""
        return cls(peers, [rank * peers.count // count for rank in range(count)])

    @cached_property
    def own(self) -> frozenset[int]:
        """The ranks of this process's GPUs."""
        return frozenset(
            rank for rank, owner in enumerate(self.owner) if owner == self.peers.number
        )

    def first_failure(self, what: str, failure: tuple[object, str] | None) -> str | None:
        """Return the sentence of the failure with the lowest place, of all that processes have.

        ``failure`` is this process's place and sentence; None: it has none.  All processes call
        it, so that all of them fail alike.
        """
        failures = [one for one in self.peers.gather(what, failure) if one is not None]
        return min(failures)[1] if failures else None
