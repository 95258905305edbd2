"""``uetemu bench``: the tests of a suite, from the command to ``suite.json``."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from emulator.cli.options import SEED, option, result_format
from emulator.cli.plain_tables import page, plain_table
from emulator.cli.rank_command import RankCommand
from emulator.cli.run_terminal import Bar, progress_bar
from emulator.dataplane.cleanup import require_root
from emulator.dataplane.fabric_choice import choose
from emulator.dataplane.kernel import launcher
from emulator.errors import UserError
from emulator.report.suite.page import write_suite_report
from emulator.run.plan.variants import COMPARE, variants
from emulator.run.results import FabricKind
from emulator.suite.farm.session import GOES_ON, farm_of, serve_rank
from emulator.suite.farm.trial_farm import TrialFarm
from emulator.suite.suite_model import (
    SCALES,
    Point,
    Suite,
    SuiteChoice,
    SuiteColumn,
    SuiteTable,
    SuiteTest,
    headed,
    shown_value,
)
from emulator.suite.suite_run import FILE, Progress, SuiteRecord, SuiteRun, accounting, planned
from emulator.suite.trials import TrialCommands, TrialOutcome
from emulator.transports import default_switch
from topologies import catalogue

WIDTH = 200
#: Characters of a setting that stands in its column; a longer one stands below the table.
LONGEST_SETTING = 32


def of_test(record: SuiteRecord) -> str:
    """Return what a test found, as text."""
    test = record.test
    shown: list[object] = [f"## {test.number} {test.title}: {test.objective}", ""]
    if test.reason:
        shown.append(f"Not measured: {test.reason}")
    if record.error:
        shown.append(f"Not measured: {record.error}")
    if record.findings:
        for table in record.findings.tables:
            if table.rows:
                long = _long_settings(table)
                shown += [_table(table, long), _points(table.filled)]
                shown += [table.without_value] if table.without_value else []
                shown += [f"{name}: {setting}" for setting, name in long.items()] + [""]
        shown += [f"Deviation: {text}" for text in record.findings.deviations]
        shown += [f"Note: {text}" for text in record.findings.notes]
    shown += _excluded(record)
    return page(shown, to_terminal=False, width=WIDTH) + "\n"


def _excluded(record: SuiteRecord) -> list[str]:
    """Return a line for each reason that excludes trials, with one of their commands."""
    reasons: dict[str, dict[str, TrialOutcome]] = {}
    for one in record.outcomes:
        if one.excluded:
            reasons.setdefault(one.excluded, {})[one.trial.key] = one
    return [
        f"Excluded: {len(outcomes)} trials ({reason}), such as uetemu"
        f" {' '.join(next(iter(outcomes.values())).trial.words)}"
        for reason, outcomes in reasons.items()
    ]


def of_accounting(records: Sequence[SuiteRecord]) -> str:
    """Return how many trials there were, and why some are excluded."""
    counts = accounting(records)
    text = f"{counts['attempted']} trials were attempted, {counts['included']} are included"
    reasons = counts["excluded"]
    lines = [f"{text}; {len(reasons)} reasons exclude {sum(reasons.values())}"]
    lines += [f"Tried again: trial {key} {stated}" for key, stated in counts["again"].items()]
    return "\n".join((*lines, ""))


def _long_settings(table: SuiteTable) -> dict[str, str]:
    """Return short names for settings that are too long for a column, such as of switches."""
    found = (
        (one, str(row.get(one.key)))
        for one in table.columns
        if one.point is Point.INPUT
        for row in table.rows
    )
    long = {value: column for column, value in found if len(value) > LONGEST_SETTING}
    return {value: f"{one.heading} {number}" for number, (value, one) in enumerate(long.items(), 1)}


def _table(table: SuiteTable, long: Mapping[str, str]) -> Table:
    columns = table.filled
    numbers = next(
        (
            place
            for place, column in enumerate(columns)
            if column.point not in (Point.INPUT, Point.PUBLISHED)
        ),
        len(columns),
    )
    heads = [headed(one) for one in columns]
    made = plain_table(table.title, *heads, right=numbers)
    for row in table.rows:
        cells = [shown_value(row.get(column.key)) for column in columns]
        made.add_row(*(long.get(cell, cell) for cell in cells))
    return made


def _points(columns: Sequence[SuiteColumn]) -> str:
    by_point: dict[Point, list[str]] = {}
    for column in columns:
        by_point.setdefault(column.point, []).append(column.heading)
    return "Observed at: " + "; ".join(
        f"{point.value}: {', '.join(names)}"
        for point, names in by_point.items()
        if point not in (Point.INPUT, Point.PUBLISHED)
    )


#: Suites by name, and the module that holds each: nothing below the scenarios may import it.
SUITES: Mapping[str, str] = {
    "training": "scenarios.bmwg.training_suite",
    "inference": "scenarios.bmwg.inference.inference_suite",
    "hardware": "scenarios.hardware.hardware_suite",
}


@click.command("bench", cls=RankCommand)
@click.argument("suite", type=click.Choice(list(SUITES)))
@click.option(
    "--tests", metavar="NUMBER,...", help="tests or sections, such as 6.3,7 [default: all]"
)
@click.option(
    "--scale",
    type=click.Choice(SCALES),
    default="small",
    show_default=True,
    help="small: minutes on two processors; medium, full: nearer to the draft's sizes",
)
@click.option(
    "--fabric",
    metavar="SPEC|FILE",
    help="fabric of every test, instead of each test's own",
)
@click.option(
    "--nodes",
    type=click.Choice(["kernel", "model"]),
    default="kernel",
    show_default=True,
    help="what switches and interfaces are: the kernel's, which takes root, or a model, without",
)
@option(
    "transport",
    "transports of tests that do not name their own",
    metavar="SPEC,...",
    default=COMPARE,
    show_default=True,
)
@SEED
@click.option(
    "--seeds",
    type=click.IntRange(1, 20),
    default=3,
    show_default=True,
    help="repetitions of what is random, from --seed on",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    help="trials at the same time [default: one for each processor, or rank but the first]",
)
@click.option("--plan", is_flag=True, help="list the trials instead of running them")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="folder of the suite; one that was interrupted goes on [default: runs/bench-...]",
)
@option("report", "also write report.html into the folder")
@result_format("json: what suite.json holds")
def command(plan: bool, **given: Any) -> None:
    """Run the tests of SUITE, each with the procedure of its section.

    Values stand with their observation points, and each test says where it deviates from its
    document.  In the drafts nothing passes or fails.  The suite hardware has published measurements
    beside what uetemu gives; its tests name their fabrics, transports and seeds.
    """
    place = launcher.place()
    if place is not None and place.number:
        if not plan:
            serve_rank(place)
        return
    if place is None or plan:
        _bench(None, plan=plan, **given)
        return
    with farm_of(place, GOES_ON) as farm:
        _bench(farm, plan=plan, **given)


def _bench(  # noqa: PLR0913  options of the verb
    farm: TrialFarm | None,
    *,
    suite: str,
    tests: str | None,
    scale: str,
    fabric: str | None,
    nodes: FabricKind,
    transport: str,
    seed: int,
    seeds: int,
    processes: int | None,
    plan: bool,
    output: Path | None,
    report: bool,
    form: str,
) -> None:
    if farm is not None and processes is not None:
        raise UserError(
            "--processes and the launcher both say how many trials run at the same time; leave "
            "--processes out"
        )
    chosen: Suite = importlib.import_module(SUITES[suite]).SUITE
    numbers = [one.strip() for one in tests.split(",") if one.strip()] if tests else []
    if tests is not None and not numbers:
        raise UserError(
            f"--tests {tests!r} names no test; write for example 6.3,7, or leave it out"
        )
    selected = chosen.choose(numbers)
    topology = choose(catalogue.DEFAULT if fabric is None else fabric).topology
    choice = SuiteChoice(
        scale=scale,
        transports=[one.transport for one in variants(transport) if one.transport],
        fabric=fabric,
        nodes=nodes,
        seed=seed,
        seeds=seeds,
    )
    for one in choice.transports:
        default_switch(one, topology)  # refuses what is no transport
    place = launcher.place()
    at_once = place.count - 1 if place else processes or len(os.sched_getaffinity(0))
    if plan:
        click.echo(_planned(chosen, selected, choice, at_once), nl=False)
        return
    if nodes == "kernel":
        require_root("run a suite in namespaces", model="--nodes model")
    folder = output or Path("runs") / f"bench-{suite}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    run = SuiteRun(chosen, selected, choice, folder, farm or TrialCommands(at_once))
    if form == "table":
        of = ", fabrics are a model" if nodes == "model" else ""
        click.echo(f"# {chosen.document}, scale {scale}{of}; {chosen.terminology}\n")
    with progress_bar() as bar:
        shown = _Shown(bar if form == "table" else None, run.records)
        run.run(lambda at: _show(bar, at), shown.ended)
        bar.end()
    page = write_suite_report(folder) if report else None
    if form == "json":
        click.echo((folder / FILE).read_text())
    else:
        click.echo(of_accounting(run.records), nl=False)
        click.echo(f"Suite folder: {folder}")
        if page is not None:
            click.echo(f"Report: {page}")
    counts = accounting(run.records)
    if counts["excluded"] and not counts["included"]:
        reasons = list(counts["excluded"])
        raise UserError(f"no trial has a result; the first one ended with: {reasons[0]}")


class _Shown:
    """Prints tests in the order of their numbers, once they and those before have ended."""

    def __init__(self, bar: Bar | None, records: Sequence[SuiteRecord]) -> None:
        self._bar, self._left = bar, list(records)

    def ended(self, _: SuiteRecord) -> None:
        while self._left and self._left[0].ended:
            record = self._left.pop(0)
            if self._bar is not None:
                with self._bar.aside():
                    click.echo(of_test(record))


def _show(bar: Bar, at: Progress) -> None:
    left = "" if at.left_s is None else f", {_minutes(at.left_s)} left"
    bar.show(f"{at.ended} of {at.known} trials{left}", at.ended / max(1, at.known))


def _minutes(seconds: float) -> str:
    return f"{max(1, round(seconds / 60))} min"


def _planned(suite: Suite, tests: Sequence[SuiteTest], choice: SuiteChoice, at_once: int) -> str:
    """Return a table of the tests with the trials that each begins with, and their time."""
    table = plain_table("Trials", "test", "title", "trials", "about", "first of them")
    seconds: dict[str, float] = {}
    for test in tests:
        trials = planned(test, choice)
        for trial in trials:
            if trial.key not in seconds:
                seconds[trial.key] = suite.estimate_s(trial)
        count = f"{len(trials)}{' and a search' if test.searches else ''}" if trials else "-"
        first = " ".join(trials[0].words) if trials else test.reason
        taken = sum(seconds[key] for key in {trial.key for trial in trials})
        table.add_row(test.number, test.title, count, f"{taken:.0f} s" if trials else "-", first)
    total = sum(seconds.values()) / at_once
    note = (
        f"{len(seconds)} trials differ: about {_minutes(total)} with {at_once} at a time and as "
        "many idle processors. That is an estimate from the octets that they send and the way of "
        "these; trials of two tests run once, and what a search adds is not in it."
    )
    return page([table, note], to_terminal=False, width=160)
