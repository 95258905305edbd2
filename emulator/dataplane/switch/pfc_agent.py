"""The agent that sends and obeys a lab's pauses: ``python -m`` this module with ``LAB``.

::

    switch program --ring--> agent --raw socket--> PAUSE frame on the cable
         ^                     |
         | accounts, takes     +--netlink--> token bucket around the data queue
         | PAUSE frames off    |
         | the cable           +--> counters (a pinned map)

Why a process: what stops a queue of the kernel that holds frames already is a change by netlink,
which no eBPF program can make. Besides, the time in a frame has to run out with nobody sending.
Frames and thresholds are the program's (``pfc.h``), so nothing per packet happens here.

Is that fast enough?  A pause is due one reaction of the fabric after its request, some us
(``reaction_ns`` of :mod:`emulator.dataplane.switch.cable_fitting`); at a dilation of 24000 these
are tens of ms of the machine.  The gate then closed 0.3 to 0.5 ms late, 10 to 20 ns of fabric time,
where the headroom leaves 84 ns and more (``allowance_ns`` there): of that 20 us are the change by
netlink (64 us the first time), the rest waking up.  Other labs that are built or taken down at the
same time do delay it. All changes of all namespaces share one lock of the kernel: 15 to 80 ms were
seen.  The counters (``late_ns``) and the run's verdict state how late a pause was. So a dilation
that is too small, or a shared machine, is seen.

It listens on a socket in the lab's state directory
(:mod:`emulator.dataplane.switch.pauses`).
"""

from __future__ import annotations

import errno
import gc
import mmap
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

from emulator.dataplane import lab_record
from emulator.dataplane.clock import Clock, Dilation
from emulator.dataplane.kernel import namespaces
from emulator.dataplane.kernel.netlink import KernelRefusal, RouteSocket
from emulator.dataplane.kernel.programs.bpf_syscall import Map
from emulator.dataplane.kernel.shaping import KICK_CLASS, PAST_THE_QUEUES, Egress, gate_request
from emulator.dataplane.switch import cable_counters, pauses
from emulator.dataplane.switch import switch_fitting as fitting
from emulator.dataplane.switch.bpf.layout import PAUSE_EVENT, PAUSE_STATE, PORT_KEY
from emulator.dataplane.switch.bpf.switch_program import SwitchProgram, pins_of
from emulator.dataplane.switch.pause import Gate, Pauser, PauseRules, frame, quanta
from emulator.dataplane.switch.pauses import UNBOUNDED, change_rules, forget
from emulator.errors import UserError
from topologies.interface_indices import interface_indices
from topologies.model import CableEnd, Topology

SO_MARK, SO_PRIORITY = 36, 12
#: What the switch program recognises the emulator's own frames by (asic.bpf.c).
MARK_OWN, MARK_KICK = 0x75655403, 0x75655404
IEEE_LOCAL_EXPERIMENT = 0x88B5
#: How a port that has been knocked at reports that it took nothing in, or that it is down.
_REFUSALS = frozenset({errno.ENOBUFS, errno.ENETDOWN, errno.ENXIO, errno.EAGAIN})
#: It never leaves its port, but has to be long enough for one.
KICK = bytes(12) + IEEE_LOCAL_EXPERIMENT.to_bytes(2, "big") + bytes(46)


