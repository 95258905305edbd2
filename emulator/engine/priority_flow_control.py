"""Priority flow control of all cables of a lab in virtual time, and what can stand still by it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping

from emulator.asic import pause_counters
from emulator.asic.fabric import FabricAsic
from emulator.asic.virtual_state import DEPTH, PAUSE_WORDS, PORT_WORDS
from emulator.engine.event_queue import PS, EventQueue, Source
from emulator.engine.line import HIGH, LOW, MAC_CONTROL, Line
from emulator.engine.pfc_end import Buffer, PfcEnd
from topologies.deadlock import Channel
from topologies.model import End, Topology

_DRAWN_OCTETS = 8
#: A deadlock in which no frame of a transport moved for so long (ns) ends the run: by then timers
#: have had their turn, and found no way around it.
STANDSTILL_NS = 5_000_000
_SHOWN = 8


class PriorityFlowControl:
    """Both ends of every cable that a switch of ``asic`` is at.

    Sources of events are numbered from ``first_source`` on.
    """

    def __init__(
        self,
        asic: FabricAsic,
        topology: Topology,
        lines: Mapping[End, Line],
        events: EventQueue,
        first_source: int,
    ) -> None:
        state = asic.virtual
        assert state is not None
        self._asic, self._topology, self._lines, self._events = asic, topology, lines, events
        self._depths = state.ports
        self.ends: dict[End, PfcEnd] = {}
        self._by_index: dict[int, PfcEnd] = {}
        for number, end in enumerate(asic.pauses.cables):
            port = asic.ports.get(str(end))
            if port is None:
                buffer = Buffer.of_nic()
            else:
                buffer = Buffer(words=state.pauses, at=port.index * PAUSE_WORDS)
            mac = bytes.fromhex(topology.node(end.node).port(end.port).mac.replace(":", ""))
            made = PfcEnd(
                lines[end], mac, events, Source(first_source + number), buffer, around=self
            )
            self.ends[end] = made
            if port is not None:
                self._by_index[port.index] = made
        self._deadlock: tuple[Channel, ...] = ()
        #: since when (ns) nothing has moved, once that has lasted long enough to end the run
        self._stood_ns: int | None = None
        self._seed = 0
        self._draws: Counter[tuple[str, bool]] = Counter()
        #: called when a deadlock has lasted, and nothing has moved, for :data:`STANDSTILL_NS`
        self.standstill: Callable[[], None] | None = None
        self._looked_ns = -1
        self._moved, self._moved_ns = -1, 0
        asic.pauses.keeper = self

    def begin_row(self, seed: int | None = None) -> None:
        """Draw anew which PAUSE frames are lost, by ``seed`` if there is another."""
        self._seed = self._seed if seed is None else seed
        self._draws.clear()

    def configure(self) -> None:
        """Have all ends work as the switches say now."""
        self._deadlock = ()
        for end, one in self.ends.items():
            one.configure(self._asic.pause_rules(end))
            one.storm(self._asic.storming(str(end)))

    def guarded(self, end: End, take: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """Takes what arrives at ``end``: MAC control itself, all else by ``take``."""
        one = self.ends.get(end)
        if one is None:
            return take
        one.deliver = take
        return one.arrive

    def leaves(self, end: End) -> Callable[[int, int, int], None]:
        """Takes a frame's octets off what the line from the switch port ``end`` has waiting, and
        off the buffer of the port that it came in by, which a pulled cable frees."""
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

    # What the ends ask

    def swallows(self, name: str, *, arriving: bool) -> bool:
        """Whether a fault takes all frames that leave port ``name``, or that arrive there."""
        return self._asic.swallows(name, arriving=arriving)

    def loses(self, name: str, *, arriving: bool) -> bool:
        """Whether faults take the next PAUSE frame that leaves port ``name``, or arrives there.

        The chance is that of any frame on the cable; of bursts it is the mean over time.
        """
        struck = self._asic.struck(name)
        chance = struck.mean_loss if struck.arriving or not arriving else 0.0
        if not chance:
            return False
        self._draws[name, arriving] += 1
        text = f"pause {self._seed} {name} {arriving} {self._draws[name, arriving]}"
        drawn = int.from_bytes(hashlib.sha256(text.encode()).digest()[:_DRAWN_OCTETS], "big")
        return drawn < chance * (1 << 8 * _DRAWN_OCTETS)

    def drop(self, name: str, dropping: bool) -> None:
        """Have the switch drop all data that is to leave by port ``name``, or no longer."""
        self._asic.pauses.drop(name, dropping)

    @property
    def in_force(self) -> bool:
        """Whether a pause stops a port now."""
        return any(one.gate is not None and one.gate.closed for one in self.ends.values())

    def unmoved(self) -> None:
        """A buffer has been above XON for a whole pause: look for a deadlock, once an instant."""
        now = self._events.now // PS
        if now == self._looked_ns:
            return
        self._looked_ns = now
        if not self.deadlock:
            self._deadlock = self._circle()
            self._moved = -1
            return
        moved = self._frames()
        if moved != self._moved:
            self._moved, self._moved_ns = moved, now
        elif now - self._moved_ns >= STANDSTILL_NS and self.standstill is not None:
            self._stood_ns = self._moved_ns
            self.standstill()

    @property
    def deadlock(self) -> tuple[Channel, ...]:
        """Links each of which waits for the next, and the last for the first; empty if none do.

        What was found once is looked at again: a cable that is pulled may have freed a buffer.
        """
        if self._deadlock:
            self._deadlock = self._circle()
        return self._deadlock

    def _frames(self) -> int:
        """Frames that lines have begun with, but for PAUSE frames."""
        sent = sum(one.counters.xoff_sent + one.counters.xon_sent for one in self.ends.values())
        return sum(line.counts.frames for line in self._lines.values()) - sent

    # Deadlocks

    def _circle(self) -> tuple[Channel, ...]:
        """Lines that wait for each other in a circle; empty if there is none.

        A line waits for the buffer at its other end.  That waits for the lines that its frames are
        to leave by, and can fall to XON unless too many of them wait for such buffers themselves
        (Dally and Seitz 1987).  What remains when all is taken out that can get on, never will.
        """
        waiting = self._waiting()
        stuck = {
            one.line.end for one in self._by_index.values() if one.pauser.asserted and one.rules
        }
        while True:
            held = dict.fromkeys(stuck, 0)
            for end, origins in waiting.items():
                if self._far(end) in stuck:
                    for origin, octets in origins.items():
                        if origin in held:
                            held[origin] += octets
            left = {end for end in stuck if held[end] > self._xon(end)}
            if left == stuck:
                break
            stuck = left
        return self._walk(stuck, waiting)

    def standing(self) -> str:
        """What holds up frames now, as the end of a sentence; empty if nothing does."""
        if circle := self.deadlock:
            names = [str(channel) for channel in circle]
            more = len(names) - _SHOWN
            return (
                f"; a PFC deadlock of {len(names)} links: {' waits for '.join(names[:_SHOWN])}"
                f"{f' waits for {more} more' if more > 0 else ''}, and the last for the first"
            )
        held = [str(end) for end, one in self.ends.items() if one.line.low_stopped]
        if not held:
            return ""
        more = len(held) - _SHOWN
        return f"; pauses stop {', '.join(held[:_SHOWN])}{f' and {more} more' if more > 0 else ''}"

    def _walk(
        self, stuck: set[End], waiting: Mapping[End, Mapping[End, int]]
    ) -> tuple[Channel, ...]:
        """A circle of lines to ``stuck`` buffers, by way of the most octets of each buffer."""
        order = [end for end in self.ends if end in stuck]
        if not order:
            return ()
        way: list[End] = []  # buffers
        lines: list[End] = []  # from the switch of each of them
        at = order[0]
        while at not in way:
            way.append(at)
            following = [end for end in waiting if self._far(end) in stuck and at in waiting[end]]
            lines.append(max(following, key=lambda end: waiting[end][at]))
            at = self._far(lines[-1])
        return tuple(Channel(end, self._far(end)) for end in lines[way.index(at) :])

    def _waiting(self) -> dict[End, dict[End, int]]:
        """Octets that wait in each stopped line of a switch for ever, by port of arrival.

        A line that a watchdog opens some day is left out.
        """
        found: dict[End, dict[End, int]] = {}
        for one in self._by_index.values():
            line, rules = one.line, one.rules
            if not line.low_stopped or rules is None or rules.watchdog_ns:
                continue
            origins: dict[End, int] = {}
            for _, octets, origin in line.queues[LOW]:
                if origin:
                    end = self._by_index[origin].line.end
                    origins[end] = origins.get(end, 0) + octets
            if origins:
                found[line.end] = origins
        return found

    def _far(self, end: End) -> End:
        a, b = self._topology.link_at(end).ends
        return b if a == end else a

    def _xon(self, end: End) -> int:
        rules = self.ends[end].rules
        assert rules is not None
        return rules.xon_bytes

    # For readers (emulator.asic.pauses)

    def publish(self) -> None:
        """Let everybody read what was counted up to now."""
        indices = self._asic.pauses.indices
        for one in self.ends.values():
            counters = one.settle(self._stood_ns)
            pause_counters.write(self._asic.program, indices[one.name], counters)

    def restart(self) -> None:
        """Measure the longest pause anew; counts go on."""
        for one in self.ends.values():
            one.restart()
        self.publish()

    def storm(self, nic: End, on: bool) -> None:
        """Let this NIC ask for pauses without a reason, or no longer."""
        self.ends[nic].storm(on)
