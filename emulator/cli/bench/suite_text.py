"""The text of a suite: each test by its number, with its tables, deviations and accounting."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from emulator.cli.plain_tables import page, plain_table
from emulator.suite.suite_model import Point, SuiteColumn, SuiteTable, headed, shown_value
from emulator.suite.suite_run import SuiteRecord, accounting
from emulator.suite.suite_trial import TrialOutcome

WIDTH = 200


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
                shown += [_table(table), _points(table.columns), ""]
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
    return f"{text}; {len(reasons)} reasons exclude {sum(reasons.values())}\n"


def _table(table: SuiteTable) -> Table:
    columns = [
        column
        for column in table.columns
        if any(row.get(column.key) is not None for row in table.rows)
    ]
    numbers = next(
        (place for place, column in enumerate(columns) if column.point is not Point.INPUT),
        len(columns),
    )
    heads = [headed(one) for one in columns]
    made = plain_table(table.title, *heads, right=numbers)
    for row in table.rows:
        made.add_row(*(shown_value(row.get(column.key)) for column in columns))
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
