"""pytest plugin: which tests prove which statement, and how they came out.

A test names the statements it proves: ``@pytest.mark.conformance("C-022", "C-023")``.  Naming one
that does not exist is an error of collecting its file.  At the end of a session the results are
merged into one JSON file, ``conformance/report.json`` in pytest's cache directory or the
file of ``--conformance-file``; ``uetemu conformance`` shows it.  What merging means is said in
:mod:`tests.conformance.report`.  ``--collect-only`` writes nothing; ``--cache-clear`` forgets the
results before this run; without pytest's cache (``-p no:cacheprovider``) and without the option
nothing is written.  Under xdist the workers report and the controller writes.
"""

import fcntl
import json
import os
import platform
import subprocess
from collections.abc import Generator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.report import SCHEMA, Run, facts, merged
from tests.conformance.statements import SHIPPED, Catalogue, StatementError, load

#: What this session's process has seen so far.
RUN = pytest.StashKey[Run]()
CATALOGUE = pytest.StashKey[Catalogue]()

_INVENTORY = "conformance"  # in a worker's output, and the name of this plugin's recorder


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance")
    group.addoption(
        "--conformance-file",
        metavar="PATH",
        type=Path,
        help="merge the conformance results into this file, not the one in pytest's cache",
    )
    parser.addini("conformance_statements", "file of the statements", default=str(SHIPPED))


def pytest_configure(config: pytest.Config) -> None:
    try:
        catalogue = load(config.rootpath / config.getini("conformance_statements"))
    except StatementError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[CATALOGUE] = catalogue
    config.stash[RUN] = run = Run()
    config.pluginmanager.register(Recorder(config, catalogue, run), _INVENTORY)


def named(item: pytest.Item) -> list[Any]:
    """Return what the markers of a test name, a class's and module's included."""
    return [number for mark in item.iter_markers("conformance") for number in mark.args]


