"""The tables of a suite's tests as a report shows them: by observation point, and side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from emulator.report.run.report_tables import MOST_SHOWN, ReportTable
from emulator.report.suite.suite_folder import ReportedTest
from emulator.suite.suite_model import (
    SAMPLES,
    Curve,
    Point,
    SuiteTable,
    headed,
    shown_value,
)

#: The order of the observation points in a table.
ORDER = (
    Point.INPUT,
    Point.FABRIC,
    Point.SWITCH,
    Point.LINK,
    Point.ENDPOINT,
    Point.DERIVED,
)
#: Lines of a figure that are shown side by side in a table, at most.
MOST_BESIDE = 8
ABSENT = "n/a"


def tables_of(test: ReportedTest) -> list[ReportTable]:
    """Return each table of ``test``, and its first figure's lines side by side before it."""
    found = []
    for place, table in enumerate(test.tables, start=1):
        name = f"{test.number}-{place}"
        if not table.rows:
            reason = "each of its trials is excluded"
            found.append(ReportTable(name, table.title, (), (), (), reason=reason))
            continue
        found += [*_beside(name, table), _whole(name, table)]
    return found


def _whole(name: str, table: SuiteTable) -> ReportTable:
    columns = sorted(table.filled, key=lambda one: ORDER.index(one.point))
    left_out = len(table.rows) - MOST_SHOWN
    notes = [f"{left_out} more rows are in the CSV."] if left_out > 0 else []
    return ReportTable(
        name=name,
        title=table.title,
        groups=[
            (_point(point), len([*each])) for point, each in groupby(columns, lambda one: one.point)
        ],
        headings=[headed(one) for one in columns],
        rows=[[_cell(row.get(one.key)) for one in columns] for row in table.rows[:MOST_SHOWN]],
        note=" ".join([*notes, table.without_value]).strip(),
    )


def _point(point: Point) -> str:
    return "settings" if point is Point.INPUT else f"observed at: {point.value}"


def _beside(name: str, table: SuiteTable) -> list[ReportTable]:
    """Return the first figure's values with a column for each of its lines."""
    if not table.curves:
        return []
    curve = table.curves[0]
    names = series_names(table, curve)
    if curve.measured or not 2 <= len(names) <= MOST_BESIDE:
        return []
    columns = {one.key: one for one in table.columns}
    x, y = columns[curve.x], columns[curve.y]
    lines: dict[Any, dict[str, Mapping[str, Any]]] = {}
    for row in table.rows:
        lines.setdefault(row.get(curve.x), {})[series_name(row, curve)] = row
    return [
        ReportTable(
            name=f"{name}-beside",
            title=f"Side by side: {headed(y)} of {table.title}",
            groups=[("settings", 1), (_point(y.point), len(names))],
            headings=[headed(x), *names],
            rows=[
                [_cell(value), *(_spread(line.get(one), curve.y) for one in names)]
                for value, line in lines.items()
            ],
            note="Medians; in brackets the least and the most over the seeds."
            if any(row.get(SAMPLES) for row in table.rows)
            else "",
        )
    ]


def series_name(row: Mapping[str, Any], curve: Curve) -> str:
    """Return the name of the line that ``row`` belongs to."""
    columns = {"q": "Q = ", "paths": "paths: "}
    return ", ".join(
        f"{columns.get(key, '')}{row[key]}" for key in curve.series if row.get(key) is not None
    )


def series_names(table: SuiteTable, curve: Curve) -> Sequence[str]:
    """Return the names of the lines of a figure, in the order of the table."""
    drawn = (row for row in table.rows if row.get(curve.y) is not None)
    return list(dict.fromkeys(series_name(row, curve) for row in drawn))


def _spread(row: Mapping[str, Any] | None, key: str) -> str:
    if row is None or row.get(key) is None:
        return ABSENT
    samples = row.get(SAMPLES, {}).get(key, ())
    if key == "time_us" and row.get("least") is not None:
        samples = row["least"], row["most"]
    middle = _cell(row[key])
    if not samples or min(samples) == max(samples):
        return middle
    return f"{middle} [{_cell(min(samples))} .. {_cell(max(samples))}]"


def _cell(value: Any) -> str:
    return ABSENT if value is None else shown_value(value)
