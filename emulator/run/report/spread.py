"""One row for several seeds: the median of what each of them measured, and how far they lie apart.

Every number is the median over the seeds, ``time_us`` among them; ``time_min_us`` and
``time_max_us`` are the least and the most that ``time_us`` was with any seed.  Errors are summed.
Where a value is no number, the row has it if all seeds agree on it; its verdict is that of a seed
which the machine limited, if there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from emulator.result_rows import TableColumn

TIME = "time_us"
#: Summed, for none of them may get lost in a median.
_SUMMED = frozenset({"wrong"})
_FIDELITY = "fidelity"


def summary(rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """The row that stands for ``rows``, one for each seed."""
    merged: dict[str, object] = {}
    for key in rows[0]:
        values = [row.get(key) for row in rows]
        numbers = _numbers(values)
        if key == _FIDELITY:
            merged[key] = _verdict(rows)
        elif key in _SUMMED:
            merged[key] = sum(numbers) if numbers else None
        elif all(one == values[0] for one in values):
            merged[key] = values[0]
        else:
            merged[key] = median(numbers) if len(numbers) == len(values) else None
    times = _numbers([row[TIME] for row in rows])
    del merged["seed"]
    return merged | {
        "seeds": [row["seed"] for row in rows],
        "time_min_us": min(times),
        "time_max_us": max(times),
    }


def _verdict(rows: Sequence[Mapping[str, object]]) -> object:
    """The verdict that limits what the rows are worth: the first that is not ok."""
    verdicts = [row["fidelity"] for row in rows]
    limited = (one for one in verdicts if isinstance(one, Mapping) and one["verdict"] != "ok")
    return next(limited, verdicts[0])


class SeedRows:
    """Collects the rows of a run with ``seeds`` seeds."""

    def __init__(self, seeds: int) -> None:
        self._seeds = seeds
        self._rows: dict[object, list[Mapping[str, object]]] = {}

    def add(self, place: object, row: Mapping[str, object]) -> Mapping[str, object] | None:
        """Take a row; return what stands for all seeds once ``place`` has all of its rows."""
        rows = self._rows.setdefault(place, [])
        rows.append(row)
        if len(rows) < self._seeds:
            return None
        return row if self._seeds == 1 else summary(rows)


def _numbers(values: Sequence[object]) -> list[float]:
    return [one for one in values if isinstance(one, int | float) and not isinstance(one, bool)]


def columns(own: Sequence[TableColumn]) -> list[TableColumn]:
    """The columns of a table over seeds: beside the median time the least and the most."""
    shown: list[TableColumn] = []
    for column in own:
        shown.append(column)
        if column.key == TIME:
            shown[-1] = replace(column, heading="median")
            shown += [
                replace(column, key="time_min_us", heading="least"),
                replace(column, key="time_max_us", heading="most"),
            ]
    return shown
