"""``uetemu graph``: a topology, or the fabric of a running lab, as tables, drawing or data."""

from __future__ import annotations

import difflib
import io
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table

from emulator.errors import UserError
from topologies import catalogue
from topologies.addressing import path_delays
from topologies.capacity import (
    TIERS,
    bisection_bandwidth,
    format_ratio,
    oversubscription,
    rates,
)
from topologies.export import as_data, bundle_rate, bundles, to_dot, to_mermaid
from topologies.model import End, Port, Topology
from topologies.units import format_rate, format_size, format_time

STATE_DIRECTORY = Path("/run/uetemu")
SUFFIXES = {
    ".dot": "dot",
    ".gv": "dot",
    ".svg": "svg",
    ".mmd": "mermaid",
    ".json": "json",
    ".txt": "text",
}
FORMATS = ("text", "dot", "svg", "mermaid", "json")
#: Tables longer than this are for `--format json`, not for reading.
LONGEST_TABLE = 64


@click.command(
    "graph",
    epilog="\b\nTopologies and their parameters:\n\n\b\n" + catalogue.describe(),
)
@click.argument("what", metavar="[TOPOLOGY-SPEC | LAB]", default=catalogue.DEFAULT)
@click.option(
    "--format",
    "-f",
    "form",
    type=click.Choice(FORMATS),
    help="Default: what the suffix of -o says, text without one.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, allow_dash=True),
    default="-",
    help="File to write; default standard output.",
)
def command(what: str, form: str | None, output: str) -> None:
    """Draw a topology (NAME or NAME:param=value,...) or the fabric of a running lab."""
    topology = find_topology(what)
    form = form or _form_of(output)
    write(render(topology, form, to_terminal=output == "-"), output)


def _form_of(output: str) -> str:
    """The format that the suffix of a file says.  UserError if it says none that is known."""
    suffix = Path(output).suffix
    if not suffix:  # also of -, standard output
        return "text"
    if suffix.lower() not in SUFFIXES:
        raise UserError(
            f"{output}: the suffix {suffix} is none of {', '.join(SUFFIXES)}; take one of them, "
            "or say the format with --format"
        )
    return SUFFIXES[suffix.lower()]


def find_topology(what: str) -> Topology:
    """The topology that ``what`` names: a spec of the catalogue, else a running lab's."""
    name = what.partition(":")[0].strip()
    if name in catalogue.DESIGNS:
        return catalogue.load(what)
    labs = sorted(path.parent.name for path in STATE_DIRECTORY.glob("*/lab.json"))
    if what not in labs:
        close = difflib.get_close_matches(name, [*catalogue.DESIGNS, *labs], n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        running = f"running labs are {', '.join(labs)}" if labs else "no lab is running"
        raise UserError(
            f"{what!r} is neither a topology nor a running lab; {hint}"
            f"topologies are {', '.join(catalogue.DESIGNS)}, and {running}"
        )
    record = STATE_DIRECTORY / what / "lab.json"
    try:
        spec = json.loads(record.read_text())["topology_spec"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"the record {record} of lab {what} cannot be read ({error}); "
            "`uetemu clean` removes what is left of the lab"
        ) from None
    return catalogue.load(str(spec))


def render(topology: Topology, form: str, *, to_terminal: bool = False) -> str:
    """``topology`` in one of FORMATS."""
    if form == "dot":
        return to_dot(topology)
    if form == "svg":
        return svg(topology)
    if form == "mermaid":
        return to_mermaid(topology)
    if form == "json":
        return json.dumps(as_data(topology), indent=2) + "\n"
    return text(topology, to_terminal=to_terminal)


def write(document: str, output: str) -> None:
    """Write ``document`` to the file ``output``, or to standard output for ``-``."""
    if output == "-":
        click.echo(document, nl=False)
        return
    try:
        Path(output).write_text(document, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{output} cannot be written: {error.strerror}; choose another -o"
        ) from None


def svg(topology: Topology) -> str:
    """``topology`` drawn by Graphviz.  Raises UserError where its program ``dot`` is missing."""
    try:
        drawn = subprocess.run(
            ["dot", "-Tsvg"], input=to_dot(topology), capture_output=True, text=True, check=True
        )
    except FileNotFoundError:
        raise UserError(
            "SVG needs the program dot, which is not installed: install the package graphviz, "
            "or take --format dot or mermaid"
        ) from None
    except subprocess.CalledProcessError as error:
        raise UserError(
            f"dot could not draw {topology.name} ({error.stderr.strip()}); "
            "--format dot shows what it was given"
        ) from None
    return drawn.stdout


def text(topology: Topology, *, to_terminal: bool = False) -> str:
    """Summary, tiers, rails and uplinks as tables, coloured only for a terminal."""
    colour = to_terminal and sys.stdout.isatty()
    page = io.StringIO()
    console = Console(
        file=page, width=None if colour else 120, force_terminal=colour, highlight=False
    )
    console.print(_summary(topology), "", sep="\n")
    for table in (_tiers(topology), _rails(topology), _uplinks(topology)):
        if table.row_count > LONGEST_TABLE:
            console.print(f"{table.title}: {table.row_count} rows, see --format json")
        elif table.row_count:
            console.print(table)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()).rstrip() + "\n"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.MARKDOWN)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _summary(topology: Topology) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    links, sizes = topology.links, sorted({len(server.gpus) for server in topology.servers})
    shape = "-".join(str(size) for size in dict.fromkeys((sizes[0], sizes[-1])))
    table.add_row("topology", topology.name)
    table.add_row("GPUs", f"{len(topology.gpus)} ({len(topology.servers)} x {shape})")
    table.add_row("links", str(len(links)))
    table.add_row("link delay", _each((link.delay_ns for link in links), format_time))
    table.add_row("MTU", _each((link.mtu for link in links), format_size))
    table.add_row("egress queue", _each((link.buffer_bytes for link in links), format_size))
    for scale_up in dict.fromkeys(server.scale_up for server in topology.servers):
        rate, latency = format_rate(scale_up.rate_bps), format_time(scale_up.latency_ns)
        table.add_row("scale-up", f"{rate} per GPU each way, {latency}")
    for name, bps in bisection_bandwidth(topology).items():
        table.add_row(f"bisection, {name}", f"{format_rate(bps)} each way")
    if delays := path_delays(topology, topology.gpus[0].name).values():
        table.add_row("one-way delay", f"{_each(delays, format_time)} (sum of link delays)")
    return table


