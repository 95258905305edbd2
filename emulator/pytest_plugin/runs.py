"""Runs of a test: begun, waited for, and ended with it; their rows, and bounds that these keep."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import emulator
from emulator.dataplane import lab_record
from emulator.dataplane.kernel import namespaces
from emulator.errors import UserError
from emulator.metrics import METRICS
from emulator.report.compare.comparison import (
    COMPARED,
    Statement,
    as_text,
    compare,
    failures,
    parse_condition,
    parse_statement,
)
from emulator.report.compare.sources import read_source
from emulator.report.run.page import write_report
from emulator.report.run_folder import labels


@dataclass(frozen=True)
class ResultBound:
    """``key`` of every row keeps to ``limit``, in the key's own unit."""

    text: str
    key: str
    sign: str
    limit: float

    def trouble(self, row: Mapping[str, object]) -> str | None:
        """Return how the row breaks the bound, or None.  A value that it lacks breaks it, too."""
        value = row.get(self.key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"{self.key} was not measured"
        if COMPARED[self.sign](value, self.limit):
            return None
        return f"{self.key} is {value:g}"


def parse_bound(text: str) -> ResultBound:
    """Return the bound that ``text`` states; UserError if it is none."""
    stated: Statement = parse_statement(text, f"bound {text!r}", "drops==0, time<=90 or jain>0.95")
    limit = stated.limit
    if stated.percent:
        if METRICS[stated.key].scale != 100:
            raise UserError(
                f"bound {text!r}: {stated.key} is no share; leave % out, or compare with another "
                "run by assert_against"
            )
        limit /= 100
    return ResultBound(text.strip(), stated.key, stated.sign, limit)


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


#: The command of this package, whichever of several installed ones it is; not the working folder's.
UETEMU = (sys.executable, "-P", "-c", "from emulator.cli.main import main; main()")
#: What a run may take (s), unless a test says so; on an emulated processor, beside other tests.
BUDGET_S = 500.0
#: What a run may take to remove its namespaces when it is interrupted (s).
GRACE_S = 30.0
_POLL_S = 0.02
#: A check of a run folder that holds for every run; it raises AssertionError.
FolderCheck = Callable[[Path], object]


def environment() -> dict[str, str]:
    """Return this process's environment, with the package that it has imported."""
    home = str(Path(emulator.__file__).parents[1])
    path = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": os.pathsep.join((home, path)) if path else home}


class RunProcess:
    """A ``uetemu run`` that works on a lab of its own and writes a folder of its own.

    ``launcher`` is the command that starts it, if that is not this process.
    """

    def __init__(
        self,
        parent: Path,
        scenario: str,
        *options: str,
        checks: Sequence[FolderCheck] = (),
        launcher: Sequence[str] = (),
    ) -> None:
        self.lab = f"t-{secrets.token_hex(5)}"
        self.folder = parent / self.lab
        #: whether nobody takes frames away behind the run's back
        self.undisturbed = True
        self._checks = checks
        self._asked = ("run", scenario, *options)
        self.process = self._begin(
            launcher, [*self._asked, "--name", self.lab, "--output", str(self.folder)]
        )

    def _begin(self, launcher: Sequence[str], words: Sequence[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*launcher, *UETEMU, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
        )

    @property
    def command(self) -> str:
        return shlex.join(("uetemu", *self._asked))

    def communicate(self, budget_s: float = BUDGET_S) -> tuple[int, str, str]:
        """Return status, output and errors of the process; hold a run that ended well to checks.

        A process that outlives ``budget_s`` is interrupted, and TimeoutError is raised.
        """
        try:
            out, err = self.process.communicate(timeout=budget_s)
        except subprocess.TimeoutExpired:
            self.end()
            raise TimeoutError(
                f"{self.command} did not end within {budget_s:g} s; give it more by budget_s=..., "
                "or run less of it"
            ) from None
        if self.process.returncode == 0 and self.undisturbed:
            for check in self._checks:
                check(self.folder)
        return self.process.returncode, out, err

    def finish(self, budget_s: float = BUDGET_S) -> RunOutcome:
        """Wait until the run has ended, and return its outcome."""
        status, output, errors = self.communicate(budget_s)
        return RunOutcome(
            command=self.command, folder=self.folder, status=status, output=output, errors=errors
        )

    def end(self) -> None:
        """End the process if it still runs, and remove what is left of its lab."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.communicate(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
        if self.leftovers():
            clean = [*UETEMU, "clean", self.lab]
            subprocess.run(clean, env=environment(), capture_output=True, check=False)

    @property
    def result(self) -> dict[str, Any]:
        """The content of ``result.json``."""
        content: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return content

    def events(self) -> list[dict[str, Any]]:
        """Return what ``events.jsonl`` has by now: whole lines, and not one that is being written.

        A process that is killed in the middle of a line leaves its beginning.
        """
        try:
            text = (self.folder / "events.jsonl").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def event(self, kind: str) -> dict[str, Any]:
        """Return the first event of ``kind``, once it has happened."""
        give_up = time.monotonic() + BUDGET_S
        while time.monotonic() < give_up:
            for event in self.events():
                if event["event"] == kind:
                    return event
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(_POLL_S)
        raise AssertionError(f"no event {kind} came in time")

    def leftovers(self) -> list[str]:
        """Return what is left of the lab and of the capture's parts."""
        found = [str(path) for path in namespaces.of_lab(self.lab).values()]
        found += [str(path) for path in Path("/dev/shm").glob(f"uetemu.{self.lab}.*")]
        if lab_record.directory_of(self.lab).exists():
            found.append(str(lab_record.directory_of(self.lab)))
        found += [str(path) for path in self.folder.glob("capture.parts")]
        return found


def as_options(params: Mapping[str, object]) -> list[str]:
    """Return parameters of a scenario as options of ``uetemu run``."""
    return [word for name, value in params.items() for word in ("--param", f"{name}={value}")]


class RunFactory:
    """Runs scenarios in folders below ``parent``.

    ``given`` are options of every run: those of the test's marks.  ``checks`` hold for every run
    that ends well.
    """

    #: What begins a run.
    process: type[RunProcess] = RunProcess

    def __init__(
        self, parent: Path, given: Sequence[str] = (), checks: Sequence[FolderCheck] = ()
    ) -> None:
        self._parent = parent
        self._given = given
        self._checks = checks
        self._begun: list[RunProcess] = []
        self.outcomes: list[RunOutcome] = []

    def __call__(
        self,
        scenario: str,
        *options: str,
        params: Mapping[str, object] | None = None,
        check: bool = True,
        budget_s: float = BUDGET_S,
        **others: object,
    ) -> RunOutcome:
        """Run ``scenario`` to its end with options of ``uetemu run``, and return the outcome.

        ``params`` are the scenario's parameters.  A run that fails fails the test, unless ``check``
        is false.

        Raises:
            TypeError: there are ``others``; says where they belong.
        """
        __tracebackhide__ = True
        for name in others:
            raise TypeError(
                f"uetemu_run has no argument {name}: a parameter of the scenario is given by "
                f'params={{"{name}": ...}}, an option of uetemu run as words of its own, such as '
                '"--seed", "2"'
            )
        outcome = self.start(scenario, *options, params=params).finish(budget_s)
        self.outcomes.append(outcome)
        if check and outcome.status:
            raise AssertionError(f"the run ended with status {outcome.status}\n{outcome.account()}")
        return outcome

    def start(
        self, scenario: str, *options: str, params: Mapping[str, object] | None = None
    ) -> RunProcess:
        """Begin a run; the test's end ends it."""
        self._parent.mkdir(parents=True, exist_ok=True)
        words = (*self._given, *options, *as_options(params or {}))
        self._begun.append(self.process(self._parent, scenario, *words, checks=self._checks))
        return self._begun[-1]

    def end(self) -> None:
        """End what still runs, and remove what is left of its labs."""
        for run in self._begun:
            run.end()

    def write_reports(self) -> None:
        for run in self._begun:
            if (run.folder / "result.json").exists():
                write_report(run.folder)

    def remove_folders(self) -> None:
        """Remove the run folders, and the folder around them."""
        shutil.rmtree(self._parent, ignore_errors=True)
