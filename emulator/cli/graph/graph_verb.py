"""``uetemu graph``: a topology, or the fabric of a lab or run, as drawing, tables or export."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from emulator.cli.options import PARAMETERS, delay_bounds
from emulator.cli.plugin_command import Names, PluginCommand
from emulator.dataplane import lab_record
from emulator.dataplane.fabric_choice import choose, is_file
from emulator.errors import UserError
from emulator.report.row_heat import MEASURES, heat
from emulator.report.run_folder import RunRecord, is_run_folder
from emulator.whole_file import write_whole
from emulator.workers import MOST_WORKERS
from topologies import catalogue
from topologies.advice import question
from topologies.exports.dot import scalable, to_dot
from topologies.exports.export_registry import EXPORTS, Export
from topologies.exports.heat import Heat
from topologies.model import BACKEND, NETWORKS, Topology

if TYPE_CHECKING:
    from emulator.cli.graph.partition_table import AskedParts


def _to_containerlab(topology: Topology) -> str:
    from emulator.dataplane.kernel.fabric.containerlab import to_containerlab

    return to_containerlab(topology)


CONTAINERLAB = EXPORTS.register(
    Export("containerlab", "containerlab's YAML", (".clab.yml", ".clab.yaml"), _to_containerlab)
)


def suffixes() -> dict[str, str]:
    """Return the format that a file's suffix chooses, by suffix."""
    return {
        ".dot": "dot",
        ".gv": "dot",
        ".svg": "svg",
        ".txt": "text",
        **{suffix: export.name for export in EXPORTS.values() for suffix in export.suffixes},
    }


#: Formats that show several fabrics side by side.
BILLS = ("bom", "bom-json")
DRAWN = ("dot", "svg")
#: Those that can show what the links of a run saw.
COLOURED = ("text", *DRAWN)
DEFAULT_COLOUR = "utilisation"


@click.command(
    "graph",
    cls=PluginCommand,
    sections=(lambda: "Topologies and their parameters:", catalogue.describe),
)
@click.argument("fabrics", metavar="[TOPOLOGY-SPEC | FILE | LAB | RUN]...", nargs=-1)
@click.option(
    "--format",
    "-f",
    "form",
    type=Names(lambda: ("text", "dot", "svg", "addresses", *BILLS, *EXPORTS)),
    help="Default: what the suffix of -o says, text without one.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, allow_dash=True),
    default="-",
    help="File to write; default standard output.",
)
@click.option(
    "--full",
    is_flag=True,
    help="dot, svg: every server and switch, instead of those that are alike as one.",
)
@click.option(
    "--colour",
    type=click.Choice(list(MEASURES)),
    help=f"RUN: what links are coloured and sorted by; default {DEFAULT_COLOUR}.",
)
@click.option(
    "--row",
    type=int,
    help="RUN: row of the run's table, 1 the first, -1 the last; default the last.",
)
@click.option(
    "--network",
    type=click.Choice(NETWORKS),
    default=BACKEND,
    show_default=True,
    help="Of a cluster: which of its networks.",
)
@click.option(
    "--prices",
    type=click.Path(dir_okay=False),
    help="bom: YAML file with prices of switches, cables, optics and NICs.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, MOST_WORKERS),
    help="text: also the parts of so many workers, or MPI ranks, of a run.",
)
@click.option(
    "--parts",
    "parts_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="text: also the parts that FILE names, as run --parts takes it.",
)
@click.option(
    "--scenario",
    help="--workers, --parts: the scenario whose schedules cross the cuts; its run has the parts "
    "with the least traffic between them.",
)
@PARAMETERS
@delay_bounds
def command(  # noqa: PLR0913  options of the verb
    fabrics: tuple[str, ...],
    form: str | None,
    output: str,
    full: bool,
    colour: str | None,
    row: int | None,
    network: str,
    prices: str | None,
    workers: int | None,
    parts_file: Path | None,
    scenario: str | None,
    pairs: tuple[str, ...],
    delay_bound: int,
    scale_up_bound: int,
) -> None:
    """Draw or export a topology, a fabric profile, the fabric of a lab, or the links of a run.

    What to draw is a topology (NAME or NAME:param=value,...), a fabric profile (FILE.yaml), a
    running lab by its name, or the folder of a run.  Exports are a containerlab lab, an htsim
    .topo file, or tables of addresses.  The bill of materials (bom) takes several, side by side.
    """
    form = form or _form_of(output)
    if (workers is not None or parts_file is not None) and form != "text":
        option = "--parts" if workers is None else "--workers"
        raise UserError(f"{option} is for tables; leave it out, or take --format text")
    asked_parts = _asked_parts(workers, parts_file, scenario, pairs)
    whats = fabrics or (catalogue.DEFAULT,)
    if prices is not None and form not in BILLS:
        raise UserError(f"--prices is for a bill of materials; take --format {' or '.join(BILLS)}")
    if form in BILLS:
        if full or colour is not None or row is not None:
            raise UserError("a bill of materials has no --full, --colour and --row; leave them out")
        write(_billed(whats, form, prices, to_terminal=output == "-"), output)
        return
    if len(whats) > 1:
        raise UserError(
            f"--format {form} shows one fabric, not {len(whats)}; side by side they stand with "
            f"--format {' or '.join(BILLS)}"
        )
    (what,) = whats
    if full and form not in DRAWN:
        raise UserError(f"--full is for drawings; leave it out, or take {' or '.join(DRAWN)}")
    asked = colour is not None or row is not None
    run = _run(what)
    if run is not None and (form in COLOURED or asked):
        if form not in COLOURED:
            raise UserError(
                f"--format {form} does not show what links saw; leave --colour and --row out, or "
                f"take {', '.join(COLOURED)}"
            )
        write(_rendered_run(run, form, full, colour, row, to_terminal=output == "-"), output)
        return
    if run is None and asked:
        raise UserError(f"--colour and --row need the folder of a run, which {what} is not")
    topology = find_topology(what) if run is None else run.fabric
    if topology.network != network:
        topology = topology.network_named(network)
    if form == "text":
        from emulator.cli.graph import graph_tables
        from topologies.analysis.one_way_delay import one_way_delays

        switch = _stated_switch(what) if run is None else None
        if switch is not None:
            from emulator.dataplane.switch import switch_choice

            chosen = switch_choice.requested(switch)
            topology = topology.with_switch_latency(0 if chosen is None else chosen.latency_ns)
        shown = graph_tables.text(
            topology,
            one_way_delays(topology, delay_bound, scale_up_bound),
            switch=switch,
            asked=asked_parts,
            to_terminal=output == "-",
        )
        write(shown, output)
        return
    write(render(topology, form, full=full, to_terminal=output == "-"), output)


def _asked_parts(
    workers: int | None, file: Path | None, scenario: str | None, pairs: Sequence[str]
) -> AskedParts | None:
    """Return the parts that the options ask for, None if none do.  UserError if they differ."""
    if workers is None and file is None:
        if scenario is not None or pairs:
            raise UserError("--scenario and --param are for parts; add --workers N or --parts FILE")
        return None
    from emulator.cli.graph.partition_table import AskedParts
    from emulator.cli.run_options import chosen, parameter_texts, parse_parts

    named = parse_parts(file, None if workers is None else str(workers))
    if scenario is None:
        if pairs:
            raise UserError("--param is of a scenario; add --scenario NAME")
        return AskedParts(workers=workers or 0, named=named)
    loaded, given = chosen(scenario, parameter_texts(pairs, {}), None)
    return AskedParts(
        workers=workers or 0,
        named=named,
        scenario=loaded,
        parameters=loaded.parameters(given),
    )


def _form_of(output: str) -> str:
    """Return the format that a file's suffix names.  UserError if none is known."""
    name = Path(output).name.lower()
    for suffix, form in sorted(suffixes().items(), key=lambda one: -len(one[0])):
        if name.endswith(suffix):
            return form
    if not Path(output).suffix:  # also of -, standard output
        return "text"
    raise UserError(
        f"{output}: the suffix {Path(output).suffix} is none of {', '.join(suffixes())}; take one "
        "of them, or say the format with --format"
    )


