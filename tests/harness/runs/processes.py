"""``uetemu`` as a process of its own, and what it leaves."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from emulator import lab_record
from emulator.kernel import namespaces
from tests import CHECKOUT
from tests.harness.runs.whole_run import held

SMALL = ("--topology", "rail_clos:hosts=2,gpus_per_host=2,spines=1")
BUDGET_S = 500.0  # on an emulated processor, beside other tests
#: A run that lasts until it is told to end: it has many iterations.
ENDLESS = (*SMALL, "--sizes", "1MiB", "--iterations", "16384")


class Run:
    """A ``uetemu`` process working on a lab of its own."""

    def __init__(self, folder: Path, *arguments: str, scenario: str = "allreduce") -> None:
        self.lab = f"t-{secrets.token_hex(5)}"
        self.folder = folder / self.lab
        #: whether nobody takes frames away behind the run's back
        self.undisturbed = True
        self.process = uetemu(
            *("run", scenario, "--name", self.lab, "--output", str(self.folder), *arguments)
        )

    def finish(self) -> tuple[int, str, str]:
        """Status, output and errors of the process; a run that ended well is held to be sound."""
        out, err = self.process.communicate(timeout=BUDGET_S)
        if self.process.returncode == 0 and self.undisturbed:
            held(self.folder)
        return self.process.returncode, out, err

    @property
    def result(self) -> dict:
        return json.loads((self.folder / "result.json").read_text())

    def events(self) -> list[dict]:
        try:
            lines = (self.folder / "events.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]

    def event(self, kind: str) -> dict:
        """The first event of ``kind``, once it has happened."""

        def happened() -> dict | None:
            assert self.process.poll() is None, self.process.communicate()
            return next((event for event in self.events() if event["event"] == kind), None)

        return until(happened)

    def leftovers(self) -> list[str]:
        found = [str(path) for path in namespaces.of_lab(self.lab).values()]
        found += [str(path) for path in Path("/dev/shm").glob(f"uetemu.{self.lab}.*")]
        if lab_record.directory_of(self.lab).exists():
            found.append(str(lab_record.directory_of(self.lab)))
        found += [str(path) for path in self.folder.glob("capture.parts")]
        return found


def user_environment() -> dict[str, str]:
    """Return what a login shell sets, and nothing that this machine sets for Python beside it."""
    kept = {name: os.environ[name] for name in ("HOME", "PATH", "TERM") if name in os.environ}
    return {**kept, "LANG": "C.UTF-8", "PYTHONPATH": str(CHECKOUT)}


def refused(folder: Path, *arguments: str) -> str:
    """Why ``uetemu run allreduce`` with ``arguments`` is refused, before anything is made."""
    process = uetemu("run", "allreduce", *arguments, "--output", str(folder / "run"))
    _, errors = process.communicate()
    assert process.returncode == 1
    assert not (folder / "run").exists()
    return errors


def uetemu(*arguments: str) -> subprocess.Popen[str]:
    code = "from emulator.cli.main import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=user_environment(),
        start_new_session=True,
    )


def until(condition: Callable[[], dict | None]) -> dict:
    give_up = time.monotonic() + BUDGET_S
    while time.monotonic() < give_up:
        value = condition()
        if value is not None:
            return value
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")
