"""``uetemu run`` as a process of its own, and what it leaves."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import emulator
from emulator.dataplane import lab_record
from emulator.dataplane.kernel import namespaces
from emulator.pytest_plugin.run_outcome import RunOutcome

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
        self.process = subprocess.Popen(
            [*launcher, *UETEMU, *self._asked, "--name", self.lab, "--output", str(self.folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
        )

    @property
    def command(self) -> str:
        """The command as a user writes it."""
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
