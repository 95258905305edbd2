"""The GPUs' own work: computing in order, which reads what has arrived and makes what leaves."""

from __future__ import annotations

from collections.abc import Sequence

from emulator.sim.endpoint.operations.gpu_functions import name_of
from emulator.sim.endpoint.operations.schedule import Apply
from scenarios.workloads.transformer.step_operations.dependent_program import DependentProgram
from scenarios.workloads.transformer.step_operations.synthetic_tensors import (
    CheckedTensor,
    FilledTensor,
    step_tensors,
)

#: The buffer of counts of wrong elements, one of 32 bits for each result.
VERDICTS, VERDICT_OCTETS = "verdicts", 4


class ComputeStream:
    """Computing of all ranks of ``program``, at each rank one operation after the other.

    ``stream`` has their indices by rank, where these are compiled.  All ranks have the number of
    results that they compare (``verdicts``), and the time that they compute.
    """

    def __init__(self, program: DependentProgram) -> None:
        self.program = program
        self.stream: dict[int, list[int]] = {}
        self.busy_ns: dict[int, int] = {}
        self.verdicts: dict[int, int] = {}

    def compute(
        self,
        rank: int,
        duration_ns: int,
        checks: Sequence[CheckedTensor] = (),
        fills: Sequence[FilledTensor] = (),
        after: Sequence[int] = (),
    ) -> int:
        """Let a GPU compute, which compares ``checks`` and fills ``fills``; return its index."""
        self.busy_ns[rank] = self.busy_ns.get(rank, 0) + duration_ns
        if not self.program.wants(rank):
            return self._append(rank, duration_ns, checks, fills, after)
        before = self.stream.setdefault(rank, [])
        index = self._append(rank, duration_ns, checks, fills, (*before[-1:], *after))
        before.append(index)
        return index

    def beside(
        self,
        rank: int,
        checks: Sequence[CheckedTensor] = (),
        fills: Sequence[FilledTensor] = (),
        after: Sequence[int] = (),
    ) -> int:
        """Compare and fill beside the computing, in no time; return the operation's index."""
        return self._append(rank, 0, checks, fills, after)

    def last(self, rank: int) -> tuple[int, ...]:
        """Return the latest computing of ``rank``, if there is any."""
        return tuple(self.stream.get(rank, ())[-1:])

    def _append(
        self,
        rank: int,
        duration_ns: int,
        checks: Sequence[CheckedTensor],
        fills: Sequence[FilledTensor],
        after: Sequence[int],
    ) -> int:
        self.verdicts[rank] = self.verdicts.get(rank, 0) + len(checks)
        if not self.program.wants(rank):
            if checks:
                self.program.allocate(rank, VERDICTS, len(checks) * VERDICT_OCTETS)
            return self.program.count(rank)
        waits = {*after}
        for check in checks:
            waits.update(check.ready)
        for fill in fills:
            waits.update(fill.after)
        counts = [self.program.allocate(rank, VERDICTS, VERDICT_OCTETS) for _ in checks]
        numbers = [
            *(n for one in checks for n in (one.number, one.mode, one.members, one.place)),
            *(n for one in fills for n in (one.number, one.position)),
        ]
        operation = Apply(
            function=name_of(step_tensors),
            inputs=tuple(check.region for check in checks),
            outputs=(*counts, *(fill.region for fill in fills)),
            arguments=tuple(numbers),
            duration_ns=duration_ns,
            after=tuple(sorted(waits)),
        )
        return self.program.append(rank, operation)
