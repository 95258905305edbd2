"""``uetemu qos``: the emulated queueing of a switch as configuration of a real one."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import click

from emulator.cli.options import option, output_option
from emulator.cli.plugin_command import PluginCommand
from emulator.dataplane.fabric_choice import choose
from emulator.dataplane.switch import switch_choice
from emulator.dataplane.switch.switch_fitting import fit
from emulator.errors import UserError
from emulator.lab.qos import FORMATS
from emulator.lab.qos.emulated_qos import EmulatedQos, emulated_qos
from emulator.report.run.page import write_files
from emulator.run.plan.run_plan import usual_switch
from emulator.run.plan.variants import DEFAULT_TRANSPORT
from emulator.transports import fit as fit_transport
from topologies import catalogue
from topologies.advice import question
from topologies.model import Node, Topology

#: The class of data by the transport's name: code points of others are ones that are never trimmed.
_DATA_CLASSES = {"uet": "data"}


@click.command("qos", cls=PluginCommand)
@click.argument("fabric", metavar="[TOPOLOGY-SPEC | FILE]", default=catalogue.DEFAULT)
@click.option(
    "--nos", type=click.Choice(list(FORMATS)), required=True, help="operating system of the switch"
)
@option("switch", "as of uetemu run [default: what it would take]")
@option("transport", "as of uetemu run [default: uet]")
@click.option("--node", metavar="NAME", help="switch of the fabric [default: its first]")
@click.option("--ports", metavar="NAME,...", help="names of its ports, in the fabric's order")
@output_option("file to write", dir_okay=False)
def command(
    fabric: str,
    nos: str,
    switch: str | None,
    transport: str | None,
    node: str | None,
    ports: str | None,
    output: Path | None,
) -> None:
    """Write what a switch of FABRIC does with queues, ECN, PFC and trimming as configuration.

    Nothing of it was tried on hardware.  What the emulator has and the operating system cannot
    express is said: in comments, or for JSON on standard error and in OUTPUT.notes.

    \b
    uetemu qos pod.yaml --nos sonic --node rail0 -o config_db.json
    uetemu qos rail_clos --nos nvue --transport rocev2
    uetemu qos rail_clos --nos eos --switch lossless:pfc_priority=3
    """
    chosen = FORMATS[nos]
    qos = _emulated(fabric, switch, transport, node, ports, nos)
    config = chosen.write(qos)
    commented = all(note in config.text for note in config.notes)
    if not commented:
        for note in config.notes:
            click.echo(f"uetemu: {note}", err=True)
    if output is None:
        click.echo(config.text, nl=False)
        return
    files = {output: config.text}
    if not commented:
        files[output.with_name(f"{output.name}.notes")] = "\n".join([*config.notes, ""])
    write_files(files)


def _emulated(
    fabric: str,
    switch: str | None,
    transport: str | None,
    node: str | None,
    ports: str | None,
    nos: str,
) -> EmulatedQos:
    chosen = choose(fabric)
    topology = chosen.topology
    spoken = transport or chosen.transport or DEFAULT_TRANSPORT
    fit_transport(spoken, topology)  # which refuses what there is not
    asked = switch or usual_switch(spoken, topology, chosen)
    requested = switch_choice.requested(asked)
    if requested is None:
        raise UserError(
            "--switch none is plain queues without marks; take another, such as shallow"
        )
    named = " ".join(fabric.split())  # a comment has one line
    with chosen.answering() if switch is None else nullcontext():  # a profile has lines
        fitted = fit(requested, topology, 1.0, clock="virtual")
    one = _switch_of(topology, node)
    names = ports.split(",") if ports else [FORMATS[nos].port(n) for n in range(len(one.ports))]
    if len(set(names)) < len(names) or not all(names):
        raise UserError("--ports names a port twice or not at all; give each port its own name")
    return emulated_qos(
        topology,
        fitted,
        node=one,
        names=names,
        data_class=_DATA_CLASSES.get(spoken.partition(":")[0], "untrimmed"),
        title=f"{FORMATS[nos].title} of {one.name} in {named}, switch {requested.spec}, {spoken}.",
    )


def _switch_of(topology: Topology, name: str | None) -> Node:
    switches = {one.name: one for one in topology.switches}
    if not switches:
        raise UserError(f"topology {topology.name} has no switch; take another")
    if name is None:
        return next(iter(switches.values()))
    if name not in switches:
        hint = question(name, switches, otherwise=f"such as {next(iter(switches))}")
        raise UserError(f"topology {topology.name} has no switch {name!r}; {hint}")
    return switches[name]
