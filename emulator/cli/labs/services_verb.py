"""``uetemu services``: the kinds of service, or those of a running cluster."""

from __future__ import annotations

import json

import click

from emulator.cli.options import TABLE_OR_JSON
from emulator.cli.plain_tables import page, plain_table
from emulator.cli.plugin_command import PluginCommand
from emulator.cluster.services.cabling import cabling
from emulator.cluster.services.service_plan import KINDS, ServiceKind, missing
from emulator.cluster.services.service_runner import Services
from emulator.dataplane import lab_record
from emulator.dataplane.lab import Lab
from emulator.errors import UserError
from topologies.model import Topology


@click.command("services", cls=PluginCommand)
@click.argument("lab", required=False)
@TABLE_OR_JSON
@click.option(
    "--cabling", "checked", is_flag=True, help="Compare what LLDP reports with the model."
)
def command(lab: str | None, form: str, checked: bool) -> None:
    """List the services that a cluster can have, or those of the cluster LAB and their state.

    Start them with the cluster: uetemu up cluster --services all.  The exit status is 1 if one of
    LAB has died, or a cable is not where the model has it.
    """
    if checked and lab is None:
        raise UserError("--cabling is for a running cluster: uetemu services LAB --cabling")
    if lab is None:
        rows = [_kind_facts(kind) for kind in KINDS.values()]
        _show(rows, "Services", form)
        return
    with Lab.attach(lab) as running:
        services = Services.of_lab(lab_record.directory_of(running.name))
        topology = running.topology
    if checked:
        _compare(topology, services, form)
        return
    _show([dict(row) for row in services.rows()], f"Services of {lab}", form)
    services.check_alive()


def _compare(topology: Topology, services: Services, form: str) -> None:
    rows = list(cabling(topology, services))
    shown: list[dict[str, object]] = [
        {
            "end": str(row.end),
            "model": str(row.modelled),
            "LLDP": str(row.reported or ""),
            "": "" if row.right else "differs",
        }
        for row in rows
    ]
    _show(shown, "Cabling", form)
    wrong = [row for row in rows if not row.right]
    if wrong:
        raise UserError(
            f"{len(wrong)} of {len(rows)} ends of cables differ from the model, such as "
            f"{wrong[0].end}: a cable is down, or lldpd has not heard from it yet"
        )


def _kind_facts(kind: ServiceKind) -> dict[str, object]:
    return {
        "service": kind.name,
        "network": kind.network,
        "port": kind.port,
        "what": kind.meaning,
        "missing": ", ".join(one.package for one in missing(kind)),
    }


def _show(rows: list[dict[str, object]], title: str, form: str) -> None:
    if form == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        click.echo(f"{title}: none")
        return
    table = plain_table(title, *rows[0])
    for row in rows:
        table.add_row(*("-" if value in (None, "") else str(value) for value in row.values()))
    click.echo(page([table], to_terminal=False))
