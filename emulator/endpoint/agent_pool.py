"""All agents of a lab: start them, hand them schedules, run, read counters, stop.

Any failure of any agent ends in one :class:`AgentError` that names the rank, after all other
agents have been stopped and the memories removed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait

from emulator.endpoint.agent_processes import (
    ANSWER_SECONDS,
    AgentError,
    AgentProcesses,
    Progress,
)
from emulator.endpoint.agent_spec import (
    Abort,
    AgentSpec,
    AtBarrier,
    Close,
    Closed,
    Counters,
    Failed,
    Finished,
    Loaded,
    Pass,
    ReadCounters,
    Ready,
    Renew,
    Renewed,
    Run,
    ScheduleLoad,
)
from emulator.endpoint.clock import Clock
from emulator.endpoint.operations.gpu_memory import GpuMemory, memory_path
from emulator.endpoint.operations.loading import barrier_members, laid_out, layouts_for
from emulator.endpoint.operations.nvlink import mailbox_path
from emulator.endpoint.operations.rank_result import RankResult
from emulator.endpoint.operations.schedule import Schedule

__all__ = ["AgentError", "AgentPool"]

#: How long agents may take to be ready: one that ends before is noticed at once, and what all of
#: them import takes an emulated processor that others use, too, half a minute.
START_SECONDS = 120.0
#: From the order to run until the common start, so that every agent has the order by then (s).
LEAD_SECONDS = 0.02
CLOSE_SECONDS = 2.0
#: Fabric time in which a frame on its way through idle queues surely arrives.
QUIET_NS = 5_000


class AgentPool:
    """The agents of ``lab``, one per spec; also the owner of their GPUs' ``memories`` (by rank).

    Use it as a context manager, or call :meth:`stop` at the end whatever happened.
    """

    def __init__(self, lab: str, specs: Sequence[AgentSpec], clock: Clock) -> None:
        self.lab, self.clock = lab, clock
        self.specs = {spec.rank: spec for spec in specs}
        if len(self.specs) != len(specs):
            raise ValueError("two agents have the same rank")
        self.memories: dict[int, GpuMemory] = {}
        self._running: AgentProcesses | None = None
        self._members: dict[str, frozenset[int]] = {}
        self._execution = 0
        self._life = 0
        self._used = False  # since the transports were made

    def __enter__(self) -> AgentPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop(orderly=kind is None)

    @property
    def processes(self) -> AgentProcesses:
        """The agents' processes.  :class:`AgentError` when they have not been started."""
        if self._running is None:
            raise AgentError("the agents are not running; start the pool first")
        return self._running

    @property
    def pids(self) -> dict[int, int]:
        """Process id of every rank's agent."""
        return dict(self.processes.pids)

    def start(self, progress: Progress | None = None) -> None:
        """Make the memories, fork the agents, and wait until all of them are ready.

        ``progress(done, total)`` is called as they become so.
        """
        with self._stopping_on_failure():
            for rank, spec in self.specs.items():
                path = memory_path(self.lab, spec.node)
                self.memories[rank] = GpuMemory.create(path, spec.memory_octets)
                mailbox_path(self.lab, spec.node).parent.mkdir(parents=True, exist_ok=True)
            self._running = AgentProcesses(self.lab, list(self.specs.values()), self.clock)
            ready = self.processes.gather(Ready, START_SECONDS, "did not start", progress)
            self.processes.pids.update((rank, message.pid) for rank, message in ready.items())

    def total(self, of_own: int) -> int:
        """Return the sum of a number that each machine has of its own GPUs: one has all here."""
        return of_own

    def load(self, schedules: Sequence[Schedule]) -> None:
        """Lay out the memories and give every agent its schedule; there must be one for each.

        Contents of the memories stay; fill inputs through :attr:`memories`.
        """
        processes = self.processes
        with self._stopping_on_failure():
            by_rank = laid_out(schedules, self.specs, self.memories)
            self._members = barrier_members(schedules)
            for rank, schedule in by_rank.items():
                processes.send(rank, ScheduleLoad(schedule, layouts_for(rank, by_rank)))
            processes.gather(Loaded, ANSWER_SECONDS, "did not take its schedule")

    def renew(self) -> None:
        """Give every agent a new transport, if the one it has was used.

        Whatever the old ones have under way arrives first.
        """
        if not self._used:
            return
        self.settled()
        self._life += 1
        processes = self.processes
        with self._stopping_on_failure():
            for rank in self.specs:
                processes.send(rank, Renew(self._life))
            processes.gather(Renewed, ANSWER_SECONDS, "did not renew its transport")
        self._used = False

    def run(
        self,
        start_in_ns: int | None = None,
        timeout: float = 60.0,
        started: Callable[[int], None] | None = None,
        gap_ns: int = 0,
    ) -> list[RankResult]:
        """Execute the loaded schedules once, from a common start; results in rank order.

        The start is ``start_in_ns`` of fabric time from now. By default it is as soon as every
        agent surely has the order, and ``gap_ns`` from now at least. ``started`` is called with
        that time (fabric ns).  An execution that lasts longer than ``timeout`` host seconds fails.
        Raises :class:`AgentError` when any rank fails; the pool is stopped then.
        """
        processes, clock = self.processes, self.clock
        self._execution += 1
        self._used = True
        if start_in_ns is None:
            start_in_ns = max(gap_ns, clock.fabric_duration(round(LEAD_SECONDS * 1e9)))
        start_at = clock.now() + start_in_ns
        deadline = start_at + clock.fabric_duration(round(timeout * 1e9))
        with self._stopping_on_failure():
            for rank in self.specs:
                processes.send(rank, Run(self._execution, start_at, deadline))
            if started is not None:
                started(start_at)
            waiting = clock.host_seconds(start_in_ns) + timeout + ANSWER_SECONDS
            by_rank = self._collect(time.monotonic() + waiting)
            results = [by_rank[rank] for rank in sorted(by_rank)]
            if any(result.error for result in results):
                raise self._failure(results)
        return results

    def _collect(self, give_up: float) -> dict[int, RankResult]:
        """Serve barriers until every rank has finished; one that fails aborts the others."""
        processes = self.processes
        results: dict[int, RankResult] = {}
        barriers: dict[str, set[int]] = {}
        aborted = False
        while len(results) < len(self.specs):
            for rank, message in processes.receive(give_up, results, "did not finish its schedule"):
                match message:
                    case Finished(result=result):
                        results[rank] = result
                        if result.error is not None and not aborted:
                            aborted = True
                            give_up = time.monotonic() + ANSWER_SECONDS
                            for other in self.specs.keys() - results.keys():
                                processes.send(other, Abort(f"rank {rank} failed"))
                    case AtBarrier(execution=execution, name=name):
                        there = barriers.setdefault(name, set())
                        there.add(rank)
                        if there == self._members[name]:
                            del barriers[name]
                            for one in there:
                                processes.send(one, Pass(execution, name))
                    case _:
                        processes.check_late(rank, message)
        return results

    def _failure(self, results: Sequence[RankResult]) -> AgentError:
        """The first error that was not another's consequence."""
        failed = [one for one in results if one.error]
        causes = [one for one in failed if one.error != "aborted"] or failed
        first = min(causes, key=lambda one: one.end_ns)
        counters: Mapping[int, Mapping[str, Mapping[str, int]]] = {}
        with contextlib.suppress(AgentError):  # the first failure is the one to report
            counters = self._read_counters()
        return AgentError(
            f"rank {first.rank} ({first.node}) failed with {first.error}: {first.detail}",
            rank=first.rank,
            node=first.node,
            results=results,
            counters=counters,
        )

    def counters(self) -> dict[int, Mapping[str, Mapping[str, int]]]:
        """Counters of every rank, by layer (``transport``, ``nic``, ``loop``, ...) and name."""
        with self._stopping_on_failure():
            return self._read_counters()

    def _read_counters(self) -> dict[int, Mapping[str, Mapping[str, int]]]:
        processes = self.processes
        for rank in self.specs:
            processes.send(rank, ReadCounters())
        answers = processes.gather(Counters, ANSWER_SECONDS, "did not send its counters")
        return {rank: answers[rank].layers for rank in sorted(answers)}

    def close(self) -> dict[int, Mapping[str, Mapping[str, int]]]:
        """Close the transports, for at most :data:`CLOSE_SECONDS`, and read the last counters.

        An answer to what crossed a CLOSE may come after it, so they are read until none does (or
        for as long again): then they are all that was ever sent and received.
        """
        self._close_transports(self.processes)
        return self.settled()

    def settled(self) -> dict[int, Mapping[str, Mapping[str, int]]]:
        """Return the counters once no NIC has sent or received anything between two readings.

        It waits for :data:`CLOSE_SECONDS` at most.
        """
        give_up = time.monotonic() + CLOSE_SECONDS
        last = self.counters()
        while time.monotonic() < give_up:
            time.sleep(self.clock.host_seconds(QUIET_NS))
            before, last = last, self.counters()
            if all(last[rank]["nic"] == before[rank]["nic"] for rank in last):
                break
        return last

    def stop(self, orderly: bool = True) -> None:
        """End all agents and remove their memories; safe to call again and in any state.

        With ``orderly`` the transports are closed first, for at most :data:`CLOSE_SECONDS`.
        """
        running, self._running = self._running, None
        try:
            if running is not None:
                if orderly and not running.anyone_dead:
                    self._close_transports(running)
                running.end()
        finally:
            for rank, memory in self.memories.items():  # only what this pool has made
                mailbox_path(self.lab, self.specs[rank].node).unlink(missing_ok=True)
                memory.close()
                memory.unlink()
            self.memories.clear()

    def _close_transports(self, running: AgentProcesses) -> None:
        deadline = self.clock.now() + self.clock.fabric_duration(round(CLOSE_SECONDS * 1e9))
        still_open: set[Connection] = set()
        for control in running.controls.values():
            with contextlib.suppress(OSError):  # it has just ended: nothing to close
                control.send(Close(deadline))
                still_open.add(control)
        give_up = time.monotonic() + CLOSE_SECONDS + 1.0
        while still_open and (left := give_up - time.monotonic()) > 0:
            speaking = wait(list(still_open), left)
            for control in still_open.intersection(speaking):
                try:
                    closed = isinstance(control.recv(), (Closed, Failed))
                except (OSError, EOFError):
                    closed = True
                if closed:
                    still_open.discard(control)

    @contextlib.contextmanager
    def _stopping_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.stop(orderly=False)
            raise
