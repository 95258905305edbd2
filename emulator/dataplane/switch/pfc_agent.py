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
(:func:`emulator.dataplane.switch.pfc.headroom.reaction_ns`); at a dilation of 24000 these are tens
of ms of the machine.  The gate then closed 0.3 to 0.5 ms late, 10 to 20 ns of fabric time, where
the headroom leaves 84 ns and more (:func:`emulator.dataplane.switch.pfc.headroom.allowance_ns`): of
that 20 us are the change by netlink (64 us the first time), the rest waking up.  Other labs that
are built or taken down at the same time do delay it. All changes of all namespaces share one lock
of the kernel: 15 to 80 ms were seen.  The counters (``late_ns``) and the run's verdict state how
late a pause was. So a dilation that is too small, or a shared machine, is seen.

It listens on a socket in the lab's state directory
(:mod:`emulator.dataplane.switch.pfc.pfc_control`).
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from emulator.dataplane import lab_record
from emulator.dataplane.clock import Clock, Dilation
from emulator.dataplane.kernel import namespaces
from emulator.dataplane.kernel.netlink import KernelRefusal, RouteSocket
from emulator.dataplane.kernel.programs.bpf_syscall import Map
from emulator.dataplane.kernel.shaping import Egress
from emulator.dataplane.switch import switch_fitting as fitting
from emulator.dataplane.switch.bpf.layout import PAUSE_STATE, PORT_KEY
from emulator.dataplane.switch.bpf.switch_program import SwitchProgram, pins_of
from emulator.dataplane.switch.pause_port import PausePort
from emulator.dataplane.switch.pauses import forget
from emulator.dataplane.switch.pfc import pfc_control
from emulator.dataplane.switch.pfc.pause_frame import quanta
from emulator.dataplane.switch.pfc.pause_repair import Remnants, still_s
from emulator.dataplane.switch.pfc.pause_ring import EventKind, PauseEvent, PauseRing
from emulator.dataplane.switch.pfc.pause_state import PauseRules
from emulator.dataplane.switch.switch_choice import parse
from emulator.errors import UserError
from topologies.interface_indices import interface_indices
from topologies.model import CableEnd, Topology

#: How often (s of the machine) the program's own state is looked at, should an event be missing.
RECONCILE_S = 0.5


class PauseAgent:
    """All cables of lab ``lab`` that have a switch at an end."""

    def __init__(self, lab: str) -> None:
        record = lab_record.load(lab)
        if record is None or record.switch is None:
            raise UserError(f"there is no lab {lab!r} with switches")
        self._lab = lab
        self._clock = Clock(record.dilation, 0)
        topology = lab_record.load_topology(lab)
        self._program = SwitchProgram(lab)
        self._ring = PauseRing(Map(pins_of(lab) / "maps" / "pause_events"))
        self._control = pfc_control.listen(lab)
        fitted = fitting.fit(parse(record.switch), topology, record.dilation)
        self.ports = {port.index: port for port in self._open_ports(topology, fitted)}
        self._by_name = {port.name: port for port in self.ports.values()}
        self._active: set[PausePort] = set()
        self._looked_ns = 0
        rules: dict[str, list[PauseRules]] = {}
        for port in self.ports.values():
            rules.setdefault(port.node, []).append(port.rules)
        self._remnants = Remnants(still_s(rules.values(), record.dilation))

    def _open_ports(self, topology: Topology, fitted: fitting.FittedSwitch) -> list[PausePort]:
        indices = interface_indices(topology)
        kernels: dict[str, RouteSocket] = {}
        visitor = namespaces.visitor()
        found = []
        for cable in topology.links:
            if fitted.pause(cable) is None:
                continue
            plain = Egress(
                rate_bps=Dilation(self._clock.dilation).host_bps(cable.rate_bps),
                mtu=cable.mtu,
                buffer_bytes=cable.buffer_bytes,
                gated=True,
            )
            faces_nic = not all(topology.node(end.node).is_switch for end in cable.ends)
            for end in cable.ends:
                rules = fitted.pause(cable)
                assert rules is not None
                path = namespaces.path_of(self._lab, end.node)
                if end.node not in kernels:
                    kernels[end.node] = visitor.inside(path, RouteSocket)
                is_switch = topology.node(end.node).is_switch
                egress = fitted.egress(cable, plain) if is_switch else plain
                if not (is_switch and faces_nic):
                    rules = replace(rules, watchdog_ns=0)  # it guards against NICs

                def make(
                    end: CableEnd = end, egress: Egress = egress, rules: PauseRules = rules
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
            octets, _, _, _, asserted, _ = PAUSE_STATE.unpack_from(states, index * PAUSE_STATE.size)
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
            empty = PAUSE_STATE.pack(0, deepest, missed, freed + max(0, octets), 0, 0)
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
