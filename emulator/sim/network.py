"""All lines, switches and ports of a lab's fabric, joined to each other under one event queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from emulator.dataplane.account import Account
from emulator.dataplane.dataplane import Dataplane, Enter, Frames, Host
from emulator.dataplane.kernel.port_counters import PortCounters
from emulator.dataplane.kernel.shaping import DATA_SHARE, DSFIELDS_CONTROL
from emulator.dataplane.model.fabric import ModelEntrance
from emulator.dataplane.model.port_counts import PortDepths
from emulator.dataplane.model.program import ModelProgram
from emulator.dataplane.switch.fabric_asic import FabricAsic
from emulator.dataplane.switch.switch_fitting import has_tunnels
from emulator.dataplane.switch.virtual_state import (
    DEPTH,
    OVERTAKES,
    PORT_WORDS,
    SharedPool,
)
from emulator.sim.departure_marks import DepartureMarks
from emulator.sim.endpoint.endpoint_spec import EndpointSpec, PortSpec
from emulator.sim.event_queue import PS, Doer, EventHeap, EventQueue
from emulator.sim.gpu_port import GpuPort
from emulator.sim.line import (
    HIGH,
    LOW,
    MAC_CONTROL,
    MEDIUM,
    QUEUES,
    Departures,
    DeparturesTold,
    Line,
    Waiting,
)
from emulator.sim.line_record import LineRecord
from emulator.sim.line_state import LineState, LineStates, joined
from emulator.sim.link_layer.link_layer import LinkLayer, link_settings
from emulator.sim.outlets import Outlets
from emulator.sim.pfc import PriorityFlowControl, pause_settings
from emulator.sim.port_settings import LineChange, PortSettings, Settings
from topologies.model import CableEnd, Link, Topology

_CODE_POINTS = 64
_ETHERNET = 14

#: By DSCP, where no switch program decides: control before data.
PLAIN_QUEUES = bytes(
    HIGH if code_point << 2 in DSFIELDS_CONTROL else LOW for code_point in range(_CODE_POINTS)
)


@dataclass(frozen=True)
class Ends:
    """Number of each end of a cable, from 1 on, in the order of the topology's links."""

    numbers: Mapping[CableEnd, int]

    @classmethod
    def of(cls, topology: Topology) -> Ends:
        """The numbers of ``topology``."""
        ends = [end for link in topology.links for end in link.ends]
        return cls({end: number for number, end in enumerate(ends, start=1)})

    @property
    def first_free(self) -> int:
        """The first number that no end has."""
        return len(self.numbers) + 1

    @property
    def first_of_pauses(self) -> int:
        """The first number that neither an end nor a GPU has; there is a GPU at an end at most."""
        return 2 * len(self.numbers) + 1

    @property
    def first_of_links(self) -> int:
        """The first number behind those; there is one for pauses at each end at most."""
        return 3 * len(self.numbers) + 1


