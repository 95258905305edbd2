"""Priority flow control of one lab: its rules, its agent, its counters, its storms."""

from __future__ import annotations

import os
import select
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Protocol

from emulator.dataplane import lab_record
from emulator.dataplane.kernel.programs.bpf_syscall import run
from emulator.dataplane.settings import Clock
from emulator.dataplane.switch import cable_counters
from emulator.dataplane.switch.bpf.layout import (
    PAUSE,
    PAUSE_RULES,
    PAUSE_STATE,
    PORT_KEY,
    WAITING_KEY,
    pack,
    unpack,
)
from emulator.dataplane.switch.bpf.switch_program import FORGET
from emulator.dataplane.switch.bpf.switch_tables import SwitchTables
from emulator.dataplane.switch.cable_counters import PauseCounters
from emulator.dataplane.switch.joined_ports import JoinedPorts
from emulator.dataplane.switch.switch_fitting import FittedSwitch
from emulator.errors import UserError
from topologies.ethernet import HEADER_OCTETS
from topologies.model import CableEnd, Link, Topology

ANSWER_S = 20.0


def place(lab: str) -> Path:
    return lab_record.directory_of(lab) / "pfc"


def log_of(lab: str) -> Path:
    """Return the log of an agent that failed; it is removed with the lab."""
    return lab_record.directory_of(lab) / "pfc.log"


def listen(lab: str) -> socket.socket:
    """The agent's socket; takes the place of one that a dead agent left."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    place(lab).unlink(missing_ok=True)
    made.bind(str(place(lab)))
    return made


def start(lab: str, *, persistent: bool) -> IO[bytes] | None:
    """Start the agent of ``lab``; returns when pauses work.

    It ends with the lab.  If the lab is not ``persistent`` it also ends when the returned pipe is
    closed, that is, with this process.  Raises UserError if it cannot be.
    """
    process = lab_record.start_process(
        lab,
        "emulator.dataplane.switch.pfc_agent",
        log_of(lab),
        stdin=subprocess.DEVNULL if persistent else subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    stated = process.stdout.readline().decode().strip()
    process.stdout.close()
    if stated != "ready":
        process.kill()
        process.wait()
        stated = stated or log_of(lab).read_text(errors="replace").strip().rpartition("\n")[2]
        raise UserError(f"priority flow control does not start: {stated or 'its process died'}")
    return process.stdin


def ask(lab: str, request: str) -> bool:
    """Have the agent do ``request``; False if there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
        ours.bind("")  # the kernel gives us a name, which the answer goes to
        ours.settimeout(ANSWER_S)
        try:
            ours.sendto(request.encode(), str(place(lab)))
            ours.recv(64)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except TimeoutError:
            raise UserError(
                f"the process for priority flow control of lab {lab} does not answer: "
                f"take the lab down and bring it up again"
            ) from None
    return True


def end(lab: str) -> None:
    """Have the agent end, if there is one, and wait for it."""
    if ask(lab, "end"):
        for process in lab_record.processes(lab):
            if _is_agent(process.pid):
                _await(process.pid)


def _is_agent(pid: int) -> bool:
    try:
        return b"pfc_agent" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _await(pid: int) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll(ANSWER_S * 1000)
    finally:
        os.close(handle)


#: A buffer that credits bound, not the switch program, which counts what it holds.
UNBOUNDED = (1 << 62) - 1
#: What stands in front of the two numbers that asic_forget is given.
_ETHERNET = bytes(HEADER_OCTETS)


def forget(program: SwitchTables, *, egress: int | None = None, origin: int | None = None) -> int:
    """Free what lossless buffers count of frames that will never arrive.

    ``egress`` is the interface index of the port where they wait, ``origin`` that of the one they
    came in by; without one of the two it is any.  Returns octets on the wire.
    """
    freed = 0
    for key in program.waiting_octets.all_keys():
        leaving, coming = WAITING_KEY.unpack(key)
        if egress in (None, leaving) and origin in (None, coming):
            freed += run(program.forget, _ETHERNET + key, FORGET)
    return freed


def change_rules(program: SwitchTables, index: int, **changes: int) -> None:
    """Have ``dropping`` (lossless frames that are to leave by port ``index``) and the like so."""
    key = PORT_KEY.pack(index)
    rules = unpack(PAUSE, program.pause_rules.get(key)) | changes
    program.pause_rules.put(key, pack(PAUSE, **rules))


class PauseEngine(Protocol):
    """The engine of a virtual clock, which does the agent's work without a process."""

    def publish(self) -> None:
        """Have the counters of all ports up to now in the lab's map (:mod:`pause_counters`)."""

    def restart(self) -> None:
        """Measure the longest pause, and the latest, anew."""

    def storm(self, nic: CableEnd, on: bool) -> None:
        """Have this NIC pause its switch without a reason, or no longer."""


