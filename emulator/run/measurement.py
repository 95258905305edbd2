"""One trial on endpoints: fill the memories, run, compare what came out, count."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from emulator.errors import UserError
from emulator.run.faults.condition import Condition
from emulator.run.faults.fault_timeline import FaultPlayer
from emulator.run.measures.gpu_execution import GpuExecution
from emulator.run.measures.message_times import Recorder
from emulator.run.observation import PortObserver
from emulator.run.pxn import Pxn
from emulator.scenario import Contents, Outcome, Trial
from emulator.sim.endpoint.counting import add, is_extreme
from emulator.sim.endpoint.interruption import Interruption, JobExecution, JobInterrupted
from emulator.sim.endpoint.operations.gpu_memory import GpuMemory
from emulator.sim.endpoint.operations.rank_result import RankResult, joined
from emulator.sim.endpoint.operations.schedule import Schedule
from emulator.transports.wire_cost import WireCost
from emulator.workers.division import Division, JobSchedules
from emulator.workers.open_execution import OpenExecution
from emulator.workers.virtual_pool import VirtualPool

#: So many elements are compared at a time: numpy's answer for each takes an octet.
_COMPARED = 2**20
#: Counters by rank, layer and name.
Counts = Mapping[int, Mapping[str, Mapping[str, int]]]


@dataclass(frozen=True, kw_only=True)
class Start:
    """State that an iteration that counts begins with.

    ``fresh``: endpoints that have learned nothing; else those of the iteration before.  ``gap_ns``
    of fabric time pass at least between the end of an iteration and the start of the next.
    """

    fresh: bool = True
    gap_ns: int = 0

    def as_dict(self) -> dict[str, object]:
        return {"endpoints": "fresh" if self.fresh else "kept", "gap_us": self.gap_ns / 1000}

    def __str__(self) -> str:
        gap = f", {self.gap_ns / 1000:g} us after the one before" if self.gap_ns else ""
        if self.fresh:
            return f"each iteration with fresh endpoints{gap}"
        return f"each iteration with the endpoints of the one before{gap or ', at once'}"


@dataclass(frozen=True)
class Measured:
    """``outcome`` of a trial, and the last iteration in detail.

    ``faults`` are the times (ns after its start) and texts of its faults.
    """

    outcome: Outcome
    schedules: Sequence[Schedule]
    results: Sequence[RankResult]
    faults: Sequence[tuple[int, str]] = ()


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """What the trials of a stage run on, and by which rules.

    ``ports`` are read around the iterations that count, which begin as ``start`` defines.  ``wire``
    is what the transport spends on a packet, and ``pxn`` relays writes; messages are reported as
    they were before.  ``cut`` returns the ranks that a condition of the fabric cuts off.  Each
    process of the ``division`` compiles, fills and compares what it has, and the first one gets the
    messages.
    """

    pool: VirtualPool
    ports: PortObserver
    wire: WireCost
    pxn: Pxn
    start: Start
    division: Division
    cut: Callable[[Condition], Sequence[int]]
    #: called after each iteration
    progress: Callable[[], None]
    #: called with the recorder of the messages before anything runs
    begun: Callable[[Recorder], None]
    #: the run folder
    folder: Path
    #: what the trial was weighed by, as :meth:`compiled` would return it; None: it was not kept
    weighed: tuple[JobSchedules, JobSchedules] | None = None
    #: a recorder of the messages of what was compiled, if planning has kept one
    messages: Recorder | None = None

    def compiled(self, trial: Trial) -> tuple[JobSchedules, JobSchedules]:
        """Return the schedules of ``trial`` as they are compiled, and with relayed writes."""
        compiled = self.division.compiled(trial.compile, trial.name)
        return compiled, self.pxn.relayed(compiled)


def measure(
    trial: Trial, context: RunContext, faults: FaultPlayer, *, ideal_ns: float, timeout_s: float
) -> Measured:
    """Run ``trial``'s warm-ups and iterations, and apply ``faults`` to those that count.

    Every iteration is verified, warm-ups too.

    Raises :class:`~emulator.sim.endpoint.endpoint_spec.EndpointError` if a rank fails.
    """
    pool, ports, start, division = context.pool, context.ports, context.start, context.division
    memories = pool.memories
    compiled, schedules = context.weighed or context.compiled(trial)
    # Takes much for a moment, which the endpoints take next.
    messages = Recorder(compiled) if context.messages is None else context.messages.anew()
    context.begun(messages)
    pool.load(schedules)
    own = [schedule for schedule in schedules if schedule.rank in memories]
    # Contents are made for one rank at a time and not kept: for all of them, they would take as
    # much memory as the GPUs.  What is expected may follow from the inputs, which come first.
    filled = {one.rank: _begin(memories[one.rank], trial, one) for one in own}
    judged = {one.rank: list(_contents(trial.expected, "expected", one)) for one in own}
    renewed = {one.rank: _overwritten(trial, one, filled, judged) for one in own}
    wrong = 0
    times: list[int] = []
    whole: tuple[Sequence[Schedule], Sequence[RankResult]] = (schedules, ())
    latest: Continued | None = None
    observed: list[Mapping[int, object]] = []
    before: Counts = {}
    for iteration in range(-trial.warmups, trial.iterations):
        if latest is not None and latest.interrupted:  # what followed had buffers of its own
            pool.load(schedules)
            for one in own:
                _begin(memories[one.rank], trial, one)
        pool.spoil(judged)
        for rank, memory in memories.items():
            _fill(memory, renewed[rank])
        if iteration >= 0 and (start.fresh or faults.deadly):
            pool.renew()
        if iteration == 0:
            before = pool.counters()
            ports.begin()
        try:
            latest = _play(
                trial,
                schedules,
                context,
                faults,
                partial(
                    pool.run,
                    timeout=timeout_s,
                    started=faults.begin if iteration >= 0 else None,
                    gap_ns=start.gap_ns if iteration > -trial.warmups else 0,
                    drive=_in_folder(trial.drive, context.folder),
                ),
            )
            whole = latest.whole()
        finally:
            faults.end()
        wrong += sum(
            _differing(memories[schedule.rank], latest.trial, schedule)
            for schedule in latest.executions[-1].schedules
            if schedule.rank in memories
        )
        if iteration >= 0:
            times.append(duration_ns(whole[1]))
            _record(messages, latest, whole)
            if trial.observe is not None and not latest.interrupted:
                here = [one for one in whole[1] if one.rank in division.own]
                seen = _observed(trial.observe, compiled, here, messages)
                observed.append(_joined(division.processes.to_first("observed", seen)))
        context.progress()
    endpoints = differences(before, pool.counters())
    outcome = Outcome(
        times_ns=tuple(times),
        ideal_ns=ideal_ns,
        wrong=pool.total(wrong),
        counters=summed(endpoints),
        endpoints=endpoints,
        iterations=tuple(each.of(trial.victims, others=True) for each in messages),
        victims=tuple(each.of(trial.victims) for each in messages if trial.victims),
        ports=ports.end(),
        queues=ports.queues(),
        executions=() if latest is None else tuple(latest.executions),
        observed=tuple(observed),
        wire=context.wire,
    )
    shown = whole if trial.executed is None else trial.executed()
    return Measured(outcome, *shown, faults.latest)


def _in_folder(
    drive: Callable[[OpenExecution, Path], None] | None, folder: Path
) -> Callable[[OpenExecution], None] | None:
    """Return ``drive``, if there is one, with the run ``folder``."""
    return None if drive is None else lambda execution: drive(execution, folder)


@dataclass(frozen=True, kw_only=True)
class Continued:
    """An iteration of a trial, which may go on after GPUs were lost: its ``executions``.

    A trial with ``recover`` is interrupted where another one fails
    (:mod:`emulator.sim.endpoint.interruption`).  It returns what follows: other schedules for all
    ranks, over the memories as they are, on endpoints that have learned nothing.  They start at the
    fabric time at which the last transport has reported the loss, once no frame is under way, and
    what is dead stays so.  It may be interrupted again.  ``trial`` is that of the last one.
    """

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


def _play(
    trial: Trial,
    schedules: JobSchedules,
    context: RunContext,
    faults: FaultPlayer,
    run: Callable[..., list[RankResult]],
) -> Continued:
    """Run the loaded ``schedules`` of ``trial``, and whatever follows after interruptions.

    ``run`` runs what is loaded; from the second time on it gets ``started=None`` and ``gap_ns=0``.
    """
    pool = context.pool
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
            since = faults.lost_since(context.cut)
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
            schedules = context.compiled(trial)[1]
            pool.renew()
            pool.load(schedules)
            _prepare(trial, schedules, pool, following.kept)
            run = partial(run, started=None, gap_ns=0)


def _prepare(
    trial: Trial,
    schedules: Sequence[Schedule],
    pool: VirtualPool,
    kept: Collection[str],
) -> None:
    """Spoil what is going to be compared, but for buffers that are ``kept``; fill the inputs."""
    own = [schedule.rank for schedule in schedules if schedule.rank in pool.memories]
    pool.spoil({rank: [one for one in trial.expected(rank) if one not in kept] for rank in own})
    for rank in own:
        _fill(pool.memories[rank], trial.inputs(rank))


def _record(
    messages: Recorder,
    latest: Continued,
    whole: tuple[Sequence[Schedule], Sequence[RankResult]],
) -> None:
    """Record the messages of an iteration; those of an interrupted one go by its own schedules."""
    schedules, results = whole
    if not latest.interrupted:
        messages.add(results)
        return
    own = Recorder(schedules)
    own.add(results)
    messages.take(own)


def _joined(parts: Iterable[Mapping[int, object]]) -> Mapping[int, object]:
    return dict(sorted(one for part in parts for one in part.items()))


def _observed(
    observe: Callable[[GpuExecution], object],
    compiled: Sequence[Schedule],
    results: Sequence[RankResult],
    messages: Recorder,
) -> Mapping[int, object]:
    """Return what ``observe`` makes of each own GPU's part of the latest iteration, by rank."""
    origin = min(one.start_ns for one in results)
    return {
        result.rank: observe(
            GpuExecution(
                schedule=compiled[result.rank],
                result=result,
                sent_ns=messages.sent_ns(result.rank, len(compiled[result.rank].operations)),
                origin_ns=origin,
            )
        )
        for result in results
    }


