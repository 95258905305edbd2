"""A program gets its signal when its starter ends, and is the process that was started."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from emulator.dataplane.kernel.ending_with_us import ending_with_us

_NOTES_ITS_END = "trap 'echo ended; exit' TERM; echo $$; while :; do read line; done"
_STARTER = f"""
import signal, subprocess
from emulator.dataplane.kernel.ending_with_us import ending_with_us
words = ["sh", "-c", {_NOTES_ITS_END!r}]
started = subprocess.Popen(ending_with_us(signal.SIGTERM, words), stdin=subprocess.PIPE)
print(started.pid, flush=True)
signal.pause()
"""


@pytest.fixture
def bare_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave nothing but a shell on the PATH."""
    shell = shutil.which("sh")
    assert shell is not None
    (tmp_path / "sh").symlink_to(shell)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("bare_path")
def test_a_program_is_signalled_once_the_one_that_started_it_is_killed() -> None:
    starter = subprocess.Popen([sys.executable, "-c", _STARTER], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    first, second = starter.stdout.readline(), starter.stdout.readline()
    assert first == second  # the process that was started is the program's
    starter.kill()
    assert starter.stdout.read() == "ended\n"
    starter.wait()
    starter.stdout.close()


@pytest.mark.usefixtures("bare_path")
def test_a_program_has_the_signals_that_python_ignores() -> None:
    ended = subprocess.run(ending_with_us(signal.SIGTERM, ["sh", "-c", "kill -s PIPE $$"]))
    assert ended.returncode == -signal.SIGPIPE


def test_a_program_that_is_not_there_is_named() -> None:
    ended = subprocess.run(
        ending_with_us(signal.SIGTERM, ["no-such-program"]), stderr=subprocess.PIPE, text=True
    )
    assert (ended.returncode, ended.stderr) == (1, f"no-such-program: {os.strerror(2)}\n")


def test_a_program_does_not_begin_once_the_one_that_started_it_has_ended() -> None:
    words = ending_with_us(signal.SIGTERM, ["sh", "-c", "echo begun"])
    other = [str(os.getppid()) if word == str(os.getpid()) else word for word in words]
    ended = subprocess.run(other, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "sh: the program that started it has ended\n"
