"""Keep labs of failed tests (``--uetemu-keep-lab``), or open a shell there (``--uetemu-shell``).

Both work for labs of the fixture ``uetemu_lab`` and of
:func:`emulator.pytest_plugin.lab_life.built`.  A lab that a process of its own makes and removes,
as ``uetemu run`` does, is gone by the time its test fails.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator
from typing import Any

import pytest

from emulator.dataplane import cleanup, lab_record
from emulator.dataplane.lab_record import LabRecord, Phase
from emulator.pytest_plugin.run_process import UETEMU, environment


class Labs:
    """The labs of the tests of this process, by name.

    ``up`` are those of tests and fixtures that still run; ``left`` those whose block an exception
    has ended, which stay until their test has.  ``kept`` ones stay for good.
    """

    def __init__(self) -> None:
        self.keep = self.shell = False
        self.up: list[str] = []
        self.left: list[str] = []
        self.kept: set[str] = set()

    @property
    def requested(self) -> bool:
        """Whether a failed test's lab has to outlive the test's own code."""
        return self.keep or self.shell

    def standing(self) -> list[LabRecord]:
        """Return the records of those that stay up if nobody removes them."""
        found = map(lab_record.load, (*self.up, *self.left))
        return [one for one in found if one and one.persistent and one.phase is Phase.UP]

    def remove_left(self) -> None:
        """Remove what exceptions have left, but for what is kept."""
        while self.left:
            name = self.left.pop()
            if name not in self.kept and cleanup.exists(name):
                cleanup.take_down(name)


LABS = Labs()


def pytest_configure(config: pytest.Config) -> None:
    LABS.keep = config.getoption("uetemu_keep_lab")
    LABS.shell = config.getoption("uetemu_shell")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    try:
        return (yield)
    finally:
        LABS.remove_left()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not report.failed or not LABS.requested:
        return report
    standing = LABS.standing()
    for record in standing if LABS.keep else ():
        LABS.kept.add(record.lab)
        report.sections.append((f"lab {record.lab} is kept", _how(record)))
    if LABS.shell and not (standing and _at_terminal(item.config)):
        reason = "standard input is no terminal" if standing else "the test has no lab now"
        report.sections.append(("no shell is opened", reason))
    return report


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector, report: Any) -> None:
    """Open the shell; by now pytest's own limits of time no longer count for this test."""
    standing = LABS.standing()
    if not (LABS.shell and standing and _at_terminal(node.config)):
        return
    record = standing[-1]
    capture = node.config.pluginmanager.getplugin("capturemanager")
    capture.suspend(in_=True)
    try:
        words = (
            f"\n{report.longreprtext}\n\n{node.nodeid} has failed: a shell in {_node(record)} of "
            f"lab {record.lab}; exit goes on\n"
        )
        os.write(1, words.encode())
        shell = os.environ.get("SHELL", "/bin/sh")
        subprocess.run(
            [*UETEMU, "exec", f"{record.lab}:{_node(record)}", "--", shell], env=environment()
        )
    finally:
        capture.resume()


def _node(record: LabRecord) -> str:
    """Return the first node: a GPU, as these come first in a record."""
    return record.nodes[0]


def _how(record: LabRecord) -> str:
    return "\n".join(
        (
            f"uetemu status {record.lab}",
            f"uetemu exec {record.lab}:{_node(record)} -- bash",
            f"uetemu clean {record.lab}",
        )
    )


def _at_terminal(config: pytest.Config) -> bool:
    """Return whether standard input, as pytest was given it, is a terminal."""
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.suspend(in_=True)
    try:
        return os.isatty(0)
    finally:
        capture.resume()
