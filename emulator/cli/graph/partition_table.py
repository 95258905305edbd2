"""The table of ``uetemu graph --workers``: the parts of a fabric that workers or MPI ranks have."""

from __future__ import annotations

from rich.table import Table

from emulator.cli.plain_tables import plain_table
from emulator.engine.event_queue import PS
from emulator.engine.workers.partition import Partition
from topologies.model import Topology
from topologies.units import format_time

#: Names of one worker's switches or GPUs that are listed.
_LISTED = 12


def parts(topology: Topology, workers: int) -> Table:
    """The switches and GPUs of each of ``workers`` at most, and its cables to the others."""
    partition = Partition.of(topology, workers)
    owner = partition.worker_of
    table = plain_table(
        f"{partition.workers} workers, windows of {format_time(partition.lookahead_ps // PS)}",
        *("worker", "switches", "GPUs", "cables to others"),
    )
    for number in range(partition.workers):
        ends = [{owner[end.node] for end in link.ends} for link in topology.links]
        crossing = sum(number in owners and len(owners) > 1 for owners in ends)
        table.add_row(
            str(number),
            _named([one.name for one in topology.switches if owner[one.name] == number]),
            _named([one.name for one in topology.gpus if owner[one.name] == number]),
            str(crossing),
        )
    return table


def _named(names: list[str]) -> str:
    """The first of ``names``, and how many there are if that is not all."""
    if len(names) <= _LISTED:
        return ", ".join(names)
    return f"{', '.join(names[:_LISTED])}, ... ({len(names)})"
