"""A call of a suite: procedures advance as their trials end, and ``suite.json`` follows each test.

::

    FOLDER/suite.json        every test that has ended: tables, deviations, trials
    FOLDER/trials/KEY/       the run folder of each trial
    FOLDER/tables/6.3-1.csv  each table
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from emulator.errors import UserError
from emulator.run.environment import describe_machine
from emulator.suite.suite_model import (
    Findings,
    Procedure,
    Suite,
    SuiteChoice,
    SuiteTable,
    SuiteTest,
    headed,
)
from emulator.suite.trials import SuiteTrial, TrialOutcome, TrialPool, TrialRunner
from emulator.whole_file import whole_file, write_whole

SCHEMA = "uetemu.suite/1"
FILE = "suite.json"


@dataclass
class SuiteRecord:
    """A test of this call: its trials so far, and what it found once it has ended."""

    test: SuiteTest
    outcomes: list[TrialOutcome] = field(default_factory=list)
    findings: Findings | None = None
    error: str | None = None

    @property
    def ended(self) -> bool:
        """Return whether nothing of the test is left to run."""
        return self.findings is not None or self.error is not None or self.test.procedure is None


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a suite is: trials that have ended, those known, and seconds left."""

    ended: int
    known: int
    left_s: float | None
    what: str


class SuiteRun:
    """Runs ``tests`` of ``suite`` in ``folder``, their trials by ``runner``."""

    def __init__(
        self,
        suite: Suite,
        tests: Sequence[SuiteTest],
        choice: SuiteChoice,
        folder: Path,
        runner: TrialRunner,
    ) -> None:
        self._suite, self._choice, self.folder = suite, choice, folder
        self._runner = runner
        self.records = [SuiteRecord(test) for test in tests]
        self._procedures: dict[str, Procedure] = {}
        self._waiting: dict[str, list[Future[TrialOutcome]]] = {}
        self._seconds: list[float] = []
        self._earlier: Sequence[Mapping[str, Any]] = ()

    def run(
        self,
        progress: Callable[[Progress], None] = lambda _: None,
        ended: Callable[[SuiteRecord], None] = lambda _: None,
    ) -> None:
        """Run every test; write ``suite.json`` after each."""
        self._earlier = _claim(self.folder, self._settings())
        with TrialPool(self.folder, self._runner, self._count) as pool:
            for record in self.records:
                self._begin(record, pool)
            self._write()
            while self._waiting:
                everything = [future for batch in self._waiting.values() for future in batch]
                # One that has ended would end the wait at once, again and again.
                running = [future for future in everything if not future.done()]
                wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
                for record in self.records:
                    batch = self._waiting.get(record.test.number)
                    if batch is not None and all(future.done() for future in batch):
                        self._advance(record, pool, [future.result() for future in batch])
                        if record.ended:
                            self._write()
                            ended(record)
                progress(self._progress(everything))

    def _begin(self, record: SuiteRecord, pool: TrialPool) -> None:
        if record.test.procedure is None:
            return
        self._procedures[record.test.number] = record.test.procedure(self._choice)
        self._advance(record, pool, None)

    def _advance(
        self, record: SuiteRecord, pool: TrialPool, outcomes: Sequence[TrialOutcome] | None
    ) -> None:
        number = record.test.number
        self._waiting.pop(number, None)
        record.outcomes += outcomes or ()
        try:
            procedure = self._procedures[number]
            trials = next(procedure) if outcomes is None else procedure.send(outcomes)
        except StopIteration as end:
            record.findings = end.value
        except UserError as refusal:
            record.error = str(refusal)
        else:
            self._waiting[number] = [pool.submit(trial) for trial in trials]

    def _count(self, outcome: TrialOutcome) -> None:
        self._seconds.append(outcome.seconds)

    def _progress(self, futures: Sequence[Future[TrialOutcome]]) -> Progress:
        """Estimate what is left of the trials that are known, from those that have ended."""
        left = sum(not future.done() for future in futures)
        ended = len(self._seconds)
        mean = sum(self._seconds) / ended if ended else None
        return Progress(
            ended=ended,
            known=ended + left,
            left_s=None if mean is None else mean * left / self._runner.at_once,
            what=", ".join(self._waiting),
        )

    def as_data(self) -> dict[str, Any]:
        """Return what ``suite.json`` holds."""
        tests = {record.test.number: _test_data(record) for record in self.records}
        earlier = {test["number"]: test for test in self._earlier}
        numbers = [test.number for test in self._suite.tests]
        return {
            "schema": SCHEMA,
            **self._settings(),
            "document": self._suite.document,
            "terminology": self._suite.terminology,
            "criterion": self._suite.criterion,
            "machine": describe_machine(),
            "ranks": self._runner.ranks,
            "accounting": accounting(self.records),
            "tests": [one for one in map({**earlier, **tests}.get, numbers) if one],
        }

    def _settings(self) -> dict[str, Any]:
        """Return what results of one folder have in common."""
        return {
            "suite": self._suite.name,
            "scale": self._choice.scale,
            "transports": list(self._choice.transports),
            "fabric": self._choice.fabric,
            "seed": self._choice.seed,
            "seeds": self._choice.seeds,
            "nodes": self._choice.nodes,
        }

    def _write(self) -> None:
        write_whole(self.folder / FILE, json.dumps(self.as_data(), indent=1))
        for record in self.records:
            for number, table in enumerate(_tables(record), start=1):
                _write_csv(self.folder / "tables" / f"{record.test.number}-{number}.csv", table)


