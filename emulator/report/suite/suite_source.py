"""A suite as a source of a comparison: a place for each row of its tables."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emulator.report.compare.measured_source import (
    SEEDS,
    MeasuredPlace,
    MeasuredSource,
    Place,
    Samples,
)
from emulator.report.suite.suite_folder import ReportedTest, SuiteFolder
from emulator.suite.suite_model import SAMPLES, Point, SuiteTable

SUITE = "suite"
_ASKED = ("document", "scale", "transports", "fabric", "seed", "seeds")
_MADE_ON = ("kernel", "python", "packages", "processor", "processors")


def read_suite(path: Path) -> MeasuredSource:
    """Read a suite folder; UserError unless it has a ``suite.json`` of this schema."""
    suite = SuiteFolder.read(path)
    machine = suite.data.get("machine")
    known = machine if isinstance(machine, dict) else {}
    return MeasuredSource(
        name=str(path),
        kind=SUITE,
        asked={
            "suite": suite.words("suite"),
            **{name: suite.words(name) for name in _ASKED},
            "tests": ", ".join(test.number for test in suite.tests),
        },
        made_on={name: str(known[name]) for name in _MADE_ON if name in known},
        places=dict(_places(suite)),
        digest=_digest(suite),
        errors=[f"test {one.number}: {one.error}" for one in suite.tests if one.error],
    )


def _digest(suite: SuiteFolder) -> str | None:
    """Return one digest of all trials; None where a trial has none."""
    digests = {one.key: one.digest for test in suite.tests for one in test.trials}
    if not digests or None in digests.values():
        return None
    lines = "".join(f"{key} {digest}\n" for key, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _places(suite: SuiteFolder) -> Mapping[Place, MeasuredPlace]:
    found: dict[Place, MeasuredPlace] = {}
    for test in suite.tests:
        for table in test.tables:
            seen: Counter[str] = Counter()
            for row in table.rows:
                label = _label(test, table, row)
                found[label, 0, seen[label]] = _place(label, table, row)
                seen[label] += 1
    return found


def _label(test: ReportedTest, table: SuiteTable, row: Mapping[str, Any]) -> str:
    """Return a row's name: its test, its table, and what was set."""
    settings = [
        f"{one.heading} {row[one.key]}"
        for one in table.columns
        if one.point is Point.INPUT and row.get(one.key) is not None
    ]
    title = table.title if len(test.tables) > 1 else test.title
    return f"{test.number} {title}: {', '.join(settings)}"


def _place(label: str, table: SuiteTable, row: Mapping[str, Any]) -> MeasuredPlace:
    samples: dict[str, Samples] = {}
    points: dict[str, str] = {}
    for column in table.columns:
        value = row.get(column.key)
        if column.point is Point.INPUT or not isinstance(value, int | float):
            continue
        several = [float(one) for one in row.get(SAMPLES, {}).get(column.key, ())]
        samples[column.key] = Samples(several or [float(value)], SEEDS if several else None)
        points[column.key] = column.point.value
    return MeasuredPlace(label=label, samples=samples, points=points)
