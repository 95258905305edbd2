"""Priority flow control of the ports of one worker in virtual time."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from emulator.dataplane.switch.cable_counters import PauseCounters
from emulator.dataplane.switch.fabric_asic import FabricAsic
from emulator.dataplane.switch.pause import PauseRules
from emulator.dataplane.switch.virtual_state import DEPTH, PAUSE_WORDS, PORT_WORDS
from emulator.sim.event_queue import EventQueue, Source
from emulator.sim.line import HIGH, LOW, MAC_CONTROL, Line
from emulator.sim.line_record import LineRecord
from emulator.sim.pfc.pfc_end import Buffer, PfcEnd
from topologies.ethernet import GAP_OCTETS, PREAMBLE_OCTETS, SHORTEST_OCTETS
from topologies.model import CableEnd, Topology

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
            if port is None:
                buffer = Buffer.of_nic()
            else:
                buffer = Buffer(words=state.pauses, at=port.index * PAUSE_WORDS)
            mac = bytes.fromhex(topology.node(end.node).port(end.port).mac.replace(":", ""))
            made = PfcEnd(
                lines[end], mac, events, Source(first_source + number), buffer, around=self
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
        at = self._asic.ports[str(end)].index * PORT_WORDS + DEPTH - HIGH

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

        return left

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
                one.line.end: one.rules.xon_bytes
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