def accounting(records: Sequence[SuiteRecord]) -> dict[str, Any]:
    """Return the trials that were attempted, those included, and why others are excluded.

    ``again`` names those that failed on one machine and were tried again on another.
    """
    outcomes = {one.trial.key: one for record in records for one in record.outcomes}
    reasons: dict[str, int] = {}
    for outcome in outcomes.values():
        if outcome.excluded:
            reasons[outcome.excluded] = reasons.get(outcome.excluded, 0) + 1
    return {
        "attempted": len(outcomes),
        "included": len(outcomes) - sum(reasons.values()),
        "excluded": reasons,
        "again": {one.trial.key: one.again for one in outcomes.values() if one.again},
    }


def planned(test: SuiteTest, choice: SuiteChoice) -> Sequence[SuiteTrial]:
    """Return the trials that ``test`` begins with."""
    if test.procedure is None:
        return ()
    procedure = test.procedure(choice)
    try:
        return next(procedure)
    except StopIteration:
        return ()
    finally:
        procedure.close()


def _claim(folder: Path, settings: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Make ``folder``, or take up the suite in it: return its tests.

    UserError where it holds something else, or a suite with other settings.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = json.loads((folder / FILE).read_text())
    except FileNotFoundError:
        if any(folder.iterdir()):
            raise UserError(
                f"{folder} is not empty and holds no suite; choose a new directory with --output"
            ) from None
        return ()
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"cannot use {folder} for a suite: {error}; choose another with --output"
        ) from None
    if not isinstance(before, dict) or before.get("schema") != SCHEMA:
        raise UserError(f"{folder}/{FILE} is not of the schema {SCHEMA}; choose another --output")
    before = {"nodes": "kernel", **before}  # of a suite that was written before there was a choice
    differing = [name for name, value in settings.items() if before.get(name) != value]
    if differing:
        raise UserError(
            f"{folder} holds a suite with another {' and '.join(differing)}; "
            "choose a new directory with --output"
        )
    tests = before.get("tests")
    if not isinstance(tests, list) or not all(
        isinstance(test, dict) and "number" in test for test in tests
    ):
        raise UserError(f"{folder}/{FILE} is damaged; choose a new directory with --output")
    return tests


def _test_data(record: SuiteRecord) -> dict[str, Any]:
    test, findings = record.test, record.findings or Findings()
    return {
        "number": test.number,
        "title": test.title,
        "objective": test.objective,
        "ended": record.ended,
        "reason": test.reason or None,
        "error": record.error,
        "deviations": list(findings.deviations),
        "notes": list(findings.notes),
        "tables": [_table_data(table) for table in findings.tables],
        "trials": [
            {
                "key": one.trial.key,
                "command": " ".join(("uetemu", *one.trial.words)),
                "seconds": one.seconds,
                "digest": one.result.get("digest"),
                "excluded": one.excluded,
                "place": one.place,
                "again": one.again,
            }
            for one in record.outcomes
        ],
    }


def _table_data(table: SuiteTable) -> dict[str, Any]:
    return {
        "title": table.title,
        "columns": [
            {"key": one.key, "heading": one.heading, "unit": one.unit, "point": one.point.value}
            for one in table.columns
        ],
        "rows": [dict(row) for row in table.rows],
        "curves": [asdict(one) for one in table.curves],
    }


def _tables(record: SuiteRecord) -> Sequence[SuiteTable]:
    return record.findings.tables if record.findings else ()


def _write_csv(path: Path, table: SuiteTable) -> None:
    """Write a table whose second line names the observation points."""
    path.parent.mkdir(exist_ok=True)
    with whole_file(path) as fresh, fresh.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow([headed(one) for one in table.columns])
        writer.writerow([one.point.value for one in table.columns])
        for row in table.rows:
            writer.writerow([_text(row.get(one.key)) for one in table.columns])


def _text(value: Any) -> Any:
    return "" if value is None else value
