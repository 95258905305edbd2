"""Several transports on one fabric: what ``--transport uet,rocev2:qps=4`` requests.

Every scenario then runs once for each of them, on the same fabric, with the same seed and so the
same workload; the switches are configured alike, except for what a transport cannot do without or
cannot use, which each row's ``switch`` names.  All rows have the metrics of traffic and those of
comparisons, whatever the scenario's own table shows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain, repeat

from emulator.metrics import computed, table
from emulator.result_rows import NCCL_COLUMNS, TableColumn, short_names
from emulator.run.report import spread
from emulator.run.report.result_table import FABRIC_COLUMNS, TRAFFIC_COLUMNS
from emulator.run.report.traffic import MeasuredTraffic
from emulator.scenario import Outcome
from topologies.model import Topology

#: The ranks of what only the scenario measures, the others between them.
OWN_RANKS = (6, 7, 17, *range(25, 34))

#: What other tables show and this one does not, or in its own place.
_ELSEWHERE = {column.key for column in (*NCCL_COLUMNS, *FABRIC_COLUMNS, *TRAFFIC_COLUMNS)}


def columns(
    own: Sequence[TableColumn],
    transports: Sequence[str],
    facts: Collection[str] = (),
    seeds: int = 1,
) -> tuple[TableColumn, ...]:
    """The table of a comparison of ``transports`` over ``seeds``.

    Of the scenario's ``own`` columns it has those that nobody else's table has: ``facts`` part its
    rows, what else it measures gives way first where a line would be too long.
    """
    names = short_names(transports).values()
    name = TableColumn("name", "transport", "", max(map(len, ("transport", *names))))
    own = [column for column in own if column.key not in _ELSEWHERE]
    parting = [replace(column, rank=0) for column in own if column.key in facts]
    measured = [column for column in own if column.key not in facts]
    shown = table("compared")
    ranks = zip(measured, chain(OWN_RANKS, repeat(OWN_RANKS[-1])), strict=False)
    ranked = [
        *(replace(column, rank=rank) for column, rank in ranks),
        *(spread.columns(shown) if seeds > 1 else shown),
    ]
    return (name, *parting, *ranked)


def measured(topology: Topology, outcome: Outcome) -> dict[str, object]:
    """The values described above."""
    traffic = MeasuredTraffic(topology, outcome, absent=0)
    return computed("traffic", traffic) | computed("compared", traffic)
