"""A comparison as text, as JSON and as a page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from emulator.report.compare.measured_source import MeasuredSource, Samples
from emulator.report.compare.source_comparison import (
    BEYOND,
    SAME,
    UNJUDGED,
    WITHIN,
    SourceComparison,
    ValueDifference,
)
from emulator.report.observation_points import BY_KEY
from emulator.report.run.figures import vega_lite as vl
from emulator.report.run.figures.figure import Figure
from emulator.report.run.page import rendered
from emulator.report.run.report_tables import ReportTable

SCHEMA = "uetemu.comparison/1"
_COLOURS = {"better": "#009e73", "worse": "#d55e00", "neither": "#7a7a7a"}


def as_data(comparisons: Sequence[SourceComparison], failed: Sequence[str]) -> dict[str, Any]:
    """Return the comparisons as JSON types; ``failed`` are sentences of --fail-if."""
    return {
        "schema": SCHEMA,
        "base": _source(comparisons[0].base),
        "others": [
            {
                **_source(one.other),
                "same_packets": one.same_packets,
                "notes": list(one.notes),
                "inputs": [vars(change) for change in one.inputs],
                "values": [_value(value) for value in one.values],
                "only_in_base": list(one.only_base),
                "only_in_this": list(one.only_other),
            }
            for one in comparisons
        ],
        "failed": list(failed),
    }


def _source(source: MeasuredSource) -> dict[str, Any]:
    return {
        "name": source.name,
        "kind": source.kind,
        "digest": source.digest,
        "verdict": source.verdict,
        "errors": list(source.errors),
    }


def _value(value: ValueDifference) -> dict[str, Any]:
    return {
        "place": value.label,
        "pattern": value.place[0],
        "size_bytes": value.place[1],
        "key": value.key,
        "base": list(value.base.values),
        "base_of": value.base.of,
        "base_observed_at": value.base_point,
        "other": list(value.other.values),
        "other_of": value.other.of,
        "other_observed_at": value.other_point,
        "change": value.change,
        "relative": value.relative,
        "judgement": value.judgement,
    }


def as_text(comparisons: Sequence[SourceComparison]) -> Iterator[str]:
    """Yield the comparisons as lines for a terminal: what differs, and nothing else."""
    base = comparisons[0].base
    yield f"# base  {base.name} ({base.kind}, {base.verdict or 'no verdict'})"
    for one in comparisons:
        yield f"# other {one.other.name} ({one.other.kind}, {one.other.verdict or 'no verdict'})"
        for note in one.notes:
            yield f"#   {note}"
        yield "#"
        yield "# Inputs that differ" if one.shown_inputs else "# No input differs"
        for change in one.shown_inputs:
            whose = "" if change.asked else " (machine)"
            yield f"  {change.name}{whose}: {_cut(change.base)} -> {_cut(change.other)}"
        if left := _left_out(one):
            yield f"# {left}"
        yield "#"
        changed = [value for value in one.values if value.judgement != SAME]
        alike = len(one.values) - len(changed)
        yield f"# Values that differ: {len(changed)}; {alike} are the same"
        yield from _lines(changed)
        for words, places in (("base", one.only_base), ("other", one.only_other)):
            if places:
                yield f"# Only in {words}: {'; '.join(places[:12])}"


def _left_out(one: SourceComparison) -> str:
    count = len(one.inputs) - len(one.shown_inputs)
    return f"{count} inputs stand on one side only; --format json has them" if count else ""


def _lines(values: Sequence[ValueDifference]) -> Iterator[str]:
    if not values:
        return
    rows = [("place", "value", "base", "other", "change", "judgement")]
    for value in values:
        sides = shown(value.base, value.key), shown(value.other, value.key)
        named = value.label, heading(value.key)
        rows.append((*named, *sides, change_of(value), judged(value)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.ljust(width) if column in (0, 1, 5) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  " + "  ".join(cells).rstrip()


def heading(key: str) -> str:
    """Return a value's name and unit for people."""
    value = BY_KEY.get(key)
    if value is None:
        return key
    return f"{value.heading} ({value.unit})" if value.unit else value.heading


def shown(samples: Samples, key: str) -> str:
    """Return the median, and in brackets the least and the most, where several were taken."""
    scale = BY_KEY[key].scale if key in BY_KEY else 1
    low, middle, high = (
        _number(scale * one)
        for one in (min(samples.values), median(samples.values), max(samples.values))
    )
    return middle if not samples.spread else f"{middle} [{low} .. {high}]"


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.4g}"


def change_of(value: ValueDifference) -> str:
    """Return the change as per cent, or as a number where the base is 0."""
    if value.relative is None:
        return f"{value.change:+.4g}"
    return f"{100 * value.relative:+.2f} %"


