"""``uetemu cluster``: a scenario of a whole cluster, from its name to its table."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import click

from emulator.cli.options import PARAMETERS, SEED, TABLE_OR_JSON, option, output_option
from emulator.cli.plain_tables import page, plain_table
from emulator.cli.plugin_command import PluginCommand
from emulator.cli.progress_bar import progress_bar
from emulator.cli.reports.traffic_verb import as_data, as_text
from emulator.cluster.run import cluster_scenario as scenarios
from emulator.cluster.run.cluster_runner import ClusterRequest, ClusterResult, execute
from emulator.cluster.run.cluster_scenario import TCP
from emulator.dataplane.cleanup import require_root
from emulator.errors import UserError
from emulator.report.cluster_page import write_cluster_report
from emulator.report.traffic.networks import cluster_tables
from emulator.report.traffic.tables import Bounds
from emulator.scenario import parameter_lines

WIDTH = 150
#: From here on a number has no decimals.
LARGE = 100


@click.command("cluster", cls=PluginCommand)
@click.argument("scenario", required=False)
@option("topology", "The cluster; default: the scenario's.")
@PARAMETERS
@option("stretched", "Host time per time of a network.")
@option("changed", "A parameter of a service.")
@option(
    "transport",
    "TCP; for another one the command that runs it is named.",
    default=TCP,
    show_default=True,
    metavar="NAME",
)
@SEED
@output_option("Folder for the results.")
@click.option(
    "--capture",
    is_flag=True,
    help="Capture headers at all switch ports of all networks, for uetemu traffic.",
)
@click.option(
    "--traffic", is_flag=True, help="Capture, and print all networks side by side at the end."
)
@option("report", "Write the folder's report.html, too.")
@TABLE_OR_JSON
def command(  # noqa: PLR0913  options of the verb
    scenario: str | None,
    topology: str | None,
    pairs: Sequence[str],
    stretched: Sequence[str],
    changed: Sequence[str],
    transport: str,
    seed: int,
    output: Path | None,
    capture: bool,
    traffic: bool,
    report: bool,
    form: str,
) -> None:
    """Run SCENARIO on a cluster with all of its networks, by the host's clock.

    Without SCENARIO: list them, with their parameters.
    """
    if scenario is None:
        click.echo(_listed())
        return
    loaded = scenarios.load(scenario)
    loaded.check_transport(transport)
    parameters = loaded.parameters(_texts(pairs))
    require_root("build a cluster")
    request = ClusterRequest(
        scenario=loaded,
        parameters=parameters,
        topology=topology,
        stretched=stretched,
        changed=changed,
        seed=seed,
        output=output,
        capture=capture or traffic,
    )
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    with progress_bar(f"cluster {scenario}") as progress:
        folder, result = execute(request, progress)
    if form != "json":
        click.echo(_shown(result, folder))
    side_by_side = next(cluster_tables(folder, Bounds())) if traffic else None
    if form == "json":
        more = {} if side_by_side is None else {"traffic": as_data(*side_by_side, Bounds())}
        click.echo(json.dumps(vars(result) | more, indent=2))
    elif side_by_side is not None:
        click.echo(as_text([side_by_side]), nl=False)
    if report:
        click.echo(f"# Report   : {write_cluster_report(folder)}")
    if not result.succeeded:
        raise click.exceptions.Exit(1)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """End the run as Ctrl-C does: what was measured is kept, and the cluster removed."""
    raise KeyboardInterrupt


def _texts(pairs: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not name:
            raise UserError(f"--param {pair!r} is not NAME=VALUE")
        found[name] = value
    return found


def _listed() -> str:
    lines = []
    for name in scenarios.names():
        one = scenarios.load(name)
        lines += [f"{name}: {one.title}", parameter_lines(one.module.Parameters)]
    return "\n".join(lines)


def _shown(result: ClusterResult, folder: Path) -> str:
    """Return the rows in tables, one for each set of columns, with clocks and errors below."""
    shown: list[object] = [f"# {result.scenario} on {result.topology}, seed {result.seed}"]
    groups: dict[tuple[str, ...], list[list[str]]] = {}
    for row in result.rows:
        groups.setdefault(tuple(row), []).append([_cell(value) for value in row.values()])
    for columns, rows in groups.items():
        table = plain_table(None, *columns, right=1)
        for cells in rows:
            table.add_row(*cells)
        shown += ["", table]
    clocks = ", ".join(f"{one['network']} {one['dilation']:g}" for one in result.networks)
    shown += [
        "",
        f"# Clock    : the host's; seconds of it for one of the network's: {clocks}; no digest",
        *(f"# Event    : {event['at_s']:.1f} s  {event['text']}" for event in result.events),
        *(f"# Warning  : {warning}" for warning in result.warnings),
        *(f"# Error    : {error}" for error in result.errors),
        f"# Folder   : {folder}",
    ]
    return page(shown, to_terminal=False, width=WIDTH)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= LARGE else f"{value:.3g}"
    return str(value)
