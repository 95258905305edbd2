"""Tables of a report: rows by observation point, nccl-tests' form, endpoints, facts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from emulator.metrics import (
    BOUNDARY,
    ENDPOINT,
    INPUT,
    MODEL,
    SWITCH,
    Metric,
    readable,
    text,
)
from emulator.report.run.figures.figure import Figure
from emulator.report.run_folder import RunRecord
from emulator.result_rows import NCCL_COLUMNS

#: Rows of one table that a page shows; result.json has all.
MOST_SHOWN = 500
#: Directions of links that are shown of each row.
MOST_LINKS = 30
_LINKS = {"port": "port", "to": "to", "utilisation_percent": "utilisation (%)"}
#: Counters of endpoints that are shown first.
_FIRST = ("transport.rto_expirations", "transport.tx_retransmitted_packets", "transport.rx_nacks")
#: A cell that is neither a number nor the absence of one.
_WORDS = re.compile(r"(?!n/a$|-$|N/A$)[^\d+.-]|-[^\d.]")


@dataclass(frozen=True)
class ReportTable:
    """A table that can be sorted: ``groups`` name the observation points of its columns."""

    name: str
    title: str
    groups: Sequence[tuple[str, int]]
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    reason: str | None = None
    #: the row of the run that each line belongs to: a line is shown with its row
    of_row: Sequence[int] = ()

    @property
    def of_text(self) -> frozenset[int]:
        """The columns that hold words, which are read from the left."""
        columns = enumerate(zip(*self.rows, strict=True))
        return frozenset(place for place, cells in columns if any(map(_WORDS.match, cells)))


def row_table(record: RunRecord) -> ReportTable:
    """Return all rows; columns of one observation point stand together under its name."""
    title = "Rows"
    if not record.rows:
        return ReportTable(
            "rows", title, (), (), (), reason="nothing was measured before the run ended"
        )
    shown: list[Metric[Any]] = []
    for one in readable(record.metrics.values()):
        points = [one.at(row) for row in record.rows if row.get(one.key) is not None]
        shown += list(dict.fromkeys(points))
    order = [ENDPOINT, BOUNDARY, SWITCH, MODEL, INPUT]
    shown = [one for one in shown if one.observed_at != INPUT or _differs(record, one.key)]
    shown.sort(key=lambda one: order.index(one.observed_at))
    facts = record.parting_facts
    names = record.labels
    lines = []
    for name, row in zip(names, record.rows, strict=True):
        cells = [name, *(text(row.get(key)) for key in facts), _verdict(row)]
        cells += [one.shown(row) if one.at(row) == one else "" for one in shown]
        lines.append(cells)
    groups = [("row", 1 + len(facts) + 1)]
    groups += [(point, len([*each])) for point, each in groupby(shown, lambda one: one.observed_at)]
    return ReportTable(
        name="rows",
        title=title,
        groups=groups,
        headings=["row", *facts, "fidelity", *(one.headed for one in shown)],
        rows=lines[:MOST_SHOWN],
        note=_left_out(len(lines)),
    )


def _differs(record: RunRecord, key: str) -> bool:
    return len({str(row.get(key)) for row in record.rows}) > 1


def _verdict(row: Mapping[str, Any]) -> str:
    fidelity = row.get("fidelity")
    return str(fidelity.get("verdict")) if isinstance(fidelity, Mapping) else "n/a"


def _left_out(count: int) -> str:
    more = count - MOST_SHOWN
    return f"{more} more rows are in result.json." if more > 0 else ""


def nccl_table(record: RunRecord) -> ReportTable:
    """Return the rows as nccl-tests prints them, for a collective."""
    title = "As nccl-tests prints it"
    rows = [row for row in record.rows if row.get("busbw_gbps") is not None]
    if not rows:
        reason = "this scenario is no collective, and has no bus bandwidth"
        if not record.rows:
            reason = "nothing was measured before the run ended"
        return ReportTable("nccl", title, (), (), (), reason=reason)
    headings = [f"{one.heading} {one.unit}".strip() for one in NCCL_COLUMNS]
    lines = [
        [str(row.get("transport")), *(column.cell(row).strip() for column in NCCL_COLUMNS)]
        for row in rows
    ]
    mean = sum(row["busbw_gbps"] for row in rows) / len(rows)
    return ReportTable(
        name="nccl",
        title=title,
        groups=[("", 1), (f"observed at the {ENDPOINT}", len(headings))],
        headings=["transport", *headings],
        rows=lines[:MOST_SHOWN],
        note=f"Average bus bandwidth: {mean:.4f} GB/s. {_left_out(len(lines))}",
    )


def endpoint_table(record: RunRecord) -> ReportTable:
    """Counters of endpoints that are not 0, summed over the run."""
    endpoints = record.result.get("endpoints") or {}
    totals: dict[str, int] = {}
    for counters in endpoints.values():
        for name, count in counters.items():
            if isinstance(count, int) and count:
                totals[name] = totals.get(name, 0) + count
    if not totals:
        return ReportTable(
            "endpoints", "Counters of endpoints", (), (), (), reason="no endpoint has counted"
        )
    order = sorted(totals, key=lambda name: (name not in _FIRST, name))
    highest = {
        name: max(endpoints, key=lambda gpu: endpoints[gpu].get(name, 0) if endpoints[gpu] else 0)
        for name in order
    }
    lines = [
        [name, str(totals[name]), highest[name], str(endpoints[highest[name]].get(name))]
        for name in order
    ]
    return ReportTable(
        name="endpoints",
        title="Counters of endpoints",
        groups=[("", 1), (ENDPOINT, 3)],
        headings=["counter", "all GPUs", "most at", "its count"],
        rows=lines[:MOST_SHOWN],
        note="Sums over the whole run, all rows and warm-ups; counters of 0 are left out.",
    )


def figure_table(
    figure: Figure, keys: Mapping[str, str], title: str = "", note: str = ""
) -> ReportTable:
    """Return a figure's records as a table; ``keys`` are its columns and their headings."""
    lines = [[text(record.get(key)) for key in keys] for record in figure.records]
    return ReportTable(
        name=f"{figure.name}-table",
        title=title or figure.title,
        groups=[(f"observed at: {figure.point}", len(keys))],
        headings=list(keys.values()),
        rows=lines[:MOST_SHOWN],
        note=f"{note or figure.note} {_left_out(len(lines))}".strip(),
        reason=figure.reason,
    )


