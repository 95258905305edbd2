"""The fabric of a run in virtual time, whoever works on it: one worker, or several side by side.

With one, the run's own events and the fabric's are in one queue.  With several the run's are in a
queue of its own, and time passes in windows (conservative synchronisation, Chandy and Misra 1979)::

    all workers                    the run
    -----------                    -------
    events before `limit`  ---->   crossings to their workers, news of ranks
                           <----   next window: up to the earliest event of any other worker plus
                                   the lookahead, but to no event of the run's own

A worker whose neighbours are idle goes on alone, lookahead by lookahead, until something of its
own is for them or for the run.  News are heard as soon as no worker can have earlier ones.

The run's decisions on news (a barrier is passed, an execution is over) hold one lookahead later,
with one worker too. So results do not depend on how many there are.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from emulator.dataplane.account import Account
from emulator.dataplane.dataplane import Dataplane
from emulator.dataplane.kernel.port_counters import PortCounters
from emulator.dataplane.switch.cable_counters import LinkCounters
from emulator.sim.endpoint.endpoint_spec import EndpointError
from emulator.sim.endpoint.operations.gpu_memory import GpuMemory
from emulator.sim.endpoint.operations.nvlink import Paces
from emulator.sim.event_queue import LOOK, NEVER, PS, EventQueue
from emulator.sim.line_record import LineRecord
from emulator.sim.line_state import LineState, LineStates
from emulator.sim.network import Network, port_counters
from emulator.sim.pfc import PauseWatch, PriorityFlowControl
from emulator.sim.port_capture import PortCapture, PortTaps
from emulator.sim.port_settings import LineChange
from emulator.workers.division import ALONE, Processes
from emulator.workers.interrupts import held, unwinding
from emulator.workers.partition import lookahead_ps
from emulator.workers.ranks.exchange import Ranks
from emulator.workers.ranks.worker import OtherRank, OwnRank, RankedPorts
from emulator.workers.windows import Crossing, News, shared_work
from emulator.workers.worker import Call, Counted, Worker, WorkerPart, call
from topologies.garbage import uncollected
from topologies.model import CableEnd

if TYPE_CHECKING:
    from emulator.workers.forked_worker import ForkedWorker

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

#: Time (host s) that a worker has to give up its sockets and files.
END_SECONDS = 20.0
#: The same at the end of a run (s): a killed one's sockets are closed all the same, but later.
_CLOSE_SECONDS = 2.0


class VirtualFabric:
    """The fabric of ``lab`` with as many workers as its wires name; ``events`` are the run's.

    Others than the first are forked here, unless ``processes`` are ranks, each on its own machine.
    """

    def __init__(self, lab: Dataplane, events: EventQueue, processes: Processes = ALONE) -> None:
        wires = lab.wires
        self.lab, self.events = lab, events
        self.lookahead_ps = lookahead_ps(lab.topology)
        self._owner = wires.worker_of
        self._hear: Callable[[News], None] | None = None
        self._capture: PortCapture | None = None
        self._interrupted = False
        #: from the first time on that the switches pause
        self.pauses: PauseWatch | None = None
        self._looks: set[int] = set()
        self._inboxes: list[list[Crossing]] = [[] for _ in range(wires.workers)]
        #: when the first thing in each inbox arrives (ps)
        self._arriving = [NEVER] * wires.workers
        #: news that a worker which is behind may still precede
        self._held: list[News] = []
        #: exchanges between the workers so far, in each of which all report once
        self.exchanges = 0
        self._exchanges_s = 0.0  # their wall time
        #: what NICs have sent, and how long pauses stopped ports
        self.record = LineRecord.of(lab.topology)
        self.ranks = ranks = processes if isinstance(processes, Ranks) else None
        own = 0 if ranks is None else ranks.number
        self.workers: list[Worker] = []
        #: The workers that have a process of their own.
        self._forked: list[ForkedWorker] = []
        #: memories that endpoints have had, by the node: new pages cost more than zeros
        self.idle_memories: dict[str, GpuMemory] = {}
        try:
            if ranks is None and wires.workers > 1:
                self._fork(lab, wires.workers)
            queue = events if wires.workers == 1 else EventQueue()
            self.part = WorkerPart(lab, own, queue, self.record)
            self.part.hear = self._take_news if wires.workers == 1 else None
            if ranks is None:
                self.workers.insert(0, self.part)
            else:
                self.workers += [OtherRank(number, ranks) for number in range(ranks.count)]
                self.workers[own] = OwnRank(self.part, ranks)
                self.record.joined = RankedPorts(ranks, self._owner)
                if lab.asic is not None:
                    lab.asic.joined = lab.asic.pauses.joined = self.record.joined
            self._following = [NEVER] * wires.workers
            self._stale = True  # who has something to do next is to be queried
            self._watch_pauses()
        except BaseException:
            self.close()
            raise

    @property
    def network(self) -> Network:
        """The part of the fabric that is in this process: all of it if there is one worker."""
        return self.part.network

    @property
    def reports(self) -> bool:
        """Return whether this process has what all have counted: not if it is a later rank."""
        return self.ranks is None or self.ranks.number == 0

    @property
    def broken(self) -> bool:
        """Return whether workers exchange nothing any more: one was interrupted, or has left."""
        return self._interrupted or (self.ranks is not None and self.ranks.ended)

    @property
    def alone(self) -> bool:
        """Return whether there is one worker."""
        return len(self.workers) == 1

    @property
    def pids(self) -> dict[int, int]:
        """The processes of the workers that have one of their own, by their number."""
        return {one.number: one.pid for one in self._forked}

    def _fork(self, lab: Dataplane, workers: int) -> None:
        """Fork every worker but this process."""
        from emulator.workers.forked_worker import ForkedWorker  # of no use to most runs

        for number in range(1, workers):
            worker = ForkedWorker(lab, number, self._forked, self.record)
            self._forked.append(worker)
            self.workers.append(worker)

    def on_news(self, hear: Callable[[News], None]) -> None:
        """Call ``hear`` with the outcomes of ranks, in the order of their times."""
        self._hear = hear

    def _take_news(self, news: News) -> None:
        if news.rank is not None:
            if self._hear is not None:
                self._hear(news)
            return
        when = news.when_ps + self.lookahead_ps
        if when not in self._looks:
            self._looks.add(when)
            self.events.at(when, LOOK, self._look, when)

    def _look(self, when: int) -> None:
        self._looks.discard(when)
        if self.pauses is not None:
            self.pauses.look()

    def _watch_pauses(self) -> None:
        asic = self.lab.asic
        if self.pauses is not None:
            self.pauses.forget()
        elif asic is not None and self.network.pauses is not None:
            self.pauses = PauseWatch(asic, self.lab.topology, self.events, self)
        if asic is not None and self.network.links is not None:
            asic.links.source = self

    def restart_links(self) -> None:
        """Measure the largest and longest of the link layer anew."""
        self.each(WorkerPart.restart_links)

    def link_counters(self) -> dict[str, LinkCounters]:
        """Counters of the link layer at all ports, where this process reports."""
        parts = self.counted(WorkerPart.link_counters)
        return {name: one for part in parts for name, one in part.items()}

    def each_of_pauses(
        self,
        method: Callable[Concatenate[PriorityFlowControl, P], T],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> list[T]:
        """Call ``method`` of every worker's pauses; all ``arguments`` are positional."""
        return self.each(WorkerPart.of_pauses, method, arguments)

    def paused(self) -> bool:
        """Return whether a pause is in force at a port."""
        return self.pauses is not None and self.pauses.in_force

    @property
    def deadlocked(self) -> bool:
        """Return whether lines have stopped each other in a circle."""
        return self.pauses is not None and bool(self.pauses.deadlock)

    def standing(self) -> str:
        """Name what pauses hold up now, as the end of a sentence; empty if they hold up nothing."""
        return "" if self.pauses is None else self.pauses.standing()

    def owner(self, node: str) -> int:
        """The number of the worker of ``node``."""
        return self._owner[node]

    def capture(self, capture: PortCapture, snaplen: int) -> None:
        """Have ``capture`` get all frames from now on, ``snaplen`` octets of each."""
        self._capture = capture
        self.each(WorkerPart.capture, capture.ends, snaplen)
        if self.alone and (taps := self.part.taps) is not None:
            taps.full = partial(self._collect, capture, taps)

    def _collect(self, capture: PortCapture, taps: PortTaps) -> None:
        """Take what this process alone has captured."""
        capture.add(taps.take())
        capture.flush(self.events.now)

    def flush(self) -> None:
        """Bring the capture up to date with all frames seen, if all workers can report."""
        if self._capture is None:
            return
        if self.alone:
            if (taps := self.part.taps) is not None:
                self._collect(self._capture, taps)
        elif not self.broken:
            self.following()  # their reports bring it
        self._capture.flush()

    # Calls

    def each(
        self,
        method: Callable[Concatenate[WorkerPart, P], T],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> list[T]:
        """Call ``method`` of all workers now; their answers in the order of their numbers.

        Ranks that do not report get no answers of what is counted.
        """
        return self.each_with([call(method, *arguments, **named)] * len(self.workers))

    def counted(self, method: Callable[[WorkerPart], Counted[K, V]]) -> list[dict[K, V]]:
        """Return what all workers have counted by ``method``; empty unless this process reports.

        All ranks call it, and the first one alone has what came of it.
        """
        return [part.by for part in self.each(method)]

    def each_with(self, calls: Sequence[Call[T]]) -> list[T]:
        """Have every worker carry out its own one of ``calls`` now."""
        self._stale = True
        if self.alone:
            return [calls[0].carry_out(self.part)]
        now = self.events.now
        return self._carried_out(
            [
                one._replace(now=now, crossings=self._taken(number))
                for number, one in enumerate(calls)
            ]
        )

    def _carried_out(self, calls: Sequence[Call[T]]) -> list[T]:
        """Have all workers carry out their calls at once; return their answers."""
        with self._together():
            answers = [worker.give(one) for worker, one in zip(self.workers, calls, strict=True)]
            own = answers[self.part.number]()  # while the others do theirs
            if isinstance(own, Counted) and not self.reports:
                return []
            number = self.part.number
            return [own if at == number else answer() for at, answer in enumerate(answers)]

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """Exchange with all workers; what interrupts that leaves answers that nobody reads.

        They are ended then, and get no more calls.
        """
        if self.broken:
            raise EndpointError("the workers of the run were interrupted", died=True)
        try:
            yield
        except BaseException:
            self._interrupted = True
            for worker in self._forked:
                worker.close()
            raise

    def _taken(self, number: int) -> list[Crossing]:
        """Take what has come for worker ``number`` since its last call."""
        inbox = self._inboxes[number]
        self._inboxes[number], self._arriving[number] = [], NEVER
        return inbox

    # Time

    def following(self) -> int:
        """Return when something happens next at any worker (ps)."""
        if self._stale and not self.alone:
            self._exchange([0] * len(self.workers))  # news make events of the run
        own = self.events.heap.following
        return own if self.alone else min(own, self._all_over())

    def _next_of(self, number: int) -> int:
        """Return when worker ``number`` has something to do, as far as is known here (ps)."""
        return min(self._arriving[number], self._following[number])

    def _all_over(self) -> int:
        """Return the time (ps) up to which every worker has done all."""
        return min(*self._arriving, *self._following)

    def run(self, until: int = NEVER) -> bool:
        """Let time pass up to and with ``until`` (ps); return whether the run's events stopped it.

        Without that the time is ``until`` afterwards, or that of the last event if no limit was
        given.
        """
        if self.alone:
            with uncollected(), held(self.events.stop):
                return self.events.run(until)
        events, sampler = self.events, self.events.sampler
        events.stopped = False
        if sampler is not None:
            sampler.resume(events.now)
        while (following := self.following()) < NEVER:
            if sampler is not None and sampler.due <= min(following, until):
                events.now = sampler.due
                sampler.take(events.now, following)
                continue
            if following > until:
                break
            if events.heap.following == following:
                if events.run_one():
                    if sampler is not None:
                        sampler.sample(events.now)
                    return True
                continue
            limit = min(until + 1, events.heap.following)
            if sampler is not None:
                limit = min(limit, sampler.due)
            self._exchange(self._limits(limit))
        if until != NEVER:
            events.now = until
        return False

    def _limits(self, limit: int) -> list[int]:
        """The ends (ps) of the workers' next windows, ``limit`` at most.

        Neither what another worker does next nor a decision on news reaches a worker before.
        """
        held = min((one.when_ps for one in self._held), default=NEVER)
        nexts = list(map(self._next_of, range(len(self.workers))))
        return [
            min(limit, self.lookahead_ps + min(held, *nexts[:own], *nexts[own + 1 :]))
            for own in range(len(self.workers))
        ]

    def _exchange(self, limits: Sequence[int]) -> None:
        """Have all workers work at once up to their ``limits`` (ps).

        Then pass on what they report for each other, and the news.
        """
        self.exchanges += 1
        began = time.perf_counter()
        calls = (
            call(WorkerPart.advance, limit, self.lookahead_ps, self._taken(number))
            for number, limit in enumerate(limits)
        )
        reports = self._carried_out([one._replace(window=True) for one in calls])
        self._exchanges_s += time.perf_counter() - began
        for worker, report in zip(self.workers, reports, strict=True):
            self._following[worker.number] = report.following
            self.events.now = max(self.events.now, report.now)
            for owner, crossings in report.crossings.items():
                self._inboxes[owner] += crossings
                first = min(one[0] for one in crossings)
                self._arriving[owner] = min(self._arriving[owner], first)
            self._held += report.news
            if self._capture is not None:
                self._capture.add(report.blocks)
        self._stale = False
        over = self._all_over()
        if self._capture is not None:
            self._capture.flush(min(over, self.events.now))
        held = sorted(self._held, key=lambda one: (one.when_ps, one.rank or 0))
        self._held = [one for one in held if one.when_ps >= over]
        for one in held[: len(held) - len(self._held)]:
            self._take_news(one)

    def shared_work(self) -> dict[str, object]:
        """Return how the workers, of which there are several, have shared their windows' work.

        Of ranks all call it, and the length of windows is by the own clock of each.
        """
        return shared_work(self.each(WorkerPart.work), self._exchanges_s)

    # The fabric

    def under_way(self) -> int:
        """Frames that wait at ports, or are on cables."""
        self.following()  # others get what was sent to them
        return sum(self.each(WorkerPart.under_way))

    def moving(self) -> bool:
        """Return whether a frame waits at a port, is on a cable or in a pipeline."""
        self.following()  # others get what was sent to them
        return any(self.each(WorkerPart.moving))

    def states(self) -> LineStates:
        """The state of every line, its two ends put together; none unless this process reports."""
        of_workers: Sequence[LineStates] = self.counted(WorkerPart.states)
        if self.alone or not of_workers:
            return of_workers[0] if of_workers else {}
        owner, network = self._owner, self.network
        found: dict[CableEnd, LineState] = {}
        for end in network.ends.numbers:
            near, far = owner[end.node], owner[network.topology.far_end(end).node]
            state = of_workers[near][end]
            found[end] = state if near == far else state.with_arrivals(of_workers[far][end])
        return found

    def counters(self) -> dict[str, PortCounters]:
        """Counters of every port by ``node:port``; none unless this process reports."""
        if (joined := self.record.joined) is None:
            return port_counters(self.lab, self.lab.counters(), self.states())
        nodes = self.lab.topology.nodes
        ports = [f"{one.name}:{port.name}" for one in nodes for port in one.ports]
        own = self.lab.counters([one.name for one in nodes if self.network.owns(one.name)])
        kernel = joined.by_name(ports, own)
        states = self.states()
        return port_counters(self.lab, kernel, states) if self.reports else {}

    def account(self) -> Account:
        """The account of every frame that went into a namespace."""
        total = Account()
        for one in self.each(WorkerPart.account):
            total.injected += one.injected
            total.delivered += one.delivered
            total.dropped.update(one.dropped)
        return total

    def reconfigure(self, seed: int) -> None:
        """Take the switches' new settings; draws follow from ``seed``."""
        self.each(WorkerPart.reconfigure, seed, self.network.settings())
        self._watch_pauses()

    def begin_row(self) -> None:
        """Let nothing that comes depend on what was; no frame is under way."""
        self.each(WorkerPart.begin_row)
        asic = self.lab.asic
        if asic is not None:
            asic.state.restart_flowlets(self.events.now // PS)
            asic.reroute()

    def pull(self, ends: Sequence[CableEnd]) -> dict[CableEnd, tuple[int, int]]:
        """Take the carrier from the lines from ``ends``; what waits there and flies is lost.

        Returns frames and octets (on the wire) that waited, by port, of those that had carrier.
        """
        if self.broken:  # the run is ending, and nothing moves any more
            return {}
        of_workers = self.each(WorkerPart.pull, ends)
        at = {end: of_workers[self._owner[end.node]] for end in ends}
        return {end: lost[end] for end, lost in at.items() if end in lost}

    def plug(self, ends: Sequence[CableEnd], nodes: Collection[str]) -> None:
        """Give the lines from ``ends`` carrier; GPUs among ``nodes`` look which ports have it."""
        if not self.broken:
            self.each(WorkerPart.plug, ends, nodes)

    def follow(self, changes: Sequence[LineChange]) -> None:
        """Serve at other rates, and with other orders of the switch program, from now on."""
        if not self.broken:
            self.each(WorkerPart.follow, changes)

    def end_gpus(self, nodes: Sequence[str]) -> None:
        """End the processes of the GPUs ``nodes``, and what they have under way on NVLink."""
        if not self.broken:
            self.each(WorkerPart.end_gpus, nodes)

    def replace_gpus(self, nodes: Sequence[str]) -> None:
        """Give the GPUs ``nodes`` a new process with the next new transports."""
        if not self.broken:
            self.each(WorkerPart.replace_gpus, nodes)

    def pace_scale_up(self, steps: Paces) -> None:
        """From each time on leave scale-up links the named shares of their rates, others all."""
        if not self.broken:
            self.each(WorkerPart.pace_scale_up, steps)

    def retire(self) -> None:
        """Have all workers close the sockets of their GPUs, and forget what was on its way.

        One that does not answer for :data:`END_SECONDS` is ended; an interrupted run waits less.
        """
        limit_s = _CLOSE_SECONDS if unwinding() else END_SECONDS
        self._give_up(call(WorkerPart.retire), limit_s)
        self.part.retire()
        for number in range(len(self._inboxes)):
            self._taken(number)
        self._held.clear()

    def close(self) -> None:
        """End all workers.

        They close their sockets together first: the kernel closes those of a killed process one by
        one, and waits for its readers (RCU) each time.
        """
        self._give_up(call(WorkerPart.close), _CLOSE_SECONDS)
        with contextlib.ExitStack() as stack:
            for worker in self.workers:
                stack.callback(worker.close)
            self.workers, self._forked = [], []
            self.idle_memories.clear()

    def _give_up(self, one: Call[None], time_limit_s: float) -> None:
        """Have the forked workers do so at once; one that does not within the limit is ended."""
        with contextlib.suppress(EndpointError):  # a worker has ended, and its sockets with it
            if not self.broken:
                with self._together():
                    for answer in [worker.give(one, time_limit_s) for worker in self._forked]:
                        answer()
