"""One iteration of a trial, which may go on after GPUs were lost.

A trial with ``recover`` is interrupted where another one fails
(:mod:`emulator.sim.endpoint.interruption`).  It returns what follows: other schedules for all
ranks, over the memories as they are, on endpoints that have learned nothing.  They start at the
fabric time at which the last transport has reported the loss, once no frame is under way, and what
is dead stays so.  It may be interrupted again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from emulator.run.faults.condition import Condition
from emulator.run.faults.fault_timeline import FaultPlayer
from emulator.run.pxn import Pxn
from emulator.scenario import Contents, Trial
from emulator.sim.endpoint.interruption import Interruption, JobExecution, JobInterrupted
from emulator.sim.endpoint.operations.joined_execution import joined
from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.sim.endpoint.operations.schedule import Schedule
from emulator.workers.division import JobSchedules
from emulator.workers.virtual_pool import VirtualPool

#: All ones: in every floating-point type this is not a number, which equals nothing.
POISON = 0xFF
#: Fills buffers of a rank with contents.
Fill = Callable[[int, Contents], None]


@dataclass(frozen=True, kw_only=True)
class Continued:
    """The ``executions`` of an iteration; ``trial`` is that of the last one."""

    executions: Sequence[JobExecution]
    trial: Trial

    @property
    def interrupted(self) -> bool:
        """Return whether anything was lost."""
        return len(self.executions) > 1

    def whole(self) -> tuple[JobSchedules, Sequence[RankResult]]:
        """Return the schedules and results of all executions as one; all processes call it."""
        first = JobSchedules.of(self.executions[0].schedules)
        gather = first.division.processes.gather
        schedules, results = joined(
            [(one.schedules, one.results) for one in self.executions],
            largest=lambda tag: max(gather("largest tag", tag)),
        )
        return first.changed(schedules), results


def play(
    trial: Trial,
    schedules: JobSchedules,
    pool: VirtualPool,
    *,
    run: Callable[..., list[RankResult]],
    faults: FaultPlayer,
    fill: Fill,
    pxn: Pxn,
    cut: Callable[[Condition], Sequence[int]],
) -> Continued:
    """Run the loaded ``schedules`` of ``trial``, and whatever follows after interruptions.

    ``run`` runs what is loaded; from the second time on it gets ``started=None`` and ``gap_ns=0``.
    ``cut`` returns the ranks that a condition of the fabric cuts off.  Each process has the
    schedules of its GPUs.
    """
    executions: list[JobExecution] = []
    while True:
        try:
            executions.append(JobExecution(schedules, run()))
            return Continued(executions=executions, trial=trial)
        except JobInterrupted as failure:
            if trial.recover is None:
                raise
            first = executions[0].results if executions else failure.results
            start_ns = min(one.start_ns for one in first)
            since = faults.lost_since(cut)
            interruption = Interruption(
                lost={rank: since.get(rank, 0) for rank in failure.lost},
                results=failure.results,
                start_ns=start_ns,
            )
            executions.append(JobExecution(schedules, failure.results, interruption))
            following = trial.recover(tuple(executions))
            trial = replace(
                trial,
                compile=following.compile,
                inputs=following.inputs,
                expected=following.expected,
            )
            schedules = pxn.relayed(schedules.division.compiled(trial.compile, trial.name))
            pool.renew()
            pool.load(schedules)
            _prepare(trial, schedules, pool, fill, following.kept)
            run = partial(run, started=None, gap_ns=0)


def _prepare(
    trial: Trial,
    schedules: Sequence[Schedule],
    pool: VirtualPool,
    fill: Fill,
    kept: Collection[str],
) -> None:
    """Spoil what is going to be compared, but for buffers that are ``kept``; fill the inputs."""
    for schedule in schedules:
        memory = pool.memories.get(schedule.rank)
        if memory is None:  # on another machine
            continue
        for name in trial.expected(schedule.rank):
            if name not in kept:
                memory.array(name, np.uint8)[:] = POISON
        fill(schedule.rank, trial.inputs(schedule.rank))
