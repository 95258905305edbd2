"""One run with several seeds, each of which a rank runs; the result is that of one run with all.

::

    RUN/result.json, environment.json, ...   of all seeds
    RUN/seeds/7/                             the run folder of seed 7, whole

A call that was killed goes on with what it has (:mod:`emulator.suite.farm.seed_folders`).
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any

from emulator.dataplane.cleanup import uninterrupted
from emulator.errors import UserError
from emulator.nccl_tests.json_report import REPORT_FILE, NcclReport
from emulator.run.interrupts import Interrupted
from emulator.run.plan.run_plan import RunPlan
from emulator.run.results import Result, RunFolder
from emulator.run.run_start import UNFINISHED, Observer, blank_result, check_digest, environment_of
from emulator.sim.frame_digest import PARTS_FILE
from emulator.suite.farm.seed_folders import SeedFolders
from emulator.suite.farm.seed_merge import merge, merged_digest, merged_events, merged_nccl
from emulator.suite.farm.trial_farm import TrialFarm
from emulator.suite.trials import TrialEnd
from topologies.exports import mermaid as export

_TIMELINE = "timeline.json"


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
