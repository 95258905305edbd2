"""The drawing of a fabric whose lines are coloured live: an SVG, and a number for each line."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from xml.etree import ElementTree

from emulator.lab.live.rates import Activity
from emulator.lab.live.sampler import LabSample
from emulator.report.run.figures.fabric_drawing import LONGEST_S, only_shapes
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
        self.svg = _svg(source(drawn, topology.name, numbered=True))

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


def _svg(text: str) -> str | None:
    try:
        done = subprocess.run(
            ["dot", "-Tsvg"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            timeout=LONGEST_S,
        )
        return only_shapes(done.stdout)
    except (OSError, subprocess.SubprocessError, ElementTree.ParseError):
        return None
