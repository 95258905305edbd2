"""``uetemu predict``: the test of a cluster's log, run on an emulated fabric."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click

from emulator.cli.options import (
    FABRIC,
    ITERATIONS,
    LAB_NAME,
    PARAMETERS,
    RUN_FOLDER,
    SEED,
    option,
    result_format,
)
from emulator.cli.plugin_command import PluginCommand
from emulator.cli.predict import prediction
from emulator.cli.predict.prediction import (
    Limit,
    check_work,
    collective_of,
    parameters_of,
    run_once,
    scenario_of,
    sizes_of,
)
from emulator.cli.run_options import parameter_texts
from emulator.cli.run_terminal import Bar, modelled_line, progress_bar
from emulator.dataplane.fabric_choice import choose
from emulator.errors import UserError
from emulator.nccl_tests import log_file
from emulator.nccl_tests.cluster_log import COLLECTIVES
from emulator.run.plan.variants import DEFAULT_TRANSPORT
from emulator.run.report import result_table as table
from emulator.run.results import FabricKind, Result
from emulator.run.runner import RunPlan, RunRequest, execute, prepare
from emulator.workers.interrupts import Interrupted
from topologies.units import UnitError, parse_size


@click.command("predict", cls=PluginCommand)
@click.option(
    "--nccl-tests",
    "log_path",
    required=True,
    metavar="LOG",
    type=click.Path(path_type=Path),
    help="what a test such as all_reduce_perf printed, or its JSON (-J)",
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
@click.option(
    "--collective",
    type=click.Choice(list(COLLECTIVES)),
    help="of a log that does not name its test, as older versions do not",
)
@click.option("--largest", metavar="SIZE", help="leave out the log's sizes above this")
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
@result_format("json: what prediction.json holds")
def command(  # noqa: PLR0913  options of the verb
    log_path: Path,
    topology: str,
    transport: str | None,
    switch: str | None,
    fabric: FabricKind,
    collective: str | None,
    largest: str | None,
    cut_to: str | None,
    pairs: Sequence[str],
    iterations: str | None,
    seed: int,
    output: Path | None,
    name: str | None,
    form: str,
) -> None:
    """Run the test of a cluster's log on an emulated fabric, and compare.

    \b
    all_reduce_perf -b 64K -e 16M -f 4 | tee cluster.log      # on the cluster
    uetemu predict --nccl-tests cluster.log --topology rail_clos:hosts=2,gpus_per_host=8
    """
    log = log_file.read(log_path)
    cluster = choose(topology).topology
    ranks = len(cluster.gpus)
    which = collective_of(log, collective, cluster)
    scenario = scenario_of(log, which)
    limit = _limit(largest, cut_to)
    sizes = sizes_of(log, limit)
    given = parameter_texts(pairs, {"iterations": iterations})
    parameters = scenario.parameters(parameters_of(scenario, sizes, given))
    if limit.octets is None:
        check_work(log, sizes, ranks, parameters.warmups + parameters.iterations)
    plan = prepare(
        RunRequest(
            scenario=scenario,
            parameters=parameters,
            topology=topology,
            transport=transport,
            switch=switch,
            seed=seed,
            fabric=fabric,
            capture="none",
            output=output,
            lab=name,
        )
    )
    if plan.compares:
        raise UserError("predict takes one --transport; call it once for each")
    with progress_bar() as bar:
        try:
            result, folder = execute(plan, _Progress(bar))
        except Interrupted as stop:
            bar.end()
            click.echo(f"uetemu: {stop}; the fabric has been removed", err=True)
            sys.exit(stop.exit_status)
    if result.errors:
        raise UserError(result.errors[0])
    measured = dict(zip(run_once(sizes), result.rows, strict=True))
    rows = [prediction.row_of(size, measured[size.run]) for size in sizes]
    content = prediction.content(log, which, result.as_dict(), rows)
    folder.write("prediction.json", content)
    if form == "json":
        click.echo(json.dumps(content, indent=1, allow_nan=False))
    else:
        shown = prediction.table_of(rows)
        click.echo(f"# uetemu predict: {scenario.title}")
        _echo(prediction.cluster_lines(log, which, cluster, rows))
        _echo((*table.wrapped("Topology", plan.spec), *modelled_line(plan)))
        _echo(table.wrapped("Transport", plan.transport))
        _echo((*table.wrapped("Switch", str(result.switch)), "#"))
        _echo(line for row in rows for line in shown.lines(row))
        _echo(prediction.closing_lines(log, sizes, rows))
        _echo(table.trailer(result.as_dict() | {"rows": result.rows}, folder.path))
    if not result.succeeded:
        raise UserError(f"elements are wrong, see {folder.path}/result.json; please report it")


class _Progress:
    """Shows how far the run is, and prints no rows."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar

    def began(self, plan: RunPlan, result: Result) -> None:
        """Do nothing: the heading follows when the run has ended."""

    def progress(self, what: str, share: float | None) -> None:
        self._bar.show(what, share)

    def row(self, row: Mapping[str, object]) -> None:
        """Do nothing: rows are printed beside the log's at the end."""


def _echo(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def _limit(largest: str | None, cut_to: str | None) -> Limit:
    if largest is not None and cut_to is not None:
        raise UserError("--largest leaves sizes out and --cut-to cuts them; keep one of them")
    text = largest if cut_to is None else cut_to
    if text is None:
        return Limit()
    try:
        octets = parse_size(text)
    except UnitError as error:
        raise UserError(f"--{'largest' if cut_to is None else 'cut-to'}: {error}") from None
    return Limit(octets=octets, cut=cut_to is not None)
