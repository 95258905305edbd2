"""The load of a trial: work for the fabric, the memory and the processors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from emulator.errors import UserError
from emulator.run.faults.fault_timeline import link_changes
from emulator.run.measures.cuts import Change
from emulator.run.measures.ideal import ideal_ns
from emulator.run.measures.message_graph import MessageGraph
from emulator.run.measures.message_times import Recorder
from emulator.run.pxn import Pxn, changed
from emulator.scenario import Trial
from emulator.sim.endpoint.operations.gpu_memory import Layout
from emulator.sim.endpoint.operations.operation_table import WRITE
from emulator.transports.wire_cost import WireCost
from emulator.workers.division import Division, JobSchedules
from emulator.workers.partition import ExpectedTraffic
from topologies.model import Topology


@dataclass(frozen=True, kw_only=True)
class TrialLoad:
    """One iteration of a trial.

    ``packets`` are data packets sent over the fabric by all ranks, ``answers`` about their
    acknowledgements, and ``operations`` those of all schedules.  ``memory_octets`` is what each
    GPU's buffers take.  ``relayed`` are the writes that another GPU of the server sends on
    (:mod:`emulator.run.pxn`).  ``pairs`` are those of a GPU and one that it writes to over the
    fabric.  ``traffic`` is who sends how much to whom.  ``schedules`` are those that were weighed,
    as they are compiled and with relayed writes, unless they are to be compiled again.
    ``messages`` is a recorder of theirs, if no write is relayed.
    """

    size_bytes: int
    ideal_ns: float
    packets: int
    answers: int
    operations: int
    memory_octets: tuple[int, ...]
    relayed: int = 0
    pairs: int = 0
    traffic: ExpectedTraffic | None = field(default=None, compare=False, repr=False)
    schedules: tuple[JobSchedules, JobSchedules] | None = field(
        default=None, compare=False, repr=False
    )
    messages: Recorder | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        trial: Trial,
        topology: Topology,
        wire: WireCost,
        pxn: Pxn | None = None,
        division: Division | None = None,
    ) -> TrialLoad:
        """Compile ``trial`` and weigh it; :class:`UserError` if it could never end.

        Each process of the ``division`` compiles for its own GPUs, and all call it.
        """
        division = division or Division.alone(len(topology.gpus))
        compiled = division.compiled(trial.compile, trial.name)
        schedules = (pxn or Pxn(topology)).relayed(compiled)
        try:
            changes = link_changes(trial.faults, topology)
            graph = MessageGraph(schedules)
            load = cls.weigh(trial.size_bytes, graph, topology, wire, changes)
        except ValueError as wrong:
            raise UserError(
                f"the schedules of {trial.collective} of {trial.size_bytes} B cannot be run: "
                f"{wrong}; mend the scenario's compile"
            ) from wrong
        relayed = sum(division.processes.gather("relayed", changed(compiled, schedules)))
        if division.count > 1:  # GPUs are divided anew
            return replace(load, relayed=relayed)
        messages = None if relayed else Recorder(compiled, graph)
        return replace(load, relayed=relayed, schedules=(compiled, schedules), messages=messages)

    @classmethod
    def weigh(
        cls,
        size_bytes: int,
        graph: MessageGraph,
        topology: Topology,
        wire: WireCost,
        changes: Sequence[Change] = (),
    ) -> TrialLoad:
        """Weigh the schedules of ``graph``, of which this process has those of its own GPUs.

        The first process alone has the traffic, which is as large as the square of the GPUs.
        """
        processes = graph.division.processes
        written = graph.column("near_octets")[graph.kind == WRITE]
        packets = np.maximum(1, -(-written // wire.payload_mtu))
        ideal = ideal_ns(topology, graph.schedules, wire, changes, graph=graph)
        traffic = ExpectedTraffic.of(graph.tables)
        first = np.minimum(-(-traffic.written // wire.payload_mtu), wire.first)
        answers = (-(-packets // wire.packets_per_ack)).sum()
        answers += first.sum() - first.sum() // wire.packets_per_ack
        sent = int(packets.sum()), int(min(answers, packets.sum()))
        parts = processes.gather(
            "work", (*sent, len(graph), int(np.count_nonzero(traffic.written)))
        )
        all_traffic = processes.to_first("traffic", traffic)
        all_packets, all_answers, operations, pairs = (
            sum(column) for column in zip(*parts, strict=True)
        )
        return cls(
            size_bytes=size_bytes,
            ideal_ns=ideal,
            packets=all_packets,
            answers=all_answers,
            operations=operations,
            pairs=pairs,
            traffic=ExpectedTraffic.joined(all_traffic).by_sender() if all_traffic else None,
            memory_octets=tuple(Layout(schedule.buffers).octets for schedule in graph.schedules),
        )
