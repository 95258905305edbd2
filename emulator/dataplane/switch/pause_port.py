"""One end of a cable as the agent of priority flow control has it: sockets, queues, counters."""

from __future__ import annotations

import errno
import socket

from emulator.dataplane.kernel.netlink import RouteSocket
from emulator.dataplane.kernel.shaping import KICK_CLASS, PAST_THE_QUEUES, Egress, gate_request
from emulator.dataplane.switch.bpf.switch_program import SwitchProgram
from emulator.dataplane.switch.pauses import set_dropping
from emulator.dataplane.switch.pfc import pause_counters
from emulator.dataplane.switch.pfc.pause_frame import frame
from emulator.dataplane.switch.pfc.pause_state import Gate, Pauser, PauseRules

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
        (self.counters,) = pause_counters.read(program, [index])
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
        pause_counters.write(self._program, self.index, self.counters)

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
        self._shut = closed
        if not closed:
            try:
                self._kick.send(KICK)
            except OSError as error:
                # ENOBUFS is what it comes to: the class takes nothing, and has been looked at
                if error.errno not in _REFUSALS:
                    raise

    def _set_dropping(self, dropping: bool) -> None:
        set_dropping(self._program, self.index, dropping)
        self._dropping = dropping


def _sender(interface: str, priority: int, mark: int) -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # it receives nothing
    made.setsockopt(socket.SOL_SOCKET, SO_PRIORITY, priority)
    made.setsockopt(socket.SOL_SOCKET, SO_MARK, mark)
    made.bind((interface, 0))
    made.setblocking(False)
    return made
