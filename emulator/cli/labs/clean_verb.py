"""``uetemu clean``: find and remove what a lab left behind."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from emulator.cli.options import TABLE_OR_JSON
from emulator.dataplane import lab_record
from emulator.dataplane.cleanup import exists, leftovers, require_root, take_down
from emulator.dataplane.kernel.programs import compiler
from emulator.errors import UserError
from emulator.suite.farm import scratch_folder


@click.command("clean")
@click.argument("labs", metavar="[LAB]...", nargs=-1)
@click.option(
    "--all", "everything", is_flag=True, help="All leftovers (also when no LAB is named)."
)
@click.option("--force", is_flag=True, help="Also end the process that is using the lab.")
@TABLE_OR_JSON
def command(labs: tuple[str, ...], everything: bool, force: bool, form: str) -> None:
    """Remove LABs by name, or what labs left behind whose process has died.

    Labs that run are not leftovers: neither those made by `uetemu up` nor those in use.
    """
    require_root("remove a lab")
    if labs and everything:
        raise UserError("name labs or say --all, not both")
    lab_record.erase_unfinished()
    # a leftover may go by itself meanwhile; a lab that was named has to be there
    found = labs or [lab for lab in leftovers() if exists(lab)]
    removed = [take_down(lab, force=force) for lab in found]
    scratch = 0 if labs else compiler.remove_abandoned()
    farmed = 0 if labs else scratch_folder.remove_abandoned()
    if form == "json":
        click.echo(json.dumps([asdict(item) for item in removed], indent=2))
        return
    for item in removed:
        click.echo(f"lab {item.lab}: removed {item}")
    if scratch:
        click.echo(f"compilations that were killed: removed {scratch} directories")
    if farmed:
        click.echo(f"ranks that were killed: removed {farmed} folders of their trials")
    if not removed and not scratch and not farmed:
        click.echo("nothing was left behind")