def link_table(figure: Figure) -> ReportTable:
    """Return the busiest directions of links in the drawing's records, for each row of the run."""
    lines: list[list[str]] = []
    of_row: list[int] = []
    for row in figure.svg:
        mine = [record for record in figure.records if record["row"] == row]
        mine.sort(key=lambda record: -record["utilisation_percent"])
        lines += [[text(record[key]) for key in _LINKS] for record in mine[:MOST_LINKS]]
        of_row += [row] * len(mine[:MOST_LINKS])
    return ReportTable(
        name="links",
        title="Busiest links",
        groups=[(f"observed at: {figure.point}", len(_LINKS))],
        headings=list(_LINKS.values()),
        rows=lines,
        note=f"The {MOST_LINKS} busiest directions of the chosen row; the CSV has all.",
        reason=figure.reason,
        of_row=of_row,
    )


def fact_table(record: RunRecord) -> list[tuple[str, str]]:
    """Return pairs of a name and a value: everything that somebody needs to repeat the run."""
    result, environment = record.result, record.environment
    homing = result.get("homing")
    facts = [
        ("scenario", result.get("scenario")),
        ("topology", result.get("topology")),
        ("GPUs", result.get("ranks")),
        ("fabric", result.get("fabric")),
        ("transport", result.get("transport")),
        ("switch", result.get("switch")),
        ("homing", homing.get("taken") if isinstance(homing, Mapping) else None),
        ("seed", result.get("seed")),
        ("seeds", result.get("seeds")),
        ("dilation", result.get("dilation")),
        ("cable delay", environment.get("cable_delay")),
        ("digest", result.get("digest") or f"none: {_no_digest(record)}"),
        *((f"parameter {name}", value) for name, value in record.parameters.items()),
        *((f"package {name}", value) for name, value in _items(environment.get("packages"))),
        *((f"plug-in {name}", f"SHA-256 {value}") for name, value in record.plugins.items()),
        ("Python", environment.get("python")),
        ("kernel", dict(_items(environment.get("kernel"))).get("release")),
        ("distribution", environment.get("distribution")),
        ("processor", environment.get("processor")),
        ("processors", environment.get("processors")),
    ]
    return [(name, _fact(value)) for name, value in facts if value is not None]


def _no_digest(record: RunRecord) -> str:
    if record.by_host_clock:
        return "by the host's clock no run repeats to the bit"
    return "the run ended early"


def _items(value: object) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, Mapping) else []


def _fact(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def command_of(record: RunRecord) -> str | None:
    """Return the command that repeats the run, without its folder; None if unknown."""
    if not record.command:
        return None
    kept: list[str] = ["uetemu"]
    skipped = False
    for word in record.command[1:]:
        if skipped or word.startswith("--output="):
            skipped = False
        elif word == "--output":
            skipped = True
        else:
            kept.append(word)
    return shlex.join(kept)