class PausePort:
    """Port ``name`` of interface ``index``.  Make it in the namespace of its node.

    ``egress`` is what its queues were configured with; ``kernel`` a socket in that namespace.
    """

    def __init__(
        self,
        name: str,
        index: int,
        mac: str,
        *,
        rules: PauseRules,
        egress: Egress,
        kernel: RouteSocket,
        program: SwitchProgram,
    ) -> None:
        self.name, self.index, self.rules = name, index, rules
        self.node = name.partition(":")[0]
        (self.counters,) = cable_counters.read(program, [index])
        self.pauser = Pauser(rules.rate_bps, self.counters)
        self.gate = Gate(rules, self.counters)
        #: it requests pauses without a reason
        self.storming = False
        self._source = bytes.fromhex(mac.replace(":", ""))
        self._egress, self._kernel, self._program = egress, kernel, program
        self._shut = self._dropping = False
        interface = socket.if_indextoname(index)
        self._frames = _sender(interface, PAST_THE_QUEUES, MARK_OWN)
        self._kick = _sender(interface, KICK_CLASS, MARK_KICK)

    def next_deadline(self) -> int | None:
        """Return when :meth:`advance` has something to do (ns of fabric time)."""
        asked, gate = self.pauser.next_deadline(), self.gate.next_deadline()
        if asked is None or gate is None:
            return gate if asked is None else asked
        return min(asked, gate)

    def ask(self, now: int) -> None:
        """Have the other end wait, if it does not yet, or not for long."""
        self._send(self.pauser.ask(now))

    def let_go(self) -> None:
        """Have the other end go on."""
        self._send(self.pauser.let_go())

    def advance(self, now: int) -> bool:
        """Do what is due, and let the kernel's queue follow the gate.

        Whether a pause began.
        """
        asked = self.pauser.next_deadline()
        if asked is not None and asked <= now:
            self.ask(now)
        began = self.gate.advance(now)
        if self.gate.closed is not self._shut:
            self._set_gate(self.gate.closed)
        if self.rules.drops and self.gate.ignoring is not self._dropping:
            self._set_dropping(self.gate.ignoring)
        return began

    def record_lateness(self, late_ns: int) -> None:
        """Count that a pause was requested, or the queue stopped, so late."""
        self.counters.late_ns = max(self.counters.late_ns, late_ns)

    def publish(self, now: int) -> None:
        """Let everybody read what was counted up to now."""
        self.gate.settle(now)
        cable_counters.write(self._program, self.index, self.counters)

    def restart(self) -> None:
        """Begin a span of which the longest and the latest shall be known."""
        self.counters.longest_pause_ns = self.counters.late_ns = 0
        self.gate.restart()

    def open(self) -> None:
        """Let data go whatever the gate's state: no one watches the port any more."""
        if self._shut:
            self._set_gate(False)
        if self._dropping:
            self._set_dropping(False)

    def _send(self, quanta: int | None) -> None:
        if quanta is None:
            return
        try:
            self._frames.send(frame(self._source, {self.rules.priority: quanta}))
        except OSError:
            self.counters.unsent += 1  # the link is down, or its queue full: as if lost on it

    def _set_gate(self, closed: bool) -> None:
        request = gate_request(self._egress, closed=closed)
        kernel = self._kernel
        kernel.queue(request.kind, request.flags, request.body(self.index), f"{self.name}, pause")
        kernel.flush()
        until = UNBOUNDED if closed else time.monotonic_ns()
        change_rules(self._program, self.index, paused_until=until)
        self._shut = closed
        if not closed:
            try:
                self._kick.send(KICK)
            except OSError as error:
                # ENOBUFS is what it comes to: the class takes nothing, and has been looked at
                if error.errno not in _REFUSALS:
                    raise

    def _set_dropping(self, dropping: bool) -> None:
        change_rules(self._program, self.index, dropping=dropping)
        self._dropping = dropping


def _sender(interface: str, priority: int, mark: int) -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # it receives nothing
    made.setsockopt(socket.SOL_SOCKET, SO_PRIORITY, priority)
    made.setsockopt(socket.SOL_SOCKET, SO_MARK, mark)
    made.bind((interface, 0))
    made.setblocking(False)
    return made


_RECORD = struct.Struct("=II")  # length with its two flags, page offset
_BUSY, _DISCARDED = 1 << 31, 1 << 30


class EventKind(IntEnum):
    """The kinds of events that a port reports to the pause agent."""

    XOFF = 0  # its lossless buffer is above XOFF
    XON = 1  # it is down to XON again
    FRAME = 2  # a MAC control frame came in


@dataclass(frozen=True, slots=True)
class PauseEvent:
    """An event of a port.

    ``time`` is CLOCK_MONOTONIC in ns; the last two are of a frame: its destination, and what stands
    behind its EtherType.
    """

    time: int
    port: int
    kind: EventKind
    destination: bytes
    control: bytes


class PauseRing:
    """The ring of the pinned map ``events``; becomes readable when something is in it."""

    def __init__(self, events: Map) -> None:
        self._events = events
        size, page = events.entries, mmap.PAGESIZE
        self._size = size
        self._read = mmap.mmap(events.handle, page)
        self._position = memoryview(self._read).cast("Q")
        self._written = mmap.mmap(events.handle, page + 2 * size, prot=mmap.PROT_READ, offset=page)
        self._octets = memoryview(self._written)
        self._end = self._octets[:8].cast("Q")

    def fileno(self) -> int:
        return self._events.handle

    def take(self) -> Iterator[PauseEvent]:
        """Yield the events reported since the last call."""
        at = self._position[0]
        while at < self._end[0]:
            start = mmap.PAGESIZE + at % self._size
            length, _ = _RECORD.unpack_from(self._octets, start)
            if length & _BUSY:  # still being written, on the other processor
                return
            reported = not length & _DISCARDED
            length &= ~(_BUSY | _DISCARDED)
            if reported and length == PAUSE_EVENT.size:
                time, port, kind, _, destination, control = PAUSE_EVENT.unpack_from(
                    self._octets, start + _RECORD.size
                )
                yield PauseEvent(time, port, EventKind(kind), destination, control)
            at += (_RECORD.size + length + 7) & ~7
            self._position[0] = at


