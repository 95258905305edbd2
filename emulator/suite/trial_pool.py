"""Trials run as commands of their own, as many at once as there are processors.

Each has a folder ``trials/KEY`` in the suite's: the run folder, with ``trial.json`` (the words of
the command, its exit status and duration) written last.  A trial that has such a file is not run
again, so that an interrupted suite goes on where it was.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from emulator.run.environment import version_of
from emulator.suite.suite_trial import SuiteTrial, TrialOutcome
from emulator.suite.trial_command import TrialEnd, TrialRunner
from emulator.whole_file import write_whole

RECORD = "trial.json"

Ran = Callable[[TrialOutcome], None]


class TrialPool:
    """Runs trials in ``folder``, as many at a time as ``runner`` does; a context manager.

    ``ended`` is called for every outcome, from any thread.  Leaving the block by an exception
    interrupts the trials that run and waits until they have removed their fabrics.
    """

    def __init__(self, folder: Path, runner: TrialRunner, ended: Ran) -> None:
        self._folder = folder / "trials"
        self._ended = ended
        self._runner = runner
        self._pool = ThreadPoolExecutor(runner.at_once, thread_name_prefix="trial")
        self._futures: dict[str, Future[TrialOutcome]] = {}
        self._stopped = False

    def __enter__(self) -> TrialPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            self._stopped = True
            self._runner.stop()
        self._pool.shutdown(cancel_futures=kind is not None)

    def submit(self, trial: SuiteTrial) -> Future[TrialOutcome]:
        """Return the outcome to come; that of an equal trial if there is one already."""
        if trial.key not in self._futures:
            self._futures[trial.key] = self._pool.submit(self._outcome, trial)
        return self._futures[trial.key]

    def has_record(self, trial: SuiteTrial) -> bool:
        """Return whether an earlier call of the suite has run ``trial``."""
        return recorded(self._folder / trial.key, trial) is not None

    def _outcome(self, trial: SuiteTrial) -> TrialOutcome:
        folder = self._folder / trial.key
        outcome = recorded(folder, trial) or self._run(folder, trial)
        self._ended(outcome)
        return outcome

    def _run(self, folder: Path, trial: SuiteTrial) -> TrialOutcome:
        if folder.exists():
            shutil.rmtree(folder)  # of a suite that was killed
        words = [*trial.words, "--workers", "1", "--format", "json"]
        end = self._runner.run(words, folder)
        folder.mkdir(exist_ok=True)  # a run that was refused has made none
        if not self._stopped:
            write_record(folder, trial.words, end)
        return _outcome_of(folder, trial, asdict(end))


def write_record(folder: Path, words: Sequence[str], end: TrialEnd) -> None:
    """Note in ``folder`` that the command of ``words`` has come to its ``end``."""
    record = {"words": list(words), "version": version_of("uetemu"), **asdict(end)}
    write_whole(folder / RECORD, json.dumps(record, indent=2))


def read_record(folder: Path, words: Sequence[str]) -> Mapping[str, Any] | None:
    """Return what ``folder`` records of the command of ``words`` with this version; None: none."""
    record = _object(folder / RECORD)
    same = record.get("words") == list(words) and record.get("version") == version_of("uetemu")
    return record if same else None


def recorded(folder: Path, trial: SuiteTrial) -> TrialOutcome | None:
    """Return the outcome that ``folder`` records of ``trial`` with this version; None: none."""
    record = read_record(folder, trial.words)
    return _outcome_of(folder, trial, record) if record is not None else None


def _outcome_of(folder: Path, trial: SuiteTrial, record: Mapping[str, Any]) -> TrialOutcome:
    result = _object(folder / "result.json")
    excluded = None
    if record["status"] != 0 or not result.get("rows"):
        excluded = str(record.get("error") or f"exit status {record['status']}")
        excluded = excluded.removeprefix("uetemu: ")
    return TrialOutcome(
        trial=trial,
        folder=folder,
        seconds=float(record["seconds"]),
        result=result,
        excluded=excluded,
        place=record.get("place"),
        again=record.get("again"),
    )


def _object(path: Path) -> Mapping[str, Any]:
    """Return the JSON object in a file; an empty one where there is none."""
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
