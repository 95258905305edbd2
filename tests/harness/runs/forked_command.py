"""``uetemu`` in a child of the test's process, whose modules it has: it imports nothing again."""

import gc
import importlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from emulator.pytest_plugin.runs import RunProcess
from emulator.suite.trials import PRELOADED


class ForkedCommand:
    """``uetemu`` with ``words`` in a fork of this process, with what tests use of ``Popen``."""

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Begin; environment and working folder are those of this process, or those given."""
        for module in PRELOADED:
            importlib.import_module(module)
        self.returncode: int | None = None
        self._streams: list[IO[str]] = [
            tempfile.TemporaryFile("w+")  # noqa: SIM115  communicate() may read it again
            for _ in range(2)
        ]
        self.pid = os.fork()
        if not self.pid:
            self._carry_out(words, environment, cwd)
        self._ends = os.pidfd_open(self.pid)

    def _carry_out(
        self, words: Sequence[str], environment: Mapping[str, str] | None, cwd: Path | None
    ) -> None:
        """Be the child: never return to the test."""
        status = 70
        gc.freeze()  # what the test has: looked at, it would be copied
        try:
            os.setsid()
            for number, stream in enumerate(self._streams, 1):
                os.dup2(stream.fileno(), number)
            sys.stdin = open(os.devnull)  # noqa: SIM115
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            if environment is not None:
                os.environ.clear()
                os.environ.update(environment)
            if cwd is not None:
                os.chdir(cwd)
            sys.argv = ["uetemu", *words]
            importlib.import_module("emulator.cli.main").main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0
        except BaseException:  # noqa: BLE001  a child has no caller to raise to
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def poll(self) -> int | None:
        """Return the exit status (negative: a signal); None while it runs."""
        return self._wait(0)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Return output and errors once it has ended; TimeoutExpired if it has not by then."""
        if self._wait(timeout) is None:
            raise subprocess.TimeoutExpired("uetemu", timeout or 0)
        for stream in self._streams:
            stream.seek(0)
        output, errors = (stream.read() for stream in self._streams)
        return output, errors

    def send_signal(self, number: int) -> None:
        """Send a signal, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, if it has not ended."""
        self.send_signal(signal.SIGKILL)

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._ends], [], [], timeout)[0]:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._ends)
        return self.returncode


class ForkedRun(RunProcess):
    """A run in a child of the test's process.  Its words are not among those of the process."""

    process: ForkedCommand  # type: ignore[assignment]  # has what a run asks of a Popen

    def _begin(  # type: ignore[override]
        self, launcher: Sequence[str], words: Sequence[str]
    ) -> ForkedCommand:
        return ForkedCommand(words)
