"""Fixtures that need the emulator, and what a failed test shows of its runs.

pytest's plugin manager loads this module when :mod:`emulator.pytest_plugin.pytest_hooks` asks.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import pytest

from emulator.dataplane import cleanup
from emulator.errors import UserError
from emulator.pytest_plugin import labs
from emulator.pytest_plugin.labs import LabFactory
from emulator.pytest_plugin.runs import FolderCheck, RunFactory, RunOutcome

_RUNS = pytest.StashKey[RunFactory]()
_FAILED = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    """Add the hooks that keep the labs of failed tests; called when this module is loaded."""
    config.pluginmanager.register(labs)


def _need_root(config: pytest.Config) -> None:
    """Fail the test, or skip it where that was asked for, if this process cannot build a fabric."""
    try:
        cleanup.require_root("build a fabric")
        return
    except UserError as error:
        reason = str(error)
    if config.getoption("uetemu_without_root") == "skip":
        pytest.skip(reason)
    pytest.fail(
        f"{reason}; --uetemu-without-root=skip skips what needs a fabric",
        pytrace=False,
    )


def _folder(config: pytest.Config, name: str, otherwise: Path) -> Path:
    """Return an unused folder below --uetemu-artifacts, or ``otherwise``."""
    artifacts: Path | None = config.getoption("uetemu_artifacts")
    if artifacts is None:
        return otherwise
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-")[:150]
    folder, number = artifacts.absolute() / stem, 1
    while folder.exists():
        number += 1
        folder = artifacts.absolute() / f"{stem}-{number}"
    return folder


def _settle(config: pytest.Config, runs: RunFactory, failed: bool) -> None:
    """End the runs; keep the folders of failed tests as artifacts, and no others."""
    runs.end()
    if config.getoption("uetemu_artifacts") is None:
        return  # pytest keeps its temporary folders by rules of its own
    if failed:
        runs.write_reports()
    else:
        runs.remove_folders()


@pytest.fixture(name="_uetemu_run")
def _run(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    uetemu_topology: str | None,
    uetemu_transport: str | None,
    uetemu_checks: Sequence[FolderCheck],
) -> Iterator[RunFactory]:
    _need_root(request.config)
    given = [("--topology", uetemu_topology), ("--transport", uetemu_transport)]
    options = [word for name, value in given if value is not None for word in (name, value)]
    parent = _folder(request.config, request.node.nodeid, tmp_path / "runs")
    runs = RunFactory(parent, options, uetemu_checks)
    request.node.stash[_RUNS] = runs
    yield runs
    _settle(request.config, runs, request.node.stash.get(_FAILED, False))


@pytest.fixture(name="_uetemu_run_factory", scope="session")
def _run_factory(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    uetemu_checks: Sequence[FolderCheck],
) -> Iterator[RunFactory]:
    _need_root(request.config)
    parent = _folder(request.config, "shared", tmp_path_factory.mktemp("runs"))
    runs = RunFactory(parent, (), uetemu_checks)
    yield runs
    _settle(request.config, runs, bool(request.session.testsfailed))


@pytest.fixture(name="_uetemu_lab")
def _lab(request: pytest.FixtureRequest, uetemu_topology: str | None) -> Iterator[LabFactory]:
    _need_root(request.config)
    factory = LabFactory(uetemu_topology)
    yield factory
    factory.remove()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the runs of a failed test: command, table and run folder."""
    report = yield
    if not report.failed:
        return report
    item.stash[_FAILED] = True
    own = item.stash.get(_RUNS, None)
    outcomes = [] if own is None else list(own.outcomes)
    funcargs = getattr(item, "funcargs", {})
    outcomes += [value for value in funcargs.values() if isinstance(value, RunOutcome)]
    for outcome in outcomes:
        if outcome.place not in report.longreprtext:  # which has no account of it
            report.sections.append((outcome.command, outcome.account()))
    return report
