"""Runs of a test: begun, waited for, and ended with it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from emulator.pytest_plugin.run_outcome import RunOutcome
from emulator.pytest_plugin.run_process import BUDGET_S, FolderCheck, RunProcess, as_options
from emulator.report.run.page import write_report


class RunFactory:
    """Runs scenarios in folders below ``parent``.

    ``given`` are options of every run: those of the test's marks.  ``checks`` hold for every run
    that ends well.
    """

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
        self._begun.append(RunProcess(self._parent, scenario, *words, checks=self._checks))
        return self._begun[-1]

    def end(self) -> None:
        """End what still runs, and remove what is left of its labs."""
        for run in self._begun:
            run.end()

    def write_reports(self) -> None:
        """Write the report of each run that has a result."""
        for run in self._begun:
            if (run.folder / "result.json").exists():
                write_report(run.folder)

    def remove_folders(self) -> None:
        """Remove the run folders, and the folder around them."""
        shutil.rmtree(self._parent, ignore_errors=True)