def _begin(memory: GpuMemory, trial: Trial, schedule: Schedule) -> list[str]:
    """Fill the inputs of a rank in; returns their names."""
    inputs = _contents(trial.inputs, "inputs", schedule)
    _fill(memory, inputs)
    return list(inputs)


def _overwritten(
    trial: Trial,
    schedule: Schedule,
    filled: Mapping[int, Sequence[str]],
    judged: Mapping[int, Sequence[str]],
) -> Contents:
    """The inputs of a rank that do not outlast an iteration."""
    names = set(filled[schedule.rank]).intersection(judged[schedule.rank])
    if not names:
        return {}
    inputs = _contents(trial.inputs, "inputs", schedule)
    return {name: inputs[name] for name in judged[schedule.rank] if name in names}


def _contents(make: Callable[[int], Contents], what: str, schedule: Schedule) -> Contents:
    contents = make(schedule.rank)
    check_contents(schedule, what, contents)
    return contents


def check_contents(schedule: Schedule, what: str, contents: Contents) -> None:
    """:class:`UserError` unless ``contents`` fill buffers of ``schedule`` to the octet."""
    for name, content in contents.items():
        size = schedule.buffers.get(name)
        if size is None:
            known = ", ".join(schedule.buffers) or "none"
            raise UserError(
                f"{what}({schedule.rank}) of the scenario names a buffer {name!r} that the rank "
                f"does not have; its buffers are {known}"
            )
        if content.nbytes != size:
            raise UserError(
                f"{what}({schedule.rank}) of the scenario has {content.nbytes} octets for buffer "
                f"{name!r} of {size}; make both alike"
            )


