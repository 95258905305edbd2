"""Reference tables of the manuals, made from the code: ``python -m tests.reference_tables``.

A manual holds a table between the lines ``<!-- generated: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from emulator.cli.main import VERBS, cli
from emulator.results import UNITS
from emulator.scenario import load, names

CHECKOUT = Path(__file__).parents[1]
MANUALS = (
    CHECKOUT / "emulator" / "README.md",
    CHECKOUT / "scenarios" / "README.md",
    CHECKOUT / "CONTRIBUTING.md",
)
FLOORS = ("scenarios", "emulator", "uet", "topologies")
_TABLE = re.compile(r"(<!-- generated: (?P<name>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def verbs() -> str:
    """List every verb of ``uetemu`` with its options."""
    context = click.Context(cli)
    lines = ["| verb | what it does | options |", "|---|---|---|"]
    for name, verb in VERBS.items():
        command = cli.get_command(context, name)
        assert command is not None
        options = {
            option
            for each in _commands(command)
            for parameter in each.params
            if isinstance(parameter, click.Option)
            for option in parameter.opts[:1]
        }
        shown = ", ".join(f"`{option}`" for option in sorted(options - {"--help"}))
        lines.append(f"| `{name}` | {verb.help} | {shown} |")
    return "\n".join(lines)


def units() -> str:
    """List what the ends of keys in ``result.json`` mean."""
    lines = ["| key, or its end | unit |", "|---|---|"]
    lines += [f"| `{end}` | {meaning} |" for end, meaning in UNITS.items()]
    return "\n".join(lines)


def scenarios() -> str:
    """List every scenario with its title and its parameters."""
    lines = ["| scenario | what it shows | parameters |", "|---|---|---|"]
    for name in names():
        scenario = load(name)
        fields = dataclasses.fields(type(scenario.parameters({})))
        parameters = ", ".join(f"`{each.name}`" for each in fields)
        lines.append(f"| `{name}` | {scenario.title} | {parameters} |")
    return "\n".join(lines)


def rooms() -> str:
    """List every folder of the source with the first sentence of its package."""
    lines = ["| room | |", "|---|---|"]
    for floor in FLOORS:
        for package in sorted((CHECKOUT / floor).rglob("__init__.py")):
            room = package.parent.relative_to(CHECKOUT)
            text = ast.get_docstring(ast.parse(package.read_text())) or ""
            lines.append(f"| `{room}/` | {text.splitlines()[0]} |")
    return "\n".join(lines)


TABLES: Mapping[str, Callable[[], str]] = {
    "verbs": verbs,
    "units": units,
    "scenarios": scenarios,
    "rooms": rooms,
}


def with_tables(text: str) -> str:
    """Return ``text`` with every generated table as the code has it now."""
    return _TABLE.sub(lambda found: f"{found[1]}{TABLES[found['name']]()}\n{found[3]}", text)


def _commands(command: click.Command) -> list[click.Command]:
    if not isinstance(command, click.Group):
        return [command]
    return [each for inner in command.commands.values() for each in _commands(inner)]


if __name__ == "__main__":
    for manual in MANUALS:
        manual.write_text(with_tables(manual.read_text()))
