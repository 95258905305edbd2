"""Trials run once each, several at a time; what fails is excluded with its sentence.

A small program stands in for ``uetemu``: the pool is its caller.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from emulator.errors import UserError
from emulator.suite import trials
from emulator.suite.trials import SuiteTrial, TrialCommands, TrialOutcome, TrialPool
from tests import CHECKOUT
from tests.harness.lab.traffic import within

#: Writes a result with a row for each seed; the scenario ``broken`` fails, ``forever`` waits.
#: What an earlier trial has left in the process would fail it, too.
PROGRAM = """
import json, os, pathlib, signal, sys
sys.earlier = sys.exit("uetemu: not as new") if hasattr(sys, "earlier") else True
words = sys.argv[1:]
folder = pathlib.Path(words[words.index("--output") + 1])
if words[1] == "refused":
    sys.exit("uetemu: that cannot be; take another")
folder.mkdir(parents=True)
if words[1] == "forever":
    try:
        (folder / "started").write_text(f"{os.getpid()} {os.getppid()}")
        signal.pause()
    except KeyboardInterrupt:
        (folder / "interrupted").touch()
        sys.exit(130)
(folder / "started").touch()
rows = [
    {"transport": "uet", "switch": "shallow", "seed": seed, "time_us": 10.0 + seed, "ideal_us": 5}
    for seed in (1, 2)
]
(folder / "result.json").write_text(json.dumps({"rows": rows, "digest": "d"}))
if words[1] == "broken":
    sys.exit("uetemu: the run failed")
