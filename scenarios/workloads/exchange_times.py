"""Times of the named parts of schedules, and the least time that their busiest NIC needs.

A part is what stands inside ``with program.named(...)``, with the same name at all ranks.  Parts do
not contain each other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from emulator.run.measures.gpu_execution import GpuExecution
from emulator.run.measures.message_times import Iteration
from emulator.scenario import Outcome
from emulator.sim.endpoint.operations.schedule import ScheduleSpan
from emulator.transports.wire_cost import WireCost
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
        return {
            "name": self.name,
            "start_us": self.start_ns / 1000,
            "time_us": (self.end_ns - self.start_ns) / 1000,
            "bound_us": self.bound_ns / 1000,
        }


def named_parts(gpu: GpuExecution) -> tuple[ScheduleSpan, ...]:
    """Return the names of a GPU's operations, for :attr:`emulator.scenario.Trial.observe`."""
    return gpu.schedule.spans


def spans_of(outcome: Outcome) -> Mapping[int, tuple[ScheduleSpan, ...]]:
    """Return what :func:`named_parts` observed in the last iteration, by rank."""
    return cast(Mapping[int, tuple[ScheduleSpan, ...]], outcome.observed[-1])


def fabric_octets_of(iteration: Iteration) -> int:
    """Return the octets of payload that the messages of ``iteration`` write over the fabric."""
    return int(iteration.length[iteration.writes].sum(dtype=np.int64))


class ExchangeParts:
    """The named parts in which a GPU sends to another one, in their order.

    ``iteration`` has the messages of all GPUs, as every other one, and ``spans`` by rank what
    :func:`named_parts` observed.
    """

    def __init__(
        self,
        topology: Topology,
        iteration: Iteration,
        spans: Mapping[int, Sequence[ScheduleSpan]],
        wire: WireCost,
    ) -> None:
        self._topology, self._wire, self._iteration = topology, wire, iteration
        parts: dict[str, list[int]] = {}
        for message, name in enumerate(_names(iteration, spans)):
            if name is not None:
                parts.setdefault(name, []).append(message)
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
        wire, of = self._wire, self._iteration
        busy: dict[tuple[bool, int], int] = {}
        for writes, source, target, length in zip(
            of.writes[which].tolist(),
            of.source[which].tolist(),
            of.destination[which].tolist(),
            of.length[which].tolist(),
            strict=True,
        ):
            if writes:
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


def _names(iteration: Iteration, spans: Mapping[int, Sequence[ScheduleSpan]]) -> list[str | None]:
    """Return the name of the part in which each message is received, if it has one."""
    firsts = {rank: [span.first for span in some] for rank, some in spans.items()}
    found: list[str | None] = []
    for rank, index in zip(iteration.destination.tolist(), iteration.receive.tolist(), strict=True):
        place = bisect_right(firsts[rank], index) - 1
        inside = place >= 0 and index < spans[rank][place].end
        found.append(spans[rank][place].name if inside else None)
    return found
