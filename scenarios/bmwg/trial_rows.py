"""Rows of tables from the rows of trials: medians over seeds, and how far they spread."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev
from typing import Any

from emulator.suite.suite_model import (
    SAMPLES,
    Curve,
    Findings,
    Point,
    Procedure,
    SuiteColumn,
    SuiteTable,
)
from emulator.suite.trials import Row, SuiteTrial, TrialOutcome

#: Ends that may not come before a transfer is over.
ENDS = ("converged_us", "restored_us")


def lines(
    outcomes: Iterable[TrialOutcome],
    columns: Sequence[SuiteColumn],
    facts: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield a line for each line of the trials' own tables, with the values of ``columns``.

    ``facts`` are further values by the key of a trial.
    """
    for outcome in outcomes:
        for rows in outcome.by_place():
            yield line(rows, columns) | dict((facts or {}).get(outcome.trial.key, {}))


#: Adds values to the lines of a table that follow from several of them.
Amend = Callable[[list[dict[str, Any]]], object]
#: A trial, and further values of the lines that come of it, such as what names them.
NamedTrial = tuple[SuiteTrial, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class TrialTable:
    """A table over named trials, with a line for each line of their own tables."""

    title: str
    columns: Sequence[SuiteColumn]
    trials: Sequence[NamedTrial]
    curves: Sequence[Curve] = ()

    def measured(self, outcomes: Iterable[TrialOutcome], amend: Amend = list) -> SuiteTable:
        """Return the table with the lines of ``outcomes``; ``amend`` may add values to them."""
        facts = {trial.key: values for trial, values in self.trials}
        rows = list(lines(outcomes, self.columns, facts))
        amend(rows)
        return SuiteTable(title=self.title, columns=self.columns, rows=rows, curves=self.curves)

    def findings(
        self, deviations: Sequence[str], notes: Sequence[str] = (), amend: Amend = list
    ) -> Procedure:
        """Run the trials, and return findings of this one table."""
        outcomes = yield [trial for trial, _ in self.trials]
        table = self.measured(outcomes, amend)
        return Findings(tables=[table], deviations=deviations, notes=notes)


def line(rows: Sequence[Row], columns: Sequence[SuiteColumn]) -> dict[str, Any]:
    """Return the values of ``columns`` over the rows of all seeds of one place.

    A number is the median, to which an end that did not come (``ENDS``) counts as the longest.
    ``least``, ``most`` and ``cv`` are those of ``time_us``, the coefficient
    of variation in per cent.  Other values stand if all seeds have the same.  The numbers of all
    seeds are kept under ``SAMPLES``.
    """
    times = [float(row["time_us"]) for row in rows]
    spread = {"least": min(times), "most": max(times), "cv": cv(times)}
    found: dict[str, Any] = {}
    samples: dict[str, list[float]] = {}
    for column in columns:
        if column.key in spread:
            found[column.key] = spread[column.key]
            continue
        values = [_value(row, column.key) for row in rows]
        found[column.key] = _joined(values)
        if column.point is not Point.INPUT and len(values) > 1 and all(map(_is_finite, values)):
            samples[column.key] = values
    return found | {SAMPLES: samples} if samples else found


def cv(values: Sequence[float]) -> float | None:
    """Return the coefficient of variation in per cent; None of a single value."""
    return 100 * stdev(values) / mean(values) if len(values) > 1 else None


def _value(row: Row, key: str) -> Any:
    value = _of_row(row, key)
    return math.inf if value is None and key in ENDS else value


def _of_row(row: Row, key: str) -> Any:
    if key == "efficiency":
        return row["ideal_us"] / row["time_us"]
    if key == "restored_us":
        restored = [fault.get(key) for fault in row.get("faults") or ()]
        return None if not restored or None in restored else max(restored)
    if key == "lost_packets":
        return sum(row.get(key, {}).values())
    return row.get(key)


def _joined(values: Sequence[Any]) -> Any:
    if all(isinstance(one, int | float) for one in values):
        middle = median(values)
        if math.isinf(middle):
            return None
        return int(middle) if middle == int(middle) and all_whole(values) else middle
    return values[0] if all(one == values[0] for one in values) else None


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def all_whole(numbers: Sequence[float]) -> bool:
    """Return whether every number is an integer by its type."""
    return all(isinstance(one, int) for one in numbers)
