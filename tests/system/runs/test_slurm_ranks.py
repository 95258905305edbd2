"""Runs whose ranks Slurm starts, on two machines of a cluster."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from emulator.pytest_plugin.runs import BUDGET_S, RunProcess
from tests.harness.lab.traffic import within
from tests.harness.runs.processes import ENDLESS, SMALL, begun
from tests.harness.runs.ranked_runs import assert_all_gone, left_by
from tests.harness.runs.slurm_cluster import SlurmCluster, slurm_cluster
from tests.harness.runs.whole_run import assert_same_files, held
from tests.system.engine.test_run_digests import REPEATED

pytestmark = pytest.mark.root

SRUN = ("srun", "-N", "2", "-n", "2", "--mpi=pmix")


@pytest.fixture(scope="module")
def both_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture
def cluster(both_nodes: SlurmCluster) -> Iterator[SlurmCluster]:
    """Yield a cluster whose nodes wait for jobs, and end those of a test that failed."""
    within(BUDGET_S, both_nodes.is_ready, "two idle nodes")
    yield both_nodes
    subprocess.run(both_nodes.command("scancel", f"--user={os.geteuid()}"), check=True)


def srun(cluster: SlurmCluster, folder: Path, *options: str) -> RunProcess:
    """Begin a run of a rank on each machine."""
    launcher = cluster.command(*SRUN)
    return RunProcess(folder, "allreduce", *options, checks=[held], launcher=launcher)


def rank_process(run: RunProcess, number: int) -> psutil.Process:
    """The process of rank ``number``, once it is at work: the child of its guardian."""
    run.event("started")
    mine = [
        one
        for one in psutil.process_iter(["cmdline", "environ"])  # None of one that has ended
        if run.lab in (one.info["cmdline"] or [])
        and (one.info["environ"] or {}).get("PMIX_RANK") == str(number)
    ]
    (rank,) = [one for one in mine if one.ppid() in {other.pid for other in mine}]
    return rank


def test_ranks_of_two_machines_come_to_the_same_files(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    given = (*SMALL, "--sizes", "64KiB", "--capture", "all")
    spread = srun(cluster, tmp_path, *given)
    status, _, errors = spread.communicate()
    assert status == 0, errors
    alone = begun(tmp_path, *given, "--workers", "1")
    assert alone.communicate()[0] == 0
    assert_same_files(alone.folder, spread.folder, REPEATED)
    assert not left_by(spread, 2)


def test_a_rank_that_slurm_started_and_that_is_killed_is_named(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    run = srun(cluster, tmp_path, *ENDLESS)
    dead = rank_process(run, 1)
    machine = dead.environ()["SLURMD_NODENAME"]
    dead.kill()
    status, _, errors = run.communicate()
    assert status != 0
    (sentence,) = [line for line in errors.splitlines() if line.startswith("uetemu: ")]
    assert sentence.startswith(f"uetemu: MPI rank 1 on {machine} was killed")
    within(BUDGET_S, lambda: not left_by(run, 2), "what ranks left is removed")
    assert run.result["errors"] == [sentence.removeprefix("uetemu: ")]


def test_scancel_ends_all_ranks_and_leaves_nothing(cluster: SlurmCluster, tmp_path: Path) -> None:
    run = srun(cluster, tmp_path, *ENDLESS)
    run.event("started")
    subprocess.run(cluster.command("scancel", f"--user={os.geteuid()}"), check=True)
    status, _, errors = run.communicate()
    assert status != 0
    assert "uetemu: " in errors
    within(BUDGET_S, lambda: not left_by(run, 2), "what ranks left is removed")
    assert run.result["errors"]


@pytest.mark.nightly
def test_two_interrupts_kill_all_ranks_and_leave_nothing(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    run = srun(cluster, tmp_path, *ENDLESS)
    run.event("started")
    run.process.send_signal(signal.SIGINT)
    assert run.process.stderr is not None
    assert next(line for line in run.process.stderr if "one more within" in line)
    run.process.send_signal(signal.SIGINT)
    assert run.communicate()[0] != 0
    assert_all_gone(run, 2)
    assert run.result["errors"]
