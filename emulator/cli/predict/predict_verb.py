"""``uetemu predict``: the test of a cluster's log, run on an emulated fabric."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from emulator.cli.options import (
    FABRIC,
    ITERATIONS,
    LAB_NAME,
    PARAMETERS,
    RUN_FOLDER,
    SEED,
    gpu_direct,
    nic,
    option,
    result_format,
)
from emulator.cli.plugin_command import PluginCommand
from emulator.cli.predict import prediction
from emulator.cli.predict.floor import COLUMNS as FLOOR_COLUMNS
from emulator.cli.predict.floor import Floor, Unseen, closing_lines, floor
from emulator.cli.predict.prediction import (
    Limit,
    check_work,
    collective_of,
    parameters_of,
    run_of,
    scenario_of,
    sizes_of,
)
from emulator.cli.run_options import parameter_texts
from emulator.cli.run_terminal import Bar, modelled_line, progress_bar, taken_times
from emulator.dataplane.fabric_choice import choose
from emulator.errors import UserError
from emulator.nccl_tests import log_file
from emulator.nccl_tests.cluster_log import COLLECTIVES
from emulator.run.plan.variants import DEFAULT_TRANSPORT
from emulator.run.report import result_table as table
from emulator.run.runner import Observer, RunPlan
from emulator.whole_file import write_whole
from emulator.workers.interrupts import Interrupted
from topologies.model import TopologyError


@click.command("predict", cls=PluginCommand)
@click.option(
    "--nccl-tests",
    "--log",
    "log_path",
    metavar="LOG",
    type=click.Path(path_type=Path),
    help="what a test such as all_reduce_perf printed, or its JSON (-J); --floor needs none",
)
@option(
    "topology",
    "the cluster's fabric, with as many GPUs as the log has ranks, such as "
    "rail_clos:hosts=2,gpus_per_host=8, or a fabric profile",
    required=True,
)
@option(
    "transport",
    f"what the endpoints speak, such as rocev2:nccl [default: {DEFAULT_TRANSPORT}]",
)
@option("switch", "what the switches do [default: as `uetemu run` chooses]")
@FABRIC
@nic
@gpu_direct
@click.option(
    "--collective",
    type=click.Choice(list(COLLECTIVES)),
    help="of --floor, or of a log that does not name its test, as older versions do not",
)
@click.option(
    "--floor",
    "floored",
    is_flag=True,
    help="print the bus bandwidths that a healthy cluster should reach; the exit status is 1 where "
    "a log lies below, and 2 where that cannot be told",
)
@click.option("--largest", metavar="SIZE", help="leave out sizes above this")
@click.option(
    "--cut-to",
    "cut_to",
    metavar="SIZE",
    help="run larger sizes with this one, and compare their bus bandwidths",
)
@PARAMETERS
@ITERATIONS
@SEED
@RUN_FOLDER
@LAB_NAME
@click.option(
    "--json",
    "json_path",
    metavar="FILE|-",
    type=click.Path(path_type=Path),
    help="also write what prediction.json or floor.json holds to FILE; -: as --format json",
)
@result_format("json: what prediction.json or floor.json holds")
def command(  # noqa: PLR0913  options of the verb
    log_path: Path | None,
    topology: str,
    collective: str | None,
    floored: bool,
    largest: str | None,
    cut_to: str | None,
    pairs: Sequence[str],
    iterations: str | None,
    name: str | None,
    json_path: Path | None,
    form: str,
    **run: Any,
) -> None:
    """Run the test of a cluster's log on an emulated fabric, and compare.

    \b
    all_reduce_perf -b 64K -e 16M -f 4 | tee cluster.log      # on the cluster
    uetemu predict --nccl-tests cluster.log --topology rail_clos:hosts=2,gpus_per_host=8
    uetemu predict --floor --collective all_reduce --topology rail_clos:hosts=2,gpus_per_host=8
    """
    content: Mapping[str, object]
    lines: Iterable[str]
    wrong = below = ""
    try:
        limit = Limit.of(largest, cut_to)
        given = parameter_texts(pairs, {"iterations": iterations})
        run |= {"topology": topology, "lab": name}
        if floored:
            if run["gpu_direct"] != "on":
                raise UserError(
                    "--floor is what a healthy cluster reaches, and one with --gpu-direct off is "
                    "not: leave one of them out"
                )
            with _observed() as observer:
                found = floor(
                    collective=collective,
                    log=log_path,
                    parameters=given,
                    limit=limit,
                    observer=observer,
                    **run,
                )
            content, lines = found.as_dict(), _floor_lines(found)
            if found.below:
                below = f"{len(found.below)} of {len(found.rows)} sizes lie below the floor"
        elif log_path is None:
            raise UserError("give a log with --nccl-tests, or --floor to do without one")
        else:
            content, lines, wrong = _predicted(log_path, collective, limit, given, run)
        if json_path == Path("-") or form == "json":
            click.echo(json.dumps(content, indent=1, allow_nan=False))
        else:
            _echo(lines)
        if json_path is not None and json_path != Path("-"):
            write_whole(json_path, json.dumps(content, indent=1, allow_nan=False) + "\n")
    except (UserError, TopologyError) as error:
        if not floored:
            raise
        raise _Untold(str(error)) from error
    if wrong or below:
        raise UserError(wrong or below)


class _Untold(click.ClickException):
    """It cannot be told whether a log lies below the floor."""

    exit_code = 2


def _predicted(
    path: Path,
    collective: str | None,
    limit: Limit,
    given: Mapping[str, str],
    run: Mapping[str, Any],
) -> tuple[Mapping[str, object], Iterable[str], str]:
    """Return what prediction.json holds, the lines of the table, and what is wrong."""
    log = log_file.read(path)
    cluster = choose(run["topology"]).topology
    ranks = len(cluster.gpus)
    which = collective_of(log, collective, cluster)
    scenario = scenario_of(log, which)
    sizes = sizes_of(log, limit, given)
    chosen = parameters_of(scenario, sizes, given)
    parameters = scenario.parameters(chosen)
    if limit.octets is None:
        check_work(log.source, sizes, ranks, parameters.warmups + parameters.iterations)
    with _observed() as observer:
        done = run_of(scenario, chosen, sizes, observer, **run)
    result, folder = done.result, done.folder
    rows = [prediction.row_of(size, done.rows[size.run, size.cut]) for size in sizes]
    content = prediction.content(log, which, result.as_dict(), rows)
    folder.write("prediction.json", content)
    shown = prediction.table_of(rows)
    lines = (
        f"# uetemu predict: {scenario.title}",
        *prediction.cluster_lines(log, which, cluster, rows),
        *_fabric_lines(done.plan, str(result.switch)),
        *(line for row in rows for line in shown.lines(row)),
        *prediction.closing_lines(log, sizes, rows),
        *table.trailer(result.as_dict() | {"rows": result.rows}, folder.path),
    )
    return content, lines, done.wrong


def _floor_lines(found: Floor) -> Iterator[str]:
    rows = found.rows
    shown = prediction.table_of(rows, FLOOR_COLUMNS)
    yield f"# uetemu predict: {found.plan.request.scenario.title}"
    ranks = found.result["ranks"]
    what = f"what {found.collective}_perf should reach over {ranks} ranks of this fabric"
    yield from table.wrapped("Floor", what)
    yield from _fabric_lines(found.plan, str(found.result["switch"]))
    yield from (line for row in rows for line in shown.lines(row))
    yield from closing_lines(found)
    yield from table.trailer(found.result, found.folder)


def _fabric_lines(plan: RunPlan, switch: str) -> Iterator[str]:
    yield from table.wrapped("Topology", plan.spec)
    yield from modelled_line(plan)
    yield from table.wrapped("Transport", plan.transport)
    yield from table.wrapped("Switch", switch)
    yield from table.wrapped("NICs and GPUs", taken_times(plan))
    yield "#"


@contextmanager
def _observed() -> Iterator[Observer]:
    """Show how far the run is; leave the command where a signal interrupts it."""
    with progress_bar() as bar:
        try:
            yield _Progress(bar)
        except Interrupted as stop:
            bar.end()
            click.echo(f"uetemu: {stop}; the fabric has been removed", err=True)
            sys.exit(stop.exit_status)


class _Progress(Unseen):
    """Shows how far the run is, and prints no rows."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar

    def progress(self, what: str, share: float | None) -> None:
        self._bar.show(what, share)


def _echo(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)
