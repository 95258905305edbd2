"""Runs in virtual time that are killed at any moment leave nothing that cannot be found."""

import json
import os
import random
import secrets
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from emulator.dataplane import cleanup, lab_record
from emulator.dataplane.kernel import namespaces
from emulator.dataplane.switch.bpf import switch_program as asic_program
from emulator.pytest_plugin.runs import RunProcess
from emulator.run.run_start import UNFINISHED
from tests.harness.nightly import nightly, nightly_beyond
from tests.harness.runs.processes import (
    ENDLESS,
    SMALL,
    forked,
    processes_of,
    spawned,
    until,
    without_progress,
)

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(1200)]

#: Kills of each test, and how many such tests there are, which workers share.
KILLS, SHARES = 2, 10
#: Interrupts of one test: one in sixteen aborted a run when it was raised in compiled code.
INTERRUPTS = 60
#: What a run has written when its last moment begins, and how long (s) that may be.
STAGES = (None, "built", "started", "row", "row", "row")
MOMENT_S = 1.0
#: Rows enough for whatever is to happen between them.
ROWS = (*SMALL, "--sizes", ",".join(["4KiB"] * 400))
ROUTED = ("--control-plane", "ebgp", *SMALL, "--sizes", ",".join(["4KiB"] * 30))


def traces(lab: str) -> list[str]:
    """Whatever of ``lab`` this machine has, but for run folders."""
    found = [str(path) for path in namespaces.of_lab(lab).values()]
    places = (Path("/dev/shm"), Path("/run"), lab_record.STATE, asic_program.PINS, Path("/tmp"))
    for place in places:
        found += [str(path) for path in place.glob(f"*{lab}*") if place.is_dir()]
    return found + processes_of(lab)


def clean(lab: str) -> None:
    """Remove ``lab`` if ``uetemu clean`` without a name would find it; nothing is left then."""
    found = cleanup.leftovers()
    assert (lab in found) == bool(traces(lab))
    if lab in found:
        process = forked("clean", lab)
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    assert traces(lab) == []


@pytest.mark.parametrize("share", nightly_beyond(1, range(SHARES)))
def test_run_killed_at_any_moment_is_found_and_keeps_what_it_has(
    tmp_path: Path, share: int, record_property: Callable[[str, object], None]
) -> None:
    seed = share + int(os.environ.get("UETEMU_KILL_SEED", secrets.randbits(32)))
    record_property("seed", seed)
    rng = random.Random(seed)
    for number in range(KILLS):
        run = spawned(tmp_path, *ROWS, "--capture", "all")
        if (stage := rng.choice(STAGES)) is not None:
            run.event(stage)
        time.sleep(rng.uniform(0, MOMENT_S))
        assert run.process.poll() is None, f"seed {seed}: it has ended, in {run.folder}"
        if number % 2:
            os.killpg(run.process.pid, signal.SIGKILL)
        else:
            run.process.kill()
        run.process.communicate()
        clean(run.lab)
        rows = [event for event in run.events() if event["event"] == "row"]
        if stage in ("started", "row") or (run.folder / "result.json").exists():
            assert run.result["errors"] == [UNFINISHED], f"seed {seed}"
            assert 0 <= len(rows) - len(run.result["rows"]) <= 1, f"seed {seed}"
        assert stage != "row" or rows


@pytest.mark.parametrize("name", ["bgpd", nightly("zebra")])
def test_killed_daemon_of_a_control_plane_ends_the_run_with_its_name(
    name: str, spawn: Callable[..., RunProcess]
) -> None:
    run = spawn(*ROUTED)
    run.event("started")
    children = [
        process
        for process in psutil.process_iter(["name", "cmdline"])  # None of one that has ended
        if process.info["name"] == name and run.lab in " ".join(process.info["cmdline"] or ())
    ]
    assert children
    children[0].kill()
    status, _, errors = run.communicate()
    assert status == 1
    assert without_progress(errors).startswith(f"uetemu: {name} of ")
    assert " has died" in errors
    assert without_progress(errors).count("\n") == 1
    assert run.result["errors"]
    assert traces(run.lab) == []


def test_two_runs_at_once_know_nothing_of_each_other(spawn: Callable[..., RunProcess]) -> None:
    one, other = (
        spawn(*SMALL, "--sizes", "64KiB,256KiB", "--iterations", "1", "--capture", "none")
        for _ in range(2)
    )
    third = spawn(*ENDLESS)
    third.event("started")
    third.process.kill()
    third.process.communicate()
    clean(third.lab)
    for run in (one, other):
        status, _, errors = run.communicate()
        assert status == 0, errors
        assert traces(run.lab) == []
    assert one.result["digest"] == other.result["digest"] is not None


def test_interrupted_run_has_the_rows_that_it_finished(spawn: Callable[..., RunProcess]) -> None:
    run = spawn(*SMALL, "--sizes", "4KiB,64KiB,64MiB", "--iterations", "1", "--capture", "all")

    def second_row() -> dict[str, Any] | None:
        assert run.process.poll() is None
        rows = [event for event in run.events() if event["event"] == "row"]
        return rows[1] if len(rows) > 1 else None

    until(second_row)
    run.process.send_signal(signal.SIGINT)
    status, _, errors = run.communicate()
    assert status == 128 + signal.SIGINT
    assert without_progress(errors).count("\n") == 1
    result = json.loads((run.folder / "result.json").read_text())
    assert [row["size_bytes"] for row in result["rows"]] == [4096, 65536]
    assert result["errors"] == ["interrupted by SIGINT"]
    assert (run.folder / "capture.pcapng").stat().st_size > 0
    assert traces(run.lab) == []


@pytest.mark.nightly
def test_interrupts_at_any_moment_end_compiled_runs(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(os.environ.get("UETEMU_KILL_SEED", secrets.randbits(32)))
    record_property("seed", seed)
    rng = random.Random(seed)
    for _ in range(INTERRUPTS):
        run = spawned(tmp_path, *ENDLESS)
        run.event("started")
        time.sleep(rng.uniform(0, MOMENT_S))
        run.process.send_signal(signal.SIGTERM)
        status, _, errors = run.communicate()
        assert status == 128 + signal.SIGTERM, f"seed {seed}: {errors}"
        assert traces(run.lab) == []
