"""Reference tables of the manuals, made from the code: ``python -m tests.reference_tables``.

A manual holds a table between the lines ``<!-- generated: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import click

from emulator.cli.main import VERBS, cli
from emulator.dataplane.control_plane import control_plane_choice
from emulator.dataplane.switch import switch_choice
from emulator.rocev2 import rocev2_counters
from emulator.run import result_keys
from emulator.run.results import UNITS
from emulator.scenario import load, names
from emulator.transports import TRANSPORTS
from tests import CHECKOUT
from uet import counter_meanings

MANUALS = (
    CHECKOUT / "emulator" / "README.md",
    CHECKOUT / "scenarios" / "README.md",
    CHECKOUT / "CONTRIBUTING.md",
)
FLOORS = ("scenarios", "emulator", "uet", "topologies")
_EXPLAINED = [f"- {line}" for line in switch_choice.EXPLAINED]
_TABLE = re.compile(r"(<!-- generated: (?P<name>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def verbs() -> str:
    """List every verb of ``uetemu`` with its line of help."""
    return _table(
        ("verb", "what it does"), ((f"`{name}`", verb.help) for name, verb in VERBS.items())
    )


def options() -> str:
    """List the options before a verb, then those of every verb and the commands below it.

    An option that all commands of a verb share stands once, under the name of the verb.
    """
    own = _option_records("uetemu", cli)
    rows: list[tuple[str, ...]] = [("every verb", f"`{option}`", text) for option, text in own]
    for name in VERBS:
        commands = _commands(name, _command(name))
        users: dict[tuple[str, str], list[str]] = {}
        for path, command in commands.items():
            for record in _option_records(path, command):
                users.setdefault(record, []).append(path)
        for (option, text), paths in users.items():
            shown = [name] if len(paths) == len(commands) else paths
            rows.append((", ".join(f"`{path}`" for path in shown), f"`{option}`", text))
    return _table(("verb", "option", "meaning"), rows)


def transports() -> str:
    """List the parameters of every transport, the default value first."""
    rows: list[tuple[str, ...]] = []
    for name, transport in TRANSPORTS.items():
        lines = {
            f"{key}={'|'.join(values)}": transport.meanings[key]
            for key, values in transport.options.items()
        }
        lines |= {key: preset.meaning for key, preset in transport.presets.items()}
        rows += [(f"`{name}`", f"`{key}`", text) for key, text in lines.items()]
        for key, text in transport.described.items():
            if key:
                rows.append((f"`{name}`", f"`{key}`", text))
            else:  # a second line of the one before
                rows[-1] = (*rows[-1][:2], f"{rows[-1][2]} {text}")
    return _table(("transport", "parameter", "meaning"), rows)


def switches() -> str:
    """List the profiles of switches, and the parameters of each."""
    rows = [(f"`{name}`", meaning) for name, meaning in switch_choice.MEANINGS.items()]
    rows += [
        (f"`{name}={values}`", meaning)
        for name, (values, meaning) in switch_choice.DESCRIBED.items()
    ]
    return "\n".join((_table(("profile or parameter", "meaning"), rows), "", *_EXPLAINED))


def control_planes() -> str:
    """List the control planes, and the parameters of each."""
    rows = [(f"`{name}`", meaning) for name, meaning in control_plane_choice.MEANINGS.items()]
    rows += [
        (f"`{name}={values}`", meaning)
        for name, (values, meaning) in control_plane_choice.DESCRIBED.items()
    ]
    return _table(("control plane or parameter", "meaning"), rows)


def units() -> str:
    """List what the ends of keys in ``result.json`` mean."""
    lines = ["| key, or its end | unit |", "|---|---|"]
    lines += [f"| `{end}` | {meaning} |" for end, meaning in UNITS.items()]
    return "\n".join(lines)


def _explained(heading: str, meanings: Mapping[str, str]) -> Callable[[], str]:
    """Return what lists the keys of ``meanings`` with their meanings."""

    def table() -> str:
        return _table((heading, ""), ((f"`{key}`", text) for key, text in meanings.items()))

    return table


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
    "options": options,
    "transports": transports,
    "switches": switches,
    "control_planes": control_planes,
    "units": units,
    **{
        name: _explained(heading, meanings)
        for name, (heading, meanings) in {
            "result_keys": ("key", result_keys.RESULT),
            "row_keys": ("key", result_keys.ROW),
            "collective_row_keys": ("key", result_keys.COLLECTIVE_ROW),
            "traffic_row_keys": ("key", result_keys.TRAFFIC_ROW),
            "fault_row_keys": ("key", result_keys.FAULT_ROW),
            "endpoint_counters": ("counter", result_keys.ENDPOINT),
            "uet_counters": ("counter of UET", counter_meanings.COUNTERS),
            "rocev2_counters": ("counter of RoCEv2", rocev2_counters.COUNTERS),
            "port_counters": ("counter of a port", result_keys.PORT),
            "switch_class_counters": ("counter of a class", result_keys.SWITCH_CLASS),
            "switch_queue_counters": ("of a queue", result_keys.SWITCH_QUEUE),
            "pause_counters": ("counter under `pfc`", result_keys.PAUSE),
            "link_counters": ("counter under `link`", result_keys.LINK),
        }.items()
    },
    "scenarios": scenarios,
    "rooms": rooms,
}


def with_tables(text: str) -> str:
    """Return ``text`` with every generated table as the code has it now."""
    return _TABLE.sub(lambda found: f"{found[1]}{TABLES[found['name']]()}\n{found[3]}", text)


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table; a bar inside a cell is escaped."""
    ruled = (
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
        for row in (heading, *rows)
    )
    first, *rest = ruled
    return "\n".join((first, "|---" * len(heading) + "|", *rest))


def _command(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


def _commands(path: str, command: click.Command) -> dict[str, click.Command]:
    """Return the commands that do something at or below ``command``, by what a user types."""
    if not isinstance(command, click.Group):
        return {path: command}
    return {
        place: each
        for name, inner in command.commands.items()
        for place, each in _commands(f"{path} {name}", inner).items()
    }


def _option_records(path: str, command: click.Command) -> list[tuple[str, str]]:
    """Return names and help of the options of ``command``, as ``--help`` prints them."""
    context = click.Context(command, info_name=path)
    records = (
        parameter.get_help_record(context)
        for parameter in command.params
        if isinstance(parameter, click.Option)
    )
    return [
        (" ".join(record[0].split()), " ".join(record[1].split())) for record in records if record
    ]


if __name__ == "__main__":
    for manual in MANUALS:
        manual.write_text(with_tables(manual.read_text()))
