"""``uetemu traffic``: which messages, flows and packets a workload makes, and what links see."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from emulator.cli.options import PARAMETERS, SEED, option, result_format, waiting_prices
from emulator.cli.plain_tables import page, plain_table
from emulator.cli.plugin_command import PluginCommand
from emulator.cli.run_options import chosen, parameter_texts
from emulator.dataplane.fabric_choice import choose
from emulator.errors import UserError
from emulator.metrics import ENDPOINT
from emulator.report.cluster_page import is_cluster_run
from emulator.report.run.figures.figure import Figure
from emulator.report.run.page import write_files
from emulator.report.run_folder import RunRecord
from emulator.report.traffic.messages import Messages, of_schedules
from emulator.report.traffic.networks import NAME, cluster_tables
from emulator.report.traffic.tables import (
    TITLES,
    Bounds,
    phase_tables,
    run_tables,
    schedule_tables,
)
from emulator.report.waiting_cost import WaitingPrices, with_cost
from topologies.units import parse_size, parse_time_ns

#: Characters of a line, and lines of a table that are shown: JSON has all.
WIDTH, MOST_LINES, MOST_ALONE = 190, 24, 40
#: Tables that only JSON and CSV have.
_LONG = ("ranks", "links", "utilisation-over-time")
#: Servers up to which a matrix is drawn.
MOST_SERVERS = 12
#: The table of what waiting costs, and its title.
WAITING, _WAITING_TITLE = "waiting", "What waiting costs"
#: How a matrix marks what does not stay in a server's scale-up network.
_MARKS = {"rail": "r", "across rails": "x", "server": "s"}


@click.command("traffic", cls=PluginCommand)
@click.argument("sources", metavar="RUN|TRACE|SCENARIO...", nargs=-1, required=True)
@click.option(
    "--row",
    "rows",
    type=click.IntRange(min=1),
    multiple=True,
    help="row of a run's table; several stand side by side [default: the last]",
)
@click.option(
    "--phase",
    "phases",
    metavar="NAME",
    multiple=True,
    help="count a phase of the iteration alone, by its name in the table of phases; * stands for "
    "any letters, and several phases stand side by side",
)
@option("topology", "fabric whose GPUs have the schedules of a scenario or trace")
@PARAMETERS
@SEED
@click.option(
    "--elephant",
    metavar="SIZE",
    default="1MB",
    show_default=True,
    help="a flow of so many octets or more is an elephant, a smaller one a mouse",
)
@click.option(
    "--gap",
    metavar="TIME",
    default="1us",
    show_default=True,
    help="a link that idles so long ends a burst",
)
@click.option(
    "--csv",
    "csv_folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="also write each table as a CSV file there, with the number of its source in front",
)
@waiting_prices
@result_format("json: all records, also by link and rank")
def command(  # noqa: PLR0913  options of the verb
    sources: tuple[str, ...],
    rows: tuple[int, ...],
    phases: tuple[str, ...],
    topology: str | None,
    pairs: Sequence[str],
    seed: int,
    elephant: str,
    gap: str,
    csv_folder: Path | None,
    form: str,
    **prices: float | None,
) -> None:
    """Count messages, flows, packets, entropy, bursts and waiting GPUs of workloads.

    \b
    uetemu traffic runs/llm runs/moe             # folders of runs, side by side
    uetemu traffic step.goal                     # a trace, by its schedules, without a fabric
    uetemu traffic llm:tp=4,dp=6 llm:tp=1,dp=24  # scenarios, likewise

    Of a row of a run the last iteration is counted, and the packets of captured ports: a run with
    --capture all has them of every link.

    With prices it has what GPUs of runs cost that wait for the network.
    """
    costs = WaitingPrices(**prices)
    bounds = Bounds(elephant_bytes=parse_size(elephant), gap_us=parse_time_ns(gap) / 1000)
    if phases and costs.given:
        raise UserError(
            "what waiting costs is of whole iterations; leave --phase or the prices out"
        )
    if (pairs or topology) and all(Path(source).is_dir() for source in sources):
        raise UserError("--param and --topology are of scenarios and traces; a folder has its own")
    given = parameter_texts(pairs, {})

    found: list[tuple[str, Sequence[Figure]]] = []
    for source in sources:
        if costs.given and (not Path(source).is_dir() or is_cluster_run(Path(source))):
            raise UserError(f"{source} is no run folder, and prices are for run folders")
        if is_cluster_run(Path(source)):
            if phases or rows:
                raise UserError(
                    f"{source} is a cluster's, counted as a whole; leave --row and --phase out"
                )
            found += cluster_tables(Path(source), bounds)
            continue
        for row in rows or (None,):
            if Path(source).is_dir():
                found += _of_run(Path(source), row, phases, bounds, costs)
            else:
                found += _of_schedules(source, given, topology, seed, row, phases, bounds)
    if csv_folder is not None:
        files = {
            csv_folder / f"{number}-{one.name}.csv": one.as_csv()
            for number, (_, tables) in enumerate(found, 1)
            for one in tables
        }
        write_files(files, "--csv")
        click.echo(f"uetemu: wrote {len(files)} files to {csv_folder}", err=True)
    if form == "json":
        click.echo(json.dumps([as_data(*one, bounds) for one in found], indent=1, allow_nan=False))
    else:
        click.echo(as_text(found), nl=False)


def _of_run(
    folder: Path,
    row: int | None,
    phases: Sequence[str],
    bounds: Bounds,
    prices: WaitingPrices,
) -> Iterator[tuple[str, Sequence[Figure]]]:
    record = with_cost(RunRecord.read(folder), prices)
    number = record.ports_of(row).row if row is not None else len(record.rows)
    words = record.labels[number - 1] if record.rows else "no row"
    name = f"{record.name}, row {words}"
    if phases:
        choose = partial(_matching, phases, record.name)
        for phase, tables in phase_tables(record, number, bounds, choose):
            yield f"{name}, phase {phase}", tables
        return
    tables = run_tables(record, number, bounds)
    if prices.given:
        tables.append(_waiting(record.rows[number - 1]))
    yield name, tables


def _matching(patterns: Sequence[str], source: str, messages: Messages) -> Sequence[str]:
    """Return the phases that any of the patterns names."""
    for pattern in patterns:
        if not fnmatch.filter(messages.phases, pattern):
            known = ", ".join(messages.phases) or "no message"
            raise UserError(f"{source} has no phase {pattern!r}; it has {known}")
    return [one for one in messages.phases if any(map(partial(fnmatch.fnmatch, one), patterns))]


def _waiting(row: Mapping[str, Any]) -> Figure:
    found = {key: value for key, value in row.items() if key.startswith("waiting_")}
    return Figure(
        name=WAITING,
        title=_WAITING_TITLE,
        point=ENDPOINT,
        note="GPUs that wait, on average of the row's iterations, also for the scale-up network; "
        "watts with their NICs, joules in an iteration, price for an hour.",
        records=[found] if found else (),
        reason=None if found else "nothing in this row waits for the network beside computing",
    )


def _of_schedules(
    source: str,
    given: Mapping[str, str],
    topology: str | None,
    seed: int,
    row: int | None,
    phases: Sequence[str],
    bounds: Bounds,
) -> Iterator[tuple[str, Sequence[Figure]]]:
    """Count a scenario, as ``NAME:PARAMETER=VALUE,...``, or a trace, by the name of its file."""
    if "/" in source.partition(":")[0] and not Path(source.partition(":")[0]).exists():
        raise UserError(f"there is no folder, trace or scenario {source}; name one that is there")
    if Path(source).is_file() and not source.endswith(".py"):
        name, texts = "trace", {"files": source}
    else:
        name, _, rest = source.partition(":")
        # A comma without a = belongs to a list of values.
        texts = parameter_texts(re.split(r",(?=[^,=]+=)", rest) if rest else (), {})
    scenario, texts = chosen(name, {**given, **texts}, None)
    parameters = scenario.parameters(texts)
    requested = topology or scenario.topology(parameters)
    fabric = choose(requested).topology if isinstance(requested, str) else requested
    trials = scenario.schedules(parameters, fabric, seed)
    number = len(trials) if row is None else row
    if number > len(trials):
        raise UserError(f"--row {number}: {source} has rows 1 to {len(trials)}")
    trial = trials[number - 1]
    messages = of_schedules(trial.compile(), fabric, trial.collective)
    words = f"{trial.name}, {len(fabric.gpus)} GPUs of {fabric.name}, by its schedules"
    name = f"{source}, row {number}: {words}"
    if not phases:
        yield name, schedule_tables(messages, fabric, bounds)
    for phase in _matching(phases, source, messages):
        yield f"{name}, phase {phase}", schedule_tables(messages.of(phase), fabric, bounds)


def as_data(name: str, tables: Sequence[Figure], bounds: Bounds) -> Mapping[str, Any]:
    """Return all tables of a source as JSON holds them."""
    return {
        "source": name,
        "elephant_bytes": bounds.elephant_bytes,
        "gap_us": bounds.gap_us,
        "tables": [json.loads(one.as_json()) for one in tables],
    }


def as_text(found: Sequence[tuple[str, Sequence[Figure]]]) -> str:
    """Return each table with the lines of all sources, one below the other."""
    shown: list[object] = [f"# {number}: {name}" for number, (name, _) in enumerate(found, 1)]
    for name in (NAME, *TITLES, WAITING):
        tables = {
            number: one
            for number, (_, tables) in enumerate(found, 1)
            for one in tables
            if one.name == name
        }
        if name in _LONG or not tables:
            continue
        first = next(iter(tables.values()))
        shown += ["", f"## {first.title} (observed at: {first.point})"]
        several = len(found) > 1 and name != NAME
        most = None if name == NAME else MOST_LINES if several else MOST_ALONE
        if name == "servers":
            for number, one in tables.items():
                shown += _matrices(one, f"{number}: " if several else "")
            shown.append(
                "r: on their rail; x: across rails; s: in a server; p: a phase between stages"
            )
        else:
            shown += _shown(tables, several=several, most=most)
    return page(shown, to_terminal=True, width=WIDTH)


def _shown(tables: Mapping[int, Figure], *, several: bool, most: int | None) -> Iterator[object]:
    keys = dict.fromkeys(key for one in tables.values() for record in one.records for key in record)
    drawn = plain_table(None, *(("run",) if several else ()), *map(_heading, keys), right=1)
    left_out = 0
    for number, one in tables.items():
        for record in one.records[:most]:
            cells = [_cell(record.get(key)) for key in keys]
            drawn.add_row(*([str(number)] if several else []), *cells)
        left_out += len(one.records[most:]) if most is not None else 0
    if keys:
        yield drawn
    if left_out:
        yield f"{left_out} more lines: --format json has all"
    for number, one in tables.items():
        if one.reason is not None:
            yield f"{f'{number}: ' if several else ''}not counted: {one.reason}"
    yield from dict.fromkeys(one.note for one in tables.values() if one.note)


def _matrices(found: Figure, run: str) -> Iterator[object]:
    """Yield the octets of each network from each server to each other; JSON has pairs of GPUs."""
    if found.reason is not None:
        yield f"{run}not counted: {found.reason}"
    networks = dict.fromkeys(record["network"] for record in found.records)
    for network in networks:
        mine = [record for record in found.records if record["network"] == network]
        servers = sorted({record[end] for record in mine for end in ("from", "to")}, key=_numbered)
        if len(servers) > MOST_SERVERS:
            yield f"{run}{network}: {len(servers)} servers; --format json has all pairs"
            continue
        drawn = plain_table(None, f"{run}{network}, B from", *servers, right=1)
        for source in servers:
            cells = []
            for destination in servers:
                between = [one for one in mine if (one["from"], one["to"]) == (source, destination)]
                marks = "".join(_MARKS[one["relation"]] for one in between)
                if any("stage" in one["phases"] for one in between):
                    marks += "p"
                octets = sum(one["bytes"] for one in between)
                cells.append(f"{octets:,} {marks}" if between else "-")
            drawn.add_row(source, *cells)
        yield drawn


def _numbered(name: str) -> list[tuple[bool, int | str]]:
    """Return a key that puts h10 behind h9."""
    return [
        (part.isdecimal(), int(part) if part.isdecimal() else part)
        for part in re.split(r"(\d+)", name)
    ]


def _heading(key: str) -> str:
    return key.replace("_", " ").replace(" percent", " %").replace(" bytes", " B")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
