"""The text of a suite: each test by its number, with its tables, deviations and accounting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from emulator.cli.plain_tables import page, plain_table
from emulator.suite.suite_model import Point, SuiteColumn, SuiteTable, headed, shown_value
from emulator.suite.suite_run import SuiteRecord, accounting
from emulator.suite.trials import TrialOutcome

WIDTH = 200
#: Characters of a setting that stands in its column; a longer one stands below the table.
LONGEST_SETTING = 32


def of_test(record: SuiteRecord) -> str:
    """Return what a test found, as text."""
    test = record.test
    shown: list[object] = [f"## {test.number} {test.title}: {test.objective}", ""]
    if test.reason:
        shown.append(f"Not measured: {test.reason}")
    if record.error:
        shown.append(f"Not measured: {record.error}")
    if record.findings:
        for table in record.findings.tables:
            if table.rows:
                long = _long_settings(table)
                shown += [_table(table, long), _points(table.filled)]
                shown += [table.without_value] if table.without_value else []
                shown += [f"{name}: {setting}" for setting, name in long.items()] + [""]
        shown += [f"Deviation: {text}" for text in record.findings.deviations]
        shown += [f"Note: {text}" for text in record.findings.notes]
    shown += _excluded(record)
    return page(shown, to_terminal=False, width=WIDTH) + "\n"


def _excluded(record: SuiteRecord) -> list[str]:
    """Return a line for each reason that excludes trials, with one of their commands."""
    reasons: dict[str, dict[str, TrialOutcome]] = {}
    for one in record.outcomes:
        if one.excluded:
            reasons.setdefault(one.excluded, {})[one.trial.key] = one
    return [
        f"Excluded: {len(outcomes)} trials ({reason}), such as uetemu"
        f" {' '.join(next(iter(outcomes.values())).trial.words)}"
        for reason, outcomes in reasons.items()
    ]


def of_accounting(records: Sequence[SuiteRecord]) -> str:
    """Return how many trials there were, and why some are excluded."""
    counts = accounting(records)
    text = f"{counts['attempted']} trials were attempted, {counts['included']} are included"
    reasons = counts["excluded"]
    lines = [f"{text}; {len(reasons)} reasons exclude {sum(reasons.values())}"]
    lines += [f"Tried again: trial {key} {stated}" for key, stated in counts["again"].items()]
    return "\n".join((*lines, ""))


def _long_settings(table: SuiteTable) -> dict[str, str]:
    """Return short names for settings that are too long for a column, such as of switches."""
    found = (
        (one, str(row.get(one.key)))
        for one in table.columns
        if one.point is Point.INPUT
        for row in table.rows
    )
    long = {value: column for column, value in found if len(value) > LONGEST_SETTING}
    return {value: f"{one.heading} {number}" for number, (value, one) in enumerate(long.items(), 1)}


def _table(table: SuiteTable, long: Mapping[str, str]) -> Table:
    columns = table.filled
    numbers = next(
        (place for place, column in enumerate(columns) if column.point is not Point.INPUT),
        len(columns),
    )
    heads = [headed(one) for one in columns]
    made = plain_table(table.title, *heads, right=numbers)
    for row in table.rows:
        cells = [shown_value(row.get(column.key)) for column in columns]
        made.add_row(*(long.get(cell, cell) for cell in cells))
    return made


def _points(columns: Sequence[SuiteColumn]) -> str:
    """Return a line with the observation point of every column."""
    by_point: dict[Point, list[str]] = {}
    for column in columns:
        by_point.setdefault(column.point, []).append(column.heading)
    return "Observed at: " + "; ".join(
        f"{point.value}: {', '.join(names)}"
        for point, names in by_point.items()
        if point is not Point.INPUT
    )
