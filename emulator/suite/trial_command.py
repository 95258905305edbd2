"""A trial as a command of its own: started, interrupted with its suite, its last sentence kept."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, Signals
from typing import Protocol

import emulator
from emulator.dataplane.kernel.ending_with_us import ending_with_us
from emulator.dataplane.kernel.keeper import VARIABLE as KEPT
from emulator.dataplane.kernel.launcher import without_launcher

#: The program ``uetemu``.
_START = "import sys; from emulator.cli.main import main; sys.exit(main())"
#: Where the packages are that trials import: those of this process.
_PACKAGES = Path(emulator.__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class TrialEnd:
    """The end of a trial's command: its exit ``status``, duration, and the sentence of a failure.

    ``place`` names the rank and the machine that ran it, where that was another one, and ``again``
    states where it had failed before.
    """

    status: int
    seconds: float
    error: str | None = None
    place: str | None = None
    again: str | None = None

    @property
    def why(self) -> str:
        """Return why the command failed: its sentence, or else its status."""
        if self.error is None and self.status < 0:
            return f"killed by {Signals(-self.status).name}"
        return (self.error or f"exit status {self.status}").removeprefix("uetemu: ")


class TrialRunner(Protocol):
    """A runner of trials, ``at_once`` at the same time."""

    @property
    def at_once(self) -> int:
        """Return how many trials run at the same time."""

    @property
    def ranks(self) -> Mapping[str, Mapping[str, object]]:
        """Return machine, processors and kernel of each rank; empty where this machine runs all."""

    def run(self, words: Sequence[str], folder: Path) -> TrialEnd:
        """Run ``uetemu`` with ``words`` into ``folder``, and return its end; from any thread."""

    def stop(self) -> None:
        """Interrupt the trials that run, and start none any more."""


class TrialCommands:
    """Runs trials on this machine; ``inherited`` are descriptors that each trial holds as well."""

    def __init__(self, at_once: int, inherited: Sequence[int] = ()) -> None:
        self.at_once = at_once
        self.ranks: Mapping[str, Mapping[str, object]] = {}
        self._inherited = tuple(inherited)
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, words: Sequence[str], folder: Path) -> TrialEnd:
        """Run ``uetemu`` with ``words`` into ``folder``, and return its end; from any thread."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        errors = folder.with_suffix(".stderr")
        trial = [sys.executable, "-c", _START, *words, "--output", str(folder)]
        # A killed suite leaves no trial behind: the kernel interrupts each, as Ctrl-C would.
        command = ending_with_us(SIGINT, trial)
        began = time.monotonic()
        with errors.open("wb") as stderr:
            process = self._started(command, stderr.fileno())
            try:
                status = process.wait()
            finally:
                with self._lock:
                    self._running.discard(process)
        seconds = time.monotonic() - began
        stated = errors.read_text(errors="replace").strip().splitlines()
        if status == 0:
            errors.unlink()
        return TrialEnd(
            status=status,
            seconds=round(seconds, 3),
            error=stated[-1] if status and stated else None,
        )

    def stop(self) -> None:
        """Interrupt the trials that run, and start none any more."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.send_signal(SIGINT)

    def _started(self, command: list[str], stderr: int) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._stopped:
                raise RuntimeError("the suite has been stopped")
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                process_group=0,  # Ctrl-C reaches it by us alone
                pass_fds=self._inherited,
                env=without_launcher() | {"PYTHONPATH": str(_PACKAGES), KEPT: "1"},
            )
            self._running.add(process)
            return process
