"""``uetemu explain``: what a column of a table, a key of ``result.json`` or a counter means."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module

import click

from emulator import result_keys, scenario
from emulator.cli.plugin_command import PluginCommand
from emulator.cli.predict import floor, prediction
from emulator.cli.torchrun_verb import SCRIPT_SCENARIO
from emulator.errors import UserError
from emulator.metrics import METRICS, added_columns, table
from emulator.result_rows import NCCL_COLUMNS, TableColumn
from emulator.rocev2 import counters
from emulator.sim.endpoint.nic import nic_profile
from topologies.advice import near
from topologies.parts import scale_up_products
from uet import counter_meanings


def places() -> Sequence[tuple[str, Mapping[str, str]]]:
    """Return where a name can stand, and the meanings of the names there."""
    return (
        (
            "key of a row",
            {one.key: one.meaning for one in METRICS.values()},
        ),
        ("key of result.json", result_keys.RESULT),
        ("of the calls of a line of a script", result_keys.CALL_SITE),
        ("counter of a GPU", result_keys.ENDPOINT),
        ("counter of UET", counter_meanings.COUNTERS),
        ("counter of RoCEv2", counters.COUNTERS),
        ("counter of a port", result_keys.PORT),
        ("counter of a traffic class", result_keys.SWITCH_CLASS),
        ("depth of a queue", result_keys.SWITCH_QUEUE),
        ("pool of a switch", result_keys.SWITCH_POOL),
        ("counter of PFC", result_keys.PAUSE),
        ("counter of the link layer", result_keys.LINK),
        ("NIC that takes time (--nic), in ns, * a guess", nic_profile.meanings()),
        ("scale-up network (scale_up= of a topology)", scale_up_products.meanings()),
    )


@click.command("explain", cls=PluginCommand)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def command(names: Sequence[str]) -> None:
    """Say what a column of a table, a key of result.json, or a counter means.

    NAME is a column's heading, such as busbw or "of ideal", or a key, such as busbw_gbps, or a NIC
    of --nic, such as cx7, or a scale-up network, such as mi300x.
    """
    headings = headed()
    for name in names:
        lines = list(explained(name, headings))
        if not lines:
            known = {*headings, *(key for _, meanings in places() for key in meanings)}
            hint = near(name, sorted(known)).partition(";")[0]
            raise UserError(
                f"there is no column, key or counter {name!r}{hint}; the keys are listed in "
                "emulator/run/RESULTS.md and COUNTERS.md"
            )
        for line in lines:
            click.echo(line)


def table_columns() -> Iterator[TableColumn]:
    """Yield the columns of all tables that ``uetemu run`` and ``uetemu predict`` print."""
    yield from (
        *NCCL_COLUMNS,
        *table("nccl"),
        *table("compared"),
        *prediction.COLUMNS,
        *floor.COLUMNS,
    )
    yield from import_module(SCRIPT_SCENARIO).COLUMNS
    yield from added_columns()
    for name in scenario.names():
        yield from getattr(scenario.load(name).module, "COLUMNS", ())


def headed() -> dict[str, dict[str, str]]:
    """Return the units of each key that a heading stands for, by heading."""
    found: dict[str, dict[str, str]] = {}
    for column in table_columns():
        found.setdefault(column.heading, {}).setdefault(column.key, column.unit)
    return found


def explained(name: str, headings: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    shown = {
        f"{head} {unit}".strip(): head for head, keys in headings.items() for unit in keys.values()
    }
    head = name if name in headings else shown.get(name)
    columns = headings.get(head, {}) if head else {}
    for key, unit in columns.items():
        beside = f" {unit}" if unit else ""
        yield f"{head}{beside}: {_plain(METRICS[key].meaning)} (key {key})"
    for place, meanings in places():
        for keys, text in meanings.items():
            if name in keys.split(", ") and name not in columns:
                yield f"{name}, {place}: {_plain(text)}"


def _plain(text: str) -> str:
    """Return ``text`` without links and marks of Markdown."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("`", "")
