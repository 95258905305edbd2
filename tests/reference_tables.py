"""Reference tables of the manuals, made from the code: ``python -m tests.reference_tables``.

A manual holds a table between the lines ``<!-- generated: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

import click

from emulator import result_keys
from emulator.cli.main import VERBS, cli
from emulator.dataplane.control_plane import control_plane_choice
from emulator.dataplane.switch import switch_choice
from emulator.rocev2 import counters
from emulator.run_files import UNITS
from emulator.scenario import load, names
from emulator.transports import TRANSPORTS
from tests import CHECKOUT
from uet import counter_meanings

FLOORS = ("scenarios", "emulator", "uet", "topologies")
#: Every manual, also those without a table.
PAGES = sorted(
    (
        *CHECKOUT.glob("*.md"),
        *(CHECKOUT / "tests").glob("*.md"),
        *(CHECKOUT / "vagrant").glob("*.md"),
        *(path for floor in FLOORS for path in (CHECKOUT / floor).rglob("*.md")),
    )
)
MANUALS = tuple(page for page in PAGES if "<!-- generated: " in page.read_text())
_EXPLAINED = [f"- {line}" for line in switch_choice.EXPLAINED]
#: Where the sections are that meanings of keys refer to, seen from emulator/run/.
_HOMES = {
    "counters": "COUNTERS.md",
    "a-fabric-without-root": "../dataplane/README.md",
    "pxn": "../sim/README.md",
    "lost-packets": "faults/README.md",
}
_LINK = re.compile(r"\]\(#([a-z-]+)\)")
_TABLE = re.compile(r"(<!-- generated: (?P<name>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


#: Verbs whose options stand in the manual of labs and endpoints.
_OF_LABS = (
    "up",
    "down",
    "status",
    "top",
    "cluster",
    "services",
    "metrics",
    "inject",
    "exec",
    "capture",
)
_OF_ENDPOINTS = ("fep", "hca", "nvme")


def verbs_of_runs() -> str:
    """List the verbs that run something, or read what a run has left, with their options."""
    others = [name for name in VERBS if name not in _OF_LABS + _OF_ENDPOINTS]
    return "\n\n".join((_lists({"uetemu": cli}), _verbs(others)))


def verbs_of_labs() -> str:
    """List the verbs that build, watch and change labs, with their options."""
    return _verbs(_OF_LABS)


def _verbs(names: Sequence[str]) -> str:
    """List verbs with their options, an option that three or more of them have once, before all."""
    users: dict[tuple[str, str], list[str]] = {}
    for name in names:
        for command in _commands(name).values():
            for record in _option_records(name, command):
                users.setdefault(record, []).append(name)
    shared = {record: verbs for record, verbs in users.items() if len(verbs) >= 3}
    lines = (
        f"- `{option}` (of {', '.join(f'`{verb}`' for verb in dict.fromkeys(verbs))})"
        + (f": {text}" if text else "")
        for (option, text), verbs in shared.items()
    )
    return "\n\n".join(("\n".join(lines), *(_options_of(name, shared=shared) for name in names)))


def verbs_of_endpoints() -> str:
    """List the verbs that are one endpoint, with their options, those of two together."""
    return "\n\n".join((_options_of("fep", "hca"), _options_of("nvme")))


def _options_of(*names: str, shared: Container[tuple[str, str]] = ()) -> str:
    """List verbs with their meaning, and the options of them and of the commands below them."""
    meanings = "\n\n".join(f"**`{name}`**: {VERBS[name].help}" for name in names)
    options = _lists(
        {path: each for name in names for path, each in _commands(name).items()}, shared
    )
    alone = f"**`{names[0]}`**\n\n"
    return f"{meanings}\n\n{options.removeprefix(alone)}".rstrip()


def _lists(commands: Mapping[str, click.Command], shared: Container[tuple[str, str]] = ()) -> str:
    """List options once, under the names of the commands that have them, but for ``shared``."""
    users: dict[tuple[str, str], list[str]] = {}
    for path, command in commands.items():
        for record in _option_records(path, command):
            if record not in shared:
                users.setdefault(record, []).append(path)
    lists: dict[str, list[str]] = {}
    for (option, text), paths in users.items():
        line = f"- `{option}`: {text}" if text else f"- `{option}`"
        lists.setdefault(_heading(paths, list(commands)), []).append(line)
    return "\n\n".join("\n".join((f"**{head}**", "", *lines)) for head, lines in lists.items())


def _heading(paths: Sequence[str], every: Sequence[str]) -> str:
    """Return the names of ``paths``, a verb's own instead of those of all its commands."""
    shown: list[str] = []
    for verb in dict.fromkeys(path.split()[0] for path in paths):
        own, all_own = (
            [path for path in some if path.split()[0] == verb] for some in (paths, every)
        )
        shown += [verb] if own == all_own else own
    return ", ".join(f"`{name}`" for name in shown)


