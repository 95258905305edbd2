"""A suite folder, read for its report: ``suite.json``, the run of each trial, and its fabric."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from emulator.errors import UserError
from emulator.suite.suite_model import SAMPLES, Curve, Point, SuiteColumn, SuiteTable
from emulator.suite.suite_run import FILE, SCHEMA

#: Octets of a file that is read whole, at most.
LARGEST_FILE = 64 * 2**20
_DAMAGED = "is damaged; run the suite again with the same --output"


@dataclass(frozen=True, kw_only=True)
class ReportedTrial:
    """A trial of a test: its command, and why it is excluded, if it is.

    ``again`` states at which rank it failed, and what came of it at another one.
    """

    key: str
    command: str
    seconds: float
    digest: str | None = None
    excluded: str | None = None
    again: str | None = None


@dataclass(frozen=True, kw_only=True)
class ReportedTest:
    """A test as ``suite.json`` has it: tables and trials, or the reason why there are none."""

    number: str
    title: str
    objective: str
    ended: bool
    reason: str | None = None
    error: str | None = None
    deviations: Sequence[str] = ()
    notes: Sequence[str] = ()
    tables: Sequence[SuiteTable] = ()
    trials: Sequence[ReportedTrial] = ()

    @property
    def measured(self) -> bool:
        """Return whether the test has a table with a row."""
        return any(table.rows for table in self.tables)

    @property
    def without(self) -> str | None:
        """Return why there is no value: the test's reason, an error, or that it has not ended."""
        if self.reason or self.error:
            return self.reason or self.error
        if not self.ended:
            return "it has not ended; run the suite again with the same --output"
        return None if self.measured else "each of its trials is excluded"


@dataclass(frozen=True, kw_only=True)
class TrialRun:
    """The run folder of a trial: its result and its fabric; empty where a file is not usable."""

    result: Mapping[str, Any]
    fabric: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """Return the rows of the result that are objects."""
        rows = self.result.get("rows")
        return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


@dataclass(frozen=True)
class SuiteFolder:
    """A suite folder: what ``suite.json`` holds, and the run folders beside it."""

    path: Path
    data: Mapping[str, Any]
    tests: Sequence[ReportedTest]

    @classmethod
    def read(cls, path: Path) -> SuiteFolder:
        """Read the folder; UserError unless it has a ``suite.json`` of this schema."""
        data = read_object(path / FILE)
        if data is None:
            raise UserError(f"{path}/{FILE} cannot be read; name a folder that `uetemu bench` made")
        if data.get("schema") != SCHEMA:
            raise UserError(
                f"{path}/{FILE} is of another version ({str(data.get('schema'))[:40]}); run the "
                "suite again"
            )
        try:
            tests = [_test(one) for one in data["tests"]]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UserError(f"{path}/{FILE} {_DAMAGED}") from None
        return cls(path, data, tests)

    def words(self, key: str) -> str:
        """Return a value of ``suite.json`` for people."""
        value = self.data.get(key)
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

    @cached_property
    def runs(self) -> Mapping[str, TrialRun]:
        """The run of each trial by its key; trials whose folder is away have none."""
        found = {}
        for key in dict.fromkeys(one.key for test in self.tests for one in test.trials):
            result = read_object(self.path / "trials" / key / "result.json")
            if result is not None:
                fabric = read_object(self.path / "trials" / key / "fabric.json")
                found[key] = TrialRun(result=result, fabric=fabric or {})
        return found

    def runs_of(self, test: ReportedTest) -> Iterator[tuple[ReportedTrial, TrialRun]]:
        """Yield the included trials of a test whose run folder is there, each once."""
        for trial in {one.key: one for one in test.trials}.values():
            if trial.excluded is None and trial.key in self.runs:
                yield trial, self.runs[trial.key]


def is_suite(path: Path) -> bool:
    """Return whether a folder has the file of a suite."""
    return (path / FILE).is_file()


