"""The link layer of a fabric's cables under the virtual clock: both ends of each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from emulator.dataplane.switch.cable_counters import LinkCounters
from emulator.dataplane.switch.cable_fitting import LinkRules
from emulator.dataplane.switch.fabric_asic import FabricAsic
from emulator.dataplane.switch.virtual_state import DEPTH, PAUSE_WORDS, PORT_WORDS, WORD_BYTES
from emulator.sim.event_queue import EventQueue, Source
from emulator.sim.line import HIGH, LOW, MAC_CONTROL, Line
from emulator.sim.link_layer.cable_errors import ErrorRates
from emulator.sim.link_layer.link_end import LinkEnd
from topologies.model import CableEnd, Topology


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Rules of a cable, and the errors of what leaves one end of it."""

    rules: LinkRules | None
    errors: ErrorRates


def link_settings(asic: FabricAsic) -> dict[CableEnd, LinkSettings]:
    """Return the present settings of both ends of all cables at switches of ``asic``."""
    return {end: link_settings_of(asic, end) for end in asic.pauses.cables}


def link_settings_of(asic: FabricAsic, end: CableEnd) -> LinkSettings:
    """The settings of port ``end``."""
    rules = asic.fitted.link(asic.pauses.cables[end])
    return LinkSettings(rules, ErrorRates.of(asic.faults_from(str(end))))


class LinkLayer:
    """The ends of ``lines`` at cables of ``asic``'s switches; ``owns`` names this worker's nodes.

    Sources of events are numbered from ``first_source`` on.
    """

    def __init__(
        self,
        asic: FabricAsic,
        topology: Topology,
        lines: Mapping[CableEnd, Line],
        events: EventQueue,
        first_source: int,
        owns: Callable[[str], bool],
    ) -> None:
        state = asic.state
        self._asic, self._far_end, self._lines, self._owns = asic, topology.far_end, lines, owns
        self._depths = state.ports
        self.ends: dict[CableEnd, LinkEnd] = {}
        self._by_index: dict[int, LinkEnd] = {}
        for number, end in enumerate(asic.pauses.cables):
            if end not in lines:
                continue
            port = asic.ports.get(str(end))
            buffer = memoryview(bytearray(PAUSE_WORDS * WORD_BYTES)).cast("q"), 0
            if port is not None:
                buffer = state.pauses, port.index * PAUSE_WORDS
            made = LinkEnd(
                lines[end],
                lines[topology.far_end(end)],
                events,
                Source(first_source + number),
                buffer,
            )
            self.ends[end] = made
            if port is not None:
                self._by_index[port.index] = made

    def configure(self, settings: Mapping[CableEnd, LinkSettings]) -> None:
        """Have all cables work by ``settings``; none has a frame on it."""
        for end, one in self.ends.items():
            own = settings[end]
            one.errors.rates = own.errors
            if own.rules is None:
                one.detach()
            else:
                one.attach(self.ends[self._far_end(end)], own.rules)

    def apply_fault(self, end: CableEnd, settings: LinkSettings) -> None:
        """Let what leaves ``end`` from now on have the errors of ``settings``."""
        if end in self.ends:
            self.ends[end].errors.rates = settings.errors

    def begin_row(self, seed: int | None = None) -> None:
        """Begin anew on empty cables, and draw errors anew, by ``seed`` if there is another."""
        for one in self.ends.values():
            if seed is not None:
                one.errors.begin_row(seed)
            one.begin_row()

    def reset(self, ends: Collection[CableEnd]) -> None:
        """Lose what is on the cables of ``ends``, whose carrier is gone."""
        for end in ends:
            if end in self.ends:
                self.ends[end].reset()

    def guarded(self, end: CableEnd, take: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """Takes what arrives at ``end`` for ``take``; frees its cells where nothing holds it."""
        one = self.ends.get(end)
        if one is None:
            return take
        one.deliver = take
        return one.guard

    def guard(self, ends: Collection[CableEnd]) -> None:
        """Stand before whoever takes what arrives at ``ends`` now."""
        for end in sorted(ends):
            line = self._lines[self._far_end(end)]
            line.far = self.guarded(end, line.far)

    def credited(self, end: CableEnd) -> bool:
        """Return whether what comes in at the switch of port ``end`` takes cells."""
        one = self.ends.get(end)
        return one is not None and one.cells is not None

    def leaves(self, end: CableEnd) -> Callable[[int, int, int], None]:
        """Return a function that takes a frame's octets off its queue, and frees its cells.

        The cells are those of the port by which the frame came in.
        """
        depths, by_index = self._depths, self._by_index
        at = self._asic.ports[str(end)].index * PORT_WORDS + DEPTH - HIGH

        def left(queue: int, octets: int, origin: int) -> None:
            if queue == MAC_CONTROL:
                return
            depths[at + queue] -= octets
            if queue == LOW and origin:
                by_index[origin].give_back(octets)

        return left

    def under_way(self, end: CableEnd) -> bool:
        """Return whether the link layer at ``end`` still waits for an answer."""
        one = self.ends.get(end)
        return one is not None and one.rules is not None and one.under_way

    def restart(self) -> None:
        """Measure the largest and longest anew; counts go on."""
        for one in self.ends.values():
            one.restart()

    def counters(self) -> dict[str, LinkCounters]:
        """Counters up to now of this worker's ports whose cable has a link layer."""
        return {
            str(end): one.settle()
            for end, one in self.ends.items()
            if one.rules is not None and self._owns(end.node)
        }
