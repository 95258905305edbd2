"""Runs of several ranks: over TCP between machines, refused, killed, hanging.

That they come to the same files as other runs is tested in
:mod:`tests.system.engine.test_same_results`.
"""

import os
import platform
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from emulator.pytest_plugin.runs import BUDGET_S, UETEMU, RunProcess, environment
from emulator.run.run_start import UNFINISHED
from tests.harness.lab.traffic import within
from tests.harness.nightly import nightly
from tests.harness.runs.processes import ENDLESS, SMALL, begun, without_progress
from tests.harness.runs.ranked_runs import (
    MPIRUN,
    assert_all_gone,
    cleaned,
    guardian_of,
    left_by,
    machines,
    process_of,
    ranked,
)
from tests.harness.runs.whole_run import assert_same_files, held
from tests.system.engine.test_run_digests import REPEATED

pytestmark = pytest.mark.root


def sentences(errors: str) -> list[str]:
    """Return the lines of uetemu on standard error, without those of the launcher."""
    lines = without_progress(errors).splitlines()
    return [line for line in lines if line.startswith("uetemu: ")]


def test_two_machines_over_tcp_come_to_the_same_files(tmp_path: Path) -> None:
    given = (*SMALL, "--sizes", "64KiB", "--capture", "all")
    with machines(tmp_path) as launcher:
        spread = RunProcess(tmp_path, "allreduce", *given, checks=[held], launcher=launcher)
        status, _, errors = spread.communicate()
    assert status == 0, errors
    alone = begun(tmp_path, *given, "--workers", "1")
    assert alone.communicate()[0] == 0
    assert_same_files(alone.folder, spread.folder, REPEATED)
    assert_all_gone(spread, 2)


@pytest.mark.parametrize(
    "plane",
    [
        (),
        (
            "--control-plane",
            "ebgp",
            "--fault",
            "t=3us link rail0:up0 down; t=30us link rail0:up0 up",
        ),
    ],
)
def test_a_modelled_fabric_comes_to_the_same_files(plane: tuple[str, ...], tmp_path: Path) -> None:
    given = (*SMALL, "--sizes", "64KiB", "--fabric", "model", "--capture", "all", *plane)
    parts = tmp_path / "parts"
    parts.write_text("rail1\nrail0 spine0\n")
    alone = begun(tmp_path, *given)
    by_hand = ("--parts", str(parts)) if plane else ()
    shared = ranked(tmp_path, 2, *given, *by_hand, UETEMU_LOG="emulator.workers.ranks=info")
    for run in (alone, shared):
        status, _, errors = run.communicate()
        assert status == 0, errors
    lines = without_progress(errors)
    assert (lines.count("\n"), lines.count(": exchanged ")) == (1, 1)  # rank 0 logs for all
    assert_same_files(alone.folder, shared.folder, REPEATED)
    assert_all_gone(shared, 2)


#: A scenario whose compile takes no arguments, and whose GPUs meet before they send.
OWN = """\"\"\"Everybody writes to the other server, after a barrier.\"\"\"
import os
from dataclasses import dataclass
import numpy as np
from emulator.sim.endpoint.operations.schedule import Barrier, Receive, Region, Schedule, Write
from emulator.run.measures.message_graph import MessageGraph
from emulator.scenario import Trial, parameter

if os.environ.get("OMPI_COMM_WORLD_SIZE", "1") != "1":
    make = MessageGraph.__init__
    def of_own(self, *given):
        make(self, *given)
        assert len(self) == 6, f"{len(self)} operations of two GPUs"
    MessageGraph.__init__ = of_own

@dataclass(frozen=True)
class Parameters:
    way: str = parameter("there", help="nothing", choices=("there",))

def topology(parameters):
    return "rail_clos:hosts=2,gpus_per_host=2,spines=1"

def _schedule(rank, size=4096):
    block = Region("out", 0, size)
    return Schedule(rank=rank, buffers={"in": size, "out": size}, operations=(
        Barrier(name="all"),
        Write(peer=(rank + 2) % 4, tag=0, local=Region("in", 0, size), remote=block, after=(0,)),
        Receive(peer=(rank + 2) % 4, tag=0, into=block),
    ))

def schedules(parameters, topology, seed):
    return [Trial(
        collective="own", size_bytes=4096,
        compile=lambda: [_schedule(rank) for rank in range(4)],
        inputs=lambda rank: {"in": np.full(4096, rank, np.uint8)},
        expected=lambda rank: {"out": np.full(4096, (rank + 2) % 4, np.uint8)},
    )]

def measures(parameters, topology, trial, outcome):
    return {"messages": len(outcome.iterations[0])}
"""


