"""Priority flow control in virtual time: one end of a cable, a worker's ports, the whole fabric.

::

    frames arrive  --> HELD of the port --above XOFF--> PAUSE on the line from here
    frames have left the switch --> HELD --down to XON--> PAUSE of time 0
    a PAUSE arrives --device response--> the low queue of the line from here stops

PAUSE frames travel like all frames: they wait for the one that is being sent, take their time on
the line and on the cable.  How often they are sent, how long they hold and what a watchdog does is
:mod:`emulator.dataplane.switch.pause`'s.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from emulator.dataplane.switch import cable_counters
from emulator.dataplane.switch.cable_counters import PauseCounters
from emulator.dataplane.switch.fabric_asic import FabricAsic
from emulator.dataplane.switch.pause import ETHERTYPE, Gate, Pauser, PauseRules, frame, quanta
from emulator.dataplane.switch.virtual_state import (
    ASSERTED,
    DEEPEST,
    DEPTH,
    FREED,
    HELD,
    HELD_IN_HEADROOM,
    PORT_WORDS,
    SharedPool,
)
from emulator.sim.event_queue import NEVER, PS, EventQueue, Source
from emulator.sim.line import HIGH, LOW, MAC_CONTROL, MEDIUM, Line
from emulator.sim.line_record import LineRecord
from topologies.analysis.deadlock import SwitchChannel
from topologies.ethernet import GAP_OCTETS, PREAMBLE_OCTETS, SHORTEST_OCTETS
from topologies.model import CableEnd, Topology

_TYPE_AT, _CONTROL_AT = 12, 14
_TYPE, _SUBTYPE = ETHERTYPE.to_bytes(2, "big")
_UNARMED = -1


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
        "_pool",
        "_pool_of",
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
        buffer: tuple[memoryview[int], int],
        around: PriorityFlowControl,
        pool: Callable[[], SharedPool | None],
    ) -> None:
        self.line, self.name = line, str(line.end)
        self.deliver: Callable[[bytes], None] = _nowhere
        self._mac, self._events, self._source, self._around = mac, events, source, around
        self._pool_of = pool
        #: what XOFF and XON go by; None: by what the port holds alone
        self._pool: SharedPool | None = None
        self._words, at = buffer
        self._held_at, self._freed_at = at + HELD, at + FREED
        self._deepest_at, self._asserted_at = at + DEEPEST, at + ASSERTED
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
        self._pool = self._pool_of() if rules is not None and rules.alpha else None
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
        if self._words[self._held_at] > self._ask_above and (self._pool is None or self._is_over()):
            self._ask()

    def give_back(self, octets: int) -> None:
        """A frame that came in here has left the switch."""
        words, at = self._words, self._held_at
        if self._pool is not None:
            self._pool.leave_buffer(words, at - HELD, self._own, octets)
        held = words[at] - octets
        words[at] = held
        if held <= self._go_on_at and (self._pool is None or self._may_go_on()):
            self._let_go()

    # The thresholds of a port whose switch has a pool are looked at when a frame that came in by it
    # has come or gone, whatever else has changed the pool.

    @property
    def _own(self) -> int:
        return 0 if self.rules is None else self.rules.xoff_bytes

    @property
    def xon_bytes(self) -> int:
        """Octets down to which the other end may go on, as things are now."""
        rules = self.rules
        if rules is None:
            return 0
        if self._pool is None:
            return rules.xon_bytes
        return max(0, self._pool.threshold(rules.xon_bytes, rules.alpha))

    def _in_headroom(self) -> bool:
        return self._words[self._held_at - HELD + HELD_IN_HEADROOM] > 0

    def _is_over(self) -> bool:
        pool, rules = self._pool, self.rules
        if pool is None or rules is None:
            return False
        over = self._words[self._held_at] > pool.threshold(rules.xoff_bytes, rules.alpha)
        return over or self._in_headroom()

    def _may_go_on(self) -> bool:
        return self._words[self._held_at] <= self.xon_bytes and not self._in_headroom()

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
        self._go_on_at = -NEVER
        if rules is not None and waited_for:
            self._go_on_at = rules.xon_bytes if self._pool is None else NEVER

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
            if self._pool is not None and not self.storming and self._may_go_on():
                self._let_go()  # the pool is emptier than when one of its frames went
            else:
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


def _no_pool() -> None:
    """A NIC has none."""


_DRAWN_OCTETS = 8
_PAUSE_OCTETS = SHORTEST_OCTETS - PREAMBLE_OCTETS - GAP_OCTETS


@dataclass(frozen=True, slots=True)
class PauseSettings:
    """Rules of a port about pauses, and faults of the PAUSE frames that leave and arrive there.

    Faults drop all of them, or each with a chance.
    """

    rules: PauseRules | None
    storming: bool
    swallows: tuple[bool, bool]
    loss: tuple[float, float]


def pause_settings(asic: FabricAsic) -> dict[CableEnd, PauseSettings]:
    """Return the present settings of all ports of ``asic``."""
    return {end: pause_settings_of(asic, end) for end in asic.pauses.cables}


def pause_settings_of(asic: FabricAsic, end: CableEnd) -> PauseSettings:
    """The settings of port ``end``.

    The chance of loss is that of a PAUSE frame on the cable; of bursts it is the mean over time.
    Where the cable has a link layer, that loses frames, and nothing here.
    """
    name = str(end)
    faulted = asic.faulted(name)
    if asic.fitted.link(asic.pauses.cables[end]) is None:
        loss = faulted.loss_of(_PAUSE_OCTETS)
    else:
        loss = 0.0
    return PauseSettings(
        asic.pause_rules(end),
        asic.storming(name),
        (asic.swallows(name, arriving=False), asic.swallows(name, arriving=True)),
        (loss, loss if faulted.arriving else 0.0),
    )


@dataclass(frozen=True, slots=True)
class PauseSnapshot:
    """The ports at which pauses hold frames at one instant.

    ``waiting`` are the octets in each stopped line of a switch that no watchdog opens, by the port
    that they came in by. ``asserting`` has the XON (octets) of the ports whose buffer requests a
    pause, ``stopped`` are those that obey one.  ``frames`` is how many lines have begun with, but
    for PAUSE frames.
    """

    waiting: Mapping[CableEnd, Mapping[CableEnd, int]]
    asserting: Mapping[CableEnd, int]
    stopped: Sequence[CableEnd]
    frames: int


class PriorityFlowControl:
    """The ends of cables that a switch of ``asic`` is at, of those that ``lines`` leave from.

    Sources of events are numbered from ``first_source`` on.  ``record`` gets how long pauses last.
    """

    def __init__(
        self,
        asic: FabricAsic,
        topology: Topology,
        lines: Mapping[CableEnd, Line],
        events: EventQueue,
        first_source: int,
        record: LineRecord | None = None,
    ) -> None:
        state = asic.state
        self._asic, self._lines, self._events = asic, lines, events
        self._depths = state.ports
        self.ends: dict[CableEnd, PfcEnd] = {}
        self._by_index: dict[int, PfcEnd] = {}
        for number, end in enumerate(asic.pauses.cables):
            if end not in lines:
                continue
            port = asic.ports.get(str(end))
            buffer = state.lossless_buffer(None if port is None else port.index)
            mac = bytes.fromhex(topology.node(end.node).port(end.port).mac.replace(":", ""))
            made = PfcEnd(
                lines[end],
                mac,
                events,
                Source(first_source + number),
                buffer,
                around=self,
                pool=_no_pool if port is None else partial(state.pool, port.switch),
            )
            if record is not None:
                made.on_stop = record.stop(end, events)
            self.ends[end] = made
            if port is not None:
                self._by_index[port.index] = made
        #: called when a buffer has been above XON for a whole pause, once an instant
        self.on_unmoved: Callable[[], None] | None = None
        self._looked_ps = -1
        self._settings: dict[str, PauseSettings] = {}
        self._seed = 0
        self._draws: Counter[tuple[str, bool]] = Counter()

    def begin_row(self, seed: int | None = None) -> None:
        """Draw anew which PAUSE frames are lost, by ``seed`` if there is another."""
        self._seed = self._seed if seed is None else seed
        self._draws.clear()

    def configure(self, settings: Mapping[CableEnd, PauseSettings]) -> None:
        """Have all ends work by ``settings``."""
        for end, one in self.ends.items():
            self._settings[one.name] = own = settings[end]
            one.configure(own.rules)
            one.storm(own.storming)

    def apply_fault(self, end: CableEnd, settings: PauseSettings) -> None:
        """Apply faults to the PAUSE frames of ``end`` as ``settings`` define."""
        if end in self.ends:
            self._settings[self.ends[end].name] = settings

    def guarded(self, end: CableEnd, take: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """Takes what arrives at ``end``: MAC control itself, all else by ``take``."""
        one = self.ends.get(end)
        if one is None:
            return take
        one.deliver = take
        return one.arrive

    def leaves(self, end: CableEnd) -> Callable[[int, int, int], None]:
        """Return a function that subtracts a frame's octets from line and ingress buffer.

        The line is that from the switch port ``end``.  The buffer is that of the port by which the
        frame came in; a pulled cable frees it.
        """
        depths, by_index, line = self._depths, self._by_index, self._lines[end]
        port = self._asic.ports[str(end)]
        at, pool = port.index * PORT_WORDS + DEPTH - HIGH, self._asic.state.pool(port.switch)

        def left(queue: int, octets: int, origin: int) -> None:
            if queue == MAC_CONTROL:
                return
            depths[at + queue] -= octets
            if queue == LOW and origin:
                one = by_index[origin]
                if line.cut:
                    one.free(octets)
                else:
                    one.give_back(octets)

        def left_pool(queue: int, octets: int, origin: int) -> None:
            if pool is not None and queue in (HIGH, MEDIUM):
                pool.leave_queue(depths[at + queue], octets)
            left(queue, octets, origin)

        return left if pool is None else left_pool

    # What the ends call

    def swallows(self, name: str, *, arriving: bool) -> bool:
        """Return whether a fault drops all frames that leave port ``name``, or arrive there."""
        return self._settings[name].swallows[arriving]

    def loses(self, name: str, *, arriving: bool) -> bool:
        """Return whether faults drop the next PAUSE frame that leaves or arrives at ``name``."""
        chance = self._settings[name].loss[arriving]
        if not chance:
            return False
        self._draws[name, arriving] += 1
        text = f"pause {self._seed} {name} {arriving} {self._draws[name, arriving]}"
        drawn = int.from_bytes(hashlib.sha256(text.encode()).digest()[:_DRAWN_OCTETS], "big")
        return drawn < chance * (1 << 8 * _DRAWN_OCTETS)

    def drop(self, name: str, dropping: bool) -> None:
        """Have the switch drop all data that is to leave by port ``name``, or no longer."""
        self._asic.pauses.drop(name, dropping)

    def unmoved(self) -> None:
        """A buffer has been above XON for a whole pause: somebody is to look for a deadlock."""
        now = self._events.now
        if now != self._looked_ps and self.on_unmoved is not None:
            self._looked_ps = now
            self.on_unmoved()

    # The pauses of all ports

    def snapshot(self) -> PauseSnapshot:
        """Return where pauses hold frames up now."""
        sent = sum(one.counters.xoff_sent + one.counters.xon_sent for one in self.ends.values())
        return PauseSnapshot(
            self._waiting(),
            {
                one.line.end: one.xon_bytes
                for one in self._by_index.values()
                if one.pauser.asserted and one.rules is not None
            },
            [end for end, one in self.ends.items() if one.line.low_stopped],
            sum(line.counts.frames for line in self._lines.values()) - sent,
        )

    def in_force(self) -> bool:
        """Return whether a pause stops a port now."""
        return any(one.gate is not None and one.gate.closed for one in self.ends.values())

    def _waiting(self) -> dict[CableEnd, dict[CableEnd, int]]:
        """Octets that wait in each stopped line of a switch for ever, by port of arrival.

        A line that a watchdog opens some day is left out.
        """
        found: dict[CableEnd, dict[CableEnd, int]] = {}
        for one in self._by_index.values():
            line, rules = one.line, one.rules
            if not line.low_stopped or rules is None or rules.watchdog_ns:
                continue
            origins: dict[CableEnd, int] = {}
            for _, octets, origin, _ in line.queues[LOW]:
                if origin:
                    end = self._by_index[origin].line.end
                    origins[end] = origins.get(end, 0) + octets
            if origins:
                found[line.end] = origins
        return found

    def counters(self, until_ns: int | None) -> dict[str, PauseCounters]:
        """Counters up to now by port; a pause that goes on ends at ``until_ns`` at last."""
        return {one.name: one.settle(until_ns) for one in self.ends.values()}

    def restart(self) -> None:
        """Measure the longest pause anew; counts go on."""
        for one in self.ends.values():
            one.restart()

    def storm(self, nic: CableEnd, on: bool) -> None:
        """Let this NIC request pauses without a reason, or no longer, if it is one of ours."""
        if nic in self.ends:
            self.ends[nic].storm(on)


P = ParamSpec("P")
T = TypeVar("T")
#: A deadlock in which no frame of a transport moved for so long (ns) ends the run: by then timers
#: have had their turn, and found no way around it.
STANDSTILL_NS = 5_000_000
_SHOWN = 8


class Workers(Protocol):
    """The workers that own the ports."""

    def each_of_pauses(
        self,
        method: Callable[Concatenate[PriorityFlowControl, P], T],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> list[T]:
        """Call ``method`` of every worker's pauses; all ``arguments`` are positional."""


