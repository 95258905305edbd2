"""``uetemu validate``: what is wrong with a fabric profile or a topology, before it is built."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click

from emulator.asic import choice
from emulator.asic.fitting import fit
from emulator.cli.up_verb import DEFAULT_DILATION
from emulator.control_plane import choice as control_plane
from emulator.errors import UserError
from emulator.fabric_choice import blamed, choose
from topologies.fabric_schema import schema
from topologies.model import TopologyError
from topologies.yaml_lines import TextError


@click.command("validate")
@click.argument("what", metavar="[FILE | TOPOLOGY-SPEC]...", nargs=-1)
@click.option("--schema", "wanted", is_flag=True, help="print the JSON Schema of profiles.")
@click.option("--quiet", "-q", is_flag=True, help="say nothing of what is right.")
def command(what: tuple[str, ...], wanted: bool, quiet: bool) -> None:
    """Check fabric profiles (FILE.yaml) and specs (NAME:param=value,...): every problem is a line
    FILE:LINE: MESSAGE on standard output.  The exit status is 0 if there is none, else 1.

    \b
    uetemu validate my_fabric.yaml pod:hosts=8
    uetemu validate --schema > fabric.schema.json      # for an editor
    """
    if wanted:
        if what:
            raise UserError("--schema prints what all profiles have in common; leave the files out")
        click.echo(json.dumps(schema(), indent=2))
        return
    if not what:
        raise UserError("there is nothing to validate; name a FILE.yaml or a topology")
    wrong = False
    for each in what:
        found = list(problems(each))
        for line in found:
            click.echo(line)
        wrong |= bool(found)
        if not found and not quiet:
            click.echo(f"{each}: {_said(each)}")
    if wrong:
        raise click.exceptions.Exit(1)


def problems(what: str) -> Iterator[str]:
    """Everything that is wrong with the fabric ``what``, a line each."""
    try:
        chosen = choose(what)
        try:
            control_plane.of(chosen.topology)
            switch = None if chosen.switch is None else choice.wanted(chosen.switch)
            if switch is not None:
                fit(switch, chosen.topology, DEFAULT_DILATION)
        except UserError as error:
            if chosen.file is None:
                raise
            raise blamed(error, chosen.file, chosen.spec) from None
    except TextError as error:
        for problem in error.problems:
            yield f"{error.name}:{problem.line}: {problem.said}"
    except (UserError, TopologyError) as error:
        said = str(error)
        yield said if said.startswith(what) else f"{what}: {said}"


def _said(what: str) -> str:
    chosen = choose(what)
    topology = chosen.topology
    said = f"{len(topology.gpus)} GPUs, {len(topology.switches)} switches, "
    said += f"{len(topology.links)} links"
    if chosen.switch is not None:
        said += f", switch {chosen.switch}"
    return said