def duration_ns(results: Sequence[RankResult]) -> int:
    """Return the time from the common start until the last rank was done."""
    return max(result.end_ns for result in results) - min(result.start_ns for result in results)


def differences(before: Counts, after: Counts) -> dict[int, dict[str, int]]:
    """Return what each rank's transport counted in between.

    Extremes (``..._max``) are the later ones.
    """
    return {
        rank: {
            name: value if is_extreme(name) else value - before[rank]["transport"].get(name, 0)
            for name, value in layers["transport"].items()
        }
        for rank, layers in after.items()
    }


def summed(endpoints: Mapping[int, Mapping[str, int]]) -> dict[str, int]:
    """Counters of all ranks together: sums, and the largest of extremes."""
    total: dict[str, int] = {}
    for counters in endpoints.values():
        add(total, counters)
    return total


def _fill(memory: GpuMemory, contents: Contents) -> None:
    for name, content in contents.items():
        memory.array(name, content.dtype)[:] = content


def _differing(memory: GpuMemory, trial: Trial, schedule: Schedule) -> int:
    """Return how many elements of a rank's buffers are not as expected."""
    allowed = trial.tolerance(schedule.rank) if trial.tolerance else {}
    wrong = 0
    for name, content in _contents(trial.expected, "expected", schedule).items():
        found = memory.array(name, content.dtype)
        if name in allowed:
            off = np.abs(found.astype(np.float64) - content.astype(np.float64))
            wrong += int(np.count_nonzero(~(off <= allowed[name])))  # what is no number is wrong
        else:
            wrong += _wrong(found, content)
    return wrong


def _wrong(found: np.ndarray, requested: np.ndarray) -> int:
    found, requested = found.ravel(), requested.ravel()
    return sum(
        int(np.count_nonzero(found[at : at + _COMPARED] != requested[at : at + _COMPARED]))
        for at in range(0, len(requested), _COMPARED)
    )
