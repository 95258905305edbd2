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

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from emulator.run import result_keys
from emulator.run.measures.metrics import percentile
from emulator.run.plan.variants import ON
from emulator.run.report import spread, traffic
from emulator.run.report.result_table import (
    FABRIC_COLUMNS,
    NCCL_COLUMNS,
    TRAFFIC_COLUMNS,
    TableColumn,
)
from emulator.run.report.spread import Range
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
#: Keys that a comparison adds.
MEASURED = ("payload_bytes", "message_p999_us", "retransmitted_bytes", "cnps")
#: Times that differ by less are the same to a reader.
CLOSE = 0.005
#: Characters of a transport's name in the table; a longer one gets a number.
LONGEST_NAME = 24


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


def short_names(transports: Sequence[str]) -> dict[str, str]:
    """Return what the table calls each transport.

    Its name, or with a number in place of parameters.
    """
    found: dict[str, str] = {}
    for number, name in enumerate(dict.fromkeys(transports), 1):
        short = name.partition(":")[0].partition(ON)[0]
        found[name] = name if len(name) <= LONGEST_NAME else f"{short}[{number}]"
    return found


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


def summary(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Return who was fastest, and how many times as long the others took, a sentence a place.

    ``rows`` are of all seeds.  Who took longer with every seed than the fastest did with any, and
    by :data:`CLOSE` or more, gets a ratio with its spread; others cannot be told from it.
    """
    times: dict[str, dict[object, list[Mapping[str, object]]]] = {}
    for row in rows:
        times.setdefault(str(row["transport"]), {}).setdefault(row["seed"], []).append(row)
    if len(times) < 2:
        return []
    seeds = len({row["seed"] for row in rows})
    if seeds < 2:
        return ["one seed has no spread, and so nothing says who is faster; --seeds 3 does"]
    names = short_names(list(times))
    places = _places([seed for of_seed in times.values() for seed in of_seed.values()])
    lines = []
    for number, place in enumerate(places):
        ranges = {
            names[name]: Range.of([_time(seed[number]) for seed in of_seed.values()])
            for name, of_seed in times.items()
            if all(len(seed) > number for seed in of_seed.values())
        }
        if len(ranges) > 1:
            lines.append(f"{place}{_judged(ranges)} ({seeds} seeds)")
    return lines


def _time(row: Mapping[str, object]) -> float:
    time = row["time_us"]
    assert isinstance(time, float | int)
    return time


def _places(tables: Sequence[Sequence[Mapping[str, object]]]) -> list[str]:
    """Return what parts the rows of a table, as the beginning of a sentence.

    ``tables`` are those of each transport and seed; what parts them is the same in all.
    """
    rows = min(tables, key=len)
    known = {*result_keys.ROW, *result_keys.COLLECTIVE_ROW, *result_keys.TRAFFIC_ROW}
    parting: list[str] = []
    kinds = 1
    for key in ("size_bytes", *(key for key in rows[0] if key not in {*known, *MEASURED})):
        if any(
            one[place].get(key) != row.get(key) for one in tables for place, row in enumerate(rows)
        ):
            continue
        more = len({tuple(str(row.get(one)) for one in (*parting, key)) for row in rows})
        if more > kinds:
            parting, kinds = [*parting, key], more
    words = [", ".join(f"{key}={row.get(key)}" for key in parting) for row in rows]
    return [f"{place}: " if place else "" for place in words]


def _judged(ranges: Mapping[str, Range]) -> str:
    """Return who is fastest, and by how much."""
    (first, best), *others = sorted(ranges.items(), key=lambda one: one[1].middle)
    tied = [
        name for name, one in others if one.overlaps(best) or one.middle < (1 + CLOSE) * best.middle
    ]
    if len(tied) == len(others):
        told = (f"{name} {one.middle:.1f} us ({one})" for name, one in ((first, best), *others))
        return f"it cannot be told who is faster: {', '.join(told)}"
    words = [f"{first} is fastest with {best.middle:.1f} us ({best})"]
    if tied:
        words.append(f"{', '.join(tied)} cannot be told from it")
    words += [f"{name} takes {one.over(best)}" for name, one in others if name not in tied]
    return "; ".join(words)


def settings(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Return a line for each transport with another label, or with switches of its own."""
    used: dict[str, list[str]] = {}
    for row in rows:
        used.setdefault(str(row["transport"]), []).append(str(row["switch"]))
    names = short_names(list(used))
    lines = [f"{short} is {name}" for name, short in names.items() if short != name]
    if len({tuple(dict.fromkeys(switches)) for switches in used.values()}) < 2:
        return lines
    on: dict[str, list[str]] = {}
    for name, switches in used.items():
        on.setdefault(", ".join(dict.fromkeys(chain(switches))), []).append(names[name])
    return [*lines, *(f"{', '.join(whose)} on {switch}" for switch, whose in on.items())]
