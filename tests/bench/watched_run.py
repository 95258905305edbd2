"""Watch a run and all processes below it: its processor time, memory and events."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from emulator.errors import UserError

CODE = "from emulator.cli.main import main; main()"
GIB = 2**30
#: Wall time (s) between two looks at processor time, and how many of them there are between two
#: at memory.
_LOOK_S, _LOOKS = 0.05, 10
_TICKS = os.sysconf("SC_CLK_TCK")
_FAREWELL_S = 20.0


@dataclass(frozen=True)
class Limits:
    """The memory (octets, PSS of all processes) and the wall time (s) that a run may take."""

    octets: int = 16 * GIB
    seconds: float = 600.0


@dataclass
class Watched:
    """The processes of a run, as far as they were seen: memory in octets, processor time in s."""

    highest: int = 0
    processor_s: float = 0.0
    started_s: float | None = None
    _by_process: dict[int, float] = field(default_factory=dict)

    _looks: int = 0

    def look(self, first: int) -> None:
        """Read the processor time of process ``first`` and all below it, and now and then memory.

        Ended ones keep what they had taken.
        """
        family = list(_family(first))
        for process in family:
            self._by_process[process] = max(
                self._by_process.get(process, 0.0), _processor_s(process)
            )
        if self._looks % _LOOKS == 0:
            self.highest = max(self.highest, sum(map(_proportional, family)))
        self._looks += 1
        self.processor_s = sum(self._by_process.values())


def launcher(ranks: int) -> list[str]:
    """Return the words that start a command as so many ranks; UserError without mpirun."""
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        raise UserError("mpirun is missing: vagrant/provision.sh --with mpi installs it")
    return [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)]


def watch(process: subprocess.Popen[bytes], events: Path, limits: Limits, what: str) -> Watched:
    """Watch ``process`` until it ends; :class:`UserError` if it exceeds ``limits``.

    Processor time is counted until the row is there: what follows is the writing of files.
    """
    watched, counted = Watched(), 0.0
    give_up = time.monotonic() + limits.seconds
    while process.poll() is None:
        watched.look(process.pid)
        seen = times(events)
        if watched.started_s is None and "started" in seen:
            watched.started_s = watched.processor_s
        if "row" not in seen or not counted:
            counted = watched.processor_s
        if watched.highest > limits.octets:
            raise UserError(f"{what}: more than {limits.octets / GIB:g} GiB of memory")
        if time.monotonic() > give_up:
            raise UserError(f"{what}: longer than {limits.seconds:g} s")
        try:
            process.wait(_LOOK_S)
        except subprocess.TimeoutExpired:
            continue
    if watched.started_s is None:
        watched.started_s = 0.0
    watched.processor_s = counted
    return watched


def end(process: subprocess.Popen[bytes]) -> None:
    """Have ``process`` clean up and end, if it has not."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_FAREWELL_S)
        except subprocess.TimeoutExpired:
            for one in [*_family(process.pid)]:
                os.kill(one, signal.SIGKILL)
            process.wait()


def times(events: Path) -> dict[str, float]:
    """Return when each kind of event was first written (s since the epoch)."""
    found: dict[str, float] = {}
    if not events.exists():
        return found
    with events.open() as lines:
        for line in lines:
            if line.endswith("\n"):
                event = json.loads(line)
                when = datetime.fromisoformat(event["time"]).timestamp()
                found.setdefault(event["event"], when)
    return found


def _family(first: int) -> Iterator[int]:
    """Yield ``first`` and all processes below it that are there."""
    waiting = [first]
    while waiting:
        process = waiting.pop()
        yield process
        try:
            for task in Path(f"/proc/{process}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended


def _proportional(process: int) -> int:
    """Return the proportional set size of ``process`` in octets, 0 if it has ended."""
    try:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0


def _processor_s(process: int) -> float:
    """Return user and system time of ``process`` and those it has waited for, 0 if it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS
