"""``uetemu doctor``: what this machine offers, and whether the first scenario can run on it."""

from __future__ import annotations

import io
import json
from dataclasses import asdict

import click
from rich import box
from rich.console import Console
from rich.table import Table

from emulator import scenario
from emulator.cli.options import TABLE_OR_JSON
from emulator.compiled.finder import engine
from emulator.dataplane.doctor.capabilities import (
    Capabilities,
    CapabilityKind,
    MachineCapability,
    probe,
    remedy,
)
from emulator.errors import UserError
from emulator.run.runner import RunRequest, prepare
from emulator.sim.endpoint.nic import nic_profile

#: What "can run" is judged by: the scenario that everybody runs first.
FIRST_SCENARIO = "allreduce"


@click.command("doctor")
@TABLE_OR_JSON
def command(form: str) -> None:
    """Try what this machine and its kernel offer; exit status 0 if `uetemu run allreduce` can run.

    Nothing is left behind: kernel features are tried in a namespace that ends with the trial.
    """
    found = probe()
    problem, modelled = problem_of(found), problem_without_root() is None
    if form == "json":
        content = facts(found, problem) | {"ready_for_model": modelled}
        click.echo(json.dumps(content, indent=2))
    else:
        if problem is None:
            click.echo(f"uetemu run {FIRST_SCENARIO} can run here")
        if modelled:
            click.echo(
                f"uetemu run {FIRST_SCENARIO} --fabric model can run here, without root: its "
                "switches are a model in its own process"
            )
        click.echo(drawn(found))
        click.echo(f"engine: {engine()}")
        click.echo(f"NICs: they take no time, or that of --nic {' or '.join(nic_profile.PROFILES)}")
    if problem is not None:
        raise UserError(f"uetemu run {FIRST_SCENARIO} cannot run here: {problem}")


def problem_of(found: Capabilities) -> str | None:
    """Why the first scenario cannot run, with the way out; None if it can."""
    lacking = found.lacking()
    if lacking:
        first = lacking[0]
        return f"{first.name} is missing ({first.detail}); {remedy(first.name, first.detail)}"
    loaded = scenario.load(FIRST_SCENARIO)
    try:
        prepare(RunRequest(scenario=loaded, parameters=loaded.parameters({})))
    except UserError as error:
        return str(error)
    return None


def problem_without_root() -> str | None:
    """Why the first scenario cannot run on a fabric that is a model; None if it can."""
    loaded = scenario.load(FIRST_SCENARIO)
    request = RunRequest(scenario=loaded, parameters=loaded.parameters({}), fabric="model")
    try:
        prepare(request)
    except UserError as error:
        return str(error)
    return None


def facts(found: Capabilities, problem: str | None) -> dict[str, object]:
    """Return the capabilities and the problem as JSON types."""
    return {
        "schema": "uetemu.doctor/1",
        "ready": problem is None,
        "problem": problem,
        "engine": engine(),
        "capabilities": {
            name: {key: value for key, value in asdict(capability).items() if key != "name"}
            for name, capability in found.items()
        },
    }


def drawn(found: Capabilities) -> str:
    """The table, as wide as it is; what reads it may be a pipe."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("capability", "here", "detail", "used for", "stands in"):
        table.add_column(column)
    for kind in CapabilityKind:
        for capability in (each for each in found.values() if each.kind is kind):
            table.add_row(
                capability.name,
                "yes" if capability.present else "no",
                capability.detail,
                capability.used_for,
                _substitute(capability),
            )
        table.add_section()
    text = io.StringIO()
    Console(file=text, width=200).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().strip("\n").splitlines())


def _substitute(capability: MachineCapability) -> str:
    if capability.present:
        return ""
    return capability.stands_in or "nothing"