def _each(values: Iterable[int], shown: Callable[[int], str]) -> str:
    return ", ".join(shown(value) for value in sorted(set(values)))


def _tiers(topology: Topology) -> Table:
    table = _table("Tiers", "tier", "nodes", "down", "up", "oversubscription")
    ratios = oversubscription(topology)
    for tier in reversed(TIERS):
        nodes = [node for node in topology.nodes if node.role is tier]
        if not nodes:
            continue
        sides = [rates(topology, node) for node in nodes]
        down, up = (
            "; ".join(dict.fromkeys(_ports(counts) for counts in side))
            for side in zip(*sides, strict=True)
        )
        ratio = format_ratio(ratios[tier]) if tier in ratios else "-"
        table.add_row(tier.value, str(len(nodes)), down, up, ratio)
    return table


def _ports(counts: Counter[int]) -> str:
    shown = (f"{count} x {format_rate(rate)}" for rate, count in sorted(counts.items()))
    return " + ".join(shown) or "-"


def _rails(topology: Topology) -> Table:
    table = _table("Rails", "rail", "switch", "subnet", "gateway", "GPUs", "addresses", "ports")
    for switch in topology.switches:
        for bridge in switch.bridges:
            assert bridge.gateway is not None  # only a shared NIC has none
            members = [port.name for port in switch.ports if port.bridge == bridge.name]
            gpus = [far for name in members for far in topology.beyond(End(switch.name, name))]
            addresses = [
                str(port.address.ip)
                for _, port in gpus
                if isinstance(port, Port) and port.address is not None
            ]
            table.add_row(
                str(bridge.rail),
                switch.name,
                str(bridge.gateway.network),
                str(bridge.gateway.ip),
                _span([far.node for far, _ in gpus]),
                _span(addresses),
                _span(members),
            )
    return table


def _uplinks(topology: Topology) -> Table:
    table = _table("Switch - switch links", "from", "to", "rate", "subnets")
    for lower, upper, links in bundles(topology):
        if not lower.is_switch:
            continue
        ends = [sorted(link.ends, key=lambda end: end.node == upper.name) for link in links]
        subnets = [
            str(address.network) for ours, _ in ends if (address := lower.port(ours.port).address)
        ]
        table.add_row(
            f"{lower.name}:{_span([ours.port for ours, _ in ends])}",
            f"{upper.name}:{_span([theirs.port for _, theirs in ends])}",
            bundle_rate(links),
            _span(subnets),
        )
    return table


def _span(items: list[str]) -> str:
    if not items:
        return "-"
    return items[0] if len(items) == 1 else f"{items[0]} .. {items[-1]}"
