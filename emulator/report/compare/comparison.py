"""Two sources beside each other: differences of inputs and values, judged by their spread.

They are written as text, JSON or a page; a condition of ``--fail-if`` says which change a pipeline
must not let pass.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from emulator.errors import UserError
from emulator.metrics import METRICS, MODEL, Metric
from emulator.report.compare.sources import MeasuredSource, Place, Samples, measured, point_of
from emulator.report.run.figures import vega_lite as vl
from emulator.report.run.figures.figure import Figure
from emulator.report.run.page import rendered
from emulator.report.run.report_tables import ReportTable

#: What a difference is: none at all, within the spread, more than it, or not to be judged.
SAME, WITHIN, BEYOND = "same", "within spread", "more than spread"
#: The value of an input that a source does not have.
ABSENT = "not told"
UNJUDGED, COMPUTED = "measured once, no spread", "computed"


@dataclass(frozen=True)
class InputDifference:
    """An input that differs: ``asked`` if a user chose it, else it is the machine's."""

    name: str
    base: str
    other: str
    asked: bool

    @property
    def of_one(self) -> bool:
        """Whether only one of the sources has this input at all."""
        return ABSENT in (self.base, self.other)


@dataclass(frozen=True)
class ValueDifference:
    """A value of a place in both sources: medians, ranges, change and judgement.

    ``change`` is the other's median less the base's, ``relative`` the same over the base's; None
    where that is 0.
    """

    place: Place
    label: str
    key: str
    base: Samples
    other: Samples
    base_point: str
    other_point: str
    metric: Metric[Any] | None = None

    @property
    def heading(self) -> str:
        """The value's name and unit for people."""
        return self.metric.headed if self.metric and self.metric.heading else self.key

    @property
    def medians(self) -> tuple[float, float]:
        return median(self.base.values), median(self.other.values)

    @property
    def change(self) -> float:
        base, other = self.medians
        return other - base

    @property
    def relative(self) -> float | None:
        base, other = self.medians
        if base == other:
            return 0.0
        return (other - base) / abs(base) if base else None

    @property
    def judgement(self) -> str:
        """One of the words above: by whether the ranges of both sides overlap."""
        if not self.change:
            return SAME
        if {self.base_point, self.other_point} == {MODEL}:
            return COMPUTED
        if not (self.base.spread and self.other.spread):
            return UNJUDGED
        base, other = self.base.values, self.other.values
        overlap = min(base) <= max(other) and min(other) <= max(base)
        return WITHIN if overlap else BEYOND


@dataclass(frozen=True)
class SourceComparison:
    """Comparison of ``other`` with ``base``.

    ``notes`` are sentences that a reader needs first.
    """

    base: MeasuredSource
    other: MeasuredSource
    inputs: Sequence[InputDifference]
    values: Sequence[ValueDifference]
    only_base: Sequence[str]
    only_other: Sequence[str]
    same_packets: bool
    notes: Sequence[str]

    @property
    def shown_inputs(self) -> Sequence[InputDifference]:
        """The inputs that a reader sees: of sources of two kinds only those that both have."""
        if self.base.kind == self.other.kind:
            return self.inputs
        return [one for one in self.inputs if not one.of_one]


def compare(base: MeasuredSource, other: MeasuredSource) -> SourceComparison:
    """Compare two sources, place by place."""
    shared = [place for place in base.places if place in other.places]
    values = [
        difference for place in shared for difference in _value_differences(base, other, place)
    ]
    inputs = [
        *_input_differences(base.asked, other.asked, asked=True),
        *_input_differences(base.made_on, other.made_on, asked=False),
    ]
    same = base.digest is not None and base.digest == other.digest
    return SourceComparison(
        base=base,
        other=other,
        inputs=inputs,
        values=values,
        only_base=[one.label for place, one in base.places.items() if place not in other.places],
        only_other=[one.label for place, one in other.places.items() if place not in base.places],
        same_packets=same,
        notes=[*_notes(base, other, inputs, shared, same), *_spread(values)],
    )


def _spread(values: Sequence[ValueDifference]) -> list[str]:
    if not any(value.judgement == UNJUDGED for value in values):
        return []
    return [
        "A value that was measured once with one seed has no spread, and nothing says whether a "
        "difference is more than chance: run both with --seeds 5."
    ]


def _value_differences(
    base: MeasuredSource, other: MeasuredSource, place: Place
) -> list[ValueDifference]:
    first, second = base.places[place], other.places[place]
    label = first.label if first.label == second.label else f"{first.label} | {second.label}"
    return [
        ValueDifference(
            place=place,
            label=label,
            key=key,
            base=first.samples[key],
            other=second.samples[key],
            base_point=point_of(base, first, key),
            other_point=point_of(other, second, key),
            metric=base.metrics.get(key),
        )
        for key in dict.fromkeys((*measured(base.metrics.values()), *first.samples))
        if key in first.samples and key in second.samples
    ]


def _input_differences(
    base: Mapping[str, str], other: Mapping[str, str], *, asked: bool
) -> list[InputDifference]:
    return [
        InputDifference(name, base.get(name, ABSENT), other.get(name, ABSENT), asked)
        for name in dict.fromkeys((*base, *other))
        if base.get(name, ABSENT) != other.get(name, ABSENT)
    ]


def _more(count: int) -> str:
    return f"; and {count} more" if count > 0 else ""


