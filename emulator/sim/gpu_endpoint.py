"""One GPU in virtual time: its transport, its schedule and its ports, woken by events alone.

::

    a frame arrives --> socket --> transport --completions--> executor --post--> transport
                                        |
                     the line is idle --+--transmit--> socket --> line

A dead GPU has no process: what comes to its NIC is dropped there, and nothing leaves it.

The endpoint polls the transport for a frame whenever a line is idle, and for its deadline when it
has none.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from mypy_extensions import i64

from emulator.sim.endpoint.counting import add, of_the_past, open_now
from emulator.sim.endpoint.endpoint_spec import EndpointSpec, make_transport
from emulator.sim.endpoint.operations.data_arrival import lose_after
from emulator.sim.endpoint.operations.executor import MEMORY_KEY, Executor
from emulator.sim.endpoint.operations.gpu_memory import GpuMemory, Layout
from emulator.sim.endpoint.operations.nvlink import CopyNotice
from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.sim.endpoint.operations.schedule import Schedule
from emulator.sim.endpoint.operations.schedule_program import ScheduleProgram
from emulator.sim.event_queue import NEVER, PS, EventQueue, Source
from emulator.sim.gpu_port import GpuPort, PortChoice
from emulator.sim.line import LOW, Line
from emulator.sim.outlets import Outlets
from emulator.sim.scale_up_copies import ScaleUpCopies
from topologies.ethernet import FRAMING_OCTETS
from uet.planes.fabric_interface import FabricInterface
from uet.transport import Frame, Transport

#: Of a NIC with several ports: so many frames a port may wait for it while others are idle.
_WAITING_PER_PORT: Final = 4
#: An endpoint that requests to be woken more often than this in one instant would be for ever.
_MOST_WAKES: Final = 10_000
#: While data may not leave, the timers of a transport that has data run this often at most.
_STOPPED_LOOK_NS: Final = 500
#: Times (ns) from here on never come.
_LATEST: Final = NEVER // PS


@dataclass(frozen=True, kw_only=True)
class WorkerSurroundings:
    """Events, outlets and listeners that the GPUs of one worker share."""

    events: EventQueue
    outlets: Outlets
    #: called with the result of a rank that has finished its schedule, or failed
    finished: Callable[[RankResult], None]
    #: called when a rank has reached barriers, with their names
    at_barrier: Callable[[int, Sequence[str]], None]


def _no_scale_up(notice: CopyNotice) -> None:
    raise ValueError(f"a copy of rank {notice.sender} comes to a GPU without a scale-up network")


class FrameEndpoint(Protocol):
    """The part of a transport that has to do with frames (:class:`uet.transport.Transport`)."""

    def receive(self, frames: Sequence[memoryview], now: int) -> None: ...

    def transmit(self, now: int, limit: int) -> list[Frame]: ...

    def next_deadline(self) -> int | None: ...


def per_fep(transport: Transport) -> Mapping[str, Mapping[str, int]]:
    """Return the counters of each endpoint of a fabric interface, by ``fep`` and its number."""
    if not isinstance(transport, FabricInterface):
        return {}
    return {f"fep{name}": counters for name, counters in transport.per_fep()}


class _Lane:
    """An endpoint and the ports that it sends by."""

    __slots__ = ("_paused", "choice", "endpoint", "line", "ports")

    def __init__(self, endpoint: FrameEndpoint, ports: Sequence[GpuPort]) -> None:
        self.endpoint = endpoint
        self.ports = ports
        self.choice = PortChoice(ports) if len(ports) > 1 else None
        lines = [line for port in ports for line in port.lines]
        #: the line, where there is one alone
        self.line = lines[0] if len(lines) == 1 else None
        self._paused: set[Line] = set()

    @property
    def room(self) -> int:
        """Return how many frames of data the lines behind take now: none while they are busy."""
        line = self.line
        if line is not None:
            return 0 if line.busy or line.queued or line.low_stopped else 1
        every = [line for port in self.ports for line in port.lines]
        lines = [line for line in every if not line.cut] or every
        if all(line.busy or line.low_stopped for line in lines):
            return 0
        lines = [line for line in lines if line not in self._paused]
        return int(not lines or sum(line.queued for line in lines) < _WAITING_PER_PORT * len(lines))

    def look(self) -> None:
        """See which of several ports are paused, or still have what waited for them then.

        Such frames keep nobody from the other ports.
        """
        for port in self.ports:
            for line in port.lines:
                if line.low_stopped:
                    self._paused.add(line)
                elif not line.queued:
                    self._paused.discard(line)

    @property
    def stopped(self) -> bool:
        """Return whether a line is idle and only data may not leave, so that control may."""
        line = self.line
        if line is not None and not line.low_stopped:
            return False
        return any(
            line.low_stopped and not line.busy and not line.queues[LOW - 1] and not line.cut
            for port in self.ports
            for line in port.lines
        )


class GpuEndpoint:
    """The GPU of ``spec`` with its open ``ports``; ``number`` is that of its events' source."""

    def __init__(
        self,
        spec: EndpointSpec,
        ports: Sequence[GpuPort],
        around: WorkerSurroundings,
        number: int,
        *,
        memory: GpuMemory,
        scale_up_memories: Mapping[int, GpuMemory],
        send_copy: Callable[[int, int, int, CopyNotice], None],
    ) -> None:
        self.spec = spec
        self.ports = ports
        self._around = around
        self._events = around.events
        self._source = Source(number)
        self._memory = memory
        self.copies: ScaleUpCopies | None = None
        #: takes a peer's copy, whose first octet is here now
        self.take_copy: Callable[[CopyNotice], None] = _no_scale_up
        if spec.scale_up is not None:
            self.copies = ScaleUpCopies(
                spec.rank,
                spec.scale_up,
                self._events,
                self._source,
                send=send_copy,
                hear=self._hear,
            )
            self.take_copy = self.copies.arrive
        self._past: dict[str, int] = {}  # counters of the transports before this one
        self._past_of_feps: dict[str, dict[str, int]] = {}
        self._transport = self._new_transport(dict(spec.transport_config), spec.seed)
        self.executor = Executor(
            spec.rank,
            spec.node,
            self._transport,
            memory,
            spec.peers,
            nvlink=self.copies,
            scale_up_memories=scale_up_memories,
            header_bits=spec.header_bits,
            nic=spec.nic,
        )
        self._armed = NEVER
        #: the transport's next deadline (ns) as of the last poll
        self._transport_due = NEVER
        self._posted = 0
        self._retired = False
        self._dead = self._returning = False
        self._woken_at, self._wakes = -1, 0
        self._settling = False
        self.result: RankResult | None = None
        for port in ports:
            for line in port.lines:
                line.idle = self.line_idle

    def _new_transport(self, config: dict[str, object], seed: int) -> Transport:
        transport = make_transport(self.spec.transport, config, seed)
        if isinstance(transport, FabricInterface):
            self._lanes = [
                _Lane(plane, (port,))
                for plane, port in zip(transport.planes, self.ports, strict=True)
            ]
        else:
            self._lanes = [_Lane(transport, self.ports)]
        #: a lane has several lines, and looks at them whenever something happens
        self._watches_ports = any(lane.line is None for lane in self._lanes)
        transport.register(self._memory.view(), key=MEMORY_KEY)
        for lane in self._lanes:
            for port in lane.ports:
                port.receive = lane.endpoint.receive
        self._notify_ports(transport)
        return transport

    def _notify_ports(self, transport: Transport) -> None:
        if len(self.ports) > 1:
            up = [number for number, port in enumerate(self.ports) if port.carrier]
            transport.use_ports(up or list(range(len(self.ports))))

    def renew(self, life: int, lives_before: int) -> int:
        """Begin life number ``life`` of a row: a transport that has learned nothing.

        Returns how many PDCs or queue pairs the former one had open.
        Counters go on.  ``lives_before`` are those of earlier rows.  A dead GPU that is replaced
        has its new process from now on.
        """
        if self._returning:
            self._dead = self._returning = False
        former = self._transport.counters()
        add(self._past, of_the_past(former))
        for layer, counters in per_fep(self._transport).items():
            add(self._past_of_feps.setdefault(layer, {}), of_the_past(counters))
        seed = self.spec.seed
        if life:
            seed = random.Random(f"{seed} life {life}").getrandbits(63)
        config = {**self.spec.transport_config, "life": life, "lives_before": lives_before}
        self._transport = self._new_transport(config, seed)
        self.executor.use(self._transport)
        return open_now(former)

    def carrier_changed(self) -> None:
        """Look which ports have carrier now."""
        for lane in self._lanes:
            if lane.choice is not None:
                lane.choice.look()
        self._notify_ports(self._transport)
        self.settle()

    # Running

    def load(self, schedule: Schedule, layouts: Mapping[int, Mapping[str, int]]) -> None:
        """Take ``schedule``; ``layouts`` are the buffers of every rank that it writes to."""
        self.executor.load(self._program(schedule, layouts))

    def _program(
        self, schedule: Schedule, layouts: Mapping[int, Mapping[str, int]]
    ) -> ScheduleProgram:
        spec = self.spec
        return ScheduleProgram(
            schedule,
            {rank: Layout(buffers) for rank, buffers in layouts.items()},
            fabric=spec.peers,
            scale_up=spec.scale_up_peers if self.copies is not None else (),
        )

    def add(self, schedule: Schedule, layouts: Mapping[int, Mapping[str, int]]) -> None:
        """Add the operations of ``schedule`` to the open execution, from now on."""
        self.executor.add(self._program(schedule, layouts), self._events.now // PS)
        self.settle()

    def finish(self) -> None:
        """Let an open execution end once all of its operations have."""
        self.executor.finish(self._events.now // PS)
        self.settle()

    def start(self, execution: int, is_open: bool = False) -> None:
        """Begin execution number ``execution`` now; more may be added to one that ``is_open``."""
        self.result = None
        self.executor.start(execution, self._events.now // PS, NEVER, is_open)
        if self._dead:
            self._end_execution()
        self.settle()

    def end(self) -> None:
        """End the GPU's process, now and without notice to anybody."""
        self._dead, self._returning = True, False
        self._armed = NEVER
        self._end_execution()

    def replace(self) -> None:
        """Have a new process with the next :meth:`renew`."""
        self._returning = self._dead

    def lose_copies(self, peers: Sequence[int]) -> None:
        """Lose what has not left ``peers``, which have died, whole."""
        if self.copies is not None:
            last = self.copies.lose(peers, self._events.now // PS)
            self.copies.copies_lost += lose_after(self.executor.arrivals, peers, last)

    def _end_execution(self) -> None:
        """End the execution of a dead GPU, unless it had nothing left to do."""
        executor = self.executor
        if not executor.running:
            return
        if not executor.finished:
            executor.feed((), self._events.now // PS)
            executor.fail("dead", f"the GPU has died; {executor.unfinished()}")
        self.result = executor.take_result()
        self._around.finished(self.result)

    def deliver(self, port: GpuPort, frame: memoryview) -> None:
        """Take a frame that has crossed the interface; its octets are there until this returns."""
        counts = port.counts
        counts.frames_in += 1
        counts.octets_in += len(frame)
        if self._dead or port.receive is None:
            counts.gpu_dead += 1
            return
        port.receive((frame,), self._events.now // PS)
        self.settle()

    def line_idle(self) -> None:
        """Give a line that has become idle its next frame."""
        self.settle()

    def _hear(self, notice: CopyNotice) -> None:
        if self._retired or self._dead:
            return
        self.executor.notice((notice,))
        self._settle_operations()

    def _wake(self, when: int) -> None:
        if when != self._armed or self._retired or self._dead:
            return
        self._armed = NEVER
        if when != self._woken_at:
            self._woken_at, self._wakes = when, 0
        self._wakes += 1
        if self._wakes > _MOST_WAKES:
            raise RuntimeError(
                f"{self.spec.node} has something to do at {when / PS:.3f} ns again and again"
            )
        self._settle_operations()

    def retire(self) -> None:
        """Do nothing any more, whatever event is still to come."""
        self._retired = True

    def _settle_operations(self) -> None:
        """Do what operations can do now; poll the transport only if it has something to do.

        Nothing has come over the fabric, and no line has become idle.
        """
        now = self._events.now // PS
        if self._transport_due <= now or self._watches_ports:
            self.settle()
            return
        executor = self.executor
        work = executor.next_deadline()
        if work is not None and work <= now:
            self._settling = True
            self._advance(now)
            self._settling = False
            if executor.posts != self._posted:
                self.settle()
                return
            work = executor.next_deadline()
        deadline = self._transport_due
        if work is not None and work < deadline:
            deadline = work
        self._arm(deadline)

    def _arm(self, deadline: int) -> None:
        """See to it that ``deadline`` (ns) wakes this GPU."""
        if deadline < _LATEST:
            events = self._events
            due: i64 = deadline
            when: int = due * PS
            if when < events.now:
                when = events.now
            if when < self._armed:
                self._armed = when
                events.at(when, self._source.next(), self._wake, when)

    def settle(self) -> None:  # noqa: C901  the way of a packet, without calls
        """Do all that can be done now, and see to it that the next deadline wakes this GPU."""
        if self._settling or self._retired or self._dead:
            return  # settling: a frame that is sent makes its line request another
        self._settling = True
        now = self._events.now // PS
        transport, executor = self._transport, self.executor
        completions = transport.completions()
        if completions:
            executor.feed(completions, now)
        work = executor.next_deadline()
        asked = False  # something that can end requests
        if work is not None and (completions or work <= now):
            self._advance(now)
            asked, work = True, executor.next_deadline()
        deadline = NEVER
        for lane in self._lanes:
            line = lane.line
            if line is None:
                lane.look()
            elif line.busy and not line.low_stopped:
                continue  # it polls when it is idle
            asked = True
            endpoint = lane.endpoint
            stopped = False
            while lane.room:
                frames = endpoint.transmit(now, 1)
                if not frames:
                    break
                self._send(lane, frames)
                if line is not None and line.busy:
                    break
            else:
                if lane.stopped and (frames := endpoint.transmit(now, 0)):
                    self._send(lane, frames)
                if not lane.stopped:
                    continue  # the line polls when it is idle
                stopped = True
            if line is not None and line.busy and not line.low_stopped:
                continue
            due = endpoint.next_deadline()
            if stopped and due is not None and due <= now:
                due = now + _STOPPED_LOOK_NS  # what waits is data
            if due is not None and due < deadline:
                deadline = due
        expired = transport.completions() if asked else ()
        if expired:
            executor.feed(expired, now)
            if executor.running:
                self._advance(now)
            work = executor.next_deadline()
        self._settling = False
        if expired:
            deadline = now  # posted anew: once more at this instant
        self._transport_due = deadline
        self._posted = executor.posts
        if work is not None and work < deadline:
            deadline = work
        self._arm(deadline)

    def _advance(self, now: int) -> None:
        executor = self.executor
        while executor.advance(now):
            pass
        names = executor.barriers_reached()
        if names:
            self._around.at_barrier(self.spec.rank, names)
        if executor.finished:
            self.result = executor.take_result()
            self._around.finished(self.result)

    def _send(self, lane: _Lane, frames: Sequence[tuple[bytes, memoryview | bytes]]) -> None:
        outlets = self._around.outlets
        for frame in frames:
            if lane.choice is None:
                port = lane.ports[0]
            else:
                port, frame = lane.choice.of(frame)
            octets = len(frame[0]) + len(frame[1])
            if not port.carrier:
                port.counts.link_down += 1
                port.lose(octets + FRAMING_OCTETS)
                continue
            port.counts.frames_out += 1
            port.counts.octets_out += octets
            out = port.interface.send(frame)
            if out:
                outlets.enqueue(out)
            else:
                port.lose(octets + FRAMING_OCTETS)

    # The end

    def close(self) -> None:
        """Have the transport finish what was posted and close."""
        self._transport.close()
        self.settle()

    @property
    def closed(self) -> bool:
        """Return whether nothing of the transport is open."""
        return self._dead or self._transport.closed

    def fail(self, error: str, detail: str) -> None:
        """End the execution with ``error``."""
        if self.executor.running:
            self.executor.fail(error, detail)
            self.result = self.executor.take_result()

    def counters(self) -> dict[str, Mapping[str, int]]:
        """The counters of all layers by name."""
        transport = dict(self._past)
        add(transport, self._transport.counters())
        each = [port.counters() for port in self.ports]
        nic = {name: sum(counters[name] for counters in each) for name in each[0]}
        if len(each) > 1:
            for number, counters in enumerate(each):
                for name in ("frames_in", "frames_out"):
                    nic[f"port{number}_{name}"] = counters[name]
        layers: dict[str, Mapping[str, int]] = {
            "transport": transport,
            "nic": nic,
            "executor": {"stale_arrivals": self.executor.stale_arrivals},
        }
        if self.executor.octets_staged:
            layers["host_memory"] = {"octets_staged": self.executor.octets_staged}
        for layer, counted in per_fep(self._transport).items():
            total = dict(self._past_of_feps.get(layer, {}))
            add(total, counted)
            layers[layer] = total
        if self.copies is not None:
            layers["scale_up"] = self.copies.counters()
        return layers