def read_object(path: Path) -> Mapping[str, Any] | None:
    """Return the JSON object in a file; None where there is none that can be used."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            return None
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _test(data: Mapping[str, Any]) -> ReportedTest:
    return ReportedTest(
        number=str(data["number"]),
        title=str(data["title"]),
        objective=str(data["objective"]),
        ended=bool(data["ended"]),
        reason=_words(data.get("reason")),
        error=_words(data.get("error")),
        deviations=[str(one) for one in _list(data["deviations"])],
        notes=[str(one) for one in _list(data["notes"])],
        tables=[_table(one) for one in _list(data["tables"])],
        trials=[_trial(one) for one in _list(data["trials"])],
    )


def _trial(data: Mapping[str, Any]) -> ReportedTrial:
    key = str(data["key"])
    if not key.isalnum():
        raise ValueError(f"{key!r} is no key of a trial")
    return ReportedTrial(
        key=key,
        command=str(data["command"]),
        seconds=float(data["seconds"]),
        digest=_words(data.get("digest")),
        excluded=_words(data.get("excluded")),
        again=_words(data.get("again")),
    )


def _table(data: Mapping[str, Any]) -> SuiteTable:
    columns = [
        SuiteColumn(
            str(one["key"]), str(one["heading"]), str(one["unit"]), Point(one["point"])
        )
        for one in _list(data["columns"])
    ]  # fmt: skip
    return SuiteTable(
        title=str(data["title"]),
        columns=columns,
        rows=[_row(one) for one in _list(data["rows"])],
        curves=[
            Curve(
                str(one["x"]), str(one["y"]), tuple(map(str, one["series"])), bool(one["measured"])
            )
            for one in _list(data.get("curves", []))
        ],
    )


def _row(data: Mapping[str, Any]) -> Mapping[str, Any]:
    for value in data.get(SAMPLES, {}).values():
        if not all(isinstance(one, int | float) for one in value):
            raise ValueError("samples are no numbers")
    plain = (str, int, float, type(None))
    return {key: value if isinstance(value, plain) or key == SAMPLES else str(value)
            for key, value in data.items()}  # fmt: skip


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{str(value)[:40]} is no list")
    return value


def _words(value: object) -> str | None:
    return None if value is None else str(value)


@dataclass(frozen=True)
class FabricFacts:
    """Size and rates of a fabric.

    ``rate_bps`` is B_acc, the sum of an accelerator's NICs; None where accelerators differ.
    """

    spec: str
    accelerators: int
    per_node: str
    switches: int
    cables: int
    rate_bps: int | None
    oversubscription: str
    control_plane: str

    @property
    def rate(self) -> str:
        """Return B_acc in Gb/s."""
        return "unequal" if self.rate_bps is None else f"{self.rate_bps / 1e9:g}"


def fabric_facts(run: TrialRun) -> FabricFacts:
    """Return the facts of the fabric that ``run`` was made on."""
    fabric = run.fabric
    servers, nodes = _objects(fabric.get("servers")), _objects(fabric.get("nodes"))
    links = _objects(fabric.get("links"))
    held = [len(one["gpus"]) for one in servers if isinstance(one.get("gpus"), list)]
    gpus = {str(one.get("name")) for one in nodes if one.get("role") == "gpu"}
    profile = fabric.get("profile")
    return FabricFacts(
        spec=str(run.result.get("topology")),
        accelerators=len(gpus) or _whole(run.result.get("ranks")),
        per_node=" or ".join(map(str, sorted(set(held)))) or "unknown",
        switches=sum(one.get("role") not in ("gpu", "nic") for one in nodes),
        cables=len(links),
        rate_bps=_accelerator_rate(fabric, gpus, links),
        oversubscription=_oversubscription(fabric.get("capacity")),
        control_plane=str(profile.get("control_plane")) if isinstance(profile, dict) else "unknown",
    )


def _accelerator_rate(
    fabric: Mapping[str, Any], gpus: set[str], links: Sequence[Mapping[str, Any]]
) -> int | None:
    """Return the rate of all cables of an accelerator; of a shared NIC it is not told apart."""
    rates = dict.fromkeys(gpus, 0)
    for link in links:
        for end in ("a", "b"):
            node = link.get(end)
            name = str(node.get("node")) if isinstance(node, dict) else ""
            if name in rates:
                rates[name] += _whole(link.get("rate_bps"))
    found = set(rates.values())
    return found.pop() if len(found) == 1 else None


def _oversubscription(capacity: object) -> str:
    ratios = capacity.get("oversubscription") if isinstance(capacity, dict) else None
    if not isinstance(ratios, dict) or not ratios:
        return "unknown"
    return ", ".join(f"{tier} {ratio}" for tier, ratio in ratios.items())


@dataclass(frozen=True)
class ComparableRow:
    """Facts of a row that another must share to be compared with it, beside its fabric."""

    pattern: str
    factor: str
    transport: str
    switch: str
    tss: str
    algorithm: str


def comparable_rows(run: TrialRun) -> dict[ComparableRow, list[int]]:
    """Return the distinct rows of ``run``, each with its sizes S (octets)."""
    found: dict[ComparableRow, list[int]] = {}
    for row in run.rows:
        busbw, algbw = row.get("busbw_gbps"), row.get("algbw_gbps")
        transport = str(row.get("transport"))
        one = ComparableRow(
            pattern=str(row.get("collective")),
            factor=f"{busbw / algbw:.4g}" if busbw and algbw else "none",
            transport=transport,
            switch=str(row.get("switch")),
            tss="active" if "tss=" in transport and "tss=off" not in transport else "not active",
            algorithm=str(row.get("algorithm") or "none"),
        )
        size = row.get("size_bytes")
        found.setdefault(one, []).append(size if isinstance(size, int) else 0)
    return found


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def joined(values: Iterable[object]) -> str:
    """Return distinct values in their order, as one text."""
    return ", ".join(dict.fromkeys(map(str, values)))
