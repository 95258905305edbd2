"""Short names of a run's rows, by what they have not in common, and which of them are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from emulator.report.run.observation_points import INPUT, MIXED, VALUES
from emulator.run.report.comparison import short_names
from emulator.run.results import UNITS
from topologies.units import format_size

#: Rows whose time is drawn, at most: a reader chooses among them.
MOST_DRAWN = 24
_MEASURED = {value.key for value in VALUES if value.point != INPUT} | set(MIXED)
_NOT_FACTS = _MEASURED | {
    *("transport", "switch", "collective", "size_bytes", "endpoints", "flows", "digest"),
    *("communicators", "relayed_messages", "max_queue_port", "goodput_at", "count", "iterations"),
    *("held_writes", "total_bytes"),
}
#: Parts of names that only measures have.
_UNITS = tuple(end for end in UNITS if end.startswith("_"))


def labels(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a name for each row: its number, and what distinguishes it from the others."""
    names = short_names([str(row.get("transport")) for row in rows])
    facts = parting_facts(rows)
    found = []
    for number, row in enumerate(rows, 1):
        words = [names[str(row.get("transport"))], str(row.get("collective"))]
        if isinstance(row.get("size_bytes"), int):
            words.append(format_size(row["size_bytes"]))
        words += [f"{key} {row.get(key)}" for key in facts]
        found.append(f"{number}: {', '.join(words)}")
    return found


def parting_facts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the scenario's own keys that differ between rows and are no measured values."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return [
        key
        for key in keys
        if key not in _NOT_FACTS
        and not any(unit in key for unit in _UNITS)
        and all(_plain(row.get(key)) for row in rows)
        and len({str(row.get(key)) for row in rows}) > 1
    ]


def _plain(value: object) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def drawn_rows(count: int) -> list[int]:
    """Return the numbers of the rows that are drawn over time: all, or the last ones of many."""
    return list(range(max(1, count - MOST_DRAWN + 1), count + 1))