def transports() -> str:
    """List the parameters of every transport, the default value first."""
    lists = []
    for name, transport in TRANSPORTS.items():
        lines = {
            f"{key}={'|'.join(words.names)}": words.described
            for key, words in transport.words.items()
        }
        lines |= {key: preset.meaning for key, preset in transport.presets.items()}
        for key, text in transport.described().items():
            if key:
                lines[key], shown = text, key
            else:  # a second line of the one before
                lines[shown] += f" {text}"
        lists.append(f"**`{name}`**\n\n{_list(lines.items())}")
    return "\n\n".join(lists)


def switches() -> str:
    """List the profiles of switches, and the parameters of each."""
    described = switch_choice.DESCRIBED.items()
    rows = {f"{name}={values}": meaning for name, (values, meaning) in described}
    return "\n".join((_list({**switch_choice.MEANINGS, **rows}.items()), "", *_EXPLAINED))


def control_planes() -> str:
    """List the control planes, and the parameters of each."""
    described = control_plane_choice.DESCRIBED.items()
    rows = {f"{name}={values}": meaning for name, (values, meaning) in described}
    return _list({**control_plane_choice.MEANINGS, **rows}.items())


def units() -> str:
    """List what the ends of keys in ``result.json`` mean."""
    return _list(UNITS.items())


def _explained(meanings: Mapping[str, str]) -> Callable[[], str]:
    """Return what lists the keys of ``meanings`` with their meanings."""

    def listed() -> str:
        return _LINK.sub(
            lambda link: f"]({_HOMES.get(link[1], '')}#{link[1]})", _list(meanings.items())
        )

    return listed


def scenarios() -> str:
    """List every scenario with its title."""
    return _list(
        (name, load(name).title.partition(": ")[2] or load(name).title) for name in names()
    )


TABLES: Mapping[str, Callable[[], str]] = {
    "verbs_of_runs": verbs_of_runs,
    "verbs_of_labs": verbs_of_labs,
    "verbs_of_endpoints": verbs_of_endpoints,
    "transports": transports,
    "switches": switches,
    "control_planes": control_planes,
    "units": units,
    "result_keys": _explained(result_keys.RESULT),
    "row_keys": _explained(result_keys.ROW),
    "collective_row_keys": _explained(result_keys.COLLECTIVE_ROW),
    "traffic_row_keys": _explained(result_keys.TRAFFIC_ROW),
    "fault_row_keys": _explained(result_keys.FAULT_ROW),
    "endpoint_counters": _explained(result_keys.ENDPOINT),
    "uet_counters": _explained(counter_meanings.COUNTERS),
    "rocev2_counters": _explained(counters.COUNTERS),
    "port_counters": _explained(result_keys.PORT),
    "switch_class_counters": _explained(result_keys.SWITCH_CLASS),
    "switch_queue_counters": _explained(result_keys.SWITCH_QUEUE),
    "pause_counters": _explained(result_keys.PAUSE),
    "link_counters": _explained(result_keys.LINK),
    "scenarios": scenarios,
}


def with_tables(text: str) -> str:
    """Return ``text`` with every generated table as the code has it now."""
    return _TABLE.sub(lambda found: f"{found[1]}{TABLES[found['name']]()}\n{found[3]}", text)


def _list(meanings: Iterable[tuple[str, str | None]]) -> str:
    """Write a list of names with what they mean."""
    return "\n".join(f"- `{name}`: {text}" for name, text in meanings)


def _commands(path: str, command: click.Command | None = None) -> dict[str, click.Command]:
    """Return the commands that do something at or below a verb, by what a user types."""
    command = command or cli.get_command(click.Context(cli), path)
    assert command is not None
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
    words = (
        (" ".join(record[0].split()), " ".join(record[1].split())) for record in records if record
    )
    return [
        (re.sub(r" (?:INTEGER|FLOAT)(?: RANGE)?$", " N", option), text) for option, text in words
    ]


if __name__ == "__main__":
    for manual in MANUALS:
        manual.write_text(with_tables(manual.read_text()))