"""


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "_START", PROGRAM)
    monkeypatch.setattr(trials, "PRELOADED", ("not_installed_here",))


def trial(scenario: str = "incast", **parameters: str) -> SuiteTrial:
    return SuiteTrial(
        scenario=scenario,
        fabric="rail_clos",
        transport="uet",
        parameters=tuple(parameters.items()),
    )


def test_words_are_those_of_a_command_and_name_the_trial() -> None:
    one = SuiteTrial(
        scenario="incast",
        fabric="pod",
        transport="uet",
        switch="deep",
        parameters=(("senders", "2,4"),),
        faults=("t=1us link rail0:up0 down",),
        options=("--pxn", "never"),
        seeds=3,
    )
    assert one.words == (
        *("run", "incast", "--topology", "pod", "--transport", "uet", "--switch", "deep"),
        *("--param", "senders=2,4", "--fault", "t=1us link rail0:up0 down"),
        *("--seed", "1", "--seeds", "3", "--capture", "none", "--pxn", "never"),
    )
    assert trial(senders="2").key == trial(senders="2").key != trial(senders="4").key


def test_equal_trials_run_once_and_a_later_call_runs_none_again(tmp_path: Path) -> None:
    ended: list[TrialOutcome] = []
    with TrialPool(tmp_path, TrialCommands(2), ended.append) as pool:
        assert not pool.has_record(trial())
        first, second = pool.submit(trial()), pool.submit(trial())
        assert first is second
        outcome = first.result()
    assert len(ended) == 1
    assert [row["seed"] for row in outcome.rows] == [1, 2]
    assert [len(rows) for rows in outcome.by_place()] == [2]
    (tmp_path / "trials" / trial().key / "started").unlink()
    with TrialPool(tmp_path, TrialCommands(2), ended.append) as pool:
        assert pool.has_record(trial())
        assert pool.submit(trial()).result() == outcome
    assert not (tmp_path / "trials" / trial().key / "started").exists()


def test_a_half_written_trial_runs_again(tmp_path: Path) -> None:
    folder = tmp_path / "trials" / trial().key
    folder.mkdir(parents=True)
    (folder / "result.json").write_text("{")
    with TrialPool(tmp_path, TrialCommands(1), lambda _: None) as pool:
        assert pool.submit(trial()).result().excluded is None


@pytest.mark.parametrize(
    ("scenario", "sentence"),
    [("refused", "that cannot be; take another"), ("broken", "the run failed")],
)
def test_a_failure_is_excluded_with_its_sentence(
    tmp_path: Path, scenario: str, sentence: str
) -> None:
    with TrialPool(tmp_path, TrialCommands(1), lambda _: None) as pool:
        outcome = pool.submit(trial(scenario)).result()
    assert outcome.excluded == sentence
    assert outcome.rows == ()
    with TrialPool(tmp_path, TrialCommands(1), lambda _: None) as pool:
        assert pool.submit(trial(scenario)).result() == outcome


def test_an_interrupt_ends_what_runs_and_leaves_it_to_be_run_again(tmp_path: Path) -> None:
    running = trial("forever")
    folder = tmp_path / "trials" / running.key

    def interrupted() -> None:
        with TrialPool(tmp_path, TrialCommands(1), lambda _: None) as pool:
            future = pool.submit(running)
            waiting = threading.Event()
            while not (folder / "started").exists():
                assert not future.done()
                waiting.wait(0.02)
            os.kill(os.getpid(), signal.SIGINT)
            waiting.wait(30)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (folder / "interrupted").exists()
    assert not (folder / trials.RECORD).exists()


def started(trial: SuiteTrial, folder: Path) -> tuple[int, int]:
    """Return the process of a trial that runs for ever, and its parent."""
    found = folder / "trials" / trial.key / "started"
    within(120, lambda: found.exists() and found.read_text() != "", "the trial has begun")
    process, parent = map(int, found.read_text().split())
    return process, parent


def test_a_killed_trial_ends_no_other_one(tmp_path: Path) -> None:
    killed, other = trial("forever"), trial("forever", number="2")
    with TrialPool(tmp_path, TrialCommands(2), lambda _: None) as pool:
        futures = [pool.submit(killed), pool.submit(other)]
        pids, parents = zip(*(started(one, tmp_path) for one in (killed, other)), strict=True)
        assert parents[0] == parents[1]
        os.kill(pids[0], signal.SIGKILL)
        assert futures[0].result().excluded == "exit status -9"
        assert pool.submit(trial()).result().excluded is None
        assert not futures[1].done()
        os.kill(pids[1], signal.SIGINT)
        assert futures[1].result().excluded == "exit status 130"


def test_a_suite_whose_trials_lose_their_parent_ends_with_a_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "trials" / trial("forever").key

    def orphaned() -> None:
        with TrialPool(tmp_path, TrialCommands(1), lambda _: None) as pool:
            future = pool.submit(trial("forever"))
            os.kill(started(trial("forever"), tmp_path)[1], signal.SIGKILL)
            future.result()

    with pytest.raises(UserError, match="trials are forked from has ended: killed by SIGKILL"):
        orphaned()
    within(120, (folder / "interrupted").exists, "the trial is interrupted")
    assert not (folder / trials.RECORD).exists()


def test_another_version_runs_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TrialPool(tmp_path, TrialCommands(1), lambda _: None) as pool:
        pool.submit(trial()).result()
        monkeypatch.setattr(trials, "version_of", lambda _: "other")
        assert not pool.has_record(trial())
    record = json.loads((tmp_path / "trials" / trial().key / trials.RECORD).read_text())
    assert record["words"] == list(trial().words)


KILLED = """
import sys
from pathlib import Path
from emulator.errors import UserError
from emulator.suite import trials
from tests.emulator.suite.test_trials import PROGRAM, trial
trials._START, trials.PRELOADED = PROGRAM, ()
commands = trials.TrialCommands(1)
with trials.TrialPool(Path(sys.argv[1]), commands, print) as pool:
    pool.submit(trial("forever")).result()
"""


def test_a_suite_that_is_killed_interrupts_its_trials(tmp_path: Path) -> None:
    folder = tmp_path / "trials" / trial("forever").key
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], cwd=CHECKOUT) as suite:
        within(120, (folder / "started").exists, "the trial has begun")
        suite.kill()
    within(120, (folder / "interrupted").exists, "the trial is interrupted")
    assert not (folder / trials.RECORD).exists()
