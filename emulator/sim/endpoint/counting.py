"""Counters by name, added up over endpoints or over the lives of one."""

from __future__ import annotations

from collections.abc import Mapping

#: Words in the names of counters that are no counts.
_EXTREMES = frozenset({"max", "mean", "p99"})
#: How the names of counters end that show how many there are now.
_NOW = "_open"


def add(total: dict[str, int], counters: Mapping[str, int]) -> None:
    """Add ``counters`` to ``total`` by name; of extremes (``..._max``) the larger one counts."""
    for name, value in counters.items():
        if is_extreme(name):
            total[name] = max(total.get(name, value), value)
        else:
            total[name] = total.get(name, 0) + value


def of_the_past(counters: Mapping[str, int]) -> dict[str, int]:
    """The counters of an endpoint that is no more: nothing of it is open."""
    return {name: value for name, value in counters.items() if not name.endswith(_NOW)}


def open_now(counters: Mapping[str, int]) -> int:
    """Return how many PDCs and queue pairs are open, by the counters of a transport."""
    return sum(value for name, value in counters.items() if name.endswith(_NOW))


def is_extreme(name: str) -> bool:
    """Return whether a counter is a largest or typical value, which is not to be added up."""
    return any(part in _EXTREMES for part in name.split("_"))
