"""All GPUs of a lab in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Self

from emulator.sim.endpoint.endpoint_spec import EndpointError, EndpointSpec, Progress
from emulator.sim.endpoint.interruption import REPORTED, JobInterrupted
from emulator.sim.endpoint.operations.gpu_memory import GpuMemory, Layout, memory_path
from emulator.sim.endpoint.operations.operation_table import COPY, WRITE, OperationTable
from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.sim.endpoint.operations.schedule import Schedule
from emulator.sim.event_queue import NEVER, PASS, PS, STOP
from emulator.workers.open_execution import Drive, OpenExecution
from emulator.workers.virtual_fabric import VirtualFabric
from emulator.workers.windows import News
from emulator.workers.worker import Load, WorkerPart, call

#: Fabric time from the order to run to the common start (ns).
LEAD_NS = 1_000
#: Fabric time that transports may take to close, and frames to arrive that are under way (ns).
CLOSE_NS = 2_000_000
#: Fabric time after which frames, or pauses, that are left from an execution are an error (ns).
DRAIN_NS = 100_000_000

Counts = dict[int, Mapping[str, Mapping[str, int]]]


class VirtualPool:
    """The GPUs of ``specs`` on ``fabric``; the owner of their ``memories`` (by rank).

    Where the fabric is that of several MPI ranks, each has the memories of its own GPUs.
    ``shared``: other processes than workers map the memories, too.

    Use it as a context manager, or call :meth:`stop` at the end whatever happened.
    """

    def __init__(
        self,
        lab: str,
        specs: Sequence[EndpointSpec],
        fabric: VirtualFabric,
        *,
        shared: bool = False,
    ) -> None:
        self.lab = lab
        self._shared = shared or bool(fabric.pids)  # workers share files
        self.specs = {spec.rank: spec for spec in specs}
        if len(self.specs) != len(specs):
            raise ValueError("two GPUs have the same rank")
        self.memories: dict[int, GpuMemory] = {}
        self._fabric = fabric
        self._events, self._source = fabric.events, fabric.events.run_source
        self._lost: Callable[[], Collection[int]] | None = None
        self._members: dict[str, frozenset[int]] = {}
        self._waiting: dict[str, set[int]] = {}
        self._passes: dict[int, list[str]] = {}  # names of barriers, by when they are passed (ps)
        self._left: set[int] = set()
        #: has its operations while it goes on
        self._open: OpenExecution | None = None
        self._ending = False
        self._execution = self._life = self._past_lives = 0
        self._used = False  # since the transports were made
        fabric.on_news(self._hear)

    @property
    def pids(self) -> dict[int, int]:
        """Processes of the workers beside this one."""
        return self._fabric.pids

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, progress: Progress | None = None) -> None:
        """Make the memories and open every GPU's sockets in its namespace."""
        specs, fabric = list(self.specs.values()), self._fabric
        make = GpuMemory.create if self._shared else GpuMemory.private
        try:
            for rank, spec in self.specs.items():
                if not fabric.lab.wires.here(spec.node):
                    continue
                memory = fabric.idle_memories.pop(spec.node, None)
                if memory is None or memory.capacity < spec.memory_octets or self._shared:
                    memory = make(memory_path(self.lab, spec.node), spec.memory_octets)
                self.memories[rank] = memory
            calls = [call(WorkerPart.open, self.lab, specs)] * len(fabric.workers)
            own = call(WorkerPart.open, self.lab, specs, self.memories, progress)
            calls[fabric.part.number] = own
            fabric.each_with(calls)
        except BaseException:
            self.stop()
            raise

    def load(self, schedules: Sequence[Schedule]) -> None:
        """Lay out the memories and give every GPU its schedule; there must be one for each.

        Those of GPUs on the machine of another MPI rank may have their buffers alone.
        """
        fabric, by_rank = self._fabric, laid_out(schedules, self.specs, self.memories)
        self._members = self._meeting(schedules)
        loads: list[list[Load]] = [[] for _ in fabric.workers]
        for rank, schedule in by_rank.items():
            if fabric.ranks is not None and rank not in self.memories:
                continue  # that MPI rank has it
            owner = fabric.owner(self.specs[rank].node)
            loads[owner].append((rank, schedule, layouts_for(rank, by_rank)))
        fabric.each_with([call(WorkerPart.load, one) for one in loads])

    def spoil(self, buffers: Mapping[int, Sequence[str]]) -> None:
        """Overwrite ``buffers`` (names by rank), so that what nobody writes there is found out.

        Each worker does so for its own GPUs: it is the first to touch most of these pages.
        """
        fabric = self._fabric
        parts: list[dict[int, Sequence[str]]] = [{} for _ in fabric.workers]
        for rank, names in buffers.items():
            parts[fabric.owner(self.specs[rank].node)][rank] = names
        fabric.each_with([call(WorkerPart.spoil, one) for one in parts])

    def _meeting(self, schedules: Sequence[Schedule]) -> dict[str, frozenset[int]]:
        """Return who meets at each barrier; every MPI rank knows the barriers of its own GPUs."""
        ranks = self._fabric.ranks
        if ranks is None:
            return barrier_members(schedules)
        own = barrier_members([one for one in schedules if one.rank in self.memories])
        members: dict[str, frozenset[int]] = {}
        for part in ranks.gather("barriers", own):
            for name, meeting in part.items():
                members[name] = members.get(name, frozenset()) | meeting
        return members

    def renew(self) -> None:
        """Give every GPU a new transport, if the one it has was used.

        Whatever the old ones have under way arrives first.
        """
        if not self._used:
            return
        self._drain()
        self._life += 1
        self._fabric.each(WorkerPart.renew, self._life, self._past_lives)
        self._used = False

    def begin_row(self) -> None:
        """Make the next row independent of earlier executions.

        The fabric is empty, and every GPU has a transport as the first one of a run.
        """
        self._drain()
        if self._used:
            self._past_lives += self._life + 1
            self._life = 0
            self._fabric.each(WorkerPart.renew, 0, self._past_lives)
        self._used = False
        self._execution = 0

    def _drain(self) -> None:
        """Let time pass until no frame is under way and no pause in force.

        Raises :class:`EndpointError` if that takes longer than :data:`DRAIN_NS`: what comes after
        would not begin on an empty fabric.
        """
        fabric = self._fabric
        until = self._events.now + DRAIN_NS * PS
        while fabric.moving() or fabric.paused():
            following = fabric.following()
            if following > until:
                raise EndpointError(
                    f"{fabric.under_way()} frames are still under way {DRAIN_NS / 1e6:g} ms "
                    f"after the last operation{fabric.standing()}"
                )
            fabric.run(min(until, following + 1000 * PS))

    def total(self, of_own: int) -> int:
        """Return the sum of a number that every MPI rank has of its own GPUs."""
        ranks = self._fabric.ranks
        return of_own if ranks is None else sum(ranks.gather("total", of_own))

    def interrupt(self, lost: Callable[[], Collection[int]] | None) -> None:
        """Have executions interrupted, where they would fail, by the loss of ranks.

        ``lost`` selects those that cannot go on now; None: every failure is one.
        """
        self._lost = lost

    def run(
        self,
        start_in_ns: int | None = None,
        timeout: float = 60.0,
        started: Callable[[int], None] | None = None,
        gap_ns: int = 0,
        drive: Drive | None = None,
    ) -> list[RankResult]:
        """Execute the loaded schedules once, from a common start; results in rank order.

        With ``drive`` these have no operations: it adds them while the execution goes on, for as
        long as it takes (:mod:`emulator.workers.open_execution`).

        Those of other MPI ranks' GPUs are brief, unless executions may be interrupted.
        The start is ``start_in_ns`` of fabric time from now (``gap_ns`` at least).  An execution
        that lasts longer than ``timeout`` s of fabric time fails, as does one of which nothing
        will ever happen again.  Raises :class:`EndpointError` when any rank fails, or
        :class:`JobInterrupted` (see :meth:`interrupt`).
        """
        events, fabric = self._events, self._fabric
        self._execution += 1
        self._used = True
        begin = events.now // PS + max(LEAD_NS if start_in_ns is None else start_in_ns, gap_ns)
        self._left = set(self.specs)
        self._waiting.clear()
        self._ending = False
        if fabric.pauses is not None:
            fabric.pauses.standstill = events.stop
        if started is not None:
            started(begin)  # faults of that instant come first
        events.at(begin * PS, self._source.next(), self._start, self._execution)
        spare: Collection[int] = ()
        if drive is not None:
            spare = self._drive(drive, begin)
        else:
            fabric.run(min(NEVER - 1, (begin + round(timeout * 1e9)) * PS))
        if self._left and not self._ending:
            self._explain(fabric.following() < NEVER)
        fabric.each(WorkerPart.fail, "aborted", dict.fromkeys(self.specs, "another rank failed"))
        ended = fabric.each(WorkerPart.results, self._lost is not None)
        results = sorted((one for part in ended for one in part.results), key=lambda one: one.rank)
        if any(one.error and not (one.error == "dead" and one.rank in spare) for one in results):
            raise self._failure(results)
        return results

    def _drive(self, drive: Drive, begin_ns: int) -> Collection[int]:
        """Have ``drive`` make the execution; what it raises ends it.  Return the spare ranks."""
        self._open = execution = OpenExecution(
            self._fabric,
            {rank: one.node for rank, one in self.specs.items()},
            self._execution,
            self.memories,
        )
        try:
            self._fabric.run(begin_ns * PS)
            drive(execution)
            execution.end()
        finally:
            self._open = None
            if self._left:
                self._ending = True
        return execution.spare

    def _start(self, execution: int) -> None:
        self._fabric.each(WorkerPart.start, execution, self._open is not None)

    def _hear(self, news: News) -> None:
        """Have what ranks come to be followed by what the run does about it, a lookahead later."""
        if news.rank is None:
            return
        if self._open is not None:
            self._open.hear(news)
            if news.result is not None:
                self._left.discard(news.rank)
            return
        for name in news.barriers:
            there = self._waiting.setdefault(name, set())
            there.add(news.rank)
            if there == self._members[name]:
                del self._waiting[name]
                when = self._after(news)
                if when not in self._passes:
                    self._events.at(when, PASS, self._pass, (self._execution, when))
                self._passes.setdefault(when, []).append(name)
        if news.result is not None:
            self._left.discard(news.rank)
            failed = news.result.error not in (None, "dead")  # of a death others have to learn
            if self._ending or not (failed or not self._left):
                return
            if self._lost is not None and (news.result.error in REPORTED or not self._left):
                self._events.at(self._after(news), STOP, self._end_if_reported, self._execution)
            else:
                self._ending = True
                self._events.at(self._after(news), STOP, lambda _: self._events.stop(), None)

    def _end_if_reported(self, execution: int) -> None:
        """End the execution unless another transport will still report the loss."""
        if self._ending or execution != self._execution or self._lost is None:
            return
        lost = sorted(self._lost())
        reporting = self._left and lost and any(self._fabric.each(WorkerPart.has_sent_to, lost))
        if not reporting:
            self._ending = True
            self._events.stop()

    def _after(self, news: News) -> int:
        return news.when_ps + self._fabric.lookahead_ps

    def _pass(self, passed: tuple[int, int]) -> None:
        """Have all barriers passed whose time this is, in the order of their names."""
        execution, when = passed
        for name in sorted(self._passes.pop(when)):
            self._fabric.each(WorkerPart.pass_barrier, execution, name, sorted(self._members[name]))

    def _explain(self, more_to_come: bool) -> None:
        """End the executions that will not end, each with what it waits for."""
        standing = self._fabric.standing()
        over = more_to_come and not self._fabric.deadlocked
        if self._lost is not None and self._lost():
            standing += (
                "; nobody writes to what is lost any more, so that no transport reports it: "
                "such a job waits until a watchdog ends it, which is not modelled"
            )
        details = {
            rank: detail + standing
            for part in self._fabric.each(WorkerPart.unfinished)
            for rank, detail in part.items()
        }
        self._fabric.each(WorkerPart.fail, "deadline" if over else "stalled", details)

    def _failure(self, results: Sequence[RankResult]) -> EndpointError:
        """The first error that was not another's consequence."""
        failed = [one for one in results if one.error]
        causes = [one for one in failed if one.error not in ("aborted", "dead")] or failed
        first = min(causes, key=lambda one: (one.end_ns, one.rank))
        fabric = self._fabric
        stated = first.error == "stalled" or not fabric.deadlocked
        failure = EndpointError(
            f"rank {first.rank} ({first.node}) failed with {first.error}: {first.detail}"
            f"{'' if stated else fabric.standing()}",
            rank=first.rank,
            node=first.node,
            results=results,
            counters=self.counters(),
        )
        errors = {one.error for one in failed}
        if self._lost is None or errors.isdisjoint(REPORTED):
            return failure
        lost = self._lost() if errors <= {"aborted", "dead", *REPORTED} else ()
        return JobInterrupted(failure, lost) if lost else failure

    def counters(self) -> Counts:
        """Counters of every rank, by layer (``transport``, ``nic``, ...) and name.

        Of several MPI ranks the first one reports; the others have none.
        """
        parts = self._fabric.counted(WorkerPart.counters)
        return dict(sorted(one for part in parts for one in part.items()))

    def settled(self) -> Counts:
        """The counters, once nothing is under way any more."""
        self._drain()
        return self.counters()

    def close(self) -> Counts:
        """Close the transports, for at most :data:`CLOSE_NS`, and read the last counters."""
        self._close_transports()
        return self.settled()

    def _close_transports(self) -> None:
        fabric = self._fabric
        fabric.each(WorkerPart.close_transports)
        until = self._events.now + CLOSE_NS * PS
        while (following := fabric.following()) <= until:
            if all(fabric.each(WorkerPart.closed)):
                return
            fabric.run(min(until, following + 1000 * PS))

    def stop(self) -> None:
        """Close all sockets and remove the memories; safe to call again and in any state.

        Those of this process alone are left to the next pool of the fabric.
        """
        try:
            if self.memories:
                self._fabric.retire()
        finally:
            for rank, memory in self.memories.items():
                if self._shared:
                    memory.close()
                    memory.unlink()
                else:
                    memory.renew()
                    self._fabric.idle_memories[self.specs[rank].node] = memory
            self.memories.clear()


