"""Reference tables of the manuals, made from the code: ``python -m tests.reference_tables``.

A manual holds a table between the lines ``<!-- generated: NAME -->`` and ``<!-- end -->``.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby

import click

from emulator import result_keys
from emulator.cli.main import VERBS, cli
from emulator.metrics import meanings
from emulator.rocev2 import counters
from emulator.run_files import UNITS
from emulator.scenario import load, names
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
#: Where the sections are that meanings of keys refer to, seen from emulator/run/.
_HOMES = {
    "counters": "COUNTERS.md",
    "a-fabric-without-root": "../dataplane/README.md",
    "pxn": "../sim/README.md",
    "lost-packets": "faults/README.md",
}
#: How meanings of reasons begin, and what stands for all of them.
_REASONS = {
    "dropped": "packets dropped, by reason",
    "not opened": "secured packets not opened, by reason (UES 3.7)",
    "not sealed": "packets not secured, by reason",
}
_LINK = re.compile(r"\]\(#([a-z-]+)\)")
_TABLE = re.compile(r"(<!-- generated: (?P<name>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def verbs() -> str:
    """List every verb with its meaning, and the commands below it."""
    return _list((name, verb.help + _below(name)) for name, verb in VERBS.items())


def _below(verb: str) -> str:
    command = cli.get_command(click.Context(cli), verb)
    if not isinstance(command, click.Group):
        return ""
    return f" ({', '.join(f'`{name}`' for name in command.commands)})"


def units() -> str:
    """List what the ends of keys in ``result.json`` mean."""
    return _list(UNITS.items())


def _explained(meanings: Mapping[str, str]) -> Callable[[], str]:
    """Return what lists the keys of ``meanings`` with their meanings.

    Neighbours of one meaning are one line, as are those that count packets by a reason.
    """

    def listed() -> str:
        shown = {key: _REASONS.get(text.partition(":")[0], text) for key, text in meanings.items()}
        lines = (
            f"- {', '.join(f'`{key}`' for key in keys)}: {text}"
            for text, keys in groupby(shown, shown.__getitem__)
        )
        return _LINK.sub(lambda link: f"]({_HOMES.get(link[1], '')}#{link[1]})", "\n".join(lines))

    return listed


def scenarios() -> str:
    """List every scenario with its title."""
    return _list(
        (name, load(name).title.partition(": ")[2] or load(name).title) for name in names()
    )


TABLES: Mapping[str, Callable[[], str]] = {
    "verbs": verbs,
    "units": units,
    "result_keys": _explained(result_keys.RESULT),
    "call_site_keys": _explained(result_keys.CALL_SITE),
    "row_keys": _explained(meanings("every")),
    "collective_row_keys": _explained(meanings("collective")),
    "traffic_row_keys": _explained(meanings("traffic")),
    "fault_row_keys": _explained(meanings("fault")),
    "endpoint_counters": _explained(result_keys.ENDPOINT),
    "uet_counters": _explained(counter_meanings.COUNTERS),
    "rocev2_counters": _explained(counters.COUNTERS),
    "port_counters": _explained(result_keys.PORT),
    "switch_class_counters": _explained(result_keys.SWITCH_CLASS),
    "switch_queue_counters": _explained(result_keys.SWITCH_QUEUE),
    "switch_pool_counters": _explained(result_keys.SWITCH_POOL),
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


if __name__ == "__main__":
    for manual in MANUALS:
        manual.write_text(with_tables(manual.read_text()))
