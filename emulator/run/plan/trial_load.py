"""The load of a trial: work for the fabric, the memory and the processors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from emulator.endpoint.operations.gpu_memory import Layout
from emulator.endpoint.operations.operation_table import WRITE
from emulator.endpoint.operations.schedule import Schedule
from emulator.engine.workers.expected_traffic import ExpectedTraffic
from emulator.errors import UserError
from emulator.measures.cuts import Change
from emulator.measures.ideal import WireCost, ideal_ns
from emulator.measures.message_graph import MessageGraph, longest_chain
from emulator.run.faults.fault_timeline import link_changes
from emulator.run.pxn import Pxn, changed
from emulator.scenario import Trial
from topologies.model import Topology


@dataclass(frozen=True, kw_only=True)
class TrialLoad:
    """One iteration of a trial.

    ``packets`` are data packets sent over the fabric by all ranks, and ``operations`` those of all
    schedules. ``memory_octets`` is what each GPU's buffers take. ``relayed`` are the writes that
    another GPU of the server sends on (:mod:`emulator.run.pxn`), and ``chain`` the messages of the
    longest chain of dependent ones.  ``pairs`` are those of a GPU and one that it writes to over
    the fabric.  ``traffic`` is who sends how much to whom.
    """

    size_bytes: int
    ideal_ns: float
    packets: int
    operations: int
    memory_octets: tuple[int, ...]
    relayed: int = 0
    chain: int = 0
    pairs: int = 0
    traffic: ExpectedTraffic | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(
        cls, trial: Trial, topology: Topology, wire: WireCost, pxn: Pxn | None = None
    ) -> TrialLoad:
        """Compile ``trial`` and weigh it; :class:`UserError` if it could never end."""
        schedules = compiled = trial.compile()
        if [schedule.rank for schedule in schedules] != list(range(len(topology.gpus))):
            raise UserError(
                f"{trial.collective} of {trial.size_bytes} B has {len(schedules)} schedules and "
                f"the fabric {len(topology.gpus)} GPUs; compile one for each, in rank order"
            )
        schedules = (pxn or Pxn(topology)).relayed(schedules)
        try:
            changes = link_changes(trial.faults, topology)
            load = cls.weigh(trial.size_bytes, schedules, topology, wire, changes)
            return replace(load, relayed=changed(compiled, schedules))
        except ValueError as wrong:
            raise UserError(
                f"the schedules of {trial.collective} of {trial.size_bytes} B cannot be run: "
                f"{wrong}; mend the scenario's compile"
            ) from wrong

    def brief(self) -> TrialLoad:
        """Return the load without its traffic, which is as large as the square of the GPUs."""
        return replace(self, traffic=None)

    @classmethod
    def weigh(
        cls,
        size_bytes: int,
        schedules: Sequence[Schedule],
        topology: Topology,
        wire: WireCost,
        changes: Sequence[Change] = (),
    ) -> TrialLoad:
        graph = MessageGraph(schedules)
        written = graph.column("near_octets")[graph.kind == WRITE]
        traffic = ExpectedTraffic.of(graph.tables)
        return cls(
            size_bytes=size_bytes,
            ideal_ns=ideal_ns(topology, schedules, wire, changes, graph=graph),
            packets=int(np.maximum(1, -(-written // wire.payload_mtu)).sum()),
            operations=len(graph),
            chain=longest_chain(graph),
            pairs=int(np.count_nonzero(traffic.written)),
            traffic=traffic,
            memory_octets=tuple(Layout(schedule.buffers).octets for schedule in schedules),
        )
