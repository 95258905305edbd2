"""Compiled hot modules come to the digests of their sources: built in a copy of the checkout."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from emulator.compiled.hot_modules import HOT
from tests import CHECKOUT, DATA

LISTED = {run["name"]: run for run in tomllib.loads((DATA / "run_digests.toml").read_text())["run"]}
#: Both transports, two workers, an event log, queues that overflow, faults, frames that overtake.
CHOSEN = (
    "uet",
    "two workers",
    "event log",
    "rocev2 lossless",
    "trimming",
    "faults",
    "two ports",
    "a GPU dies",
)
FLOORS = ("emulator", "scenarios", "topologies", "uet")
CODE = "from emulator.cli.main import main; main()"

Call = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def compiled_copy(tmp_path_factory: pytest.TempPathFactory) -> Call:
    """Call Python in a copy of the checkout whose hot modules are compiled."""
    copy = tmp_path_factory.mktemp("compiled")
    for floor in FLOORS:
        shutil.copytree(
            CHECKOUT / floor, copy / floor, ignore=shutil.ignore_patterns("build", "__pycache__")
        )

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy)},
            capture_output=True,
            text=True,
            check=False,
        )

    done = call("-m", "emulator.compiled")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{len(HOT)} modules are compiled in {copy}/")
    return call


@pytest.mark.root
@pytest.mark.nightly
@pytest.mark.parametrize("name", CHOSEN)
def test_compiled_runs_have_the_listed_digests(
    compiled_copy: Call, name: str, tmp_path: Path
) -> None:
    listed = LISTED[name]
    folder = tmp_path / "run"
    more = ("--check-digest", listed["digest"], "--capture", "none", "--output", str(folder))
    done = compiled_copy("-c", CODE, "run", *shlex.split(listed["command"]), *more)
    assert done.returncode == 0, done.stderr
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["engine"] == f"compiled: {len(HOT)} modules"
