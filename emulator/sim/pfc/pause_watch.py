"""Watches the pauses of a whole fabric: which links wait for each other, and whether for ever."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from emulator.dataplane.switch import cable_counters
from emulator.dataplane.switch.fabric_asic import FabricAsic
from emulator.sim.event_queue import PS, EventQueue
from emulator.sim.pfc.priority_flow_control import PauseSnapshot, PriorityFlowControl
from topologies.analysis.deadlock import SwitchChannel
from topologies.model import CableEnd, Topology

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
        before, self._deadlock = self._deadlock, self._circle(seen)
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
            self._deadlock = self._circle(self._snapshot())
        return self._deadlock

    @property
    def in_force(self) -> bool:
        """Return whether a pause stops a port now."""
        return any(self._workers.each_of_pauses(PriorityFlowControl.in_force))

    def standing(self) -> str:
        """Name what holds up frames now, as the end of a sentence; empty if nothing does."""
        if circle := self.deadlock:
            names = [str(channel) for channel in circle]
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

    def _circle(self, seen: PauseSnapshot) -> tuple[SwitchChannel, ...]:
        """Lines that wait for each other in a circle; empty if there is none.

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
        """A circle of lines to ``stuck`` buffers, by way of the most octets of each buffer."""
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
