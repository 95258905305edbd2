"""Compilations leave nothing behind, or somebody finds it."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from emulator.dataplane.kernel.programs import compiler
from emulator.errors import UserError

#: Compiles like clang, but for what ``compile`` does before.
CLANG = """#!/bin/sh
[ "$1" = --version ] && echo "clang of a test" && exit
{compile}
while [ $# -gt 0 ]; do [ "$1" = -o ] && echo object > "$2"; shift; done
"""
COMPILE = """
from pathlib import Path
from emulator.dataplane.kernel.programs import compiler
with compiler.compiled(
    Path("a.c"), (), parts=(), suffix=".o", cache=compiler.CACHE / "asic", subject="it", remedy="-"
) as made:
    print(made.read_text().strip())
"""


def compile_with(tmp_path: Path, before: str) -> subprocess.CompletedProcess[str]:
    """Compile in a process whose clang does ``before`` first; the cache is in ``tmp_path``."""
    clang = tmp_path / "bin" / "clang"
    clang.parent.mkdir(exist_ok=True)
    clang.write_text(CLANG.format(compile=before))
    clang.chmod(0o755)
    search = f"{clang.parent}:{os.environ['PATH']}"
    found = os.environ | {"PATH": search, "UETEMU_CACHE": str(tmp_path / "cache")}
    return subprocess.run(
        [sys.executable, "-c", COMPILE], env=found, capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compiler, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "none"))
    return tmp_path / "cache" / "asic"


def test_a_compilation_leaves_its_object_alone(tmp_path: Path, cache: Path) -> None:
    assert compile_with(tmp_path, "").stdout == "object\n"
    assert [path.suffix for path in cache.iterdir()] == [".o"]
    assert compile_with(tmp_path, "exit 1").stdout == "object\n"  # from the cache
    assert compiler.remove_abandoned() == 0


def test_a_compilation_that_is_killed_leaves_what_is_found(tmp_path: Path, cache: Path) -> None:
    killed = compile_with(tmp_path, "kill -9 $PPID")
    assert killed.returncode == -signal.SIGKILL
    assert len(list(cache.iterdir())) == 1
    assert compiler.remove_abandoned() == 1
    assert list(cache.iterdir()) == []


def test_a_compilation_that_runs_is_left_alone(tmp_path: Path, cache: Path) -> None:
    with compiler.scratch_folder(cache) as scratch:
        assert compiler.remove_abandoned() == 0
        assert scratch.is_dir()
    assert not cache.exists()


def test_a_compilation_that_fails_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    failed = compile_with(tmp_path, "exit 1")
    assert UserError.__name__ in failed.stderr
    assert not cache.exists()
