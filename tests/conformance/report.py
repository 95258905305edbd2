"""Define what is kept of test runs for the conformance report, and how a new run changes it.

The report describes the *last run of each test*.  A run of part of the tests leaves the results
of all others as they were.  A test leaves the report when this run shows that it is gone: its
file is no longer there; or the file (or class) was collected and the test was not in it, or no
longer names a statement.  A test in a part that was not collected stays.  If collecting a file
failed or was skipped, that becomes the outcome of the tests known in it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.statements import Catalogue, Statement

SCHEMA = "uetemu.conformance/1"

#: What a test that names a statement can come to, the worst first; a statement comes to the
#: worst of its tests.
OUTCOMES = ("failed", "xfailed", "xpassed", "not-run", "skipped", "passed")

#: What a statement comes to that no test names: with and without a reason for it.
UNTESTED, MISSING = "untested", "missing"


@dataclass(slots=True)
class Run:
    """Hold what one session saw; all but the outcomes also crosses from xdist's workers."""

    #: node id of a file or class that was collected -> node ids of all that is in it
    collected: dict[str, list[str]] = field(default_factory=dict)
    #: node id of a file or class that could not be -> "failed" or "skipped"
    uncollected: dict[str, str] = field(default_factory=dict)
    #: node id of a test -> the statements it names; also of tests that were not selected
    carried: dict[str, list[str]] = field(default_factory=dict)
    #: node id of a test -> one of OUTCOMES
    outcomes: dict[str, str] = field(default_factory=dict)

    def inventory(self) -> dict[str, Any]:
        """Return what was collected, as plain types."""
        return {
            "collected": self.collected,
            "uncollected": self.uncollected,
            "carried": self.carried,
        }

    def add(self, inventory: Mapping[str, Any]) -> None:
        """Take what another process collected."""
        self.collected.update(inventory["collected"])
        self.uncollected.update(inventory["uncollected"])
        self.carried.update(inventory["carried"])

    def is_gone(self, test: str, file_exists: Callable[[str], bool]) -> bool:
        """Whether this session shows that there is no such test, or that it names nothing."""
        holders = _holders(test)
        if not file_exists(holders[0]):
            return True
        for holder in reversed(holders):
            if holder not in self.collected:
                continue
            inside = self.collected[holder]
            if test in inside:
                return test not in self.carried
            return not any(test.startswith(child + "::") for child in inside)
        return False

    def outcome(self, test: str) -> str | None:
        """Return what the test came to in this session; None if it says nothing of it."""
        for holder in _holders(test):
            if holder in self.uncollected:
                return self.uncollected[holder]
        return self.outcomes.get(test)


def _holders(test: str) -> list[str]:
    """The node ids that may hold a test, outermost first: the file, a class in it.

    Parameters may contain ``::``: what is no node is collected by nobody.
    """
    parts = test.split("::")
    return ["::".join(parts[:end]) for end in range(1, max(2, len(parts)))]


def merged(
    before: Mapping[str, Mapping[str, Any]],
    run: Run,
    *,
    ran: str,
    commit: str | None,
    file_exists: Callable[[str], bool],
) -> dict[str, dict[str, Any]]:
    """The tests of the report after a run, by node id."""
    tests = {
        test: dict(record)
        for test, record in before.items()
        if test in run.carried or not run.is_gone(test, file_exists)
    }
    for test, statements in run.carried.items():
        record = tests.setdefault(test, {"outcome": "not-run", "ran": None, "commit": None})
        record["statements"] = sorted(set(statements))
    for test, record in tests.items():
        outcome = run.outcome(test)
        if outcome is not None:
            record.update(outcome=outcome, ran=ran, commit=commit)
    return dict(sorted(tests.items()))


def result(statement: Statement, outcomes: Sequence[str]) -> str:
    """Return what a statement comes to, given the outcomes of the tests that name it."""
    if outcomes:
        return min(outcomes, key=OUTCOMES.index)
    return UNTESTED if statement.untested else MISSING


def facts(
    catalogue: Catalogue,
    tests: Mapping[str, Mapping[str, Any]],
    *,
    written: str,
    commit: str | None,
    versions: Mapping[str, str],
    ran: int,
) -> dict[str, Any]:
    """The whole report as JSON types."""
    carriers: dict[str, list[str]] = {number: [] for number in catalogue.statements}
    for test, record in tests.items():
        for number in record["statements"]:
            if number in carriers:
                carriers[number].append(test)
    rows = []
    counts: dict[str, Counter[str]] = {family: Counter() for family in catalogue.titles}
    for statement in catalogue.statements.values():
        names = carriers[statement.number]
        came_to = result(statement, [tests[name]["outcome"] for name in names])
        counts[statement.family][came_to] += 1
        rows.append(
            {
                "number": statement.number,
                "family": statement.family,
                "text": statement.text,
                "source": statement.source,
                "confidence": statement.confidence,
                "note": statement.note,
                "untested": statement.untested,
                "left_out": statement.left_out,
                "result": came_to,
                "tests": names,
            }
        )
    return {
        "schema": SCHEMA,
        "written": written,
        "commit": commit,
        "versions": dict(versions),
        "last_run": {"tests": ran},
        "families": [
            {
                "name": name,
                "title": title,
                "statements": counts[name].total(),
                "results": dict(sorted(counts[name].items())),
            }
            for name, title in catalogue.titles.items()
        ],
        "statements": rows,
        "tests": dict(tests),
    }


def without_test_or_reason(catalogue: Catalogue, carried: Mapping[str, Sequence[str]]) -> list[str]:
    """The statements that no test names and that do not say why."""
    named = {number for numbers in carried.values() for number in numbers}
    return [
        statement.number
        for statement in catalogue.statements.values()
        if statement.number not in named and not statement.untested
    ]
