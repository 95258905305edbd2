"""Marks (ECN) on packets that leave a queue, by what waits there behind them.

Switches that run SONiC have to mark so: sonic-mgmt, docs/testplan/ECN-test-plan.md, "dequeue based
ECN marking". A switch program of a virtual clock does not know when a frame leaves; the engine,
which holds the frames, does.
"""

from __future__ import annotations

from emulator.dataplane.model.packet import marked, parse, traffic_of
from emulator.dataplane.model.port import STREAM_MARK, draw
from emulator.dataplane.model.program import ModelRules
from emulator.dataplane.switch.bpf.layout import SLOPE_SHIFT
from emulator.dataplane.switch.virtual_state import (
    DEPARTURE_DRAWS,
    DEPARTURES_MARKED,
    DEPTH,
    PORT_WORDS,
)
from emulator.sim.line import octets_on_wire

_ECN_CAPABLE = (1, 2)


class DepartureMarks:
    """Marks what leaves the port of ``index`` by ``settings``, and counts it in ``ports``."""

    def __init__(self, ports: memoryview, index: int, settings: bytes) -> None:
        self._words, self._at = ports, index * PORT_WORDS
        self._rules = ModelRules.of(settings)

    def leaving(self, frame: bytes) -> bytes:
        """Return ``frame``, whose octets its queue still counts, as it leaves."""
        rules, words, at = self._rules, self._words, self._at
        traffic = traffic_of(frame)
        if traffic & 3 not in _ECN_CAPABLE:
            return frame
        number = rules.class_of[traffic]
        of_class = rules.classes[number]
        behind = words[at + DEPTH + of_class.queue] - octets_on_wire(frame)
        if not of_class.mark_all or behind <= of_class.mark_from:
            return frame
        if behind < of_class.mark_all:
            drawn = words[at + DEPARTURE_DRAWS]
            words[at + DEPARTURE_DRAWS] = drawn + 1
            chance = (behind - of_class.mark_from) * of_class.mark_slope >> SLOPE_SHIFT
            if draw(rules.seed, STREAM_MARK, drawn) >= chance:
                return frame
        words[at + DEPARTURES_MARKED + number] += 1
        return marked(frame, parse(frame))