class Recorder:
    """Collects what a session shows and writes the report at its end."""

    def __init__(self, config: pytest.Config, catalogue: Catalogue, run: Run) -> None:
        self._config = config
        self._catalogue = catalogue
        self._run = run
        self._stated: list[tuple[str, dict[str, bool]]] = []

    # --- collecting -----------------------------------------------------------------------------

    # Innermost, so that what other plugins take out of the result has been seen here.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        # Of directories only the files are of interest, and those are looked for on disk.
        if not isinstance(collector, pytest.File | pytest.Class):
            return report
        if report.passed:
            items = [child for child in report.result if isinstance(child, pytest.Item)]
            wrong = [fault for item in items for fault in self._faults(item)]
            if wrong:
                report.outcome = "failed"
                report.longrepr = "\n".join(dict.fromkeys(wrong))
                report.result = []
        if not report.passed:
            self._run.uncollected[collector.nodeid] = report.outcome
        # With --last-failed, pytest calls files empty that it left out.
        elif report.result or not self._config.getoption("lf", False):
            self._run.collected[collector.nodeid] = [child.nodeid for child in report.result]
            for item in items:
                if numbers := named(item):
                    self._run.carried[item.nodeid] = numbers
        return report

    def _faults(self, item: pytest.Item) -> list[str]:
        faults = []
        name = item.nodeid.split("[")[0]
        for mark in item.iter_markers("conformance"):
            if not mark.args or mark.kwargs:
                faults.append(f"{name}: the conformance marker takes statement numbers")
            for number in mark.args:
                if not isinstance(number, str):
                    faults.append(f"{name}: a statement number is a string, not {number!r}")
                elif fault := self._catalogue.unknown(number):
                    faults.append(f"{name}: {fault}")
        return faults

    # --- running --------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        # Travels with the report from worker to controller, whatever becomes of the worker.
        report.conformance = named(item)  # type: ignore[attr-defined]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if hasattr(self._config, "workerinput"):
            return
        if numbers := getattr(report, "conformance", None):
            self._run.carried[report.nodeid] = numbers
        outcome = _outcome(report)
        if outcome == "failed" or (outcome and report.nodeid not in self._run.outcomes):
            self._run.outcomes[report.nodeid] = outcome

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of xdist has ended, perhaps without a last word."""
        inventory = getattr(node, "workeroutput", {}).get(_INVENTORY)
        if inventory is not None:
            self._run.add(json.loads(inventory))

    # --- the end --------------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        config = self._config
        if hasattr(config, "workerinput"):
            config.workeroutput[_INVENTORY] = json.dumps(self._run.inventory())  # type: ignore[attr-defined]
            return
        if config.option.collectonly:
            return
        ran = len(self._run.carried.keys() & self._run.outcomes.keys())
        try:
            path = self._place()
            # Without a test that names a statement those of this version's tests go on to be shown.
            if path is not None and (ran or path.is_file() or config.getoption("conformance_file")):
                self._write(path, ran)
        except OSError as error:
            self._stated.append((f"conformance report not written: {error}", {"yellow": True}))

    def _place(self) -> Path | None:
        given: Path | None = self._config.getoption("conformance_file")
        if given is not None:
            path = self._config.invocation_params.dir / given
            path.parent.mkdir(parents=True, exist_ok=True)
            return path
        cache = getattr(self._config, "cache", None)
        return cache.mkdir("conformance") / "report.json" if cache is not None else None

    def _write(self, path: Path, ran: int) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        commit = _commit(self._config.rootpath)
        # Two sessions that end together must not lose each other's results.
        with _locked(path.parent):
            tests = merged(
                self._before(path),
                self._run,
                ran=now,
                commit=commit,
                file_exists=lambda file: (self._config.rootpath / file).exists(),
            )
            report = facts(
                self._catalogue,
                tests,
                written=now,
                commit=commit,
                versions=_versions(),
                ran=ran,
            )
            new = path.with_name(f".{path.name}.{os.getpid()}")
            new.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
            new.replace(path)
        if ran:
            self._sum_up(report)

    def _before(self, path: Path) -> dict[str, Any]:
        """The tests of the last report; none if there is no such, or none that can be read."""
        try:
            report = json.loads(path.read_bytes())
            if report["schema"] != SCHEMA:
                raise ValueError(f"its schema is {report['schema']}")
            tests: dict[str, Any] = report["tests"]
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError) as error:
            self._stated.append(
                (f"conformance report begun anew: {path}: {error}", {"yellow": True})
            )
            return {}
        return tests

    def _sum_up(self, report: dict[str, Any]) -> None:
        for family in report["families"]:
            results = ", ".join(f"{count} {name}" for name, count in family["results"].items())
            self._stated.append(
                (f"conformance ({family['name']}): {results}; see uetemu conformance", {})
            )
        stale = [row["number"] for row in report["statements"] if row["tests"] and row["untested"]]
        if stale:
            self._stated.append(
                (f"tested, but called untested in statements.toml: {', '.join(stale)}", {})
            )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line, how in self._stated:
            terminalreporter.write_line(line, **how)


def _outcome(report: pytest.TestReport) -> str | None:
    expected_to_fail = hasattr(report, "wasxfail")
    if report.failed:
        return "failed"
    if report.skipped:
        return "xfailed" if expected_to_fail else "skipped"
    if report.when != "call":
        return None
    return "xpassed" if expected_to_fail else "passed"


class _locked:
    """Holds a directory's lock, for as long as a block takes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __enter__(self) -> None:
        self._descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _commit(checkout: Path) -> str | None:
    """The commit that was tested, ``-dirty`` if files differ from it; None outside of git."""
    git = ["git", "-c", "safe.directory=*", "--no-optional-locks", "-C", str(checkout)]
    try:
        done = subprocess.run(
            [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _versions() -> dict[str, str]:
    versions = {
        "python": platform.python_version(),
        "pytest": pytest.__version__,
        "kernel": platform.release(),
    }
    for package in ("uetemu", "scapy"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions
