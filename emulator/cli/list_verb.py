"""``uetemu list``: what is chosen by name, a line for each."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from emulator import scenario
from emulator.cli.plugin_command import PluginCommand
from emulator.cluster.services.service_plan import KINDS
from emulator.dataplane.switch import switch_choice
from emulator.dataplane.switch.balancing import METHODS
from emulator.metrics import METRICS
from emulator.rocev2.congestion import dcqcn_parameters
from emulator.rocev2.congestion.rate_registry import RATE_CONTROLS
from emulator.sim.endpoint.nic import nic_profile
from emulator.transports import TRANSPORTS
from topologies.catalogue import DESIGNS
from topologies.exports.export_registry import EXPORTS
from topologies.parts import scale_up_products
from uet.congestion.control_registry import CONTROLS
from uet.congestion.spraying.policies import SPRAYING


@click.command("list", cls=PluginCommand)
def command() -> None:
    """List scenarios, topologies, transports, switches and more, a line for each."""
    kinds = {
        "scenarios (uetemu run NAME)": {
            name: scenario.load(name).title.removeprefix(f"{name.capitalize()}: ")
            for name in scenario.names()
        },
        "topologies (--topology NAME)": _meanings(DESIGNS),
        "transports (--transport NAME)": _meanings(TRANSPORTS),
        "congestion control (--transport uet:cc=NAME)": _meanings(CONTROLS),
        "congestion control (--transport rocev2:cc=NAME)": _meanings(RATE_CONTROLS),
        "parameters of DCQCN (--transport rocev2:dcqcn=NAME)": dcqcn_parameters.MEANINGS,
        "ways of spraying (--transport uet:spray=NAME)": _meanings(SPRAYING),
        "switches (--switch NAME)": switch_choice.MEANINGS,
        "load balancing (--switch shallow:balance=NAME)": _meanings(METHODS),
        "NICs that take time, in ns, * a guess (--nic NAME)": nic_profile.meanings(),
        "scale-up networks (--topology rail_clos:scale_up=NAME)": scale_up_products.meanings(),
        "libraries that take time (uetemu run allreduce --param library=NAME)": {
            name: library.fitted
            for name, library in import_module("scenarios.collectives.library").LIBRARIES.items()
        },
        "exports (uetemu graph --format NAME)": _meanings(EXPORTS),
        "trace formats (uetemu run trace --param format=NAME)": _meanings(
            import_module("scenarios.traces.format_registry").FORMATS
        ),
        "services of clusters (uetemu up cluster --services NAME)": _meanings(KINDS),
    }
    if own := METRICS.added():
        kinds["metrics of your files"] = {one.key: one.meaning for one in own}
    width = max(len(name) for names in kinds.values() for name in names)
    for kind, names in kinds.items():
        click.echo(f"{kind}:")
        for name, meaning in names.items():
            click.echo(f"  {name:{width}}  {meaning}")


def _meanings(entries: Mapping[str, Any]) -> dict[str, str]:
    return {name: entry.meaning for name, entry in entries.items()}
