"""One run with several seeds, each of which a rank runs; the result is that of one run with all.

::

    RUN/                   has a lock as long as a call works on it
    RUN/result.json, ...   of all seeds
    RUN/seeds.json         the words of all seeds' runs: another command is refused
    RUN/seeds/7/           the run folder of seed 7, whole
    RUN/seeds/7/trial.json its words and its end, written last: the seed is not run again

A call goes on where an earlier one was killed.  Rows, their digests and the digest of the run are
those that one run with ``--seeds N`` has: a row does not depend on those before it.  Times within
the run (``began_us``) are not: each seed's begin with its own run.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from emulator.dataplane.cleanup import uninterrupted
from emulator.dataplane.kernel.locked_folders import lock_of
from emulator.dataplane.switch.cable_counters import LARGEST, LARGEST_OF_LINKS
from emulator.errors import UserError
from emulator.installed_packages import version_of
from emulator.nccl_tests.json_report import REPORT_FILE, NcclReport
from emulator.run.plan.run_plan import RunPlan
from emulator.run.report.spread import SeedRows
from emulator.run.results import Result, RunFolder
from emulator.run.run_start import UNFINISHED, Observer, blank_result, check_digest, environment_of
from emulator.run_files import ENDPOINTS, EVENTS, MESSAGES, PORTS
from emulator.sim.endpoint.counting import is_extreme
from emulator.sim.frame_digest import PARTS_FILE, DigestParts, digest_of_parts
from emulator.suite.farm.trial_farm import TrialFarm
from emulator.suite.trials import TrialEnd, read_record, write_record
from emulator.workers.interrupts import Interrupted
from topologies.exports import mermaid as export

SEEDS = "seeds"
COMMAND = "seeds.json"
_TIMELINE = "timeline.json"
#: The run folder of each seed.
Folders = Mapping[int, Path]
#: Events that belong to a row, which they number.
_OF_ROWS = frozenset({PORTS, MESSAGES, ENDPOINTS})
#: When a row began in its run.
_WITHIN = frozenset({"began_us"})
#: Values that are the same in all runs.
_SAME = frozenset({"bin_bytes"})


def execute_farmed(
    plan: RunPlan, farm: TrialFarm, words: Callable[[int], Sequence[str]], observer: Observer
) -> tuple[Result, RunFolder]:
    """Run each seed of ``plan`` by the command of ``words``, and merge what comes back.

    Failures stand in ``Result.errors``, as :func:`emulator.run.runner.execute` has them.
    """
    result = blank_result(plan)
    result.dilation = 1.0
    first, count = plan.request.seed, plan.request.seeds
    words_of = {seed: words(seed) for seed in range(first, first + count)}
    folders = SeedFolders(plan.request.scenario.name, plan.request.output, words_of)
    run = _SeedRuns(plan, farm, result, folders)
    try:
        run.begin(observer)
        run.work(words_of, observer)
    except Interrupted as stop:
        result.errors.append(farm.cause(stop))
        raise
    except UserError as error:
        result.errors.append(str(error))
    except Exception as error:
        result.errors.append(f"internal error: {type(error).__name__}: {error}")
        raise
    finally:
        with uninterrupted():
            run.conclude()
    return result, folders.run


class _SeedRuns:
    def __init__(
        self, plan: RunPlan, farm: TrialFarm, result: Result, folders: SeedFolders
    ) -> None:
        self._plan, self._farm = plan, farm
        self._result, self._folders, self._folder = result, folders, folders.run
        self._nccl = NcclReport(plan.topology, sys.argv, _warmups(plan))

    def begin(self, observer: Observer) -> None:
        plan = self._plan
        self._folder.event("begin", scenario=self._result.scenario, ranks=self._farm.ranks)
        self._folder.write("fabric.json", export.as_data(plan.topology))
        environment = {
            **environment_of(plan),
            "seed": plan.request.seed,
            "dilation": 1.0,
            "ranks": self._farm.ranks,
        }
        self._folder.write("environment.json", environment)
        content = self._result.as_dict()
        self._folder.write("result.json", content | {"errors": [UNFINISHED]})
        observer.began(plan, self._result)

    def work(self, words: Mapping[int, Sequence[str]], observer: Observer) -> None:
        pool = ThreadPoolExecutor(self._farm.at_once, thread_name_prefix="seed")
        ends = self._folders.kept()
        try:
            for seed, end in ends.items():
                self._folder.event("seed", seed=seed, **dataclasses.asdict(end))
            runs: dict[Future[TrialEnd], int] = {
                pool.submit(self._farm.run, words[seed], self._folders.of_seed(seed)): seed
                for seed in words
                if seed not in ends
            }
            observer.progress(f"{len(ends)} of {len(words)} seeds", len(ends) / len(words))
            for future in as_completed(runs):
                seed = runs[future]
                ends[seed] = end = future.result()
                if self._folders.of_seed(seed).exists():  # a run that was refused has made none
                    self._folders.record(seed, end)
                self._folder.event("seed", seed=seed, **dataclasses.asdict(end))
                observer.progress(f"{len(ends)} of {len(words)} seeds", len(ends) / len(words))
        except BaseException:
            self._farm.stop()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
        self._merge({seed: ends[seed] for seed in words}, observer)

    def _merge(self, ends: Mapping[int, TrialEnd], observer: Observer) -> None:
        plan, result = self._plan, self._result
        for seed, end in ends.items():
            if end.again is not None:
                result.warnings.append(f"seed {seed} {end.again}")
            if end.status != 0:
                result.errors.append(f"seed {seed}, {end.place}: {end.why}")
        runs = {seed: found for seed in ends if (found := self._read(seed, "result.json"))}
        merge(plan, runs, result)
        folders = {seed: self._folders.of_seed(seed) for seed in runs}
        merged_nccl(plan, self._nccl, result.rows, folders)
        for event in merged_events(result.rows, folders):
            kind = event.pop("event")
            del event["time"]
            self._folder.event(kind, **event)
        if all(end.status == 0 for end in ends.values()):
            parts = {seed: self._read(seed, PARTS_FILE) for seed in ends}
            result.digest = merged_digest(plan, parts)
            check_digest(plan, result)
            first = self._folders.of_seed(plan.request.seed) / _TIMELINE
            if first.exists():
                shutil.copyfile(first, self._folder.path / _TIMELINE)
        for row in result.summary:
            observer.row(row)

    def _read(self, seed: int, name: str) -> Any:
        try:
            return json.loads((self._folders.of_seed(seed) / name).read_text())
        except FileNotFoundError:
            return None

    def conclude(self) -> None:
        self._folder.write("result.json", self._result.as_dict())
        if (report := self._nccl.content(self._result.errors)) is not None:
            self._folder.write(REPORT_FILE, report)
        self._folder.event("end", errors=self._result.errors)
        self._folders.close()


def _warmups(plan: RunPlan) -> int | None:
    warmups = {trial.warmups for trial in plan.trials}
    return warmups.pop() if len(warmups) == 1 else None


class SeedFolders:
    """The folder of a call, ``run``, and in it those of its seeds, each with the words of its run.

    A folder that an earlier call of the same command left unfinished is taken over: all that is
    not a seed that ended well is removed.  Any other folder must be new or empty, else UserError.
    """

    def __init__(
        self, scenario: str, output: Path | None, words: Mapping[int, Sequence[str]]
    ) -> None:
        self._words = words
        if output is not None and self._is_unfinished(output):
            self._lock = _locked(output)
            self._clear(output)
            self.run = RunFolder(output)
        else:
            self.run = RunFolder.create(scenario, output)
            self._lock = _locked(self.run.path)
        self.run.write(COMMAND, self._command)

    def of_seed(self, seed: int) -> Path:
        """Return the run folder of a seed."""
        return self.run.path / SEEDS / str(seed)

    def kept(self) -> dict[int, TrialEnd]:
        """Return the ends of the seeds that need not run."""
        return self._ended_well(self.run.path / SEEDS)

    def _ended_well(self, seeds: Path) -> dict[int, TrialEnd]:
        ends = {seed: _end(seeds / str(seed), words) for seed, words in self._words.items()}
        return {seed: end for seed, end in ends.items() if end is not None}

    def record(self, seed: int, end: TrialEnd) -> None:
        """Note how a seed's run ended, once its folder is whole."""
        write_record(self.of_seed(seed), self._words[seed], end)

    def close(self) -> None:
        """Close the run folder, and let another call have it."""
        self.run.close()
        os.close(self._lock)

    def _is_unfinished(self, output: Path) -> bool:
        """Return whether a call of this command left ``output`` without coming to its end."""
        try:
            command = json.loads((output / COMMAND).read_text())
            errors = json.loads((output / "result.json").read_text())["errors"]
        except (OSError, ValueError, TypeError, KeyError):
            return False
        return bool(errors) and command == self._command

    @property
    def _command(self) -> dict[str, object]:
        words = {str(seed): list(words) for seed, words in self._words.items()}
        return {"version": version_of("uetemu"), "seeds": words}

    def _clear(self, output: Path) -> None:
        seeds = output / SEEDS
        kept = {seeds, *(seeds / str(seed) for seed in self._ended_well(seeds))}
        for path in (*output.iterdir(), *seeds.glob("*")):
            if path in kept:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def _locked(folder: Path) -> int:
    try:
        return lock_of(folder.resolve())
    except BlockingIOError:
        raise UserError(
            f"another call works on {folder}; wait for it, or choose another --output"
        ) from None


def _end(folder: Path, words: Sequence[str]) -> TrialEnd | None:
    """Return the recorded end of a run that ended well; None: there is none."""
    record = read_record(folder, words)
    if record is None or record.get("status") != 0:
        return None
    return TrialEnd(
        status=0, seconds=record["seconds"], place=record.get("place"), again=record.get("again")
    )


def merge(plan: RunPlan, runs: Mapping[int, Mapping[str, Any]], result: Result) -> None:
    """Fill ``result`` from ``runs``, what ``result.json`` of each seed holds.

    A seed whose run failed has fewer rows, or none; then there is no row for all seeds.
    """
    left = {seed: iter(runs[seed].get("rows", ()) if seed in runs else ()) for seed in _seeds(plan)}
    seeds = SeedRows(plan.request.seeds)
    for stage in plan.stages:
        for place in stage.stage.trials:
            row = next(left[stage.seed], None)
            if row is None:
                continue
            shown = seeds.add((stage.stage.label, place), result.add_row(row))
            if shown is not None:
                # Times within runs of their own have no median.
                result.summary.append({**shown, **dict.fromkeys(_WITHIN & shown.keys())})
    for run in runs.values():
        result.ports = _together(result.ports, run["ports"])
        result.endpoints = _together(result.endpoints, run["endpoints"])
        result.warnings += [one for one in run["warnings"] if one not in result.warnings]
    if len(runs) == plan.request.seeds:
        result.fidelity = _fidelity([run["fidelity"] for run in runs.values()])


