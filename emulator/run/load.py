"""How much work a trial is: for the fabric, for the memory and for the processors underneath."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emulator.endpoint.gpu import Layout
from emulator.endpoint.schedule import Schedule, Write
from emulator.run.ideal import WireCost, ideal_ns
from emulator.scenario import Trial
from topologies.model import Topology


@dataclass(frozen=True, kw_only=True)
class Load:
    """One iteration of a trial.

    ``packets`` are data packets sent over the fabric by all ranks, ``operations`` those of all
    schedules, ``memory_octets`` what each GPU's buffers take.
    """

    size_bytes: int
    ideal_ns: float
    packets: int
    operations: int
    memory_octets: tuple[int, ...]

    @classmethod
    def of(cls, trial: Trial, topology: Topology, wire: WireCost) -> Load:
        """Compile ``trial`` and weigh it."""
        schedules = trial.compile()
        return cls.weigh(trial.size_bytes, schedules, topology, wire)

    @classmethod
    def weigh(
        cls, size_bytes: int, schedules: Sequence[Schedule], topology: Topology, wire: WireCost
    ) -> Load:
        return cls(
            size_bytes=size_bytes,
            ideal_ns=ideal_ns(topology, schedules, wire),
            packets=sum(
                wire.packets(operation.local.length)
                for schedule in schedules
                for operation in schedule.operations
                if isinstance(operation, Write)
            ),
            operations=sum(len(schedule.operations) for schedule in schedules),
            memory_octets=tuple(Layout(schedule.buffers).octets for schedule in schedules),
        )
