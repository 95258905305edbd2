"""The drawing of a fabric whose lines are coloured live: an SVG, and a number for each line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from emulator.html_page import DrawingError, drawn_by_graphviz
from emulator.lab.live.rates import Activity
from emulator.lab.live.sampler import LabSample
from topologies.exports.dot import source
from topologies.exports.picture import picture
from topologies.model import Topology

#: What lines can be coloured by, as shares of all that there is: of a link, of a queue's limit.
_SHARES: Mapping[str, Callable[[Activity, LabSample], float]] = {
    "utilisation": lambda one, _: one.utilisation,
    "queue": lambda one, seen: one.deepest_bytes / seen.limits[one.direction.port].limit_bytes,
}
#: The same of counts, which have no whole: shares of the largest count in the interval.
_COUNTS: Mapping[str, Callable[[Activity], int]] = {
    "marks": lambda one: one.marked or 0,
    "trims": lambda one: one.trimmed or 0,
    "drops": lambda one: one.dropped,
}
COLOURED_BY = (*_SHARES, *_COUNTS)


class TopDrawing:
    """The drawing of ``topology``; ``svg`` is None where Graphviz cannot draw it."""

    def __init__(self, topology: Topology) -> None:
        drawn = picture(topology)
        self._ports = [
            tuple(str(end) for link in line.links for end in link.ends) for line in drawn.lines
        ]
        self.svg: str | None = None
        with suppress(DrawingError):
            self.svg = drawn_by_graphviz(source(drawn, topology.name, numbered=True))

    def values(self, seen: LabSample) -> dict[str, list[float]]:
        """Return the share of each line, by what it is coloured by: of its busiest direction."""
        found = {}
        for name, share in _SHARES.items():
            found[name] = self._lines(
                {one.direction.port: share(one, seen) for one in seen.activities}
            )
        for name, count in _COUNTS.items():
            counts = {one.direction.port: count(one) for one in seen.activities}
            most = max(counts.values(), default=0) or 1
            found[name] = self._lines({port: each / most for port, each in counts.items()})
        return found

    def _lines(self, by_port: Mapping[str, float]) -> list[float]:
        return [
            round(max((by_port.get(port, 0.0) for port in ports), default=0.0), 4)
            for ports in self._ports
        ]
