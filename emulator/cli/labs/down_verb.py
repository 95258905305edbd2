"""``uetemu down``: take a running lab down."""

from __future__ import annotations

import click

from emulator.dataplane.cleanup import take_down


@click.command("down")
@click.argument("lab")
def command(lab: str) -> None:
    """Take LAB down: end what runs in it and remove every trace of it."""
    removed = take_down(lab)
    click.echo(f"lab {lab} is down: removed {removed}")
