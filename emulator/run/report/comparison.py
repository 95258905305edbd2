"""Several transports on one fabric: what ``--transport uet,rocev2:qps=4`` requests.

Every scenario then runs once for each of them, on the same fabric, with the same seed and so the
same workload; the switches are configured alike, except for what a transport cannot do without or
cannot use, which each row's ``switch`` names.  All rows have the same measures, whatever the
scenario's own table shows:

``payload_bytes``
    octets that all GPUs together were to deliver in an iteration; it is the same for all.
``message_p50_us``, ``message_p99_us``, ``message_p999_us``
    from a message's start until its receiver has verified it (nearest rank).
``retransmitted_bytes``
    octets of the frames that were sent again, from the Ethernet header on, over all iterations.
``cnps``
    congestion notification packets that were sent; None where the transport has none.

and those of :mod:`emulator.run.report.traffic`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from emulator.result_rows import NCCL_COLUMNS, TableColumn, short_names
from emulator.run.measures.metrics import percentile
from emulator.run.report import spread, traffic
from emulator.run.report.result_table import FABRIC_COLUMNS, TRAFFIC_COLUMNS
from emulator.scenario import Outcome
from topologies.model import Topology

#: Names under which endpoints count these.
RESENT_OCTETS, CNPS = "tx_retransmitted_octets", "tx_cnps"

#: What a comparison can show, in the order of a line.
MEASURES = (
    TableColumn("size_bytes", "size", "(B)", 8),
    TableColumn(spread.TIME, "time", "(us)", 7),
    TableColumn("efficiency", "ideal", "(%)", 6, 1, percent=True),
    TableColumn("busbw_gbps", "busbw", "(GB/s)", 6),
    TableColumn("message_p50_us", "p50", "(us)", 6, 1),
    TableColumn("message_p99_us", "p99", "(us)", 6, 1),
    TableColumn("message_p999_us", "p99.9", "(us)", 6, 1),
    TableColumn("marked_packets", "marks", "", 5),
    TableColumn("cnps", "CNPs", "", 5),
    TableColumn("trimmed_packets", "trims", "", 5),
    TableColumn("dropped_packets", "drops", "", 5),
    TableColumn("retransmitted_bytes", "resent", "(KB)", 7, 1, divisor=1000),
    TableColumn("timeouts", "RTOs", "", 4),
    TableColumn("pauses", "pauses", "", 6),
    TableColumn("paused_us", "paused", "(us)", 7, 1),
    TableColumn("links_max_mean", "m/mean", "links", 6),
    TableColumn("jain", "Jain", "", 5, 3),
    TableColumn("reordered_packets", "reord", "", 6),
    TableColumn("wrong", "#wrong", "", 6),
)
#: Which of them go first where a line has not room for all; ``OWN`` is the next one of those that
#: only the scenario measures.
OWN = ""
FIRST = (
    *(spread.TIME, "time_min_us", "time_max_us", "wrong", "efficiency", OWN, OWN, "size_bytes"),
    *("message_p99_us", "dropped_packets", "retransmitted_bytes", "timeouts", "trimmed_packets"),
    *("cnps", "marked_packets", "paused_us", OWN, "message_p999_us", "busbw_gbps", "jain"),
    *("links_max_mean", "message_p50_us", "pauses", "reordered_packets", *[OWN] * 9),
)

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
    order = iter(measured)
    first = [next(order, name).key if key == OWN else key for key in FIRST]
    measures = spread.columns(MEASURES) if seeds > 1 else MEASURES
    ranked = [
        replace(column, rank=first.index(column.key) + 1 if column.key in first else len(first))
        for column in (*measured, *measures)
    ]
    return (name, *parting, *ranked)


def measured(topology: Topology, outcome: Outcome) -> dict[str, object]:
    """The values described above."""
    iterations = outcome.iterations
    durations = [
        duration
        for iteration in iterations
        for duration in (iteration.end_ns - iteration.start_ns).tolist()
    ]
    p999 = percentile(durations, 0.999)
    measured = traffic.measured(topology, outcome)
    return measured | {
        "payload_bytes": int(iterations[0].length.sum()) if iterations else 0,
        "message_p999_us": None if p999 is None else p999 / 1000,
        "retransmitted_bytes": outcome.counters.get(RESENT_OCTETS, 0),
        "cnps": outcome.counters.get(CNPS),
        # Endpoints count what has happened; all of these here count this.
        "reordered_packets": measured["reordered_packets"] or 0,
    }
