"""How a run with several workers ends when a process does, or a rank fails."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from emulator.pytest_plugin.runs import BUDGET_S, RunProcess
from tests.harness.lab.traffic import within
from tests.harness.runs.processes import begun, forked, refused, spawned

FOUR = ("--topology", "rail_clos:hosts=2,gpus_per_host=2,spines=1")
ENDLESS = (*FOUR, "--sizes", "1MiB", "--iterations", "16384", "--workers", "2")


def worker(run: RunProcess) -> int:
    """The process of the second worker, once GPUs are at work."""
    (pid,) = run.event("started")["agents"].values()
    return int(pid)


@pytest.mark.root
def test_a_worker_that_is_killed_ends_the_run_with_one_sentence(tmp_path: Path) -> None:
    run = spawned(tmp_path, *ENDLESS)
    os.kill(pid := worker(run), signal.SIGKILL)
    status, _, errors = run.communicate()
    assert status == 1
    assert errors == (
        f"uetemu: worker 1 of the run (process {pid}) was killed by signal 9; start the run again\n"
    )
    assert run.result["errors"] == [errors.removeprefix("uetemu: ").strip()]
    assert not run.leftovers()


@pytest.mark.root
def test_an_interrupt_ends_all_workers(tmp_path: Path) -> None:
    run = spawned(tmp_path, *ENDLESS)
    pid = worker(run)
    os.kill(run.process.pid, signal.SIGINT)
    status, _, errors = run.communicate()
    assert status == 130
    assert "Traceback" not in errors
    assert not psutil.pid_exists(pid)
    assert not run.leftovers()


@pytest.mark.root
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_all_processes_is_the_run_s(end: signal.Signals, tmp_path: Path) -> None:
    run = spawned(
        tmp_path, *ENDLESS, "--fault", "t=3us link rail0:up0 down; t=9us link rail0:up0 up"
    )
    pid = worker(run)
    os.kill(pid, end)
    os.kill(run.process.pid, end)
    status, _, errors = run.communicate()
    assert status == 128 + end
    assert "worker" not in errors
    assert not psutil.pid_exists(pid)
    assert not run.leftovers()


@pytest.mark.root
def test_a_worker_that_hangs_does_not_hold_up_the_end(tmp_path: Path) -> None:
    run = spawned(
        tmp_path, *ENDLESS, "--fault", "t=3us link rail0:up0 down; t=9us link rail0:up0 up"
    )
    os.kill(pid := worker(run), signal.SIGSTOP)
    os.kill(run.process.pid, signal.SIGINT)
    status, _, errors = run.communicate()
    assert status == 130, errors
    assert not psutil.pid_exists(pid)
    assert not run.leftovers()


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.root
def test_workers_die_with_the_run(tmp_path: Path) -> None:
    run = spawned(tmp_path, *ENDLESS)
    pid = worker(run)
    run.process.kill()
    run.process.communicate()
    within(BUDGET_S, lambda: gone(pid), "the worker died")
    assert run.leftovers()
    clean = forked("clean", run.lab)
    clean.communicate()
    assert clean.returncode == 0
    assert not run.leftovers()


@pytest.mark.root
def test_a_rank_fails_alike_with_any_number_of_workers(tmp_path: Path) -> None:
    cut = ("--fault", "t=2us link rail1:down1 down", "--transport", "rocev2")
    errors = []
    for workers in ("1", "2"):
        run = begun(tmp_path, *FOUR, "--sizes", "256KiB", "--workers", workers, *cut)
        status, _, _ = run.communicate()
        assert status == 1
        errors.append(run.result["errors"])
        assert not run.leftovers()
    assert errors[0] == errors[1]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--workers", "0"), "--workers '0' is neither auto nor a number from 1 to 256"),
        (("--workers", "two"), "--workers 'two' is neither auto nor a number from 1 to 256"),
    ],
)
def test_a_wrong_number_of_workers_is_refused(
    arguments: tuple[str, ...], complaint: str, tmp_path: Path
) -> None:
    assert complaint in refused(tmp_path, *arguments)