class PauseWatch:
    """The pauses of the ports of ``asic``, which belong to ``workers``.

    ``standstill`` is called when a deadlock has lasted, and nothing has moved, for
    :data:`STANDSTILL_NS`.
    """

    def __init__(
        self, asic: FabricAsic, topology: Topology, events: EventQueue, workers: Workers
    ) -> None:
        self._asic, self._topology, self._events = asic, topology, events
        self._workers = workers
        self.standstill: Callable[[], None] | None = None
        self._deadlock: tuple[SwitchChannel, ...] = ()
        #: since when (ns) nothing has moved, once that has lasted long enough to end the run
        self._stood_ns: int | None = None
        self._moved, self._moved_ns = -1, 0
        asic.pauses.engine = self

    def forget(self) -> None:
        """Forget all deadlocks: the switches have other rules now."""
        self._deadlock = ()

    def look(self) -> None:
        """Look for a deadlock, and whether anything moves."""
        now = self._events.now // PS
        seen = self._snapshot()
        before, self._deadlock = self._deadlock, self._cycle(seen)
        if not before or not self._deadlock:
            self._moved = -1
        elif seen.frames != self._moved:
            self._moved, self._moved_ns = seen.frames, now
        elif now - self._moved_ns >= STANDSTILL_NS and self.standstill is not None:
            self._stood_ns = self._moved_ns
            self.standstill()

    @property
    def deadlock(self) -> tuple[SwitchChannel, ...]:
        """Links each of which waits for the next, and the last for the first; empty if none do.

        What was found once is looked at again: a cable that is pulled may have freed a buffer.
        """
        if self._deadlock:
            self._deadlock = self._cycle(self._snapshot())
        return self._deadlock

    @property
    def in_force(self) -> bool:
        """Return whether a pause stops a port now."""
        return any(self._workers.each_of_pauses(PriorityFlowControl.in_force))

    def standing(self) -> str:
        """Name what holds up frames now, as the end of a sentence; empty if nothing does."""
        if cycle := self.deadlock:
            names = [str(channel) for channel in cycle]
            more = len(names) - _SHOWN
            return (
                f"; a PFC deadlock of {len(names)} links: {' waits for '.join(names[:_SHOWN])}"
                f"{f' waits for {more} more' if more > 0 else ''}, and the last for the first"
            )
        stopped = set(self._snapshot().stopped)
        held = [str(end) for end in self._asic.pauses.cables if end in stopped]
        if not held:
            return ""
        more = len(held) - _SHOWN
        return f"; pauses stop {', '.join(held[:_SHOWN])}{f' and {more} more' if more > 0 else ''}"

    def _snapshot(self) -> PauseSnapshot:
        """All workers' ports at this instant."""
        parts = self._workers.each_of_pauses(PriorityFlowControl.snapshot)
        waiting = {end: of for part in parts for end, of in part.waiting.items()}
        return PauseSnapshot(
            {end: waiting[end] for end in self._asic.pauses.cables if end in waiting},
            {end: xon for part in parts for end, xon in part.asserting.items()},
            [end for part in parts for end in part.stopped],
            sum(part.frames for part in parts),
        )

    # Deadlocks

    def _cycle(self, seen: PauseSnapshot) -> tuple[SwitchChannel, ...]:
        """Lines that wait for each other in a cycle; empty if there is none.

        A line waits for the buffer at its other end.  That buffer waits for the lines that its
        frames are to leave by. It can fall to XON unless too many of them wait for such buffers
        themselves (Dally and Seitz 1987).  Lines that remain after all others are taken out can
        never proceed.
        """
        waiting, stuck = seen.waiting, set(seen.asserting)
        while True:
            held = dict.fromkeys(stuck, 0)
            for end, origins in waiting.items():
                if self._topology.far_end(end) in stuck:
                    for origin, octets in origins.items():
                        if origin in held:
                            held[origin] += octets
            left = {end for end in stuck if held[end] > seen.asserting[end]}
            if left == stuck:
                break
            stuck = left
        return self._walk(stuck, waiting)

    def _walk(
        self, stuck: set[CableEnd], waiting: Mapping[CableEnd, Mapping[CableEnd, int]]
    ) -> tuple[SwitchChannel, ...]:
        """A cycle of lines to ``stuck`` buffers, by way of the most octets of each buffer."""
        order = [end for end in self._asic.pauses.cables if end in stuck]
        if not order:
            return ()
        far_end = self._topology.far_end
        way: list[CableEnd] = []  # buffers
        lines: list[CableEnd] = []  # from the switch of each of them
        at = order[0]
        while at not in way:
            way.append(at)
            following = [end for end in waiting if far_end(end) in stuck and at in waiting[end]]
            lines.append(max(following, key=lambda end: waiting[end][at]))
            at = far_end(lines[-1])
        return tuple(SwitchChannel(end, far_end(end)) for end in lines[way.index(at) :])

    # For readers (emulator.dataplane.switch.pauses)

    def publish(self) -> None:
        """Let everybody read what was counted up to now."""
        indices = self._asic.pauses.indices
        for part in self._workers.each_of_pauses(PriorityFlowControl.counters, self._stood_ns):
            for name, counters in part.items():
                cable_counters.write(self._asic.program, indices[name], counters)

    def restart(self) -> None:
        """Measure the longest pause anew; counts go on."""
        self._workers.each_of_pauses(PriorityFlowControl.restart)
        self.publish()

    def storm(self, nic: CableEnd, on: bool) -> None:
        """Let this NIC request pauses without a reason, or no longer."""
        self._workers.each_of_pauses(PriorityFlowControl.storm, nic, on)
