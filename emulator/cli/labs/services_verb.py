"""``uetemu services``: the kinds of service, or those of a running cluster."""

from __future__ import annotations

import json
import shutil

import click

from emulator import lab_record
from emulator.cli.plain_tables import page, plain_table
from emulator.lab import Lab
from emulator.services.service_registry import ServiceKind, service_kinds
from emulator.services.service_runner import Services


@click.command("services")
@click.argument("lab", required=False)
@click.option("--format", "-f", "form", type=click.Choice(["table", "json"]), default="table")
def command(lab: str | None, form: str) -> None:
    """List the services that a cluster can have, or those of the cluster LAB and their state.

    Start them with the cluster: uetemu up cluster --services all.  The exit status is 1 if one of
    LAB has died.
    """
    if lab is None:
        rows = [_kind_facts(kind) for kind in service_kinds().values()]
        _show(rows, "Services", form)
        return
    with Lab.attach(lab) as running:
        services = Services.of_lab(lab_record.directory_of(running.name))
    _show([dict(row) for row in services.rows()], f"Services of {lab}", form)
    services.check_alive()


def _kind_facts(kind: ServiceKind) -> dict[str, object]:
    missing = [one.package for one in kind.programs if shutil.which(one.command) is None]
    return {
        "service": kind.name,
        "network": kind.network,
        "port": kind.port,
        "what": kind.summary,
        "missing": ", ".join(missing),
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
