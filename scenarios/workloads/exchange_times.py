"""Times of the named parts of schedules, and the least time that their busiest NIC needs.

A part is what stands inside ``with program.named(...)``, with the same name at all ranks.  Parts do
not contain each other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emulator.endpoint.operations.operation_table import WRITE
from emulator.endpoint.operations.schedule import Schedule
from emulator.measures.ideal import WireCost
from emulator.measures.message_graph import MessageGraph
from emulator.measures.message_times import Iteration
from topologies.model import Topology
from topologies.parts.attachment import nic_rate_bps


@dataclass(frozen=True)
class ExchangeTime:
    """When the messages of a part were under way, in ns after the common start.

    ``bound_ns`` is the largest of what a NIC sends and of what it receives, over its rate.
    """

    name: str
    start_ns: int
    end_ns: int
    bound_ns: float

    def as_dict(self) -> dict[str, object]:
        """Return the values in microseconds."""
        return {
            "name": self.name,
            "start_us": self.start_ns / 1000,
            "time_us": (self.end_ns - self.start_ns) / 1000,
            "bound_us": self.bound_ns / 1000,
        }


class ExchangeParts:
    """The named parts of ``schedules`` in which a GPU sends to another one, in their order."""

    def __init__(self, topology: Topology, schedules: Sequence[Schedule], wire: WireCost) -> None:
        self._graph = graph = MessageGraph(schedules)
        self._topology, self._wire = topology, wire
        firsts = [[span.first for span in one.spans] for one in schedules]
        parts: dict[str, list[int]] = {}
        places = zip(
            graph.rank(graph.receive).tolist(), graph.index(graph.receive).tolist(), strict=True
        )
        for message, (rank, index) in enumerate(places):
            place = bisect_right(firsts[rank], index) - 1
            if place >= 0 and index < schedules[rank].spans[place].end:
                parts.setdefault(schedules[rank].spans[place].name, []).append(message)
        self.messages = {name: np.array(numbers) for name, numbers in parts.items()}
        self._bounds = {name: self._bound_ns(which) for name, which in self.messages.items()}

    def times(self, iteration: Iteration) -> list[ExchangeTime]:
        """Return when each part was under way in ``iteration``, ordered by start."""
        found = [
            ExchangeTime(
                name,
                int(iteration.start_ns[which].min()),
                int(iteration.end_ns[which].max()),
                self._bounds[name],
            )
            for name, which in self.messages.items()
        ]
        return sorted(found, key=lambda one: one.start_ns)

    def _bound_ns(self, which: npt.NDArray[np.int64]) -> float:
        graph, wire = self._graph, self._wire
        sends, receives = graph.send[which], graph.receive[which]
        busy: dict[tuple[bool, int], int] = {}
        for kind, source, target, length in zip(
            graph.kind[sends].tolist(),
            graph.rank(sends).tolist(),
            graph.rank(receives).tolist(),
            graph.column("near_octets")[sends].tolist(),
            strict=True,
        ):
            if kind == WRITE:
                for port in ((True, source), (False, target)):
                    busy[port] = busy.get(port, 0) + wire.octets(length)
        gpus = self._topology.gpus
        return max(
            (
                8e9 * octets / nic_rate_bps(self._topology, gpus[rank].name)
                for (_, rank), octets in busy.items()
            ),
            default=0.0,
        )