def laid_out(
    schedules: Sequence[Schedule], ranks: Collection[int], memories: Mapping[int, GpuMemory]
) -> dict[int, Schedule]:
    """Lay out the ``memories`` of ``ranks`` by their ``schedules``; return these by rank.

    ``memories`` are those that are on this machine.  Raises ValueError unless there is a schedule
    for each rank.
    """
    by_rank = {schedule.rank: schedule for schedule in schedules}
    if set(by_rank) != set(ranks) or len(schedules) != len(by_rank):
        raise ValueError("there must be exactly one schedule for each rank")
    for rank, memory in memories.items():
        memory.lay_out(Layout(by_rank[rank].buffers))
    return by_rank


def layouts_for(rank: int, by_rank: Mapping[int, Schedule]) -> dict[int, dict[str, int]]:
    """The buffers of every rank that ``rank`` writes or copies to."""
    peers = OperationTable.of(by_rank[rank].operations).peers(WRITE, COPY)
    return {peer: dict(by_rank[peer].buffers) for peer in peers if peer in by_rank}


def barrier_members(schedules: Collection[Schedule]) -> dict[str, frozenset[int]]:
    """The ranks that meet at each barrier, by its name."""
    members: dict[str, set[int]] = {}
    for schedule in schedules:
        for name in OperationTable.of(schedule.operations).barriers():
            members.setdefault(name, set()).add(schedule.rank)
    return {name: frozenset(ranks) for name, ranks in members.items()}
