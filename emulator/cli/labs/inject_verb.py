"""``uetemu inject``: apply and heal faults of a running lab's cables."""

from __future__ import annotations

import json

import click

from emulator.cli.labs.lab_choice import with_node
from emulator.cli.options import TABLE_OR_JSON
from emulator.dataplane.lab import Lab
from emulator.dataplane.lab_record import LabRecord
from emulator.errors import UserError
from emulator.run.faults import grammar
from emulator.run.faults.fault_injector import recorded
from emulator.run.faults.live_injection import inject


@click.command("inject", epilog=f"\b\n{grammar.describe()}")
@click.argument("lab")
@click.argument("fault", required=False)
@click.option("--list", "listing", is_flag=True, help="Only say what is struck now.")
@TABLE_OR_JSON
def command(lab: str, fault: str | None, listing: bool, form: str) -> None:
    """Let FAULT happen to LAB at once, such as "link rail0:up1 down"; "heal" mends everything.

    What is struck stays so until it is healed, by whichever process, or the lab is taken down.
    """
    if listing == (fault is not None) or (fault is not None and not fault.strip()):
        raise UserError(
            'say what is to happen, such as uetemu inject LAB "link rail0:up1 down", or ask with '
            "uetemu inject LAB --list what has"
        )
    with Lab.attach(lab) as running:
        if fault is None:
            condition = recorded(running.name, running.topology)
        else:
            try:
                condition = inject(running, fault)
            except UserError as wrong:
                raise UserError(f"{wrong}{_elsewhere(running.record, fault)}") from None
    if form == "json":
        click.echo(json.dumps({"lab": lab, "struck": condition.words(), **condition.as_data()}))
    elif condition.sound:
        click.echo(f"lab {lab}: nothing is struck")
    else:
        click.echo("\n".join(f"lab {lab}: {words}" for words in condition.words()))


def _elsewhere(record: LabRecord, fault: str) -> str:
    """Return in words which other network of the cluster has a node that ``fault`` names."""
    for word in fault.split():
        node = word.partition(":")[0]
        other = with_node(record, node)
        if other is not record:
            return f"; {node} is in lab {other.lab}: uetemu inject {other.lab}"
    return ""
