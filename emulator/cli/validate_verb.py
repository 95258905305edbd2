"""``uetemu validate``: what is wrong with a fabric profile or a topology, before it is built."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click

from emulator.cli.labs.up_verb import DEFAULT_DILATION
from emulator.cli.options import delay_bounds
from emulator.cli.plugin_command import PluginCommand
from emulator.dataplane.fabric_choice import FabricChoice, choose
from emulator.dataplane.settings import Clock
from emulator.dataplane.switch import switch_choice as choice
from emulator.dataplane.switch.switch_fitting import fit
from emulator.errors import UserError
from emulator.run.plan.run_plan import usual_switch
from emulator.run.plan.variants import DEFAULT_TRANSPORT
from topologies.analysis.one_way_delay import one_way_delays
from topologies.exports.mermaid import inventory
from topologies.model import TopologyError
from topologies.profile.fabric_keys import schema
from topologies.profile.yaml_lines import TextError


@click.command("validate", cls=PluginCommand)
@click.argument("what", metavar="[FILE | TOPOLOGY-SPEC]...", nargs=-1)
@click.option("--schema", "requested", is_flag=True, help="print the JSON Schema of profiles.")
@click.option("--quiet", "-q", is_flag=True, help="say nothing of what is right.")
@delay_bounds
def command(
    what: tuple[str, ...], requested: bool, quiet: bool, delay_bound: int, scale_up_bound: int
) -> None:
    """Check fabric profiles (FILE.yaml) and specs (NAME:param=value,...).

    Every problem is a line FILE:LINE: MESSAGE on standard output.  The exit status is 0 if there
    is none, else 1.  One-way delays above their bounds are a warning, and no problem.

    \b
    uetemu validate my_fabric.yaml pod:hosts=8
    uetemu validate --schema > fabric.schema.json      # for an editor
    """
    if requested:
        if what:
            raise UserError("--schema prints what all profiles have in common; leave the files out")
        click.echo(json.dumps(schema(), indent=2))
        return
    if not what:
        raise UserError("there is nothing to validate; name a FILE.yaml or a topology")
    wrong = False
    for each in what:
        found, chosen = checked(each)
        for line in found:
            click.echo(line)
        wrong |= bool(found)
        if chosen is None:
            continue
        if not quiet:
            click.echo(f"{each}: {_stated(chosen)}")
        for delay in one_way_delays(chosen.topology, delay_bound, scale_up_bound):
            if delay.warning is not None:
                click.echo(f"{each}: warning: {delay.warning}")
    if wrong:
        raise click.exceptions.Exit(1)


def checked(what: str) -> tuple[list[str], FabricChoice | None]:
    """Everything that is wrong with the fabric ``what``, a line each; if nothing is, the fabric.

    Without a choice of switches it gets those that it is built with by default.
    """
    if Path(what).is_dir():
        return [
            f"{what}: it is a folder; name the profiles in it, such as {Path(what) / 'pod.yaml'}"
        ], None
    try:
        chosen = choose(what)
        transport = chosen.transport or DEFAULT_TRANSPORT
        switch = choice.requested(usual_switch(transport, chosen.topology, chosen))
        if switch is not None:
            chosen = replace(
                chosen, topology=chosen.topology.with_switch_latency(switch.latency_ns)
            )
            with chosen.answering():
                clock: Clock = "virtual" if switch.virtual_only else "host"  # who has pipelines
                fit(switch, chosen.topology, DEFAULT_DILATION, clock=clock)
    except TextError as error:
        return [
            f"{error.name}:{problem.line}: {problem.stated}" for problem in error.problems
        ], None
    except (UserError, TopologyError) as error:
        stated = str(error)
        return [stated if stated.startswith(what) else f"{what}: {stated}"], None
    return [], chosen


def _stated(chosen: FabricChoice) -> str:
    stated = inventory(chosen.topology)
    for one in chosen.topology.networks:
        stated += f"; {one.network}: {inventory(one)}"
    if chosen.transport is not None:
        stated += f", transport {chosen.transport}"
    return stated if chosen.switch is None else f"{stated}, switch {chosen.switch}"