class Pauses:
    """Pause states and counters of both ends of every cable at a switch, by ``node:port``.

    ``engine`` has the pauses where the clock is virtual; with the host's the agent does.
    """

    def __init__(
        self,
        lab: str,
        topology: Topology,
        program: SwitchTables,
        indices: Mapping[CableEnd, int],
        clock: Clock = "host",
    ) -> None:
        self._lab, self._program = lab, program
        self._has_agent = clock == "host"
        self.engine: PauseEngine | None = None
        self.joined: JoinedPorts | None = None
        switches = {switch.name for switch in topology.switches}
        self.cables: Mapping[CableEnd, Link] = {
            end: cable
            for cable in topology.links
            if switches & {cable.a.node, cable.b.node}
            for end in cable.ends
        }
        self.indices: Mapping[str, int] = {str(end): indices[end] for end in self.cables}
        self._pipe: IO[bytes] | None = None

    @property
    def on(self) -> bool:
        """Return whether the switches pause."""
        first = next(iter(self.indices.values()), None)
        if first is None:
            return False
        rules = unpack(PAUSE, self._program.pause_rules.get(PORT_KEY.pack(first)))
        return bool(rules["enabled"]) and rules["xoff"] != UNBOUNDED

    def configure(self, fitted: FittedSwitch) -> None:
        """Configure what every port may hold; what a pausing port holds stays."""
        for end, cable in self.cables.items():
            rules = fitted.pause(cable)
            packed = bytes(PAUSE_RULES.size)
            link = fitted.link(cable)
            if link is not None and link.cbfc is not None:
                packed = pack(PAUSE, xoff=UNBOUNDED, ceiling=UNBOUNDED, enabled=True)
            if rules is not None:
                packed = pack(
                    PAUSE,
                    xoff=rules.xoff_bytes,
                    xon=max(0, rules.xon_bytes),
                    ceiling=rules.ceiling_bytes,
                    alpha=rules.alpha,
                    enabled=True,
                )
            key = PORT_KEY.pack(self.indices[str(end)])
            enabled = unpack(PAUSE, self._program.pause_rules.get(key))["enabled"]
            self._program.pause_rules.put(key, packed)
            if not any(packed) or not (enabled or self._has_agent):
                self._program.pause_states.put(key, bytes(PAUSE_STATE.size))
        if not (fitted.pauses or fitted.links):
            for waiting in self._program.waiting_octets.all_keys():
                self._program.waiting_octets.delete(waiting)

    def start(self) -> None:
        """Start the agent if the switches pause; the lab's ports are there.

        A virtual clock's engine does the agent's work.
        """
        record = lab_record.load(self._lab)
        if self._has_agent and self.on and record is not None:
            self._pipe = start(self._lab, persistent=record.settings.persistent)

    def end(self) -> None:
        """End the agent, if there is one."""
        if self._has_agent:
            end(self._lab)
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    def counters(self) -> dict[str, PauseCounters]:
        """Return the pause counters of all ports up to now; empty if the switches do not pause.

        Processes of a run that report nothing have none.
        """
        if not self.on:
            return {}
        if self._has_agent:
            ask(self._lab, "publish")
        elif self.engine is not None:
            self.engine.publish()
        names = list(self.indices) if self.joined is None else self.joined.mine(list(self.indices))
        rows = cable_counters.read(self._program, [self.indices[name] for name in names])
        own = dict(zip(names, rows, strict=True))
        return own if self.joined is None else self.joined.by_name(list(self.indices), own)

    def restart(self) -> None:
        """Measure the longest pause, and the latest, anew; counts go on."""
        if not self.on:
            return
        if self._has_agent:
            ask(self._lab, "restart")
        elif self.engine is not None:
            self.engine.restart()

    def free(self, port: str) -> int:
        """Free the buffers of what waits at ``port``, whose cable has no carrier.

        The buffers are those of the ports by which the frames came in.  Returns octets on the wire.

        With a virtual clock nothing is freed here, as the engine does it.
        """
        return forget(self._program, egress=self.indices[port])

    def drop(self, port: str, on: bool) -> None:
        """Have lossless frames that are to leave by ``port`` dropped, or no longer."""
        change_rules(self._program, self.indices[port], dropping=on)

    def storm(self, nic: CableEnd, on: bool) -> None:
        """Let this NIC pause its switch without a reason, or no longer."""
        if not self.on:
            raise UserError("a pause storm needs switches that obey pauses: take --switch lossless")
        if self._has_agent:
            ask(self._lab, f"storm {nic} {'on' if on else 'off'}")
        elif self.engine is not None:
            self.engine.storm(nic, on)
