"""``uetemu`` as a process of its own, and what it leaves."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from emulator.pytest_plugin.runs import BUDGET_S, RunProcess
from tests import CHECKOUT
from tests.harness.runs.forked_command import ForkedCommand, ForkedRun
from tests.harness.runs.whole_run import held

SMALL = ("--topology", "rail_clos:hosts=2,gpus_per_host=2,spines=1")
#: A run that lasts until it is told to end: it has many iterations.
ENDLESS = (*SMALL, "--sizes", "1MiB", "--iterations", "16384")


def begun(folder: Path, *options: str, scenario: str = "allreduce") -> RunProcess:
    """A run that no fixture ends, in a fork; one that ends well is held to be sound."""
    return ForkedRun(folder, scenario, *options, checks=[held])


def spawned(folder: Path, *options: str, scenario: str = "allreduce") -> RunProcess:
    """The same as a process of its own, to be killed or watched."""
    return RunProcess(folder, scenario, *options, checks=[held])


def ended(run: RunProcess) -> str:
    """What a run that ends well has printed."""
    status, output, errors = run.communicate()
    assert status == 0, errors
    return output


def user_environment() -> dict[str, str]:
    """Return what a login shell sets, and nothing that this machine sets for Python beside it."""
    kept = {name: os.environ[name] for name in ("HOME", "PATH", "TERM") if name in os.environ}
    return {**kept, "LANG": "C.UTF-8", "PYTHONPATH": str(CHECKOUT)}


def refused(folder: Path, *arguments: str) -> str:
    """Why ``uetemu run allreduce`` with ``arguments`` is refused, before anything is made."""
    process = forked("run", "allreduce", *arguments, "--output", str(folder / "run"))
    _, errors = process.communicate()
    assert process.returncode == 1
    assert not (folder / "run").exists()
    return errors


def forked(*arguments: str) -> ForkedCommand:
    """``uetemu`` in a fork of this process, which imports nothing again."""
    return ForkedCommand(arguments, user_environment())


def completed(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """``uetemu`` in a fork, when it has ended."""
    command = ForkedCommand(arguments, user_environment(), cwd)
    out, errors = command.communicate(BUDGET_S)
    assert command.returncode is not None
    return subprocess.CompletedProcess(arguments, command.returncode, out, errors)


def uetemu(*arguments: str) -> subprocess.Popen[str]:
    """``uetemu`` as a process of its own, to be killed, or read while it runs."""
    code = "from emulator.cli.main import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=user_environment(),
        start_new_session=True,
    )


def until(condition: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
    give_up = time.monotonic() + BUDGET_S
    while time.monotonic() < give_up:
        value = condition()
        if value is not None:
            return value
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def processes_of(lab: str) -> list[str]:
    """The processes that have the name of ``lab`` among their words."""
    return [
        f"{one.pid}: {' '.join(one.info['cmdline'])}"
        for one in psutil.process_iter(["cmdline", "status"])
        if any(lab in word for word in one.info["cmdline"] or [])
        and one.info["status"] != psutil.STATUS_ZOMBIE
    ]


def without_progress(errors: str) -> str:
    """Return what a run said on standard error, but for its progress: a line every ten seconds."""
    return re.sub(r"^uetemu: .* after \d+ s\n", "", errors, flags=re.MULTILINE)
