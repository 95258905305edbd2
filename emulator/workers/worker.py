"""Workers, which share a run: each has some nodes of its fabric, in its own event queue.

The driver of a run calls methods of :class:`WorkerPart`.  Where that is in another process, or at
another MPI rank, a :class:`Worker` carries the :class:`Call` there::

    part = WorkerPart(...)                 this process
    ForkedWorker(...)                      a process of its own, over a socket
    OwnRank(part, ranks), OtherRank(...)   every rank drives the run, and gives itself the same call

A call is given to all workers before the first answer is awaited, so that they work at the same
time.  Arguments and answers of other processes are pickled.  Workers also share what one machine
has: the memories of GPUs, into which copies over the scale-up network write, and the tables of the
switch program.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

import numpy as np

from emulator.dataplane.account import Account
from emulator.dataplane.dataplane import Dataplane
from emulator.dataplane.switch.cable_counters import LinkCounters
from emulator.sim.endpoint.endpoint_spec import EndpointSpec, Progress
from emulator.sim.endpoint.operations.gpu_memory import GpuMemory, Layout, memory_path
from emulator.sim.endpoint.operations.nvlink import CopyNotice, Paces
from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.sim.endpoint.operations.schedule import Schedule
from emulator.sim.event_queue import PS, EventQueue, number_of
from emulator.sim.frame_taps import BoundaryTaps, TaggedFrame
from emulator.sim.gpu_endpoint import GpuEndpoint, WorkerSurroundings
from emulator.sim.gpu_port import GpuPort
from emulator.sim.line_record import LineRecord
from emulator.sim.line_state import LineState
from emulator.sim.link_layer.link_layer import LinkLayer
from emulator.sim.link_layer.replay import LinkUnit
from emulator.sim.network import Network
from emulator.sim.pfc import PriorityFlowControl
from emulator.sim.port_capture import PortTaps
from emulator.sim.port_settings import LineChange, Settings
from emulator.workers.interrupts import held
from emulator.workers.windows import (
    Crossing,
    FarCopy,
    News,
    WindowReport,
    WindowWork,
    far_memory,
)
from topologies.garbage import uncollected
from topologies.model import CableEnd

T = TypeVar("T")
P = ParamSpec("P")
K = TypeVar("K")
V = TypeVar("V")

#: A rank's schedule, with the buffers of every rank that it writes to.
Load = tuple[int, Schedule, Mapping[int, Mapping[str, int]]]

#: An octet of a spoiled buffer, all ones: in every floating-point type, these are not a number,
#: which equals nothing.
POISON = 0xFF
#: PDCs or queue pairs beyond which the memory of an iteration's is worth a full collection.
MANY_CONNECTIONS = 1_000


@dataclass(frozen=True, slots=True)
class EndedSchedules:
    """The ``results`` of a worker's ranks; ``for_all``: all who drive the run need their times."""

    results: list[RankResult]
    for_all: bool

    def for_worker(self, number: int) -> EndedSchedules:
        """Return what worker ``number`` needs of it: each knows the times of its own ranks."""
        if self.for_all:
            return self
        return EndedSchedules([one.brief() for one in self.results], for_all=False)


@dataclass(frozen=True, slots=True)
class Counted(Generic[K, V]):
    """A worker's counts ``by`` rank, name or end, which the first one of MPI ranks alone gets."""

    by: dict[K, V]


class Call(NamedTuple, Generic[T]):
    """``method`` of a :class:`WorkerPart` with its ``arguments``; :func:`call` makes it.

    The part first takes ``crossings``, and its time is ``now`` (ps) at least.  Of the answer to a
    ``window``, a :class:`WindowReport`, each worker gets what concerns it.
    """

    method: Callable[..., T]
    arguments: tuple[object, ...] = ()
    now: int = 0
    crossings: Sequence[Crossing] = ()
    window: bool = False

    @property
    def name(self) -> str:
        """The method's name."""
        return self.method.__name__

    def carry_out(self, part: WorkerPart) -> T:
        """Call the method of ``part``."""
        if self.crossings:
            part.accept(self.crossings)
        part.events.now = max(part.events.now, self.now)
        return self.method(part, *self.arguments)