class _Inlet(Doer):
    """Takes frames through a switch, in no time, from the port whose index is ``index``."""

    __slots__ = ("_enter", "_events", "_index", "_outlets")

    def __init__(self, enter: Enter, events: EventQueue, outlets: Outlets, index: int) -> None:
        self._enter, self._events = enter, events
        self._outlets, self._index = outlets, index

    def do(self, argument: Any) -> None:
        out = self._enter(argument, self._events.now // PS)
        if out:
            self._outlets.enqueue(out, self._index)


class _ModelInlet(Doer):
    """The same at a modelled switch."""

    __slots__ = ("_entrance", "_events", "_index", "_outlets")

    def __init__(
        self, entrance: ModelEntrance, events: EventQueue, outlets: Outlets, index: int
    ) -> None:
        self._entrance, self._events = entrance, events
        self._outlets, self._index = outlets, index

    def do(self, argument: Any) -> None:
        out = self._entrance.enter(argument, self._events.now // PS)
        if out:
            self._outlets.enqueue(out, self._index)


class _Depths(Departures):
    """Takes what has left a switch's port off the depth of its queue, from ``at`` on."""

    __slots__ = ("_at", "_depths")

    def __init__(self, depths: memoryview, at: int) -> None:
        self._depths, self._at = depths, at - HIGH

    def left(self, queue: int, octets: int, origin: int) -> None:
        self._depths[self._at + queue] -= octets


class _ModelDepths(Departures):
    """The same at a modelled switch."""

    __slots__ = ("_depths",)

    def __init__(self, depths: PortDepths) -> None:
        self._depths = depths

    def left(self, queue: int, octets: int, origin: int) -> None:
        self._depths.take_off(queue - HIGH, octets)


class _PooledDepths(Departures):
    """The same at a switch whose ports share ``pool``."""

    __slots__ = ("_at", "_depths", "_pool")

    def __init__(self, depths: memoryview, at: int, pool: SharedPool) -> None:
        self._depths, self._at, self._pool = depths, at - HIGH, pool

    def left(self, queue: int, octets: int, origin: int) -> None:
        at = self._at + queue
        self._pool.leave_queue(self._depths[at], octets)
        self._depths[at] -= octets


#: The queues of all lines that other workers serve; what would wait there cannot be taken out.
_NONE_WAIT: tuple[deque[Waiting], ...] = (deque(maxlen=0),) * QUEUES


class Network:
    """The fabric of ``lab``, a lab of the virtual clock, without its GPUs' transports.

    ``worker`` owns some of its nodes.  Frames go into and come out of those alone. Frames for nodes
    of other workers gather in ``outbox``.  Lines that come from others are there for the count, and
    lines between others are not there.  ``record`` gets what NICs send, and how long pauses stop
    ports.
    """

    def __init__(
        self, lab: Dataplane, events: EventQueue, worker: int = 0, record: LineRecord | None = None
    ) -> None:
        self.lab, self.events, self.topology = lab, events, lab.topology
        self.worker = worker
        self._record = record
        self._wires = wires = lab.wires
        self.ends = Ends.of(lab.topology)
        self.lines: dict[CableEnd, Line] = {}
        #: arrivals at the nodes of other workers
        self.outbox = EventHeap()
        #: bring what arrives at the ports of switches into them
        self.inlets: dict[CableEnd, Callable[[bytes], None]] = {}
        #: from the first time on that the switches pause
        self.pauses: PriorityFlowControl | None = None
        #: from the first time on that cables have a link layer
        self.links: LinkLayer | None = None
        self._takers: set[CableEnd] = set()
        #: ports whose cable is pulled, by node
        self.without_carrier: dict[str, set[CableEnd]] = {
            node.name: set() for node in lab.topology.nodes
        }
        self._of_carrier: dict[str, Callable[[], None]] = {}
        for link in self.topology.links:
            if any(self.owns(end.node) for end in link.ends):
                for end in link.ends:
                    self.lines[end] = self._line(link, end)
        self._every_line = deque(self.lines.values())
        by_index = {wires.index(end): line for end, line in self.lines.items()}
        self.outlets = Outlets(by_index, tunnels=has_tunnels(self.topology))
        self.frames: Frames = lab.frames(worker)
        events.at_rest = self._rest
        try:
            self._join()
        except BaseException:
            self.close()
            raise

    def _rest(self) -> None:
        """Let other processes, and whoever samples, see what was counted."""
        self.frames.rest()
        if self._record is not None:
            self._record.write()

    def _line(self, link: Link, end: CableEnd) -> Line:
        """Return the line that leads from ``end`` of ``link``."""
        number = self.ends.numbers[end]
        rate_bps, delay_ns = link.rate_bps, link.delay_ns
        line = Line(
            self.events, number, end, rate_bps=rate_bps, delay_ns=delay_ns, seed=self.lab.seed
        )
        if not self.owns(end.node):
            line.queues = _NONE_WAIT  # frames come out of it, and never go in
        elif not self.owns(self.topology.far_end(end).node):
            line.arrivals = self.outbox
        if self._record is not None and not self.topology.node(end.node).is_switch:
            line.leaves = self._record.sent(line)
        return line

    @property
    def account(self) -> Account:
        """The account of every frame that went into this worker's nodes."""
        return self.frames.account

    def _join(self) -> None:
        for link in self.topology.links:
            for end in link.ends:
                node = self.topology.node(end.node)
                if (node.is_switch or node.forwards) and self.owns(end.node):
                    self.inlets[end] = inlet = self._inlet(end)
                    self.arrives(end, inlet)
        self.reconfigure()

    def owns(self, node: str) -> bool:
        """Return whether ``node`` is this worker's."""
        return self._wires.worker_of[node] == self.worker

    def arrives(self, end: CableEnd, take: Callable[[bytes], None]) -> None:
        """Have ``take`` take what comes over the cable to ``end``, but for MAC control."""
        self._takers.add(end)
        if self.pauses is not None:
            take = self.pauses.guarded(end, take)
        if self.links is not None:
            take = self.links.guarded(end, take)
        self.lines[self.topology.far_end(end)].far = take

    def _inlet(self, end: CableEnd) -> Callable[[bytes], None]:
        """Return the function that takes a frame through the switch of ``end``, in no time."""
        asic = self.lab.asic
        enter = self.frames.entrance(end, self.without_carrier[end.node])
        index = 0
        if asic is not None and str(end) in asic.ports:
            index = asic.ports[str(end)].index
        if isinstance(enter, ModelEntrance):
            return _ModelInlet(enter, self.events, self.outlets, index)
        return _Inlet(enter, self.events, self.outlets, index)

    def settings(self) -> Settings:
        """Return the present settings of the switches, as far as this process has them."""
        asic = self.lab.asic
        ports = {end: self._settings(end) for end in self.ends.numbers}
        if asic is None:
            return Settings(ports, None)
        pausing = self.pauses is not None or asic.fitted.pauses
        linked = self.links is not None or asic.fitted.links
        pauses = pause_settings(asic) if pausing else None
        return Settings(ports, pauses, link_settings(asic) if linked else None)

    def _settings(self, end: CableEnd) -> PortSettings:
        asic = self.lab.asic
        if asic is None or str(end) not in asic.ports:
            limit = None
            if asic is None and self.topology.node(end.node).is_switch:
                limit = self.topology.link_at(end).buffer_bytes
            return PortSettings(PLAIN_QUEUES, DATA_SHARE, limit)
        queues = asic.queue_of_code_point(str(end))
        share = asic.fitted.profile(asic.ports[str(end)].cable).data_share
        return PortSettings(
            bytes(HIGH + queue for queue in queues),
            share,
            pipeline_ns=asic.choice.latency_ns,
            marks=asic.marks_of_departures(str(end)),
        )

    def _mark(self, asic: FabricAsic, end: CableEnd, marks: bytes | None) -> None:
        """Let the line from ``end`` mark what leaves by the settings ``marks``; None: nothing."""
        index = asic.ports[str(end)].index
        self.lines[end].marks = (
            None if marks is None else DepartureMarks(asic.state.ports, index, marks).leaving
        )

    def _configure(self, end: CableEnd, settings: PortSettings, *, pausing: bool) -> None:
        """Let the line from ``end`` work by ``settings``; ``pausing``: its port obeys pauses."""
        if not self.owns(end.node):
            return
        line, index = self.lines[end], self._wires.index(end)
        self.outlets.classify(index, settings.queues)
        line.low_share, line.limit = settings.low_share, settings.limit
        asic = self.lab.asic
        if asic is None or str(end) not in asic.ports:
            return
        self._mark(asic, end, settings.marks)
        self.lines[self.topology.far_end(end)].lead_into_pipeline(settings.pipeline_ns)
        port, alone = asic.ports[str(end)], False
        program, pool = asic.program, asic.state.pool(port.switch)
        depths = program.depths(port.index) if isinstance(program, ModelProgram) else None
        at = port.index * PORT_WORDS + DEPTH
        if self.pauses is not None and pausing:
            line.leaves = DeparturesTold(self.pauses.leaves(end))
        elif self.links is not None and self.links.credited(end):
            line.leaves = DeparturesTold(self.links.leaves(end))
        elif pool is not None:
            line.leaves = _PooledDepths(asic.state.ports, at, pool)
        elif depths is None or settings.marks is not None:
            line.leaves = _Depths(asic.state.ports, at)
        else:
            line.leaves, alone = _ModelDepths(depths), True
        if depths is not None:
            depths.keep(alone)

    def reconfigure(self, seed: int | None = None, settings: Settings | None = None) -> None:
        """Take the switches' new settings; draws follow from ``seed``, if given.

        ``settings`` are those of ports that this process lacks.
        """
        if settings is None:
            settings = self.settings()
        if seed is not None:
            for line in self.lines.values():
                line.reseed(seed)
            if self.pauses is not None:
                self.pauses.begin_row(seed)
        if (asic := self.lab.asic) is not None:
            if self.pauses is None and settings.pauses is not None:
                self.pauses = self._begin_pauses(asic, self.lab.seed if seed is None else seed)
            self._relink(asic, seed, settings)
        pauses = settings.pauses or {}
        for end, one in settings.ports.items():
            pausing = end in pauses and pauses[end].rules is not None
            self._configure(end, one, pausing=pausing)
        if self.pauses is not None:
            self.pauses.configure(pauses)

    def _relink(self, asic: FabricAsic, seed: int | None, settings: Settings) -> None:
        """Give cables the link layer of ``settings``."""
        if settings.links is None:
            return
        if self.links is None:
            self.links = LinkLayer(
                asic, self.topology, self.lines, self.events, self.ends.first_of_links, self.owns
            )
            self.links.guard(self._takers)
            seed = self.lab.seed if seed is None else seed
        self.links.configure(settings.links)
        if seed is not None:
            self.links.begin_row(seed)

    def _begin_pauses(self, asic: FabricAsic, seed: int) -> PriorityFlowControl:
        pauses = PriorityFlowControl(
            asic,
            self.topology,
            {end: line for end, line in self.lines.items() if self.owns(end.node)},
            self.events,
            self.ends.first_of_pauses,
            self._record,
        )
        pauses.begin_row(seed)
        for end in sorted(self._takers):
            line = self.lines[self.topology.far_end(end)]
            line.far = pauses.guarded(end, line.far)  # whatever else looks on already
        return pauses

    def pull(self, ends: Sequence[CableEnd]) -> dict[CableEnd, tuple[int, int]]:
        """Take the carrier from the lines from ``ends``; what waits there and flies is lost.

        Returns frames and octets (on the wire) that waited, by port, of those that had carrier and
        are on this worker's cables.
        """
        lost: dict[CableEnd, tuple[int, int]] = {}
        for end in ends:
            line = self.lines.get(end)
            if line is not None and not line.cut:
                frames = line.queued
                lost[end] = frames, line.pull()
                self.without_carrier[end.node].add(end)
        if self.links is not None:
            self.links.reset(lost)
        return lost

    def plug(self, ends: Sequence[CableEnd], nodes: Collection[str]) -> None:
        """Give the lines from ``ends`` carrier; GPUs among ``nodes`` look which ports have it."""
        for end in ends:
            line = self.lines.get(end)
            if line is not None and line.cut:
                line.plug()
                self.without_carrier[end.node].discard(end)
        self.carrier_changed(nodes)

    def follow(self, changes: Sequence[LineChange]) -> None:
        """Serve at other rates, and with other orders of the switch program, from now on."""
        asic = self.lab.asic
        for change in changes:
            line = self.lines.get(change.end)
            if line is None:
                continue
            if change.rate_bps != line.rate_bps:
                line.change_rate(change.rate_bps)
            if asic is not None and str(change.end) in asic.ports:
                at = asic.ports[str(change.end)].index * PORT_WORDS + OVERTAKES
                self.put_ahead(change.end, (asic.state.ports, at) if change.overtaking else None)
                if self.owns(change.end.node):
                    self._mark(asic, change.end, change.marks)
            if self.pauses is not None and change.pauses is not None:
                self.pauses.apply_fault(change.end, change.pauses)
            if self.links is not None and change.link is not None:
                self.links.apply_fault(change.end, change.link)

    def begin_row(self) -> None:
        """Let nothing that comes on lines depend on what was; no frame is under way."""
        for line in self.lines.values():
            line.begin_row()
        if self.pauses is not None:
            self.pauses.begin_row()
        if self.links is not None:
            self.links.begin_row()

    def put_ahead(self, end: CableEnd, word: tuple[memoryview, int] | None) -> None:
        """Let frames that ``word`` counts overtake others at ``end``, or none if that is None."""
        self.outlets.put_ahead(self._wires.index(end), word)

    def on_carrier(self, node: str, changed: Callable[[], None]) -> None:
        """Have ``changed`` called after the carrier of a port of ``node`` has changed."""
        self._of_carrier[node] = changed

    def carrier_changed(self, nodes: Collection[str]) -> None:
        """Notify those of ``nodes`` that registered, in the order of the topology."""
        for node, changed in self._of_carrier.items():
            if node in nodes:
                changed()

    def open_gpus(self, specs: Sequence[EndpointSpec]) -> list[list[GpuPort]]:
        """Open the ports of the GPUs of ``specs``, joined to their lines."""
        hosts = [
            Host(
                node=spec.node,
                interfaces=[port.interface for port in spec.ports],
                frames=spec.frames,
                frame_octets=spec.frame_octets or spec.mtu + _ETHERNET,
            )
            for spec in specs
        ]
        return [
            [
                GpuPort(port, interface, self._lines_behind(spec.node, port))
                for port, interface in zip(spec.ports, interfaces, strict=True)
            ]
            for spec, interfaces in zip(specs, self.frames.open_hosts(hosts), strict=True)
        ]

    def _lines_behind(self, node: str, port: PortSpec) -> list[Line]:
        """Return the line that leads from ``port`` of ``node``, or those of a bond."""
        ports = self.topology.node(node).ports
        return [
            self.lines[CableEnd(node, one.name)] for one in ports if one.interface == port.interface
        ]

    def deliver_to(self, port: GpuPort, deliver: Callable[[GpuPort, memoryview], None]) -> None:
        """Have frames that arrive at ``port`` cross its interface to ``deliver``."""
        for line in port.lines:
            self.arrives(line.end, port.interface.receiver(line.end, partial(deliver, port)))

    def index(self, end: CableEnd) -> int:
        """The inner interface of ``end``, as the ring names it."""
        return self._wires.index(end)

    def states(self) -> dict[CableEnd, LineState]:
        """Return the states of the lines that this worker counts at, as far as it has."""
        return {end: LineState.of(line) for end, line in self.lines.items()}

    def moving(self) -> bool:
        """Return whether :meth:`under_way` has any: looked for first where one was last."""
        lines = self._every_line
        for _ in range(len(lines)):
            if self._under_way(lines[0]):
                return True
            lines.rotate(-1)
        return False

    def under_way(self) -> int:
        """Frames that wait at this worker's ports, are on cables to them, or in pipelines."""
        return sum(self._under_way(line) for line in self._every_line)

    def _under_way(self, line: Line) -> int:
        owed = self.links is not None and self.links.under_way(line.end)
        waiting = line.queued + owed if self.owns(line.end.node) else 0
        return waiting + (line.flying if self.owns(self.topology.far_end(line.end).node) else 0)

    def forget_gpus(self) -> None:
        """Close the ports of all GPUs; others can be opened."""
        self._of_carrier.clear()
        self.frames.close_hosts()

    def close(self) -> None:
        """Give up the way into nodes."""
        self._of_carrier.clear()
        self.frames.close()


def port_counters(
    lab: Dataplane, kernel: Mapping[str, PortCounters], states: LineStates
) -> dict[str, PortCounters]:
    """Counters of every port by ``node:port``: the ``kernel``'s, and those of the lines' queues.

    A frame counts as sent from when its transmission begins.  PAUSE frames, which end at the
    next port, are the lines' alone.
    """
    found = {}
    for name, port in kernel.items():
        node, _, of_node = name.partition(":")
        end = CableEnd(node, of_node)
        line, far = states[end], states[lab.topology.far_end(end)]
        pauses, heard = (one.counts.by_queue[MAC_CONTROL] for one in (line, far))
        data = line.queue(LOW, drops=line.counts.no_room)
        control = joined(line.queue(HIGH), line.queue(MEDIUM))
        waits = data.backlog_packets + control.backlog_packets + line.counts.in_queue
        octets = data.backlog_bytes + control.backlog_bytes + line.counts.in_queue_octets
        if lab.routing is not None:
            # Its packets pass in the kernel, by the host's clock: those of the lines are ours.
            found[name] = replace(
                port,
                rx_packets=far.counts.arrived,
                rx_bytes=far.counts.arrived_octets,
                tx_packets=line.counts.frames,
                tx_bytes=line.counts.octets,
                control=control,
                data=data,
            )
            continue
        found[name] = replace(
            port,
            rx_packets=port.rx_packets + heard[0],
            rx_bytes=port.rx_bytes + heard[1],
            tx_packets=port.tx_packets - waits + pauses[0],
            tx_bytes=port.tx_bytes - octets + pauses[1],
            control=control,
            data=data,
        )
    return found