def merged_digest(plan: RunPlan, parts: Mapping[int, DigestParts]) -> str:
    """Return the digest of all rows, from what the digest of each seed's run is made of."""
    return digest_of_parts(parts, [stage.seed for stage in plan.stages for _ in stage.trials])


def merged_nccl(
    plan: RunPlan, report: NcclReport, rows: Sequence[Mapping[str, Any]], folders: Folders
) -> None:
    """Add ``rows`` to ``report``, with the times of iterations from the folder of each seed."""
    times = {seed: _times(folder) for seed, folder in folders.items()}
    for row in rows:
        name = f"{row['transport']}, seed {row['seed']}" if len(plan.stages) > 1 else ""
        if NcclReport.takes(row):
            report.add(row, next(times[row["seed"]]), name)


def merged_events(rows: Sequence[Mapping[str, Any]], folders: Folders) -> Iterator[dict[str, Any]]:
    """Yield what the runs noted of each row, by the numbers of ``rows`` in the whole result."""
    numbers: dict[int, list[int]] = {}
    for number, row in enumerate(rows, 1):
        numbers.setdefault(row["seed"], []).append(number)
    for seed, folder in folders.items():
        with (folder / EVENTS).open(encoding="utf-8") as stream:
            for event in map(json.loads, stream):
                if event["event"] in _OF_ROWS:
                    yield {**event, "row": numbers[seed][event["row"] - 1]}


def _times(folder: Path) -> Iterator[list[int]]:
    """Yield the times (ns) of each row that is in the form of nccl-tests."""
    try:
        results = json.loads((folder / REPORT_FILE).read_text())["results"]
    except FileNotFoundError:
        return
    for result in results:
        for place in ("out_of_place", "in_place"):
            if result.get(place) is not None:
                yield [round(1000 * one) for one in result[f"{place}_per_iter"]["times_us"]]


def _seeds(plan: RunPlan) -> range:
    return range(plan.request.seed, plan.request.seed + plan.request.seeds)


def _together(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return counters of two runs as those of one, by name, whatever they are nested in."""
    names = dict.fromkeys((*first, *second))
    return {name: _both(name, first.get(name), second.get(name)) for name in names}


def _both(name: str, one: Any, other: Any) -> Any:
    if one is None or other is None or name in _SAME:
        return other if one is None else one
    if isinstance(one, Mapping):
        return _together(one, other)
    if isinstance(one, Sequence):
        return [sum(pair) for pair in zip(one, other, strict=True)]
    if name in LARGEST or name in LARGEST_OF_LINKS or is_extreme(name.rpartition(".")[2]):
        return max(one, other)
    return one + other


def _fidelity(found: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Return the verdict on all runs of the virtual clock: the account of all of their frames."""
    accounts: dict[str, Any] = {}
    for one in found:
        accounts = _together(accounts, one["account"])
    return {
        **found[0],
        "repeatable": all(one["repeatable"] for one in found),
        "account": {**accounts, "dropped": dict(sorted(accounts["dropped"].items()))},
    }