#: How long (s of the machine) a buffer has to stand still at least.
STILL_S = 3.0
#: Times that a switch needs to empty its buffers: other classes may take some of the link.
TIME_LIMIT = 2


def still_s(switches: Iterable[Iterable[PauseRules]], dilation: float) -> float:
    """Return how long a buffer may stand still on a fabric of these switches (s of the machine).

    Each of ``switches`` is given by the rules of its ports.
    """
    longest = 0.0
    for switch in switches:
        ports = list(switch)
        octets = sum(rules.ceiling_bytes for rules in ports)
        longest = max(longest, octets * 8 / min(rules.rate_bps for rules in ports))
    return max(STILL_S, Dilation(dilation).host_ns(TIME_LIMIT * longest))


class Remnants:
    """Finds remnants in what is read now and then of the buffers of all ports.

    ``still_s`` is how long (s of the machine) one of them has to stand still.
    """

    def __init__(self, still_s: float = STILL_S) -> None:
        self._still_s = still_s
        self._since: dict[int, tuple[int, float]] = {}

    def find(self, held: Mapping[int, int], stopped: Mapping[int, bool], now_s: float) -> list[int]:
        """The ports whose buffers are to be reckoned empty.

        ``held`` are octets by port; ``stopped``: some queue of the port's switch may not send now,
        so that there is no evidence.
        """
        found = []
        for port, octets in held.items():
            before = self._since.get(port)
            if not octets or stopped[port]:
                self._since.pop(port, None)
            elif before is None or before[0] != octets:
                self._since[port] = octets, now_s
            elif now_s - before[1] >= self._still_s:
                del self._since[port]
                found.append(port)
        return found


#: How often (s of the machine) the program's own state is looked at, should an event be missing.
RECONCILE_S = 0.5


