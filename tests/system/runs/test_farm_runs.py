"""Trials farmed out by ``mpirun``: the same tables and digests as without, also over machines."""

import json
import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from emulator.dataplane import lab_record
from emulator.dataplane.lab_record import Phase
from emulator.pytest_plugin.runs import BUDGET_S
from emulator.suite.suite_run import FILE
from tests.harness.lab.traffic import within
from tests.harness.nightly import nightly
from tests.harness.runs.forked_command import ForkedCommand
from tests.harness.runs.mpi_ranks import mpirun, pid_of_rank, sentences, two_machines
from tests.harness.runs.processes import SMALL, forked, until

pytestmark = [pytest.mark.root, pytest.mark.slow]

SEEDS = (*("run", "allreduce", *SMALL, "--sizes", "64KiB", "--iterations", "2", "--seeds", "3"),)
BOTH = (*SEEDS, "--transport", "uet,rocev2:nccl")
SUITE = ("bench", "training", "--tests", "7.3,7.4", "--seeds", "1", "--transport", "uet")


def ended(process: ForkedCommand | subprocess.Popen[str]) -> tuple[int | None, str, str]:
    out, errors = process.communicate(timeout=240)
    return process.returncode, out, errors


def measured(folder: Path) -> dict[str, Any]:
    """Return ``result.json`` without the times within runs, which seeds have of their own."""
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    for row in (*result["rows"], *result["summary"]):
        row.pop("began_us", None)
    return result


def table(out: str) -> list[str]:
    """Return the lines of a verb's output, but for its folder, and for what ran in this process."""
    own = ("older: ", "folder  ", "# Engine ")
    return [line for line in out.splitlines() if not any(each in line for each in own)]


def test_seeds_over_two_machines_are_the_run_of_one(tmp_path: Path) -> None:
    private = tmp_path / "first-machine"
    private.mkdir()
    plain, farmed = tmp_path / "plain", private / "farmed"
    status, expected, errors = ended(forked(*BOTH, "--output", str(plain)))
    assert status == 0, errors
    with two_machines(tmp_path, private) as machines:
        status, out, errors = ended(machines.mpirun(*BOTH, "--output", str(farmed)))
        second = machines.name(1)
    assert status == 0, errors
    assert table(out) == table(expected)
    assert measured(farmed) == measured(plain)
    assert measured(farmed)["digest"] is not None
    ranks = json.loads((farmed / "environment.json").read_text())["ranks"]
    assert [one["machine"] for one in ranks.values()] == [second, second]
    assert sorted(path.name for path in (farmed / "seeds").iterdir()) == ["1", "2", "3"]
    assert (farmed / "seeds" / "1" / "capture.pcapng").read_bytes()[:4] == b"\x0a\x0d\x0d\x0a"
    reports = [json.loads((one / "nccl-tests.json").read_text()) for one in (plain, farmed)]
    assert reports[0]["results"] == reports[1]["results"]


def killed_midway(
    words: Sequence[str], farmed: Path, records: str
) -> tuple[str, dict[Path, bytes]]:
    """Kill rank 2 of 3 once one of the ``records`` is there; return standard error and those."""
    process = mpirun(3, *words, "--output", str(farmed))
    within(120, lambda: any(farmed.glob(records)), "one of its runs has ended")
    os.kill(pid_of_rank(process, 2), signal.SIGKILL)
    status, _, errors = ended(process)
    assert status != 0
    before = {path: path.read_bytes() for path in farmed.glob(records)}
    assert before
    return errors, before


def test_seeds_of_which_a_rank_died_go_on_to_the_run_of_one(tmp_path: Path) -> None:
    plain, farmed = tmp_path / "plain", tmp_path / "farmed"
    status, expected, errors = ended(forked(*SEEDS, "--output", str(plain)))
    assert status == 0, errors
    _, before = killed_midway(SEEDS, farmed, "seeds/*/trial.json")
    status, out, errors = ended(mpirun(3, *SEEDS, "--output", str(farmed)))
    assert status == 0, errors
    assert table(out) == table(expected)
    assert measured(farmed) == measured(plain)
    assert {path: path.read_bytes() for path in before} == before
    events = [json.loads(line) for line in (farmed / "events.jsonl").read_text().splitlines()]
    assert sorted(one["seed"] for one in events if one["event"] == "seed") == [1, 2, 3]


