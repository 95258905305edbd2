"""The results of a suite's tests: tables, and figures of a value over what a test varies."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from emulator.report.run.figures import vega_lite as vl
from emulator.report.run.figures.figure import Figure
from emulator.report.run.report_tables import MOST_SHOWN, ReportTable
from emulator.report.suite.folder import ReportedTest
from emulator.suite.suite_model import (
    SAMPLES,
    Curve,
    Point,
    SuiteColumn,
    SuiteTable,
    headed,
    shown_value,
)

#: The order of the observation points in a table.
ORDER = (
    Point.INPUT,
    Point.PUBLISHED,
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
    names = {Point.INPUT: "settings", Point.PUBLISHED: point.value}
    return names.get(point, f"observed at: {point.value}")


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


def sweep_figures(test: ReportedTest) -> list[Figure]:
    """Return the figures of all tables of ``test`` that have a value to draw."""
    found = []
    for place, table in enumerate(test.tables, start=1):
        for curve in table.curves:
            name = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{test.number}-{place}-{curve.y}")
            figure = sweep_figure(name, table, curve)
            if figure is not None:
                found.append(figure)
    return found


def sweep_figure(name: str, table: SuiteTable, curve: Curve) -> Figure | None:
    """Return the figure of one curve; None where the table has no value for it."""
    columns = {one.key: one for one in table.columns}
    x, y = columns[curve.x], columns[curve.y]
    records = [
        _record(row, curve, order)
        for order, row in enumerate(table.rows)
        if _is_number(row.get(curve.y)) and row.get(curve.x) is not None
    ]
    if not records:
        return None
    many = len({record["x"] for record in records}) > 1
    alone = len({record["series"] for record in records}) == 1
    spread = any("least" in record for record in records)
    named = not all(_is_ordered(record["x"]) for record in records)
    layers = _lines(x, y, curve, bars=named) if many else _bars(x, y)
    if spread:
        layers.append(_ranges(layers[0], upright=many))
    if alone and many:  # one line needs no legend
        for layer in layers[: 1 if named else None]:
            layer["encoding"]["color"] = {"value": vl.PALETTE[0]}
    note = "Points are medians, with the range of the seeds." if spread else ""
    if not many:
        note = f"{headed(x)}: {records[0]['x']}. {note}".strip()
    return Figure(
        name=name,
        title=f"{table.title}: {y.heading}",
        point=y.point.value,
        note=note,
        records=records,
        spec=vl.figure(
            layers, by_row=False, **({} if many else {"height": {"step": 22}})
        ),
    )  # fmt: skip


def _record(row: Mapping[str, Any], curve: Curve, order: int) -> dict[str, Any]:
    record = {
        "series": series_name(row, curve),
        "x": row[curve.x],
        "y": row[curve.y],
        "order": order,
    }
    samples = row.get(SAMPLES, {}).get(curve.y, ())
    if curve.y == "time_us" and _is_number(row.get("least")) and _is_number(row.get("most")):
        samples = row["least"], row["most"]
    return record | ({"least": min(samples), "most": max(samples)} if samples else {})


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _is_ordered(value: object) -> bool:
    """Return whether a setting is a number or begins with one, such as a size: others are names."""
    return _is_number(value) or str(value)[:1].isdigit()


def _told(x: SuiteColumn, y: SuiteColumn) -> list[vl.Json]:
    return vl.tooltip(
        ("series", "line"), ("x", headed(x)), ("y", headed(y)),
        ("least", "least"), ("most", "most"),
    )  # fmt: skip


def _lines(x: SuiteColumn, y: SuiteColumn, curve: Curve, *, bars: bool) -> list[vl.Json]:
    """Lines over an axis: a setting after the other in their order, or a quantity's own.

    ``bars``: settings are names, and have a bar for each line instead.
    """
    if curve.measured:
        across = vl.encoding("x", "Q", headed(x), scale={"zero": False})
        mark = {"type": "line", "interpolate": "step-after", "strokeWidth": 2}
    else:
        sort = {"field": "order", "op": "min"}
        across = vl.encoding("x", "O", headed(x), sort=sort, axis={"labelAngle": 0})
        mark = {"type": "line", "point": {"size": 45}, "strokeWidth": 2}
    encoding = {
        "x": across,
        "y": vl.encoding("y", "Q", headed(y)),
        "color": vl.encoding("series", "N", None, sort=None),
        "tooltip": _told(x, y),
    }
    if bars:
        mark = {"type": "bar"}
        encoding["xOffset"] = {"field": "series", "type": "nominal", "sort": None}
    return [{"mark": mark, "encoding": encoding}]


def _bars(x: SuiteColumn, y: SuiteColumn) -> list[vl.Json]:
    """Bars for the lines of a figure that has only one setting."""
    return [
        {
            "mark": {"type": "bar", "color": vl.PALETTE[0]},
            "encoding": {
                "x": vl.encoding("y", "Q", headed(y)),
                "y": vl.encoding("series", "N", None, sort=None),
                "tooltip": _told(x, y),
            },
        }
    ]


def _ranges(layer: vl.Json, *, upright: bool) -> vl.Json:
    """Return the ranges of the seeds over the marks of ``layer``."""
    drawn = layer["encoding"]
    along, across = ("y", "x") if upright else ("x", "y")
    encoding = {
        along: {**drawn[along], "field": "least"},
        f"{along}2": {"field": "most"},
        across: drawn[across],
    }
    if "xOffset" in drawn:  # over a bar of the same colour
        encoding["xOffset"] = drawn["xOffset"]
    elif upright:
        encoding["color"] = drawn["color"]
    return {"mark": {"type": "rule", "strokeWidth": 1.5}, "encoding": encoding}
