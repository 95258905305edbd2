"""Priority flow control at one end of a cable, as events of virtual time.

::

    frames arrive  --> HELD of the port --above XOFF--> PAUSE on the line from here
    frames have left the switch --> HELD --down to XON--> PAUSE of time 0
    a PAUSE arrives --device response--> the low queue of the line from here stops

PAUSE frames travel like all frames: they wait for the one that is being sent, take their time on
the line and on the cable.  How often they are sent, how long they hold and what a watchdog does is
:mod:`emulator.dataplane.switch.pause`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from emulator.dataplane.switch.cable_counters import PauseCounters
from emulator.dataplane.switch.pause import ETHERTYPE, Gate, Pauser, PauseRules, frame, quanta
from emulator.dataplane.switch.virtual_state import (
    ASSERTED,
    DEEPEST,
    FREED,
    HELD,
    PAUSE_WORDS,
    WORD_BYTES,
)
from emulator.sim.event_queue import NEVER, PS, EventQueue, Source
from emulator.sim.line import MAC_CONTROL, Line

_TYPE_AT, _CONTROL_AT = 12, 14
_TYPE, _SUBTYPE = ETHERTYPE.to_bytes(2, "big")
_UNARMED = -1


class PfcSurroundings(Protocol):
    """The switches and the fabric around one end."""

    def swallows(self, name: str, *, arriving: bool) -> bool:
        """Return whether a fault drops all frames that leave port ``name``, or arrive there."""

    def loses(self, name: str, *, arriving: bool) -> bool:
        """Return whether faults drop the next PAUSE frame that leaves or arrives at ``name``."""

    def drop(self, name: str, dropping: bool) -> None:
        """Have the switch drop all data that is to leave by port ``name``, or no longer."""

    def unmoved(self) -> None:
        """A buffer has been above XON for a whole pause, and nothing of it has left."""


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """The lossless buffer of a port: words that the switch program shares, from ``at`` on."""

    words: memoryview[int]
    at: int

    @classmethod
    def of_nic(cls) -> Buffer:
        """The buffer of a port that is no switch's, where nothing is ever held."""
        return cls(words=memoryview(bytearray(PAUSE_WORDS * WORD_BYTES)).cast("q"), at=0)