def judged(value: ValueDifference) -> str:
    """Return the judgement, with what the spread is of."""
    if value.judgement in (WITHIN, BEYOND):
        of = " and ".join(dict.fromkeys(str(one.of) for one in (value.base, value.other)))
        return f"{value.judgement} ({of})"
    return value.judgement


def _cut(words: str) -> str:
    return words if len(words) <= 160 else f"{words[:157]}..."


def as_page(comparisons: Sequence[SourceComparison], failed: Sequence[str]) -> str:
    """Return the comparisons as one HTML page that needs nothing else."""
    figures = [figure for one in enumerate(comparisons, 1) if (figure := _figure(*one)) is not None]
    specs = {
        figure.name: {
            **(figure.spec or {}), "data": {"values": list(figure.records)}, "config": vl.CONFIG,
        }
        for figure in figures
    }  # fmt: skip
    by_name = {figure.name: figure for figure in figures}
    parts = [
        (one, by_name.get(f"changes-{number}"), _inputs(number, one), _values(number, one))
        for number, one in enumerate(comparisons, 1)
    ]
    return rendered(
        "comparison.html.j2",
        bool(specs),
        base=comparisons[0].base,
        parts_of=parts,
        specs=specs,
        failed=failed,
    )


def _inputs(number: int, one: SourceComparison) -> ReportTable:
    return ReportTable(
        name=f"inputs-{number}",
        title="Inputs that differ",
        groups=[("", 4)],
        headings=["input", "base", "other", "whose"],
        rows=[
            [change.name, change.base, change.other, "asked for" if change.asked else "machine"]
            for change in one.shown_inputs
        ],
        reason=None if one.shown_inputs else "no input differs",
        note=_left_out(one),
    )


def _values(number: int, one: SourceComparison) -> list[ReportTable]:
    """Return a table for each pair of observation points: others share no column."""
    points = dict.fromkeys((value.base_point, value.other_point) for value in one.values)
    if not points:
        return [ReportTable(f"values-{number}", "Values", (), (), (), reason="no value is in both")]
    return [
        ReportTable(
            name=f"values-{number}-{place}",
            title=f"Values: {base if base == other else f'{base} beside {other}'}",
            groups=[
                ("", 2),
                (f"base, observed at: {base}", 1),
                (f"other, observed at: {other}", 1),
                ("difference of medians", 2),
            ],
            headings=["place", "value", *["median [least .. most]"] * 2, "change", "judgement"],
            rows=[
                [
                    value.label,
                    heading(value.key),
                    shown(value.base, value.key),
                    shown(value.other, value.key),
                    change_of(value),
                    judged(value),
                ]
                for value in one.values
                if (value.base_point, value.other_point) == (base, other)
            ],
        )
        for place, (base, other) in enumerate(points)
    ]


def _figure(number: int, one: SourceComparison) -> Figure | None:
    """Relative changes of the values that differ, as bars; better and worse have colours."""
    records: list[Mapping[str, Any]] = [
        {
            "value": f"{heading(value.key)}: {value.label}",
            "change_percent": 100 * value.relative,
            "judgement": judged(value),
            "direction": _direction(value),
            "base": shown(value.base, value.key),
            "other": shown(value.other, value.key),
            "surely": 0.45 if value.judgement in (WITHIN, UNJUDGED) else 1,
        }
        for value in one.values
        if value.judgement != SAME and value.relative is not None and math.isfinite(value.relative)
    ]
    if not records:
        return None
    records.sort(key=lambda record: -abs(record["change_percent"]))
    bars = {
        "mark": {"type": "bar"},
        "encoding": {
            "x": vl.encoding("change_percent", "Q", "change of the median (%)"),
            "y": vl.encoding("value", "N", None, sort=None),
            "color": vl.encoding(
                "direction",
                "N",
                None,
                scale={"domain": [*_COLOURS], "range": [*_COLOURS.values()]},
            ),
            "opacity": {"field": "surely", "type": "quantitative", "scale": None, "legend": None},
            "tooltip": vl.tooltip(
                ("value", "value"), ("base", "base"), ("other", "other"),
                ("change_percent", "change (%)"), ("judgement", "judgement"),
            ),
        },
    }  # fmt: skip
    return Figure(
        name=f"changes-{number}",
        title="What changed",
        point="as in the table of values",
        note="The largest changes first, 40 at most. Pale bars are within the spread, or have none "
        "to be judged by.",
        records=records[:40],
        spec=vl.figure([bars], by_row=False, height={"step": 17}),
    )


def _direction(value: ValueDifference) -> str:
    better = BY_KEY[value.key].better if value.key in BY_KEY else 0
    if not better:
        return "neither"
    return "better" if better * value.change > 0 else "worse"
