"""The table of ``uetemu graph --workers``: the parts of a fabric that workers or MPI ranks have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from emulator.cli.plain_tables import plain_table
from emulator.run.plan.variants import DEFAULT_SEED
from emulator.scenario import Scenario
from emulator.sim.endpoint.operations.operation_table import OperationTable
from emulator.sim.event_queue import PS
from emulator.workers.partition import ExpectedTraffic, Partition
from topologies.model import Topology
from topologies.units import format_size, format_time

#: Names of one worker's switches or GPUs that are listed.
_LISTED = 12


@dataclass(frozen=True, kw_only=True)
class AskedParts:
    """The parts that a user asks for: of ``workers`` at most, or as they are ``named``.

    With a ``scenario`` the traffic of its schedules is shown.
    """

    workers: int
    named: Sequence[Sequence[str]] | None = None
    scenario: Scenario | None = None
    parameters: Any = None

    def traffic(self, topology: Topology) -> ExpectedTraffic | None:
        """Return who sends how much to whom on ``topology``; None without a scenario."""
        if self.scenario is None:
            return None
        trials = self.scenario.schedules(self.parameters, topology, DEFAULT_SEED)
        return ExpectedTraffic.joined(
            ExpectedTraffic.of(OperationTable.of(one.operations) for one in trial.compile())
            for trial in trials
        )


def parts(topology: Topology, asked: AskedParts) -> Table:
    """The switches and GPUs of each worker, its cables to the others, and what crosses them."""
    traffic = asked.traffic(topology)
    if asked.named is not None:
        partition = Partition.by_hand(topology, asked.named)
    else:
        partition = Partition.of(topology, asked.workers, traffic)
    owner = partition.worker_of
    title = f"{partition.workers} workers, windows of {format_time(partition.lookahead_ps // PS)}"
    columns = ["worker", "switches", "GPUs", "cables to others"]
    shares = None if traffic is None else partition.shares(topology, traffic)
    if shares is not None:
        title += f", {format_size(shares.cut)} across cuts"
        if shares.total:
            title += f" ({shares.cut / shares.total:.0%} of what leaves a leaf switch's GPUs)"
        columns += ["to and from others", "work"]
    table = plain_table(title, *columns)
    for number in range(partition.workers):
        ends = [{owner[end.node] for end in link.ends} for link in topology.links]
        crossing = sum(number in owners and len(owners) > 1 for owners in ends)
        row = [
            str(number),
            _named([one.name for one in topology.switches if owner[one.name] == number]),
            _named([one.name for one in topology.gpus if owner[one.name] == number]),
            str(crossing),
        ]
        if shares is not None:
            share = shares.works[number] / max(1, sum(shares.works))
            row += [format_size(shares.away[number]), f"{share:.0%}"]
        table.add_row(*row)
    return table


def _named(names: list[str]) -> str:
    """The first of ``names``, and how many there are if that is not all."""
    if len(names) <= _LISTED:
        return ", ".join(names)
    return f"{', '.join(names[:_LISTED])}, ... ({len(names)})"
