"""The outcome of a run: its rows, and bounds that they must keep."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from emulator.pytest_plugin.result_bounds import ResultBound, parse_bound
from emulator.report.compare.comparison import as_text, compare, failures, parse_condition
from emulator.report.compare.sources import read_source
from emulator.report.run_folder import labels

#: Characters of a run's output, and of a comparison, that a failure shows at most.
MOST_SHOWN = 12_000


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """A run that has ended: its command, run folder, exit status and what it printed."""

    command: str
    folder: Path
    status: int
    output: str = field(repr=False)
    errors: str = field(repr=False)

    @cached_property
    def result(self) -> Mapping[str, Any]:
        """The content of ``result.json``."""
        content: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return content

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The rows of the table, by the keys of ``result.json``."""
        rows: Sequence[Mapping[str, Any]] = self.result["rows"]
        return rows

    @property
    def digest(self) -> str | None:
        """The digest of all frames and their times; None on the host's clock."""
        digest: str | None = self.result.get("digest")
        return digest

    @property
    def verdict(self) -> str:
        """``exact``, ``ok`` or ``host-limited``."""
        verdict: str = self.result["fidelity"]["verdict"]
        return verdict

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of ``kind`` in ``events.jsonl``."""
        lines = (self.folder / "events.jsonl").read_text().splitlines()
        return [event for line in lines if (event := json.loads(line))["event"] == kind]

    def row(self, **values: object) -> Mapping[str, Any]:
        """Return the one row that has these values, such as ``row(transport="uet", senders=8)``."""
        __tracebackhide__ = True
        found = [row for row in self.rows if values.items() <= row.items()]
        if len(found) != 1:
            raise AssertionError(
                f"{len(found)} of {len(self.rows)} rows have {values}, and one was expected\n"
                f"{self.account()}"
            )
        return found[0]

    def assert_bounds(self, *bounds: str) -> None:
        """Fail unless every row keeps every bound, such as ``efficiency>=90%`` or ``drops==0``.

        Names are those of ``uetemu compare --fail-if`` and keys of rows in ``result.json``.
        """
        __tracebackhide__ = True
        required = [parse_bound(text) for text in bounds]
        broken = [line for bound in required for line in self._broken(bound)]
        if broken:
            raise AssertionError("\n".join(("a row is out of bounds", *broken, self.account())))

    def _broken(self, bound: ResultBound) -> list[str]:
        if not self.rows:
            return [f"  {bound.text}: the run has no row"]
        return [
            f"  {bound.text}: {trouble} in row {name}"
            for row, name in zip(self.rows, labels(self.rows), strict=True)
            if (trouble := bound.trouble(row)) is not None
        ]

    def assert_against(
        self, base: RunOutcome | Path | str, *, fail_if: str | Sequence[str]
    ) -> None:
        """Fail if a value changed from ``base`` as a condition has it, such as ``busbw<-5%``.

        ``base`` is an outcome, a run folder, a ``result.json``, or a file of a cluster's tests;
        conditions are those of ``uetemu compare --fail-if``.
        """
        __tracebackhide__ = True
        where = base.folder if isinstance(base, RunOutcome) else Path(base)
        texts = [fail_if] if isinstance(fail_if, str) else fail_if
        conditions = [parse_condition(text) for text in texts]
        comparison = compare(read_source(where), read_source(self.folder))
        failed = [line for one in conditions for line in failures(one, [comparison])]
        if failed:
            shown = _cut("\n".join(as_text([comparison])))
            repeat = f"uetemu compare {where} {self.folder}"
            raise AssertionError("\n".join((*failed, shown, f"# {repeat}")))

    def account(self) -> str:
        """Return command, table, errors and run folder: what a failure shows."""
        table = "" if self.output.startswith("{") else self.output.rstrip()  # of --format json
        parts = (f"# {self.command}", table, self.errors.rstrip())
        shown = _cut("\n".join(part for part in parts if part))
        return shown if self.place in shown else f"{shown}\n{self.place}"

    @property
    def place(self) -> str:
        """The last line of an account: where the run's files are."""
        folder = self.folder if self.folder.exists() else "none was left"
        return f"# Run folder           : {folder}"


def _cut(text: str) -> str:
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}\n..."