@pytest.mark.nightly
def test_a_suite_whose_rank_died_goes_on_to_the_tables_of_one_process(tmp_path: Path) -> None:
    plain, farmed = tmp_path / "plain", tmp_path / "farmed"
    status, expected, errors = ended(forked(*SUITE, "--output", str(plain)))
    assert status == 0, errors
    errors, before = killed_midway(SUITE, farmed, "trials/*/trial.json")
    # Where it died in the middle of a message, MPI ends rank 0 too, and mpirun alone names it.
    found = sentences(errors)
    named = f"uetemu: rank 2 on {socket.gethostname()} died"
    assert [one.startswith(named) and "--output goes on" in one for one in found] in ([True], [])
    assert found or "exited on signal 9" in errors
    status, out, errors = ended(mpirun(3, *SUITE, "--output", str(farmed)))
    assert status == 0, errors
    assert table(out) == table(expected)
    assert {path: path.read_bytes() for path in before} == before
    without, by_ranks = (
        [(trial["key"], trial["digest"]) for test in tests for trial in test["trials"]]
        for tests in (json.loads((one / FILE).read_text())["tests"] for one in (plain, farmed))
    )
    assert by_ranks == without
    assert len(without) > len(before)
    assert json.loads((farmed / FILE).read_text())["ranks"].keys() == {"1", "2"}
    for record in map(Path.read_text, farmed.glob("trials/*/trial.json")):
        assert json.loads(record)["place"].startswith(("rank 1 on ", "rank 2 on "))


def trial_of(lab: str) -> psutil.Process:
    """Return the process of the trial that has ``lab``, once that is up."""

    def find() -> dict[str, int] | None:
        record = lab_record.load(lab)
        return {"pid": record.owner.pid} if record and record.phase is Phase.UP else None

    return psutil.Process(until(find)["pid"])


def left_by(lab: str, scratch: Path) -> list[str]:
    """Return what is left of the labs of all seeds of ``lab``, and of the folder of a rank."""
    places = (lab_record.STATE, Path("/run/netns"), Path("/dev/shm"), Path("/sys/fs/bpf/uetemu"))
    found = [str(path) for place in places for path in place.glob(f"*{lab}*")]
    for one in psutil.process_iter(["cmdline", "status"]):
        words = " ".join(one.info["cmdline"] or [])
        gone = one.info["status"] == psutil.STATUS_ZOMBIE
        if not gone and (lab in words or scratch.name.rpartition("-")[0] in words):
            found.append(f"{one.pid}: {words}")
    return [*found, *map(str, scratch.parent.glob(scratch.name))]


def test_a_killed_trial_runs_elsewhere_and_leaves_nothing(tmp_path: Path) -> None:
    lab = f"t-{secrets.token_hex(4)}"
    process = mpirun(3, *SEEDS, "--name", lab, "--output", str(tmp_path / "farmed"))
    trial = trial_of(f"{lab}-1")
    scratch = Path(trial.cmdline()[-1]).parent
    trial.kill()
    status, _, errors = ended(process)
    assert status == 0, errors
    result = measured(tmp_path / "farmed")
    (warning,) = result["warnings"]
    assert warning.startswith("seed 1 failed at rank ")
    assert " (killed by SIGKILL), and ran at rank " in warning
    assert result["digest"] is not None
    within(BUDGET_S, lambda: not left_by(lab, scratch), "all is removed")


@pytest.mark.parametrize("with_trial", [True, nightly(False)])
def test_a_killed_rank_leaves_nothing(with_trial: bool, tmp_path: Path) -> None:
    lab = f"t-{secrets.token_hex(4)}"
    process = mpirun(3, *SEEDS, "--name", lab, "--output", str(tmp_path / "farmed"))
    trial = trial_of(f"{lab}-1")
    scratch, rank = Path(trial.cmdline()[-1]).parent, trial.ppid()
    if with_trial:
        trial.kill()
    os.kill(rank, signal.SIGKILL)
    status, _, errors = ended(process)
    assert status != 0
    assert " died, so the launcher ended all ranks" in errors or "exited on signal 9" in errors
    within(BUDGET_S, lambda: not left_by(lab, scratch), "all is removed")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        nightly((("bench", "training", "--tests", "99.9"), "has no test '99.9'")),
        (("run", "allreduce", "--seeds", "2", "--clock", "host", *SMALL), "--clock host"),
    ],
)
def test_a_refusal_is_one_sentence_of_the_first_rank(
    tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    process = mpirun(2, *words, "--output", str(tmp_path / "folder"))
    status, out, errors = ended(process)
    assert status == 1
    assert out == ""
    (line,) = sentences(errors)
    assert sentence in line
    assert not (tmp_path / "folder").exists()
