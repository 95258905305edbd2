"""``uetemu run --fabric model`` in a child of the test's process, whose modules it has."""

from __future__ import annotations

import importlib
import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emulator.pytest_plugin.runs import BUDGET_S, RunFactory, RunOutcome, as_options
from tests.harness.runs.whole_run import held

#: What a run loads anyway, loaded once for all.
PRELOADED = ("emulator.cli.main", "emulator.cli.run_verb", "emulator.run.runner")


class ModelledRun:
    """A run on a modelled fabric, with the face of ``RunProcess``; it begins at once."""

    def __init__(self, parent: Path, scenario: str, *options: str) -> None:
        for module in PRELOADED:
            importlib.import_module(module)
        self.folder = parent / "run"
        while self.folder.exists():
            self.folder = self.folder.with_name(f"{self.folder.name}+")
        self.folder.mkdir(parents=True)
        self._asked = ("run", scenario, *options, "--fabric", "model")
        self._streams = [parent / f"{self.folder.name}.{name}" for name in ("out", "err")]
        self._pid: int | None = os.fork()
        if not self._pid:
            self._carry_out()

    def _carry_out(self) -> None:
        """Be the child: never return to the test."""
        status = 70
        try:
            for number, path in enumerate(self._streams, 1):
                os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
            sys.stdin = open(os.devnull)  # noqa: SIM115
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            sys.argv = ["uetemu", *self._asked, "--output", str(self.folder)]
            importlib.import_module("emulator.cli.main").main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    @property
    def command(self) -> str:
        """The command as a user writes it."""
        return shlex.join(("uetemu", *self._asked))

    def communicate(self) -> tuple[int, str, str]:
        """Return status, output and errors; hold a run that ended well to what is true of all."""
        if self._pid is not None:
            _, status = os.waitpid(self._pid, 0)
            self._pid, self._status = None, os.waitstatus_to_exitcode(status)
            if not self._status:
                held(self.folder)
        output, errors = (path.read_text() for path in self._streams)
        return self._status, output, errors

    def finish(self, budget_s: float = BUDGET_S) -> RunOutcome:
        """Wait until the run has ended, and return its outcome; the test's own time limits it."""
        status, output, errors = self.communicate()
        return RunOutcome(
            command=self.command, folder=self.folder, status=status, output=output, errors=errors
        )

    @property
    def result(self) -> dict[str, Any]:
        """The content of ``result.json``."""
        content: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return content

    def events(self) -> list[dict[str, Any]]:
        """Return the events of a run that has ended."""
        return [
            json.loads(line) for line in (self.folder / "events.jsonl").read_text().splitlines()
        ]


class ModelledRuns(RunFactory):
    """``uetemu_run`` on a modelled fabric."""

    def start(
        self, scenario: str, *options: str, params: Mapping[str, object] | None = None
    ) -> ModelledRun:
        """Begin a run."""
        return ModelledRun(self._parent, scenario, *options, *as_options(params or {}))
