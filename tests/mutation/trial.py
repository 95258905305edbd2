"""One mutant against the conformance tests, in a process of its own."""

import ast
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType

import pytest

from emulator.compiled.finder import run_sources
from tests.mutation.operators import Mutant

#: What a trial past its limit comes to, beside pytest's exit statuses.
TIMED_OUT = -1
#: How often (s) running trials are looked at.
_POLL_S = 0.05


class _Loader(SourceFileLoader):
    """Loads one module from a tree, and not from its file or its cached code."""

    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        super().__init__(name, path)
        self._tree = tree

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._tree, self.path, "exec")


class _Finder:
    def __init__(self, mutant: Mutant) -> None:
        self.name = ".".join(mutant.path.with_suffix("").parts)
        self._path, self._tree = str(mutant.path.resolve()), mutant.tree()

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        loader = _Loader(name, self._path, self._tree)
        return spec_from_file_location(name, self._path, loader=loader)


class Trial:
    """Rounds of tests on ``mutant``, or on the program as it is (``None``).

    ``rounds`` are arguments of pytest; the first one that fails is the last.
    """

    def __init__(self, mutant: Mutant | None, rounds: Sequence[Sequence[str]]) -> None:
        self.mutant = mutant
        self._began = time.monotonic()
        self._pid = os.fork()
        if self._pid == 0:
            os.setpgid(0, 0)
            os._exit(_run(mutant, rounds))

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def result(self, limit_s: float) -> int | None:
        """Return pytest's exit status, TIMED_OUT past ``limit_s``, ``None`` as long as it runs."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if self.seconds < limit_s:
            return None
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        return TIMED_OUT

    def wait(self, limit_s: float) -> int:
        while (status := self.result(limit_s)) is None:
            time.sleep(_POLL_S)
        return status


def _run(mutant: Mutant | None, rounds: Sequence[Sequence[str]]) -> int:
    run_sources("mutants are sources")
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    with tempfile.TemporaryDirectory(prefix="uetemu-mutant-") as folder:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = folder
        if mutant is not None and not _loaded(mutant):
            return int(pytest.ExitCode.TESTS_FAILED)
        for number, arguments in enumerate(rounds):
            status = pytest.main([*arguments, "--basetemp", str(Path(folder) / str(number))])
            if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
                return int(status)
        return 0


def _loaded(mutant: Mutant) -> bool:
    """Load ``mutant`` in its module's place; return whether it could be.

    It has to be there before pytest begins, whose own finder would load the module's file: asserts
    in a package with a plugin are rewritten.
    """
    finder = _Finder(mutant)
    sys.meta_path.insert(0, finder)
    with suppress(Exception):  # whatever a mutant's code may raise
        import_module(finder.name)
        return True
    return False
