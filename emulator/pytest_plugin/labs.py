"""Labs of a test: built as ``uetemu up`` builds them, and removed, verifiably, behind the test.

Labs of failed tests are kept (``--uetemu-keep-lab``), or a shell is opened there
(``--uetemu-shell``): those of the fixture ``uetemu_lab`` and of :func:`built`.  A lab that a
process of its own makes and removes, as ``uetemu run`` does, is gone by the time its test fails.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from emulator.cli.labs.up_verb import DEFAULT_DILATION
from emulator.dataplane import cleanup, homing, lab_record
from emulator.dataplane.control_plane import control_plane_choice as control_plane
from emulator.dataplane.fabric_choice import FabricChoice, choose
from emulator.dataplane.kernel.fabric.cable_delay import for_kernel_traffic
from emulator.dataplane.lab import Lab
from emulator.dataplane.lab_record import LabRecord, Phase
from emulator.dataplane.settings import FabricSettings
from emulator.dataplane.switch import switch_choice
from emulator.errors import UserError
from emulator.pytest_plugin.runs import UETEMU, environment
from emulator.run.plan.run_plan import usual_switch
from emulator.run.plan.variants import DEFAULT_TRANSPORT
from topologies.model import Topology


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
        found = map(lab_record.load, (*self.up, *self.left))
        return [one for one in found if one and one.settings.persistent and one.phase is Phase.UP]

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


@contextmanager
def built(name: str, topology: Topology, settings: FabricSettings) -> Iterator[Lab]:
    """Yield the lab that ``Lab.create`` makes; it is gone behind the block.

    With ``--uetemu-keep-lab`` or ``--uetemu-shell`` it stays if the test fails
    (:mod:`emulator.pytest_plugin.labs`).
    """
    if not LABS.requested:
        with Lab.create(name, topology, settings) as lab:
            yield lab
        return
    made = Lab.create(name, topology, replace(settings, persistent=True))
    LABS.up.append(name)
    try:
        yield made
    except (Exception, pytest.fail.Exception):
        LABS.left.append(name)
        raise
    finally:
        LABS.up.remove(name)
        made.close()
        if name not in LABS.left and name not in LABS.kept and cleanup.exists(name):
            cleanup.take_down(name)


class LabFactory:
    """Builds labs of random names; ``topology`` is that of the test's mark."""

    def __init__(self, topology: str | None = None) -> None:
        self._topology = topology
        self._names: list[str] = []
        self._stack = ExitStack()

    def __call__(self, topology: str | Topology | None = None, **settings: Any) -> Lab:
        """Build a lab; ``settings`` are fields of :class:`FabricSettings`.

        Without ``topology`` it is the one that the test is marked with.  Settings that are left out
        are those of ``uetemu up``: a fabric profile says its switches and its control plane.
        """
        asked = topology or self._topology
        if asked is None:
            raise UserError(
                'no topology: mark the test, as @pytest.mark.uetemu_topology("rail_clos"), or '
                'name one, as uetemu_lab("rail_clos")'
            )
        if isinstance(asked, Topology):
            chosen = FabricChoice(spec=asked.name, label=asked.name, topology=asked)
        else:
            chosen = choose(asked)
        model = control_plane.chosen(homing.resolved(chosen.topology, None)[0], None)
        if "switch" not in settings:
            switch = usual_switch(chosen.transport or DEFAULT_TRANSPORT, model, chosen)
            asic = switch_choice.requested(switch)
            nic = asic is not None and asic.pausing
            settings = {
                "switch": asic, "cable_delay": "nic" if nic else for_kernel_traffic(),
            } | settings  # fmt: skip
        name = f"t{secrets.token_hex(5)}"
        self._names.append(name)
        usual: dict[str, Any] = {"dilation": DEFAULT_DILATION, "seed": 1, "spec": chosen.spec}
        return self._stack.enter_context(built(name, model, FabricSettings(**usual | settings)))

    def remove(self) -> None:
        """Remove all labs; AssertionError if something of one was left."""
        self._stack.close()
        left = [name for name in self._names if name not in LABS.kept and cleanup.exists(name)]
        for name in left:
            cleanup.take_down(name, force=True)
        if left:
            raise AssertionError(f"something was left of {', '.join(left)}")
