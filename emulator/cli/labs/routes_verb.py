"""``uetemu routes``: what a node was told of routes, what it chose, what it tells others."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network
from pathlib import Path

import click
from rich.table import Table

from emulator.cli.labs.lab_choice import node_of
from emulator.cli.options import LAB, TABLE_OR_JSON, option
from emulator.cli.plain_tables import page, plain_table
from emulator.dataplane.cleanup import require_root
from emulator.dataplane.control_plane import routing_tables
from emulator.dataplane.control_plane.routing_tables import (
    BEST,
    BgpPath,
    RibRoute,
    RouteRow,
    RoutesRecord,
)
from emulator.dataplane.fabric_choice import choose
from emulator.dataplane.lab import Lab
from emulator.errors import UserError
from emulator.report.run_folder import RunRecord
from topologies.advice import question
from topologies.exports.picture import span
from topologies.model import Topology

WIDTH = 150
NAMES = {
    "export_policy": "export policy",
    "rib": "RIB",
    "loc_rib": "Loc-RIB",
    "adj_rib_in": "Adj-RIB-In",
    "adj_rib_out": "Adj-RIB-Out",
}
COLUMNS = ("rib", "loc_rib", "adj_rib_in", "adj_rib_out")


@click.command("routes")
@click.argument("node", metavar="[LAB:]NODE")
@LAB
@click.option("--run", type=click.Path(path_type=Path), help="of this run folder, not of a lab.")
@option("topology", "of this fabric, which need not run: the routes that follow from it.")
@click.option("--prefix", metavar="PREFIX", help="only routes that cover it, or lie in it.")
@TABLE_OR_JSON
def command(
    node: str,
    lab: str | None,
    run: Path | None,
    topology: str | None,
    prefix: str | None,
    form: str,
) -> None:
    """Show the routes of NODE: RIB, Loc-RIB, export policy, Adj-RIB-In and Adj-RIB-Out.

    \b
    uetemu routes rail0
    uetemu routes demo:rail0 --prefix 10.0.1.0/24
    uetemu routes rail0 --run runs/1 --format json
    uetemu routes rail0 --topology pod.yaml

    FRR is asked, or the run has asked it at its end.  Of a static fabric the topology says what
    stands in their place.
    """
    if sum(given is not None for given in (lab, run, topology)) > 1:
        raise UserError("--lab, --run and --topology each say where to look; give one of them")
    wanted = None if prefix is None else _network(prefix)
    if run is not None:
        record = _of_run(run, node)
    elif topology is not None:
        record = _of_fabric(choose(topology).topology, node, "topology")
    else:
        record = _of_lab(lab, node)
    if wanted is not None:
        record = routing_tables.overlapping(record, wanted)
    click.echo(json.dumps(record, indent=2) if form == "json" else _text(record), nl=form == "json")


def _network(prefix: str) -> IPv4Network:
    try:
        return IPv4Network(prefix, strict=False)
    except ValueError:
        raise UserError(
            f"--prefix {prefix!r} is no IPv4 prefix; say one such as 10.0.1.0/24"
        ) from None


def _of_lab(lab: str | None, node: str) -> RoutesRecord:
    require_root("ask a node for its routes")
    record, name = node_of(lab, node)
    with Lab.attach(record.lab) as running:
        source = f"lab {record.lab}"
        if running.routing is not None and running.topology.node(name).is_switch:
            return routing_tables.asked(running.routing, name, source)
        kernel = routing_tables.living_routes(running.exec(name, ["ip", "-j", "route"]).stdout)
        return routing_tables.computed(running.topology, name, source, kernel=kernel)


def _of_run(run: Path, node: str) -> RoutesRecord:
    topology = RunRecord.read(run).fabric
    left = routing_tables.left_in(run, node) if node in topology.by_name else None
    return left or _of_fabric(topology, node, f"run {run}")


def _of_fabric(topology: Topology, node: str, source: str) -> RoutesRecord:
    """Return the routes of ``node``, which may be in other networks of a cluster, or in several."""
    fabrics = (topology, *topology.networks)
    found = [fabric for fabric in fabrics if node in fabric.by_name]
    if not found:
        names = [name for fabric in fabrics for name in fabric.by_name]
        hint = question(node, names, otherwise=f"nodes are {span(list(topology.by_name))}")
        raise UserError(f"{topology.name} has no node {node!r}; {hint}")
    first, *others = (routing_tables.computed(fabric, node, source) for fabric in found)
    return {**first, "routes": [row for one in (first, *others) for row in one["routes"]]}


def _text(record: RoutesRecord) -> str:
    stands_in, policy = record["stands_in"], record["export_policy"]
    shown: list[object] = [
        f"{record['node']}: control plane {record['control_plane']}; {record['source']}",
        *(f"export policy, {key}: {', '.join(lines)}" for key, lines in policy.items()),
    ]
    shown += [f"{NAMES[column]}: {words}" for column, words in stands_in.items()]
    for family in dict.fromkeys(row["family"] for row in record["routes"]):
        rows = [row for row in record["routes"] if row["family"] == family]
        shown += [_table(rows, with_rib=any(row["rib"] for row in rows))]
    return page(shown if record["routes"] else [*shown, "no route"], to_terminal=True, width=WIDTH)


def _table(rows: Iterable[RouteRow], *, with_rib: bool) -> Table:
    """Return ``rows`` as a table, without routes that nobody uses; EVPN's are in no RIB."""
    columns = [NAMES[key] for key in COLUMNS if with_rib or key != "rib"]
    table = plain_table(None, "prefix", *columns)
    for row in rows:
        vrf = "" if row["vrf"] == routing_tables.DEFAULT_VRF else f" of {row['vrf']}"
        rib = [_route(route) for route in row["rib"] if route["chosen"]]
        cells = (
            *(["; ".join(rib) or "-"] if with_rib else []),
            _chosen(row["loc_rib"]),
            _many(path["peer"] for path in row["adj_rib_in"]),
            "a summary in its place" if row["suppressed"] else _many(row["adj_rib_out"]),
        )
        if any(cell != "-" for cell in cells):
            table.add_row(row["prefix"] + vrf, *cells)
    return table


def _route(route: RibRoute) -> str:
    if route["protocol"] == routing_tables.OWN:
        return routing_tables.OWN
    return f"{route['protocol']}: {', '.join(route['next_hops']) or '-'}"


def _many(peers: Iterable[str | None]) -> str:
    """Return the names of ``peers``, with the number of their sessions where there are several."""
    counted = Counter(_switch(peer) for peer in peers)
    return ", ".join(name if n == 1 else f"{name} x {n}" for name, n in counted.items()) or "-"


def _switch(peer: str | None) -> str:
    return routing_tables.OWN if peer is None else peer.partition(" ")[0]


def _chosen(paths: Sequence[BgpPath]) -> str:
    """Return the best path by its peer and AS path, and how many others forward as well."""
    best = next((path for path in paths if path["choice"] == BEST), None)
    if best is None:
        return "-"
    systems = f" [{best['as_path']}]" if best["as_path"] else ""
    others = len(paths) - 1
    return f"{_switch(best['peer'])}{systems}" + (f" and {others} equal" if others else "")