def _notes(
    base: MeasuredSource,
    other: MeasuredSource,
    inputs: Sequence[InputDifference],
    shared: Sequence[Place],
    same: bool,
) -> list[str]:
    notes = []
    changed = [one.name for one in inputs if one.asked]
    if same:
        what = ", ".join(changed) or "nothing that was asked for"
        notes.append(
            f"Both runs have the digest {base.digest}: {what} changed no packet and no time."
            if changed
            else f"Both runs have the digest {base.digest}: they are the same, packet by packet."
        )
    elif base.digest and other.digest:
        alike = [
            base.places[place].label
            for place in shared
            if base.places[place].digests is not None
            and base.places[place].digests == other.places[place].digests
        ]
        if alike:
            notes.append(f"No packet differs at {'; '.join(alike[:8])}{_more(len(alike) - 8)}.")
        if not changed:
            notes.append(
                "Nothing that was asked for differs, and the digests do: another version made "
                "other packets, or a run failed."
            )
    for source in (base, other):
        if source.errors:
            notes.append(f"{source.name} failed: {source.errors[0]}")
        if source.verdict == "host-limited":
            notes.append(f"{source.name} is host-limited: its times tell of the machine, too.")
    if base.point != other.point:
        notes.append(
            "The times were observed at different points: a cluster's include the launch of "
            "kernels and its hosts, the emulated fabric's do not."
        )
    if not shared:
        notes.append("They measured nothing in common: no pattern and size is in both.")
    return list(dict.fromkeys(notes))


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
        sides = shown(value.base, value.metric), shown(value.other, value.metric)
        named = value.label, value.heading
        rows.append((*named, *sides, change_of(value), judged(value)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.ljust(width) if column in (0, 1, 5) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  " + "  ".join(cells).rstrip()


def shown(samples: Samples, metric: Metric[Any] | None) -> str:
    """Return the median, and in brackets the least and the most, where several were taken."""
    scale = metric.scale if metric else 1
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
                    value.heading,
                    shown(value.base, value.metric),
                    shown(value.other, value.metric),
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
            "value": f"{value.heading}: {value.label}",
            "change_percent": 100 * value.relative,
            "judgement": judged(value),
            "direction": _direction(value),
            "base": shown(value.base, value.metric),
            "other": shown(value.other, value.metric),
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
    better = value.metric.better if value.metric else 0
    if not better:
        return "neither"
    return "better" if better * value.change > 0 else "worse"


#: Signs between a value and its limit.
COMPARED: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_TEXT = re.compile(
    r"\s*([A-Za-z][^<>=!]*?)\s*(<=|>=|==|!=|<|>)\s*([+-]?(?:\d+\.?\d*|\.\d+))\s*(%?)\s*"
)


@dataclass(frozen=True)
class FailCondition:
    """``key`` changed by less or more than ``limit``: per cent, or in the value's own unit."""

    text: str
    key: str
    sign: str
    limit: float
    percent: bool

    def holds(self, difference: ValueDifference) -> bool:
        """Whether the change of the medians meets the condition."""
        if not self.percent:
            change = difference.change
        elif difference.relative is None:  # from nothing to something
            change = float("inf") if difference.change > 0 else float("-inf")
        else:
            change = 100 * difference.relative
        return COMPARED[self.sign](change, self.limit)

    def met(self, comparisons: Sequence[SourceComparison]) -> list[ValueDifference]:
        """Return the differences that meet it; UserError where a comparison lacks the value.

        A condition on what nobody measured would let everything pass.
        """
        found = []
        for comparison in comparisons:
            values = [one for one in comparison.values if one.key == self.key]
            if not comparison.values:
                raise UserError(
                    f"--fail-if {self.text!r}: {comparison.base.name} and {comparison.other.name} "
                    "measured nothing in common: no pattern and size is in both"
                )
            if not values:
                raise UserError(
                    f"--fail-if {self.text!r}: {comparison.base.name} and {comparison.other.name} "
                    f"have no {self.key} in common; name another value"
                    + (", or give its price" if self.key.startswith("waiting_") else "")
                )
            found += [one for one in values if self.holds(one)]
        return found


@dataclass(frozen=True)
class Statement:
    """A value's name, a sign and a limit, as a user writes them."""

    key: str
    sign: str
    limit: float
    percent: bool


def parse_statement(
    text: str, whose: str, examples: str, metrics: Mapping[str, Metric[Any]] = METRICS
) -> Statement:
    """Return what ``text`` states; UserError, begun by ``whose``, if it states nothing.

    It is about one of ``metrics``.
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise UserError(f"{whose} is no condition; write for example {examples}")
    name, sign, limit, percent = match.groups()
    short = {one.short: one.key for one in metrics.values() if one.short}
    key, keys = short.get(name, name), measured(metrics.values())
    if key not in keys:
        headed = [one for one in keys if name in (metrics[one].heading, metrics[one].headed)]
        if headed:
            raise UserError(
                f"{whose}: {name} is the heading of a column; write its key, {' or '.join(headed)}"
            )
        known = ", ".join((*short, *keys))
        raise UserError(f"{whose}: {name} is no value of a row; known are {known}")
    return Statement(key, sign, float(limit), bool(percent))


def parse_condition(text: str, metrics: Mapping[str, Metric[Any]] = METRICS) -> FailCondition:
    """Return the condition that ``text`` states, such as ``busbw<-5%``; UserError if it is none."""
    examples = "busbw<-5%, time>10% or drops>0"
    stated = parse_statement(text, f"--fail-if {text!r}", examples, metrics)
    return FailCondition(text.strip(), stated.key, stated.sign, stated.limit, stated.percent)


def failures(condition: FailCondition, comparisons: Sequence[SourceComparison]) -> list[str]:
    """Return a sentence for each difference that meets the condition."""
    return [
        f"--fail-if {condition.text}: {one.heading} changed by {change_of(one)} "
        f"at {one.label}, {judged(one)}"
        for one in condition.met(comparisons)
    ]