def test_no_rank_has_a_graph_of_all_operations(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    given = ("--fabric", "model", "--capture", "all")
    own = str(tmp_path / "own.py")
    runs = [begun(tmp_path, *given, scenario=own), ranked(tmp_path, 2, *given, scenario=own)]
    for run in runs:
        status, _, errors = run.communicate()
        assert status == 0, errors
    alone, shared = runs
    assert shared.result["rows"][0]["messages"] == 4
    assert_same_files(alone.folder, shared.folder, REPEATED)


@pytest.mark.nightly
def test_a_job_that_fails_fails_alike_on_all_ranks(tmp_path: Path) -> None:
    given = (*SMALL, "--sizes", "64KiB", "--capture", "all", "--fault", "t=2us nic h0g0 down")
    runs = [begun(tmp_path, *given, "--workers", "1"), ranked(tmp_path, 2, *given)]
    stated = []
    for run in runs:
        status, _, errors = run.communicate()
        assert status == 1, errors
        stated.append(sentences(errors))
    alone, shared = runs
    assert stated[0] == stated[1]
    assert "is cut off for good by" in stated[0][0]
    assert shared.result["unfinished"]["delivered_messages"] > 0
    written = [name for name in REPEATED if name != "timeline.json"]
    assert_same_files(alone.folder, shared.folder, written)
    assert_all_gone(shared, 2)


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (("run", "allreduce", "--workers", "2"), 1, "--workers 2 is given, and the launcher has"),
        nightly((("run", "allreduce", "--nosuch"), 2, "No such option '--nosuch'")),
    ],
)
def test_a_refusal_is_one_sentence_and_ends_all(
    arguments: tuple[str, ...], status: int, complaint: str, tmp_path: Path
) -> None:
    ended = subprocess.run(
        [*MPIRUN, "-n", "2", *UETEMU, *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(),
        check=False,
    )
    assert ended.returncode == status
    (sentence,) = sentences(ended.stderr)
    assert complaint in sentence
    assert "Traceback" not in ended.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
def test_a_full_disk_at_the_first_rank_is_named_with_its_machine(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", small], check=True)
    try:
        run = ranked(small, 2, *SMALL, "--sizes", "64KiB", "--capture", "all", "--fabric", "model")
        status, _, errors = run.communicate()
    finally:
        subprocess.run(["umount", small], check=True)
    assert status != 0
    (sentence,) = sentences(errors)
    assert sentence.startswith(f"uetemu: MPI rank 0 on {platform.node()}: cannot write ")
    assert "No space left on device" in sentence


def named(run: RunProcess, dead: int) -> str:
    """Return the one sentence, which names rank ``dead``, of a run that ends by its death."""
    status, _, errors = run.communicate()
    assert status != 0
    (sentence,) = sentences(errors)
    assert sentence.startswith(f"uetemu: MPI rank {dead} on ")
    return sentence.removeprefix("uetemu: ")


@pytest.mark.parametrize("dead", [1, pytest.param(0, marks=pytest.mark.nightly)])
def test_a_killed_rank_is_named_and_leaves_nothing(dead: int, tmp_path: Path) -> None:
    run = ranked(tmp_path, 2, *ENDLESS)
    os.kill(process_of(run, dead), signal.SIGKILL)
    sentence = named(run, dead)
    assert " was killed" in sentence
    within(BUDGET_S, lambda: not left_by(run, 2), "what ranks left is removed")
    assert run.result["errors"] == [sentence]


@pytest.mark.nightly
def test_a_rank_killed_over_tcp_is_named_with_its_machine(tmp_path: Path) -> None:
    with machines(tmp_path) as launcher:
        run = RunProcess(tmp_path, "allreduce", *ENDLESS, checks=[held], launcher=launcher)
        os.kill(process_of(run, 1), signal.SIGKILL)
        sentence = named(run, 1)
    machine = launcher[launcher.index("--host") + 1].split(",")[1]
    assert sentence.startswith(f"MPI rank 1 on {machine} was killed")
    within(BUDGET_S, lambda: not left_by(run, 2), "what ranks left is removed")
    assert run.result["errors"] == [sentence]


def _one_by_one(run: RunProcess, number: int) -> None:
    both = guardian_of(run, number), process_of(run, number)
    for process in both:
        os.kill(process, signal.SIGKILL)


def _as_group(run: RunProcess, number: int) -> None:
    os.killpg(os.getpgid(guardian_of(run, number)), signal.SIGKILL)


@pytest.mark.parametrize(
    ("dead", "fabric", "killed"),
    [
        (1, "kernel", _one_by_one),
        (0, "model", _as_group),
        pytest.param(0, "kernel", _as_group, marks=pytest.mark.nightly),
        pytest.param(1, "model", _one_by_one, marks=pytest.mark.nightly),
    ],
)
def test_a_rank_killed_with_its_guardian_is_named_and_leaves_nothing(
    dead: int, fabric: str, killed: Callable[[RunProcess, int], None], tmp_path: Path
) -> None:
    run = ranked(tmp_path, 2, *ENDLESS, "--fabric", fabric)
    killed(run, dead)
    assert " ended without a word" in named(run, dead)
    assert run.result["errors"]
    assert_all_gone(run, 2)


def test_all_processes_killed_at_once_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TMPDIR", "OMPI_MCA_btl_vader_backing_directory"):
        monkeypatch.setenv(name, str(tmp_path))  # here Open MPI leaves its own files
    run = ranked(tmp_path, 2, *ENDLESS)
    groups = {os.getpgid(guardian_of(run, number)) for number in range(2)}
    run.process.kill()
    for group in groups:
        os.killpg(group, signal.SIGKILL)
    run.communicate()
    assert run.result["errors"] == [UNFINISHED]
    assert_all_gone(run, 2)


def test_an_interrupted_launcher_leaves_nothing(tmp_path: Path) -> None:
    run = ranked(tmp_path, 2, *ENDLESS)
    run.event("started")
    run.process.send_signal(signal.SIGINT)
    assert run.communicate()[0] != 0
    assert_all_gone(run, 2)


def test_a_rank_that_hangs_is_given_up(tmp_path: Path) -> None:
    run = ranked(tmp_path, 2, *ENDLESS, UETEMU_RANK_PATIENCE="3")
    os.kill(process_of(run, 1), signal.SIGSTOP)
    status, _, errors = run.communicate()
    assert status != 0
    (sentence,) = sentences(errors)
    assert "MPI rank 1 on " in sentence
    assert "has sent nothing for 3 s" in sentence
    assert run.result["errors"] == [sentence.removeprefix("uetemu: ")]
    cleaned(run, 2)


@pytest.mark.nightly
def test_an_interrupt_of_one_rank_ends_all(tmp_path: Path) -> None:
    run = ranked(tmp_path, 2, *ENDLESS)
    os.kill(process_of(run, 1), signal.SIGTERM)
    status, _, errors = run.communicate()
    assert status != 0
    (sentence,) = sentences(errors)
    assert sentence.endswith("interrupted by SIGTERM")
    assert "MPI rank 1 on " in sentence
    assert not left_by(run, 2)
