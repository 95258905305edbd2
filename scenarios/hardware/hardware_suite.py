"""The suite whose tests are sources of published measurements, and a summary of all points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from emulator.errors import UserError
from emulator.suite.suite_model import (
    SAMPLES,
    Findings,
    Point,
    Procedure,
    Suite,
    SuiteChoice,
    SuiteColumn,
    SuiteTable,
    SuiteTest,
    shown_value,
)
from emulator.suite.trials import Row, SuiteTrial, TrialOutcome
from scenarios.bmwg.trial_estimate import estimated_s
from scenarios.hardware.points import (
    AGREES,
    COUNTED,
    FITTED,
    NEAR,
    NO_RUN,
    OFF,
    HardwarePoint,
    HardwareSource,
    load,
)

NOT_RUN, FAILED = "not run", "failed"
BAND, SOURCES = load()
#: Of the points that count, so many (0..1) are to agree.
GOAL = 0.8

COLUMNS = (
    SuiteColumn("number", "point", "", Point.INPUT),
    SuiteColumn("title", "measurement", "", Point.PUBLISHED),
    SuiteColumn("published", "published", "", Point.PUBLISHED),
    SuiteColumn("unit", "unit", "", Point.PUBLISHED),
    SuiteColumn("value", "uetemu", "", Point.ENDPOINT),
    SuiteColumn("least", "least seed", "", Point.ENDPOINT),
    SuiteColumn("most", "most", "", Point.ENDPOINT),
    SuiteColumn("ratio", "ratio", "", Point.DERIVED),
    SuiteColumn("verdict", "verdict", "", Point.DERIVED),
    SuiteColumn("counts", "counts", "", Point.DERIVED),
)
COUNTS = (
    SuiteColumn("source", "source", "", Point.PUBLISHED),
    *(
        SuiteColumn(name.replace(" ", "_"), name, "", Point.DERIVED)
        for name in (AGREES, NEAR, OFF, NOT_RUN, FAILED)
    ),
    SuiteColumn("share", "of those that count", "%", Point.DERIVED),
)


def measured(
    point: HardwarePoint, outcomes: Sequence[TrialOutcome]
) -> tuple[list[float], str | None]:
    """Return the values of all seeds in the point's unit, or why there is none.

    ``outcomes`` are those of :meth:`HardwarePoint.trials`.
    """
    runs = []
    for outcome in outcomes:
        if outcome.excluded:
            return [], outcome.excluded
        rows = [row for row in outcome.rows if point.row.items() <= row.items()]
        values = [_value(row, point.metric) for row in rows]
        found = [value for value in values if value is not None]
        if not found or len(found) < len(values):
            return [], f"a row has no {point.metric}"
        runs.append(found)
    if len(runs) > 1:
        pairs = zip(*runs, strict=True)
        return [point.times * one / other for one, other in pairs], None
    return [point.times * value for value in runs[0]], None


def _value(row: Row, metric: str) -> float | None:
    if metric == "slowest_gbitps":  # all flows are of one size, and the last one ends the row
        return float(row["size_bytes"]) * 8e-3 / float(row["time_us"])
    value = row.get(metric)
    return None if value is None else float(value)


def line(point: HardwarePoint, outcomes: Sequence[TrialOutcome]) -> dict[str, Any]:
    """Return the row of a point."""
    row: dict[str, Any] = {
        "number": point.number,
        "title": point.title,
        "published": point.published,
        "unit": point.unit,
        "verdict": NOT_RUN,
        "counts": point.counts,
        "why": point.reason or point.explained,
    }
    if point.reason:
        return row
    values, error = measured(point, outcomes)
    if error is not None:
        return row | {"verdict": FAILED, "why": error}
    value = median(values)
    ratio = point.ratio(value)
    row |= {"value": value, "ratio": ratio, "verdict": BAND.verdict(ratio)}
    if len(values) > 1:
        row |= {"least": min(values), "most": max(values), SAMPLES: {"value": values}}
    return row


def _rows(
    points: Sequence[HardwarePoint], choice: SuiteChoice
) -> Generator[Sequence[SuiteTrial], Sequence[TrialOutcome], list[dict[str, Any]]]:
    if choice.fabric is not None:
        raise UserError("each published measurement names its own fabric; leave --fabric out")
    trials = [point.trials(choice) for point in points]
    outcomes = iter((yield [trial for batch in trials for trial in batch]))
    return [
        line(point, [next(outcomes) for _ in batch])
        for point, batch in zip(points, trials, strict=True)
    ]


def _measure(source: HardwareSource, choice: SuiteChoice) -> Procedure:
    rows = yield from _rows(source.points, choice)
    why = {row["number"]: row["why"] for row in rows}
    return Findings(
        tables=[SuiteTable(title=source.title, columns=COLUMNS, rows=rows)],
        deviations=[f"{point.number}: {point.scaled}" for point in source.points if point.scaled],
        notes=[_note(point, source, why[point.number]) for point in source.points],
    )


def _note(point: HardwarePoint, source: HardwareSource, why: str) -> str:
    """Return conditions, the source where it is the point's own, and what explains a miss."""
    cite = f"; {point.cite}" if point.cite != source.cite else ""
    seen = " (run in this case before the band was set)" if point.seen else ""
    explained = f" {why[0].upper()}{why[1:]}." if why else ""
    return f"{point.number}: {point.conditions}{cite}{seen}.{explained}"


def _summary(choice: SuiteChoice) -> Procedure:
    rows = yield from _rows([point for source in SOURCES for point in source.points], choice)
    table, found = [], iter(rows)
    for source in SOURCES:
        table.append(counted(source.title, [next(found) for _ in source.points]))
    table.append(total := counted("all", rows))
    return Findings(
        tables=[SuiteTable(title="Points by verdict", columns=COUNTS, rows=table)],
        notes=notes(total, rows),
    )


def notes(total: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what is said of all points: ``rows`` of each, and of them together, ``total``."""
    unexplained = [row["number"] for row in rows if row["verdict"] == OFF and not row["why"]]
    each = [{**row, "counts": COUNTED} for row in rows if row["counts"] != FITTED]
    return [
        f"Goal: {GOAL:.0%} of those that count agree; {shown_value(total['share'])} % do. With "
        f"measurements that are run again counted twice, "
        f"{shown_value(counted('', each)['share'])} % do.",
        f"Off without a reason: {', '.join(unexplained) or 'none'}.",
    ]


def counted(source: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how many points have each verdict; those that do not count are in no number."""
    verdicts = Counter(row["verdict"] for row in rows if row["counts"] in (COUNTED, NO_RUN))
    counts = {column.key: verdicts[column.heading] for column in COUNTS[1:-1]}
    judged = sum(verdicts.values()) - verdicts[NOT_RUN]
    share = 100 * verdicts[AGREES] / judged if judged else None
    return {"source": source, **counts, "share": share}


SUITE = Suite(
    name="hardware",
    document="Published measurements of hardware",
    terminology=f"agrees: within {BAND.agrees:.0%}, near: within {BAND.near:.0%}",
    criterion="Verdicts follow bands that were set before the first run.",
    tests=(
        *(
            SuiteTest(
                number=source.number,
                title=source.title,
                objective=source.cite,
                procedure=partial(_measure, source),
            )
            for source in SOURCES
        ),
        SuiteTest(
            number=str(len(SOURCES) + 1),
            title="All points",
            objective="how many agree with what was published",
            procedure=_summary,
        ),
    ),
    estimate_s=estimated_s,
)
