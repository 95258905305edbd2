"""All GPUs of a lab in virtual time, with the face of an agent pool."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Self

from emulator.endpoint.agent_processes import AgentError, Progress
from emulator.endpoint.gpu import GpuMemory, Layout, memory_path
from emulator.endpoint.nvlink import CopyNotice
from emulator.endpoint.schedule import Barrier, Copy, Schedule, Write
from emulator.endpoint.silence import silence
from emulator.endpoint.spec import AgentSpec, RankResult
from emulator.engine.event_queue import NEVER, PS, EventQueue
from emulator.engine.gpu_endpoint import GpuEndpoint, Surroundings
from emulator.engine.network import Network

#: Fabric time from the order to run to the common start (ns).
LEAD_NS = 1_000
#: Fabric time that transports may take to close, and frames to arrive that are under way (ns).
CLOSE_NS = 2_000_000
#: Fabric time after which frames, or pauses, that are left from an execution are an error (ns).
DRAIN_NS = 100_000_000

Counts = dict[int, Mapping[str, Mapping[str, int]]]


class VirtualPool:
    """The GPUs of ``specs`` on ``network``; the owner of their ``memories`` (by rank).

    Use it as a context manager, or call :meth:`stop` at the end whatever happened.
    """

    def __init__(self, lab: str, specs: Sequence[AgentSpec], network: Network) -> None:
        self.lab = lab
        self.specs = {spec.rank: spec for spec in specs}
        if len(self.specs) != len(specs):
            raise ValueError("two GPUs have the same rank")
        self.memories: dict[int, GpuMemory] = {}
        self.pids: dict[int, int] = {}
        self._network = network
        self._events: EventQueue = network.events
        self._source = network.events.run_source
        self._endpoints: dict[int, GpuEndpoint] = {}
        self._schedules: dict[int, Schedule] = {}
        self._members: dict[str, frozenset[int]] = {}
        self._waiting: dict[str, set[int]] = {}
        self._left: set[int] = set()
        self._failed = False
        self._execution = self._life = 0
        self._used = False  # since the transports were made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, progress: Progress | None = None) -> None:
        """Make the memories and open every GPU's sockets in its namespace."""
        around = Surroundings(
            events=self._events,
            outlets=self._network.outlets,
            finished=self._finished,
            at_barrier=self._at_barrier,
        )
        try:
            for rank, spec in self.specs.items():
                path = memory_path(self.lab, spec.node)
                self.memories[rank] = GpuMemory.create(path, spec.memory_octets)
            lab = self._network.lab
            for done, (rank, spec) in enumerate(self.specs.items(), start=1):
                ports = self._network.open_gpu(spec)
                for port in spec.ports:
                    lab.inside(spec.node, partial(silence, port.interface, spec.frames))
                endpoint = GpuEndpoint(
                    spec,
                    ports,
                    around,
                    self._network.ends.first_free + rank,
                    memory=self.memories[rank],
                    scale_up_memories={peer: self.memories[peer] for peer in spec.scale_up_peers},
                    send_copy=self._send_copy,
                )
                self._network.on_carrier(spec.node, endpoint.carrier_changed)
                for opened in ports:
                    self._network.deliver_to(opened, spec.node, endpoint.deliver)
                self._endpoints[rank] = endpoint
                if progress is not None:
                    progress(done, len(self.specs))
        except BaseException:
            self.stop()
            raise

    def _send_copy(self, peer: int, when: int, order: int, notice: CopyNotice) -> None:
        copies = self._endpoints[peer].copies
        assert copies is not None
        self._events.at(when, order, copies.arrive, notice)

    def load(self, schedules: Sequence[Schedule]) -> None:
        """Lay out the memories and give every GPU its schedule; there must be one for each."""
        by_rank = {schedule.rank: schedule for schedule in schedules}
        if set(by_rank) != set(self.specs) or len(schedules) != len(by_rank):
            raise ValueError("there must be exactly one schedule for each rank")
        for rank, schedule in by_rank.items():
            self.memories[rank].lay_out(Layout(schedule.buffers), reserve=True)
        self._schedules = by_rank
        members: dict[str, set[int]] = {}
        for rank, schedule in by_rank.items():
            peers = {op.peer for op in schedule.operations if isinstance(op, (Write, Copy))}
            layouts = {peer: dict(by_rank[peer].buffers) for peer in peers if peer in by_rank}
            self._endpoints[rank].load(schedule, layouts)
            for operation in schedule.operations:
                if isinstance(operation, Barrier):
                    members.setdefault(operation.name, set()).add(rank)
        self._members = {name: frozenset(ranks) for name, ranks in members.items()}

    def renew(self) -> None:
        """Give every GPU a new transport, if the one it has was used.

        Whatever the old ones have under way arrives first.
        """
        if not self._used:
            return
        self._drain()
        self._life += 1
        for endpoint in self._endpoints.values():
            endpoint.renew(self._life)
        self._used = False

    def _drain(self) -> None:
        """Let time pass until no frame is under way and no pause in force.

        Raises :class:`AgentError` if that takes longer than :data:`DRAIN_NS`: what comes after
        would not begin on an empty fabric.
        """
        until = self._events.now + DRAIN_NS * PS
        heap = self._events.heap
        while self._network.under_way() or self._network.paused():
            if not heap or heap[0][0] > until:
                raise AgentError(
                    f"{self._network.under_way()} frames are still under way {DRAIN_NS / 1e6:g} ms "
                    f"after the last operation{self._network.standing()}"
                )
            self._events.run(min(until, heap[0][0] + 1000 * PS))

    def run(
        self,
        start_in_ns: int | None = None,
        timeout: float = 60.0,
        started: Callable[[int], None] | None = None,
        gap_ns: int = 0,
    ) -> list[RankResult]:
        """Execute the loaded schedules once, from a common start; results in rank order.

        The start is ``start_in_ns`` of fabric time from now (``gap_ns`` at least).  An execution
        that lasts longer than ``timeout`` s of fabric time fails, as does one of which nothing
        will ever happen again.  Raises :class:`AgentError` when any rank fails.
        """
        events = self._events
        self._execution += 1
        self._used = True
        begin = events.now // PS + max(LEAD_NS if start_in_ns is None else start_in_ns, gap_ns)
        self._left = set(self.specs)
        self._waiting.clear()
        self._failed = False
        if self._network.pauses is not None:
            self._network.pauses.standstill = events.stop
        if started is not None:
            started(begin)  # faults of that instant come first
        events.at(begin * PS, self._source.next(), self._start, self._execution)
        with _uncollected():
            events.run(min(NEVER - 1, (begin + round(timeout * 1e9)) * PS))
        if self._left and not self._failed:
            self._explain(bool(events.heap))
        for endpoint in self._endpoints.values():
            endpoint.fail("aborted", "another rank failed")
        results = [
            endpoint.result
            for _, endpoint in sorted(self._endpoints.items())
            if endpoint.result is not None
        ]
        if any(result.error for result in results):
            raise self._failure(results)
        return results

    def _start(self, execution: int) -> None:
        for endpoint in self._endpoints.values():
            endpoint.start(execution)

    def _finished(self, rank: int) -> None:
        self._left.discard(rank)
        result = self._endpoints[rank].result
        if result is not None and result.error is not None:
            self._failed = True
        if not self._left or self._failed:
            self._events.stop()

    def _at_barrier(self, rank: int, names: Sequence[str]) -> None:
        for name in names:
            there = self._waiting.setdefault(name, set())
            there.add(rank)
            if there == self._members[name]:
                del self._waiting[name]
                now = self._events.now
                self._events.at(now, self._source.next(), self._pass, (self._execution, name))

    def _pass(self, passed: tuple[int, str]) -> None:
        execution, name = passed
        for rank in sorted(self._members[name]):
            endpoint = self._endpoints[rank]
            endpoint.executor.pass_barrier(execution, name, self._events.now // PS)
            endpoint.settle()

    def _explain(self, more_to_come: bool) -> None:
        """End the executions that will not end, each with what it waits for."""
        standing = self._network.standing()
        over = more_to_come and not self._network.deadlocked
        for rank in sorted(self._left):
            endpoint = self._endpoints[rank]
            detail = endpoint.executor.unfinished() + standing
            endpoint.fail("deadline" if over else "stalled", detail)

    def _failure(self, results: Sequence[RankResult]) -> AgentError:
        """The first error that was not another's consequence."""
        failed = [one for one in results if one.error]
        causes = [one for one in failed if one.error != "aborted"] or failed
        first = min(causes, key=lambda one: (one.end_ns, one.rank))
        network = self._network
        said = first.error == "stalled" or not network.deadlocked
        return AgentError(
            f"rank {first.rank} ({first.node}) failed with {first.error}: {first.detail}"
            f"{'' if said else network.standing()}",
            rank=first.rank,
            node=first.node,
            results=results,
            counters=self.counters(),
        )

    def counters(self) -> Counts:
        """Counters of every rank, by layer (``transport``, ``nic``, ...) and name."""
        return {rank: endpoint.counters() for rank, endpoint in sorted(self._endpoints.items())}

    def settled(self) -> Counts:
        """The counters, once nothing is under way any more."""
        self._drain()
        return self.counters()

    def close(self) -> Counts:
        """Close the transports, for at most :data:`CLOSE_NS`, and read the last counters."""
        self._close_transports()
        return self.settled()

    def _close_transports(self) -> None:
        for endpoint in self._endpoints.values():
            endpoint.close()
        until = self._events.now + CLOSE_NS * PS
        heap = self._events.heap
        while heap and heap[0][0] <= until:
            if all(endpoint.closed for endpoint in self._endpoints.values()):
                return
            self._events.run(min(until, heap[0][0] + 1000 * PS))

    def stop(self) -> None:
        """Close all sockets and remove the memories; safe to call again and in any state."""
        for endpoint in self._endpoints.values():
            endpoint.retire()
        self._endpoints.clear()
        self._network.forget_gpus()
        for memory in self.memories.values():
            memory.close()
            memory.unlink()
        self.memories.clear()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep the garbage collector from going through all endpoints while frames pass.

    Nothing on their way refers to itself; what an execution leaves is collected after it.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