def _run(what: str) -> RunRecord | None:
    """The run whose folder ``what`` is, if it is one."""
    if what.partition(":")[0].strip() in catalogue.DESIGNS or what in lab_record.recorded():
        return None
    path = Path(what)
    return RunRecord.read(path) if is_run_folder(path) else None


def find_topology(what: str) -> Topology:
    """The topology that ``what`` names: a spec, a fabric profile, else a running lab's."""
    name = what.partition(":")[0].strip()
    if name in catalogue.DESIGNS or is_file(what):
        return choose(what).topology
    labs = lab_record.recorded()
    if what not in labs and Path(what).is_file():
        return choose(what).topology
    if what not in labs:
        asked = question(name, [*catalogue.DESIGNS, *labs])
        hint = f"{asked} " if asked else ""
        running = f"running labs are {', '.join(labs)}" if labs else "no lab is running"
        raise UserError(
            f"{what!r} is neither a topology nor a running lab nor the folder of a run; {hint}"
            f"topologies are {', '.join(catalogue.DESIGNS)}, and {running}"
        )
    return lab_record.load_topology(what)


def _stated_switch(what: str) -> str | None:
    """The switch that a fabric profile or a running lab names; None: it names none."""
    if is_file(what):
        return choose(what).switch
    record = lab_record.load(what) if what in lab_record.recorded() else None
    return None if record is None else record.switch


def render(topology: Topology, form: str, *, full: bool = False, to_terminal: bool = False) -> str:
    if form in EXPORTS:
        return EXPORTS[form].write(topology)
    from emulator.cli.graph import graph_tables

    if form == "addresses":
        return graph_tables.addresses(topology, to_terminal=to_terminal)
    if form == "text":
        return graph_tables.text(topology, to_terminal=to_terminal)
    return _drawn(topology, form, full=full)


def _billed(whats: Sequence[str], form: str, prices: str | None, *, to_terminal: bool) -> str:
    from emulator.cli.graph import bill_tables

    if len(whats) > bill_tables.MOST_DESIGNS:
        raise UserError(
            f"{len(whats)} fabrics; at most {bill_tables.MOST_DESIGNS} stand side by side"
        )
    priced = None if prices is None else bill_tables.prices_from(prices)
    topologies = []
    for what in whats:
        run = _run(what)
        topologies.append(find_topology(what) if run is None else run.fabric)
    if form == "bom-json":
        return bill_tables.as_json(topologies, priced)
    return bill_tables.text(topologies, priced, to_terminal=to_terminal)


def _rendered_run(
    run: RunRecord,
    form: str,
    full: bool,
    colour: str | None,
    row: int | None,
    *,
    to_terminal: bool,
) -> str:
    colour = colour or DEFAULT_COLOUR
    if form == "text":
        from emulator.cli.graph import graph_tables

        return graph_tables.links_of(run, row, colour, to_terminal=to_terminal)
    return _drawn(run.fabric, form, full=full, heat=heat(run, row, colour))


def _drawn(topology: Topology, form: str, *, full: bool = False, heat: Heat | None = None) -> str:
    source = to_dot(topology, full=full, heat=heat)
    return svg(source, topology.name) if form == "svg" else source


def write(document: str, output: str) -> None:
    """Write ``document`` to the file ``output``, or to standard output for ``-``."""
    if output == "-":
        click.echo(document, nl=False)
        return
    write_whole(Path(output), document)


def svg(source: str, name: str) -> str:
    """``source`` drawn by Graphviz.  Raises UserError where its program ``dot`` is missing."""
    try:
        drawn = subprocess.run(
            ["dot", "-Tsvg"], input=source, capture_output=True, text=True, check=True
        )
    except FileNotFoundError:
        raise UserError(
            "SVG needs the program dot, which is not installed: run vagrant/provision.sh --with "
            "drawings, or take --format dot or mermaid"
        ) from None
    except subprocess.CalledProcessError as error:
        raise UserError(
            f"dot could not draw {name} ({error.stderr.strip()}); "
            "--format dot shows what it was given"
        ) from None
    return scalable(drawn.stdout)
