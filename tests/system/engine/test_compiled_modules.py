"""Compiled modules and their sources come to the same digests, in the kernel and on the model."""

import json
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from emulator.compiled import builds
from emulator.compiled.hot_modules import HOT
from emulator.pytest_plugin.runs import UETEMU, environment
from tests import CHECKOUT, DATA

LISTED = {run["name"]: run for run in tomllib.loads((DATA / "run_digests.toml").read_text())["run"]}
#: Both transports, an event log, queues that overflow, faults, frames that overtake.
CHOSEN = ("event log", "rocev2 lossless", "trimming", "faults", "two ports", "a GPU dies")
MODEL = ("--fabric", "model")
COMPILED = f"compiled: {len(HOT)} modules"
#: Tests of frames that no honest peer sends.
HOSTILE = (
    "tests/uet/test_fuzz.py",
    "tests/uet/test_envelopes.py",
    "tests/uet/test_known_headers.py",
    "tests/uet/ses/target/test_target.py",
    "tests/uet/wire/test_frame.py",
    "tests/emulator/rocev2/test_hca_fuzz.py",
)
#: What a C compiler checks then: accesses, pointers and sums that wrap (-fwrapv lets them).
CHECKED = (
    "-fno-wrapv -fsanitize="
    "bounds,object-size,null,pointer-overflow,integer-divide-by-zero,signed-integer-overflow"
)
#: Runs them as a process that keeps its compiled modules, and says whether it did.
COMPILED_TESTS = """
import sys, pytest
every = ("-m", "nightly or not nightly")
status = pytest.main([*sys.argv[1:], *every, "-q", "-p", "no:cacheprovider"])
from emulator.rocev2.connection import queue_pair
from uet.pds import pdc
sys.exit(status or not all(module.__file__.endswith(".so") for module in (queue_pair, pdc)))
"""


def engine_of(name: str, *more: str, folder: Path, pure: bool = False) -> object:
    """Make the run called ``name``, have its digest checked, and return what ran."""
    listed = LISTED[name]
    check = ("--check-digest", listed["digest"], "--capture", "none", "--output", str(folder))
    done = subprocess.run(
        [*UETEMU, "run", *shlex.split(listed["command"]), *check, *more],
        env={**environment(), "UETEMU_PURE": "1" if pure else ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    engine = json.loads((folder / "environment.json").read_text())["engine"]
    assert f"# Engine               : {engine}" in done.stdout
    return engine


@pytest.fixture(autouse=True)
def built() -> None:
    """A build of this checkout; installing makes it."""
    found = builds.fitting()
    if isinstance(found, str):
        pytest.skip(f"{found}: run python -m emulator.compiled")


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("pure", [False, True], ids=["compiled", "sources"])
def test_the_model_has_the_listed_digest(tmp_path: Path, workers: str, pure: bool) -> None:
    ran = engine_of("uet", *MODEL, "--workers", workers, folder=tmp_path / "run", pure=pure)
    assert ran == ("sources (UETEMU_PURE=1)" if pure else COMPILED)


@pytest.mark.root
@pytest.mark.parametrize(
    "name",
    ["uet", "two workers", *(pytest.param(name, marks=pytest.mark.nightly) for name in CHOSEN)],
)
def test_the_kernel_has_the_listed_digest(tmp_path: Path, name: str) -> None:
    assert engine_of(name, folder=tmp_path / "run") == COMPILED


def send_hostile_frames(checkout: Path, temporary: Path, **variables: str) -> None:
    """Have the tests of such frames pass on the compiled modules of ``checkout``."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILED_TESTS, *HOSTILE, f"--basetemp={temporary}"],
        cwd=checkout,
        env={
            **environment(),
            "UETEMU_TESTS_COMPILED": "1",
            "PYTHONPATH": str(checkout),
            **variables,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_hostile_frames_do_not_end_compiled_code(tmp_path: Path) -> None:
    send_hostile_frames(CHECKOUT, tmp_path / "tests")


@pytest.mark.nightly
@pytest.mark.timeout(1800)  # it compiles, too
def test_hostile_frames_stay_within_bounds(tmp_path: Path) -> None:
    """Each access and each sum is checked; only words are meant to wrap."""
    checkout, log = tmp_path / "checkout", tmp_path / "reports"
    ignored = shutil.ignore_patterns("build", "__pycache__", ".*")
    for name in ("emulator", "uet", "topologies", "scenarios", "tests"):
        shutil.copytree(CHECKOUT / name, checkout / name, ignore=ignored)
    for file in CHECKOUT.glob("*.*"):
        if file.is_file():
            shutil.copy(file, checkout)
    compiling = subprocess.run(
        [sys.executable, "-m", "emulator.compiled"],
        cwd=checkout,
        env={**environment(), "PYTHONPATH": str(checkout), "CFLAGS": CHECKED},
        capture_output=True,
        text=True,
        check=False,
    )
    assert compiling.returncode == 0, compiling.stderr
    send_hostile_frames(checkout, tmp_path / "tests", UBSAN_OPTIONS=f"log_path={log}")
    reports = [
        line
        for file in tmp_path.glob("reports.*")
        for line in file.read_text().splitlines()
        if "runtime error" in line
    ]
    assert reports, "sums of words wrap, so that without a report nothing was checked"
    assert not [line for line in reports if "__native_emulator___words.c" not in line]
