"""Interruptions of a job: GPUs are lost while it runs, and transports of others report it.

A rank learns it by its own transport: a write to a lost GPU ends with an error once all retries are
over, and a copy to a dead one at once, since the scale-up port is down.  The execution is over when
every rank that has a write under way to a lost GPU has learned.  Whoever has none waits for data
that will never come, and the job's launcher aborts it.  Until there is a management network, that
passes in this process and takes no fabric time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from emulator.sim.endpoint.endpoint_spec import EndpointError
from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.sim.endpoint.operations.schedule import Schedule

#: Errors by which a transport reports the loss of a peer: of the NIC, or of the scale-up port.
REPORTED = ("transport", "scale-up")


@dataclass(frozen=True, kw_only=True)
class Interruption:
    """An interruption, with the ``results`` of the execution that it ended.

    ``lost`` are the ranks that cannot go on, each with the time from which on it could not (ns
    after the start of the iteration, which was at ``start_ns`` of the run's clock).
    """

    lost: Mapping[int, int]
    results: Sequence[RankResult]
    start_ns: int

    @property
    def reported(self) -> list[RankResult]:
        """Return the results of the ranks whose own transports reported the loss, by time.

        A rank is among them that lives and is cut off.
        """
        found = [one for one in self.results if one.error in REPORTED]
        return sorted(found, key=lambda one: (one.end_ns, one.rank))

    @property
    def aborted(self) -> list[int]:
        """Return the survivors whose part the launcher aborted."""
        knowing = {one.rank for one in self.reported}
        return [
            one.rank
            for one in self.results
            if one.rank not in self.lost and one.rank not in knowing and one.error is not None
        ]

    @property
    def known_ns(self) -> int:
        """Return when the last transport reported the loss (ns after the start)."""
        return max(one.end_ns for one in self.reported) - self.start_ns

    @property
    def fault_ns(self) -> int:
        """Return when the last rank was lost that had something left to do (ns after the start)."""
        unfinished = {one.rank for one in self.results if one.error is not None}
        return max((at for rank, at in self.lost.items() if rank in unfinished), default=0)


@dataclass(frozen=True)
class JobExecution:
    """The ``schedules`` of all ranks, and their ``results``; ``interruption`` is what ended it."""

    schedules: Sequence[Schedule]
    results: Sequence[RankResult]
    interruption: Interruption | None = None


class JobInterrupted(EndpointError):
    """The ranks ``lost`` cannot go on, and transports of others have reported it."""

    def __init__(
        self,
        failure: EndpointError,
        lost: Collection[int],
    ) -> None:
        super().__init__(
            str(failure),
            rank=failure.rank,
            node=failure.node,
            results=failure.results,
            counters=failure.counters,
        )
        self.lost = tuple(sorted(lost))