class PauseAgent:
    """All cables of lab ``lab`` that have a switch at an end."""

    def __init__(self, lab: str) -> None:
        record = lab_record.load(lab)
        choice = None if record is None else record.settings.switch
        if record is None or choice is None:
            raise UserError(f"there is no lab {lab!r} with switches")
        self._lab = lab
        self._clock = Clock(record.settings.dilation, 0)
        topology = lab_record.load_topology(lab)
        self._program = SwitchProgram(lab)
        self._ring = PauseRing(Map(pins_of(lab) / "maps" / "pause_events"))
        self._control = pauses.listen(lab)
        fitted = fitting.fit(choice, topology, record.settings.dilation)
        self.ports = {port.index: port for port in self._open_ports(topology, fitted)}
        self._by_name = {port.name: port for port in self.ports.values()}
        self._active: set[PausePort] = set()
        self._looked_ns = 0
        rules: dict[str, list[PauseRules]] = {}
        for port in self.ports.values():
            rules.setdefault(port.node, []).append(port.rules)
        self._remnants = Remnants(still_s(rules.values(), record.settings.dilation))

    def _open_ports(self, topology: Topology, fitted: fitting.FittedSwitch) -> list[PausePort]:
        indices = interface_indices(topology)
        kernels: dict[str, RouteSocket] = {}
        visitor = namespaces.visitor()
        found = []
        for cable in topology.links:
            rules = fitted.pause(cable)
            if rules is None:
                continue
            unwatched = replace(rules, watchdog_ns=0)
            plain = Egress(
                rate_bps=Dilation(self._clock.dilation).host_bps(cable.rate_bps),
                mtu=cable.mtu,
                buffer_bytes=cable.buffer_bytes,
                gated=True,
            )
            faces_nic = not all(topology.node(end.node).is_switch for end in cable.ends)
            for end in cable.ends:
                path = namespaces.path_of(self._lab, end.node)
                if end.node not in kernels:
                    kernels[end.node] = visitor.inside(path, RouteSocket)
                is_switch = topology.node(end.node).is_switch
                egress = fitted.egress(cable, plain) if is_switch else plain
                own = rules if is_switch and faces_nic else unwatched  # it guards against NICs

                def make(
                    end: CableEnd = end, egress: Egress = egress, rules: PauseRules = own
                ) -> PausePort:
                    return PausePort(
                        str(end),
                        indices[end],
                        topology.node(end.node).port(end.port).mac,
                        rules=rules,
                        egress=egress,
                        kernel=kernels[end.node],
                        program=self._program,
                    )

                found.append(visitor.inside(path, make))
        return found

    def serve(self, watched: int | None) -> None:
        """Serve until a request to end, or until ``watched``, a pipe of the parent, is closed."""
        handles = [self._ring.fileno(), self._control.fileno()]
        handles += [] if watched is None else [watched]
        gc.disable()  # nothing here refers to itself, and a collection would make a pause late
        ending = False
        while not ending:
            ready, _, _ = select.select(handles, (), (), self._timeout_s())
            for event in self._ring.take():
                self._happened(event)
            self._advance()
            if self._control.fileno() in ready:
                ending = self._handle()
            if watched is not None and watched in ready and not os.read(watched, 64):
                ending = True
        for port in self.ports.values():
            port.publish(self._clock.now())
            with suppress(KernelRefusal, OSError):  # the lab may be going
                port.open()

    def _timeout_s(self) -> float:
        due = [at for port in self._active if (at := port.next_deadline()) is not None]
        longest = RECONCILE_S if self._active else 10 * RECONCILE_S
        if not due:
            return longest
        wait = self._clock.host_seconds(max(0, min(due) - self._clock.now()))
        return min(longest, wait)

    def _happened(self, event: PauseEvent) -> None:
        port = self.ports.get(event.port)
        if port is None:
            return
        at = self._clock.from_host(event.time)
        if event.kind is EventKind.XOFF:
            port.ask(self._clock.now())
            port.record_lateness(self._clock.now() - at)
        elif event.kind is EventKind.XON:
            if not port.storming:
                port.let_go()
        else:
            meant = quanta(event.destination, event.control)
            if meant is None:
                port.counters.malformed += 1
            elif port.rules.priority in meant:
                port.gate.on_frame(meant[port.rules.priority], at)
        self._active.add(port)

    def _advance(self) -> None:
        now = self._clock.now()
        if time.monotonic_ns() - self._looked_ns > RECONCILE_S * 1e9:
            self._looked_ns = time.monotonic_ns()
            self._reconcile(now)
        for port in list(self._active):
            due = port.next_deadline()
            if due is None or due > now:
                continue
            if port.advance(now):
                port.record_lateness(self._clock.now() - port.gate.closed_at)
            port.publish(self._clock.now())
            if port.next_deadline() is None:
                self._active.discard(port)

    def _reconcile(self, now: int) -> None:
        """Restore pauses after events that the full ring lost.

        The events are lost, their effects are not; nor must pauses last for frames that were lost.
        """
        states = self._program.pause_states.first(max(self.ports, default=-1) + 1)
        held = {}
        for index, port in self.ports.items():
            at = index * PAUSE_STATE.size
            octets, _, _, _, asserted, *_ = PAUSE_STATE.unpack_from(states, at)
            held[index] = octets
            if asserted and not port.pauser.asserted:
                port.ask(now)
                self._active.add(port)
            elif not asserted and port.pauser.asserted and not port.storming:
                port.let_go()

        shut = {port.node for port in self.ports.values() if port.gate.closed}
        stopped = {index: port.node in shut for index, port in self.ports.items()}
        for index in self._remnants.find(held, stopped, time.monotonic()):
            forget(self._program, origin=index)
            state = self._program.pause_states.get(PORT_KEY.pack(index))
            octets, deepest, missed, freed, *_ = PAUSE_STATE.unpack(state)
            empty = PAUSE_STATE.pack(0, deepest, missed, freed + max(0, octets), 0, 0, 0)
            self._program.pause_states.put(PORT_KEY.pack(index), empty)
            self.ports[index].let_go()

    def _handle(self) -> bool:
        """Carry out a request of the control socket; return whether that was to end."""
        request, sender = self._control.recvfrom(256)
        verb, _, rest = request.decode(errors="replace").partition(" ")
        now = self._clock.now()
        if verb == "publish":
            for port in self.ports.values():
                port.publish(now)
        elif verb == "restart":
            for port in self.ports.values():
                port.restart()
                port.publish(now)
        elif verb == "storm":
            name, _, state = rest.partition(" ")
            port = self._by_name[name]
            port.storming = state == "on"
            if port.storming:
                port.ask(now)
            else:
                port.pauser.forget()
            self._active.add(port)
        with suppress(OSError):
            self._control.sendto(b"done", sender)
        return verb == "end"


def main(lab: str) -> int:
    """Serve; print ``ready`` when pauses work, or one sentence if they do not.

    Standard input, if it is a pipe, is watched: who started us is gone when it closes.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError):  # a moment sooner on a busy machine; not every container may
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        agent = PauseAgent(lab)
    except (UserError, OSError) as error:
        print(error, flush=True)  # noqa: T201  what our starter reads
        return 1
    print("ready", flush=True)  # noqa: T201
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    watched = 0 if Path("/proc/self/fd/0").resolve().name.startswith("pipe:") else None
    agent.serve(watched)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
