"""Trials of a suite: one ``uetemu run`` each, as many at once as there are processors.

Those of a machine are forked from one process, which has imported what they need.

A trial is named by the words of its command: two tests with equal words share one.  Each has a
folder ``trials/KEY`` in the suite's: the run folder, with ``trial.json`` (the words of the command,
its exit status and duration) written last.  A trial that has such a file is not run again, so that
an interrupted suite goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from signal import Signals
from typing import Any, Protocol

import emulator
from emulator import plugins
from emulator.dataplane.kernel.keeper import VARIABLE as KEPT
from emulator.dataplane.kernel.launcher import without_launcher
from emulator.errors import UserError
from emulator.installed_packages import version_of
from emulator.suite.trial_parent import SHOWN
from emulator.whole_file import write_whole

#: A row of ``result.json``.
Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class SuiteTrial:
    """A scenario on a fabric with its parameters, as ``uetemu run`` takes them.

    ``options`` are further words of the command, such as ``("--pxn", "never")``.
    """

    scenario: str
    fabric: str
    transport: str
    switch: str | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    faults: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    seed: int = 1
    seeds: int = 1
    capture: str = "none"

    def given(self, parameters: Mapping[str, object]) -> SuiteTrial:
        """Return this trial with further ``parameters``, which replace those of the same name."""
        merged = {**dict(self.parameters), **{name: str(one) for name, one in parameters.items()}}
        return replace(self, parameters=tuple(merged.items()))

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Return the words of the command after ``uetemu``, without the place of its folder."""
        words = ["run", self.scenario, "--topology", self.fabric, "--transport", self.transport]
        if self.switch is not None:
            words += ["--switch", self.switch]
        for name, value in self.parameters:
            words += ["--param", f"{name}={value}"]
        for fault in self.faults:
            words += ["--fault", fault]
        words += ["--seed", str(self.seed), "--seeds", str(self.seeds)]
        return (*words, "--capture", self.capture, *self.options, *plugins.words())

    @cached_property
    def key(self) -> str:
        """Return a short name that is the same for equal words only (SHA-256, 64 bits)."""
        return hashlib.sha256(json.dumps(self.words).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class TrialOutcome:
    """The outcome of a trial: its ``result``, or the sentence why it is ``excluded``.

    A trial that failed may have a result as well, with the rows that it got to.  ``place`` names
    the rank that ran it, and ``again`` states where it had failed before, if it was farmed out.
    """

    trial: SuiteTrial
    folder: Path
    seconds: float
    result: Mapping[str, Any] = field(default_factory=dict)
    excluded: str | None = None
    place: str | None = None
    again: str | None = None

    @property
    def rows(self) -> Sequence[Row]:
        """Return the rows of all seeds; none of a trial that is excluded."""
        return () if self.excluded else self.result["rows"]

    def by_place(self) -> Iterator[Sequence[Row]]:
        """Yield for each line of the run's table its rows, one for each seed."""
        places: dict[tuple[object, ...], list[Row]] = {}
        seen: dict[tuple[object, ...], int] = {}
        for row in self.rows:
            seed = (row["transport"], row["switch"], row["seed"])
            number = seen[seed] = seen.get(seed, -1) + 1
            places.setdefault((*seed[:2], number), []).append(row)
        yield from places.values()


#: What trials load anyway, which takes longer than many a trial.
PRELOADED = (
    "emulator.cli.main",
    "emulator.cli.rank_runs",
    "emulator.cli.run_options",
    "emulator.cli.run_terminal",
    "emulator.cli.run_verb",
    "emulator.dataplane.kernel.fabric.build",
    "emulator.dataplane.kernel.fabric.tunnels",
    "emulator.dataplane.kernel.offloads",
    "emulator.dataplane.lab",
    "emulator.dataplane.model.fabric",
    "emulator.rocev2.hca",
    "emulator.run.report.outcome_sentence",
    "emulator.run.runner",
    "emulator.sim.endpoint.endpoint_fitting",
    "emulator.transports.rocev2_transport",
    "emulator.transports.uet_transport",
    "numpy.random",
    "scenarios.collectives.collective",
    "scenarios.workloads.flows",
    "topologies.mininet_topo",
    "uet.congestion.controls.nscc",
)
#: The program ``uetemu``; Python's own end would free each object, for 60 ms.
_START = """\
import atexit, os, sys
from emulator.cli.main import main
try:
    main()
except SystemExit as end:
    atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(end.code)
"""
#: A program that runs it once for each trial that is asked for.
_PARENT = "from emulator.suite.trial_parent import next_trial; next_trial()"
#: Where the packages are that trials import: those of this process.
_PACKAGES = Path(emulator.__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class TrialEnd:
    """The end of a trial's command: its exit ``status``, duration, and the sentence of a failure.

    ``place`` names the rank and the machine that ran it, where that was another one, and ``again``
    states where it had failed before.
    """

    status: int
    seconds: float
    error: str | None = None
    place: str | None = None
    again: str | None = None

    @property
    def why(self) -> str:
        """Return why the command failed: its sentence, or else its status."""
        if self.error is None and self.status < 0:
            return f"killed by {Signals(-self.status).name}"
        return (self.error or f"exit status {self.status}").removeprefix("uetemu: ")


class ParentDied(UserError):
    """The process that trials are forked from has ended, and with it all trials."""


class TrialRunner(Protocol):
    """A runner of trials, ``at_once`` at the same time."""

    @property
    def at_once(self) -> int:
        """Return how many trials run at the same time."""

    @property
    def ranks(self) -> Mapping[str, Mapping[str, object]]:
        """Return machine, processors and kernel of each rank; empty where this machine runs all."""

    def run(self, words: Sequence[str], folder: Path) -> TrialEnd:
        """Run ``uetemu`` with ``words`` into ``folder``, and return its end; from any thread."""

    def stop(self) -> None:
        """Interrupt the trials that run, and start none any more."""


class TrialCommands:
    """Runs trials on this machine; ``inherited`` are descriptors that each trial holds as well.

    All are forked from one process, their parent, which the first one starts.
    """

    def __init__(self, at_once: int, inherited: Sequence[int] = ()) -> None:
        self.at_once = at_once
        self.ranks: Mapping[str, Mapping[str, object]] = {}
        self._inherited = tuple(inherited)
        self._parent: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, words: Sequence[str], folder: Path) -> TrialEnd:
        """Run ``uetemu`` with ``words`` into ``folder``, and return its end; from any thread.

        Raises ParentDied if the parent of trials has ended, by which all of them have.
        """
        folder.parent.mkdir(parents=True, exist_ok=True)
        errors = folder.with_suffix(".stderr")
        began = time.monotonic()
        with errors.open("wb") as stderr:
            parent, answer = self._asked((*words, "--output", str(folder)), stderr.fileno())
            with answer:
                answered = answer.recv(64)
        seconds = time.monotonic() - began
        stated = errors.read_text(errors="replace").strip().splitlines()
        if not answered:
            end = TrialEnd(
                status=parent.wait(), seconds=seconds, error="".join(stated[-1:]) or None
            )
            raise ParentDied(f"the process that trials are forked from has ended: {end.why}")
        status = int(answered)
        if status == 0:
            errors.unlink()
        return TrialEnd(
            status=status,
            seconds=round(seconds, 3),
            error=stated[-1] if status and stated else None,
        )

    def stop(self) -> None:
        """Interrupt the trials that run, wait until they have ended, and start none any more."""
        with self._lock:
            self._stopped = True
            if self._parent is None:
                return
            process, asker = self._parent
            asker.close()  # also when this process is killed
        process.wait()

    def _asked(
        self, words: Sequence[str], stderr: int
    ) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """Have the parent run a trial; return the parent, and a socket that has its answer."""
        answer, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._lock:
            if self._stopped:
                answer.close()
                raise RuntimeError("the suite has been stopped")
            process, asker = self._parent = self._parent or self._begun(stderr)
            with suppress(BrokenPipeError):  # there will be no answer either
                socket.send_fds(asker, [os.fsencode("\0".join(words))], [stderr, theirs.fileno()])
        return process, answer

    def _begun(self, stderr: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
        asker, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = f"{_PARENT}\n{_START}".ljust(SHOWN)  # room for the words of each trial
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", program, *PRELOADED],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                process_group=0,  # Ctrl-C reaches trials by us alone
                pass_fds=self._inherited,
                env=without_launcher() | {"PYTHONPATH": str(_PACKAGES), KEPT: "1"},
            )
        return process, asker


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
        self._stopped = kind is not None
        if not self._stopped:
            self._pool.shutdown()
        self._runner.stop()
        self._pool.shutdown(cancel_futures=True)

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
