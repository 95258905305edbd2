"""``uetemu list``: scenarios, topologies, transports and switches by name, a line for each."""

from __future__ import annotations

import click

from emulator import scenario
from emulator.cli.plugin_command import PluginCommand
from emulator.dataplane.switch import switch_choice
from emulator.transports import TRANSPORTS
from topologies.catalogue import DESIGNS


@click.command("list", cls=PluginCommand)
def command() -> None:
    """List scenarios, topologies, transports and switches, a line for each."""
    kinds = {
        "scenarios (uetemu run NAME)": {
            name: scenario.load(name).title.removeprefix(f"{name.capitalize()}: ")
            for name in scenario.names()
        },
        "topologies (--topology NAME)": {name: one.meaning for name, one in DESIGNS.items()},
        "transports (--transport NAME)": {
            name: transport.meaning for name, transport in TRANSPORTS.items()
        },
        "switches (--switch NAME)": switch_choice.MEANINGS,
    }
    width = max(len(name) for names in kinds.values() for name in names)
    for kind, names in kinds.items():
        click.echo(f"{kind}:")
        for name, meaning in names.items():
            click.echo(f"  {name:{width}}  {meaning}")