class PfcEnd:
    """The end ``line.end`` of a cable; ``line`` is the one from here, ``mac`` its source address.

    ``deliver`` takes what arrives here and is no MAC control frame.
    """

    __slots__ = (
        "_armed",
        "_around",
        "_ask_above",
        "_asked_phase",
        "_asserted_at",
        "_deepest_at",
        "_dropping",
        "_events",
        "_freed_at",
        "_gate_phase",
        "_go_on_at",
        "_held_at",
        "_last_held",
        "_mac",
        "_priority",
        "_source",
        "_words",
        "counters",
        "deliver",
        "gate",
        "line",
        "name",
        "on_stop",
        "pauser",
        "rules",
        "storming",
    )

    def __init__(
        self,
        line: Line,
        mac: bytes,
        events: EventQueue,
        source: Source,
        buffer: Buffer,
        around: PfcSurroundings,
    ) -> None:
        self.line, self.name = line, str(line.end)
        self.deliver: Callable[[bytes], None] = _nowhere
        self._mac, self._events, self._source, self._around = mac, events, source, around
        self._words = buffer.words
        self._held_at, self._freed_at = buffer.at + HELD, buffer.at + FREED
        self._deepest_at = buffer.at + DEEPEST
        self._asserted_at = buffer.at + ASSERTED
        self.counters = PauseCounters()
        self.rules: PauseRules | None = None
        self._priority = 0  # of the rules
        self.pauser = Pauser(line.rate_bps, self.counters)
        self.gate: Gate | None = None
        #: called with whether a pause stops the line from here, when that changes
        self.on_stop: Callable[[bool], None] | None = None
        #: it requests pauses without a reason
        self.storming = False
        self._dropping = False
        self._armed = _UNARMED
        self._asked_phase = self._gate_phase = 0  # ps of a ns at which a time began
        self._last_held = -1
        self._look_out()

    def configure(self, rules: PauseRules | None) -> None:
        """Work by ``rules`` from now on, None: neither pause nor obey.

        Other rules than before end a pause that is in force.
        """
        if rules == self.rules:
            return
        if self.gate is not None:
            self.gate.settle(self._now)
        self.rules = rules
        self.gate = None
        if rules is not None:
            self.gate, self._priority = Gate(rules, self.counters), rules.priority
        self._stop(False)
        self._set_dropping(False)
        if rules is None:
            self.pauser.forget()
            self._words[self._asserted_at] = 0
        self._look_out()
        self._arm()

    @property
    def _now(self) -> int:
        return self._events.now // PS

    @property
    def held(self) -> int:
        """Octets of frames that came in here and are still in the switch."""
        return self._words[self._held_at]

    # The buffer of this port

    def arrive(self, frame: bytes) -> None:
        """Take what comes over the cable, and request a pause if that is too much."""
        if frame[_TYPE_AT] == _TYPE and frame[_TYPE_AT + 1] == _SUBTYPE:
            self._handle(frame)
            return
        self.deliver(frame)
        if self._words[self._held_at] > self._ask_above:
            self._ask()

    def give_back(self, octets: int) -> None:
        """A frame that came in here has left the switch."""
        held = self._words[self._held_at] - octets
        self._words[self._held_at] = held
        if held <= self._go_on_at:
            self._let_go()

    def free(self, octets: int) -> None:
        """A frame that came in here is lost where it waited to leave."""
        self._words[self._freed_at] += octets
        self.give_back(octets)

    def storm(self, on: bool) -> None:
        """Request pauses without a reason from now on, or no longer: the last one runs out."""
        if on is self.storming or self.rules is None:
            return
        self.storming = on
        if on:
            self._ask()
        else:
            self.pauser.forget()
            self._look_out()

    def _look_out(self) -> None:
        """Set the depths of the buffer at which there is something to do."""
        rules, asserted = self.rules, self.pauser.asserted
        self._ask_above = NEVER if rules is None or asserted else rules.xoff_bytes
        waited_for = rules is not None and asserted and not self.storming
        self._go_on_at = rules.xon_bytes if rules is not None and waited_for else -NEVER

    def _ask(self) -> None:
        times = self.pauser.ask(self._now)
        if times is None:
            return
        self._asked_phase = self._events.now % PS
        self._words[self._asserted_at] = 1
        self._look_out()
        self._send(times)
        self._arm()

    def _let_go(self) -> None:
        times = self.pauser.let_go()
        self._words[self._asserted_at] = 0
        self._look_out()
        if times is not None:
            self._send(times)
        self._last_held = -1

    def _send(self, times: int) -> None:
        if self.line.cut:
            self.counters.unsent += 1
        elif not self._lost(arriving=False):
            self.line.enqueue(frame(self._mac, {self._priority: times}), MAC_CONTROL)

    def _lost(self, *, arriving: bool) -> bool:
        """Return whether a fault of the cable takes a PAUSE frame."""
        around, name = self._around, self.name
        return around.swallows(name, arriving=arriving) or around.loses(name, arriving=arriving)

    # The line from here

    def _handle(self, control: bytes) -> None:
        """Take a MAC control frame, which goes no further."""
        if self.gate is None or self.rules is None:
            return
        if self._lost(arriving=True):
            return
        meant = quanta(control[:6], control[_CONTROL_AT:])
        if meant is None:
            self.counters.malformed += 1
        elif self.rules.priority in meant:
            self._gate_phase = self._events.now % PS
            self.gate.on_frame(meant[self.rules.priority], self._now)
            self._advance()

    def _advance(self) -> None:
        """Do what is due now, and come back when something else is."""
        gate, rules = self.gate, self.rules
        if gate is not None and rules is not None:
            gate.advance(self._now)
            if rules.drops:
                self._set_dropping(gate.ignoring)
            self._stop(gate.closed)
        self._arm()

    def _stop(self, stopped: bool) -> None:
        line = self.line
        if line.low_stopped is stopped:
            return
        line.low_stopped = stopped
        if self.on_stop is not None:
            self.on_stop(stopped)
        if not stopped:
            line.serve()
            if not line.busy and line.idle is not None:
                line.idle()

    def _set_dropping(self, dropping: bool) -> None:
        if dropping is not self._dropping:
            self._dropping = dropping
            self._around.drop(self.name, dropping)

    # Time

    def _arm(self) -> None:
        """See to it that :meth:`_wake` is called at the next deadline, of several the earliest."""
        asked, gated = self.pauser.next_deadline(), None
        if self.gate is not None:
            gated = self.gate.next_deadline()
        when = NEVER
        if asked is not None:
            when = asked * PS + self._asked_phase
        if gated is not None:
            when = min(when, gated * PS + self._gate_phase)
        if when != self._armed and when != NEVER:
            self._events.at(max(when, self._events.now), self._source.next(), self._wake, when)
        self._armed = when

    def _wake(self, when: int) -> None:
        if when != self._armed:  # put off since
            return
        self._armed = _UNARMED
        asked = self.pauser.next_deadline()
        if asked is not None and asked <= self._now:
            held = self._words[self._held_at]
            if held == self._last_held and not self.storming:
                self._around.unmoved()
            self._last_held = held
            self._ask()
        self._advance()

    # For readers

    def settle(self, until_ns: int | None = None) -> PauseCounters:
        """Everything that was counted, with what has passed of a pause that goes on.

        That ends at ``until_ns`` at the latest.
        """
        if self.gate is not None:
            self.gate.settle(self._now if until_ns is None else min(self._now, until_ns))
        return self.counters

    def restart(self) -> None:
        """Begin a span of which the longest pause and the fullest buffer shall be known."""
        self.settle()
        self._words[self._deepest_at] = max(0, self.held)
        self.counters.longest_pause_ns = 0
        if self.gate is not None:
            self.gate.restart()


def _nowhere(frame: bytes) -> None:
    """Nobody takes frames yet."""