def call(
    method: Callable[Concatenate[WorkerPart, P], T], *arguments: P.args, **named: P.kwargs
) -> Call[T]:
    """Return the call of ``method``; all ``arguments`` are positional."""
    if named:
        raise TypeError(f"{method.__name__} is called with arguments by name")
    return Call(method, arguments)


class Worker(Protocol):
    """One worker, which carries out calls in order."""

    @property
    def number(self) -> int: ...

    def give(self, call: Call[T], time_limit_s: float | None = None) -> Callable[[], T]:
        """Have ``call`` carried out there; return what returns its answer, or raises its exception.

        The answer to an earlier call comes first.  A process that does not answer for
        ``time_limit_s`` of the host's time is ended: EndpointError.
        """

    def close(self) -> None:
        """End the worker; safe to call again."""


class WorkerPart:
    """Worker ``number`` of the run on ``lab``, with the events of ``events``.

    ``hear`` gets the outcomes of ranks at once; None: they wait for the report of the window.
    """

    def __init__(
        self, lab: Dataplane, number: int, events: EventQueue, record: LineRecord | None = None
    ) -> None:
        self.network = Network(lab, events, number, record)
        self.events = events
        self.number = number
        self.hear: Callable[[News], None] | None = None
        self._endpoints: dict[int, GpuEndpoint] = {}
        self._ranks: dict[int, EndpointSpec] = {}
        self._memories: dict[int, GpuMemory] = {}
        self._attached: list[GpuMemory] = []
        self._far_memories: dict[int, GpuMemory] = {}
        self.taps: PortTaps | None = None
        self._boundary: BoundaryTaps | None = None
        self._news: list[News] = []
        self._limit = 0  # all before is over
        self._work = WindowWork()
        self._copies: list[Crossing] = []
        self._look_at_pauses()
        self._owner = lab.wires.worker_of
        #: the worker and the line behind each number that an arrival's order has
        self._lines = {line.number: line for line in self.network.lines.values()}
        self._far_owner = {
            line.number: self._owner[self.network.topology.far_end(end).node]
            for end, line in self.network.lines.items()
        }

    def give(self, call: Call[T], time_limit_s: float | None = None) -> Callable[[], T]:
        """Return what carries ``call`` out, which takes as long as it does."""
        return partial(call.carry_out, self)

    # The GPUs

    def open(
        self,
        lab: str,
        specs: Sequence[EndpointSpec],
        memories: Mapping[int, GpuMemory] | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Open the sockets of this worker's GPUs in their namespaces, ``specs`` being all of them.

        ``memories`` are those of all ranks; None: they are mapped from where the driver made them.
        """
        self._ranks = {spec.rank: spec for spec in specs}
        self._memories = dict(memories or {})
        around = WorkerSurroundings(
            events=self.events,
            outlets=self.network.outlets,
            finished=self._finished,
            at_barrier=self._at_barrier,
        )
        own = [spec for spec in specs if self.network.owns(spec.node)]
        for done, (spec, ports) in enumerate(
            zip(own, self.network.open_gpus(own), strict=True), start=1
        ):
            self._open(lab, spec, ports, around)
            if progress is not None:
                progress(done, len(own))

    def _open(
        self, lab: str, spec: EndpointSpec, ports: Sequence[GpuPort], around: WorkerSurroundings
    ) -> None:
        network, rank = self.network, spec.rank
        endpoint = GpuEndpoint(
            spec,
            ports,
            around,
            network.ends.first_free + rank,
            memory=self._memory(lab, rank),
            scale_up_memories={peer: self._peer_memory(lab, peer) for peer in spec.scale_up_peers},
            send_copy=self._send_copy,
        )
        network.on_carrier(spec.node, endpoint.carrier_changed)
        for opened in ports:
            network.deliver_to(opened, endpoint.deliver)
        self._endpoints[rank] = endpoint

    def _memory(self, lab: str, rank: int) -> GpuMemory:
        if rank not in self._memories:
            attached = GpuMemory.attach(memory_path(lab, self._ranks[rank].node))
            self._memories[rank] = attached
            self._attached.append(attached)
        return self._memories[rank]

    def _peer_memory(self, lab: str, rank: int) -> GpuMemory:
        """The memory of ``rank`` for a GPU that copies to it."""
        spec = self._ranks[rank]
        if self.network.lab.wires.here(spec.node):
            return self._memory(lab, rank)
        if rank not in self._far_memories:
            path = memory_path(lab, spec.node)
            self._far_memories[rank] = far_memory(path, spec.memory_octets)
        return self._far_memories[rank]

    def _send_copy(self, peer: int, when: int, order: int, notice: CopyNotice) -> None:
        endpoint = self._endpoints.get(peer)
        if endpoint is None:
            far = self._far_memories.get(peer)
            what = notice if far is None else FarCopy.of(notice, far)
            self._copies.append((when, order, peer, what))
            return
        self.events.at(when, order, endpoint.take_copy, notice)

    def load(self, loads: Sequence[Load]) -> None:
        """Give GPUs of this worker their schedules, and the machine's memory for their buffers."""
        for rank, schedule, layouts in loads:
            self._memories[rank].lay_out(Layout(schedule.buffers), reserve=True)
            self._endpoints[rank].load(schedule, layouts)

    def spoil(self, buffers: Mapping[int, Sequence[str]]) -> None:
        """Overwrite the ``buffers`` of this worker's ranks."""
        for rank, names in buffers.items():
            for name in names:
                self._memories[rank].array(name, np.uint8)[:] = POISON

    def renew(self, life: int, lives_before: int) -> None:
        """Give every GPU a new transport, for life number ``life`` of a row."""
        gone = sum(one.renew(life, lives_before) for one in self._endpoints.values())
        if gone > MANY_CONNECTIONS:
            gc.collect()  # else they stay until the next ones are there, which are as many

    def end_gpus(self, nodes: Sequence[str]) -> None:
        """End the processes of the GPUs ``nodes`` now, whoever has them.

        Scale-up copies that have not left them whole arrive nowhere.
        """
        ended = [spec.rank for spec in self._ranks.values() if spec.node in nodes]
        for rank, endpoint in self._endpoints.items():
            if rank in ended:
                endpoint.end()
            else:
                endpoint.lose_copies(ended)

    def replace_gpus(self, nodes: Sequence[str]) -> None:
        """Give the GPUs ``nodes`` a new process with the next new transports."""
        returning = [spec.rank for spec in self._ranks.values() if spec.node in nodes]
        for rank, endpoint in self._endpoints.items():
            if rank in returning:
                endpoint.replace()
            if endpoint.copies is not None:
                endpoint.copies.hear_again(returning)

    def pace_scale_up(self, steps: Paces) -> None:
        """From each time on leave scale-up links the named shares of their rates, others all."""
        rank = {spec.node: spec.rank for spec in self._ranks.values()}
        of_ranks = [
            (at, {tuple(sorted(rank[gpu] for gpu in gpus)): left[gpus] for gpus in left})
            for at, left in steps
        ]
        for endpoint in self._endpoints.values():
            if endpoint.copies is not None:
                endpoint.copies.pace(of_ranks)

    def start(self, execution: int, is_open: bool = False) -> None:
        """Begin execution number ``execution`` now; more may be added to one that ``is_open``."""
        for endpoint in self._endpoints.values():
            endpoint.start(execution, is_open)

    def add(self, loads: Sequence[Load]) -> None:
        """Add operations to the open executions of GPUs of this worker."""
        for rank, schedule, layouts in loads:
            self._endpoints[rank].add(schedule, layouts)

    def finish(self) -> None:
        """Let open executions end once all of their operations have."""
        for endpoint in self._endpoints.values():
            endpoint.finish()

    def pass_barrier(self, execution: int, name: str, ranks: Sequence[int]) -> None:
        """Let those of ``ranks`` go on that wait at barrier ``name``."""
        for rank in ranks:
            endpoint = self._endpoints.get(rank)
            if endpoint is not None:
                endpoint.executor.pass_barrier(execution, name, self.events.now // PS)
                endpoint.settle()

    def unfinished(self) -> dict[int, str]:
        """Name what every rank waits for that has not ended its schedule."""
        return {
            rank: endpoint.executor.unfinished()
            for rank, endpoint in self._endpoints.items()
            if endpoint.executor.running
        }

    def has_sent_to(self, lost: Sequence[int]) -> bool:
        """Return whether a write of another rank to one of ``lost`` is under way."""
        return any(
            endpoint.executor.running and endpoint.executor.has_sent_to(lost)
            for rank, endpoint in self._endpoints.items()
            if rank not in lost
        )

    def fail(self, error: str, details: Mapping[int, str]) -> None:
        """End the executions of the ranks in ``details`` with ``error``."""
        for rank, detail in details.items():
            if rank in self._endpoints:
                self._endpoints[rank].fail(error, detail)

    def results(self, for_all: bool) -> EndedSchedules:
        """The results of all ranks that have one; ``for_all``: their times too."""
        ended = (endpoint.result for endpoint in self._endpoints.values())
        return EndedSchedules([result for result in ended if result is not None], for_all)

    def counters(self) -> Counted[int, Mapping[str, Mapping[str, int]]]:
        """Counters of every rank, by layer (``transport``, ``nic``, ...) and name."""
        return Counted({rank: one.counters() for rank, one in self._endpoints.items()})

    def states(self) -> Counted[CableEnd, LineState]:
        return Counted(self.network.states())

    def close_transports(self) -> None:
        """Have the transports finish what was posted and close."""
        for endpoint in self._endpoints.values():
            endpoint.close()

    def closed(self) -> bool:
        """Return whether no transport has anything open."""
        return all(endpoint.closed for endpoint in self._endpoints.values())

    def retire(self) -> None:
        """Close the sockets of all GPUs; others can be opened."""
        for endpoint in self._endpoints.values():
            endpoint.retire()
        self._endpoints.clear()
        self.network.forget_gpus()
        self._memories.clear()
        self._far_memories.clear()
        while self._attached:
            self._attached.pop().close()

    # What ranks come to

    def _finished(self, result: RankResult) -> None:
        self._notify(News(self.events.now, result.rank, result=result.brief()))

    def _at_barrier(self, rank: int, names: Sequence[str]) -> None:
        self._notify(News(self.events.now, rank, barriers=tuple(names)))

    def _notify(self, news: News) -> None:
        if self.hear is None:
            self._news.append(news)
        else:
            self.hear(news)

    # Windows

    def accept(self, crossings: Sequence[Crossing]) -> None:
        """Take what comes from other workers.

        Raises RuntimeError if something comes for a time that is over here.
        """
        for when, order, number, what in crossings:
            if when < self._limit:
                raise RuntimeError(
                    f"something arrives at worker {self.number} at {when} ps, which has run up to "
                    f"{self._limit} ps already"
                )
            if isinstance(what, bytes):
                self._lines[number].expect(when, order, what)
            elif isinstance(what, LinkUnit):
                self._lines[number].expect(when, order, what, counts=what.first)
            else:
                if isinstance(what, FarCopy):
                    what.put_into(self._memories[number])
                    what = what.notice
                self.events.heap.push(when, order, self._endpoints[number].take_copy, what)

    def advance(self, limit: int, lookahead_ps: int, crossings: Sequence[Crossing]) -> WindowReport:
        """Take what comes from others, and run all events before ``limit`` (ps).

        It ends earlier, one lookahead at most after the first event that others have to know of.
        With 0 for ``limit`` it only reports.
        """
        began, spent = time.perf_counter(), time.thread_time()
        self.accept(crossings)
        events = self.events
        with uncollected(), held(lambda: None):  # it is short
            while limit and not self._to_tell():
                following = events.heap.following
                self._limit = min(limit, following + lookahead_ps)
                events.run_before(self._limit)
                if self._limit == limit:
                    break
        report = self._report()
        self._work.processor_s.append(time.thread_time() - spent)
        self._work.wall_s += time.perf_counter() - began
        return report

    def work(self) -> WindowWork:
        """Return what this worker has spent in windows so far."""
        return self._work

    def _to_tell(self) -> bool:
        """Return whether the next report has more than times."""
        taps = self.taps
        return bool(
            self.network.outbox.size
            or self._copies
            or self._news
            or (taps is not None and taps.blocks)
        )

    def _report(self) -> WindowReport:
        """Report the time, the news, and what is for others."""
        made = WindowReport(self.events.now, self.events.heap.following, news=self._news)
        self._news = []
        outbox = self.network.outbox
        while outbox.size:
            when, order, _, frame = outbox.pop()
            number = number_of(order)
            made.crossings.setdefault(self._far_owner[number], []).append(
                (when, order, number, frame)
            )
        for copy in self._copies:
            owner = self._owner[self._ranks[copy[2]].node]
            made.crossings.setdefault(owner, []).append(copy)
        self._copies.clear()
        if self.taps is not None:
            made.blocks = self.taps.take()
        return made

    # The fabric

    def reconfigure(self, seed: int | None, settings: Settings | None) -> None:
        """Take the switches' new settings."""
        self.network.reconfigure(seed, settings)
        self._look_at_pauses()

    def _look_at_pauses(self) -> None:
        if self.network.pauses is not None:
            self.network.pauses.on_unmoved = lambda: self._notify(News(self.events.now))

    def of_pauses(
        self,
        method: Callable[Concatenate[PriorityFlowControl, ...], T],
        arguments: Sequence[object],
    ) -> T:
        """Call ``method`` of the ports' pauses, which are there."""
        return method(self._pauses, *arguments)

    @property
    def _pauses(self) -> PriorityFlowControl:
        pauses = self.network.pauses
        if pauses is None:
            raise ValueError(f"worker {self.number} has ports that never pause")
        return pauses

    @property
    def _links(self) -> LinkLayer:
        links = self.network.links
        if links is None:
            raise ValueError(f"worker {self.number} has no cables with a link layer")
        return links

    def under_way(self) -> int:
        """Frames that wait at this worker's ports, are on cables to them, or in pipelines."""
        return self.network.under_way()

    def moving(self) -> bool:
        """Return whether :meth:`under_way` has any."""
        return self.network.moving()

    def begin_row(self) -> None:
        """Let nothing that comes on lines depend on what was; no frame is under way."""
        self.network.begin_row()

    def pull(self, ends: Sequence[CableEnd]) -> dict[CableEnd, tuple[int, int]]:
        """Take the carrier from lines (:meth:`Network.pull`)."""
        return self.network.pull(ends)

    def plug(self, ends: Sequence[CableEnd], nodes: Collection[str]) -> None:
        """Give lines carrier (:meth:`Network.plug`)."""
        self.network.plug(ends, nodes)

    def follow(self, changes: Sequence[LineChange]) -> None:
        """Serve at other rates, and with other orders of the switch program, from now on."""
        self.network.follow(changes)

    def restart_links(self) -> None:
        """Have the ports' link layer, which is there, measure anew."""
        self._links.restart()

    def link_counters(self) -> Counted[str, LinkCounters]:
        """Counters of the ports' link layer, which is there, by ``node:port``."""
        return Counted(self._links.counters())

    def capture(self, ends: Sequence[CableEnd], snaplen: int) -> None:
        """Make blocks of the frames at those of the ports ``ends`` that are this worker's."""
        self.taps = PortTaps(ends, self.network, snaplen)

    def tag_frames(self, ends: Sequence[CableEnd], every: int) -> None:
        """Note tagged frames at those of the ports ``ends`` that are this worker's."""
        self._boundary = BoundaryTaps(ends, self.network, every)

    def tagged_frames(self) -> list[TaggedFrame]:
        """Return the tagged frames since the last call."""
        return [] if self._boundary is None else self._boundary.take()

    def account(self) -> Account:
        """The account of every frame that went into a namespace of this worker's nodes."""
        return self.network.account

    def close(self) -> None:
        """Give up everything."""
        self.retire()
        self.network.close()
