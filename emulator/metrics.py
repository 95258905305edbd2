"""Metrics: the values of a row of results, each with all that is known of it in one entry.

The table of a run, comparisons, reports, suites and the manual read the entries.  Those that come
with uetemu stand in :mod:`emulator.run.measures.row_metrics` and
:mod:`emulator.run.measures.scenario_metrics`; a user's file registers its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

from emulator.errors import UserError
from emulator.result_rows import TableColumn
from topologies.registry import Registry

ENDPOINT = "endpoint"
BOUNDARY = "fabric boundary"
SWITCH = "switch"
CLUSTER = "cluster"
MODEL = "computed"
INPUT = "input"
#: Sums over switches and NICs, which stand in no column beside others: a report has them by port.
MIXED = "switches and NICs"

#: The meanings of the observation points, for a report's reader.  Values that were observed at
#: different ones never share a column.
MEANINGS: Mapping[str, str] = {
    ENDPOINT: "at the GPUs: schedules, transports and NICs count and time what they do",
    BOUNDARY: "at the cables of NICs: switch ports towards receivers; frame times at both ends",
    SWITCH: "at the ports of all switches",
    MODEL: "computed from the topology and the schedules; nothing was observed",
    INPUT: "what the run was told",
    CLUSTER: "timed on a cluster's hosts by another tool, launch of kernels included",
}

#: The rows that have a metric: all; those of traffic; those of transports that are compared; those
#: of collectives; those of single scenarios; those of runs with faults.
Rows = Literal["every", "traffic", "compared", "collective", "scenario", "fault"]
#: Places of metrics that name none: behind the others.
LAST = 1000

M = TypeVar("M")


@dataclass(frozen=True)
class Cell:
    """How a table of a run shows a metric: at ``place`` from the left, else as a TableColumn."""

    place: int
    heading: str
    unit: str = ""
    width: int = 9
    decimals: int = 2
    rank: int = 0
    divisor: float = 1
    words: str = ""


@dataclass(frozen=True)
class Metric(Generic[M]):
    """A value of a row: its ``key`` in ``result.json``, what it means, how it comes about.

    ``compute`` makes it of what was measured: of rows of ``every`` trial a
    :class:`~emulator.scenario.MeasuredTrial`.  It returns a number, or None where there was nothing
    to measure.  ``where`` says which trials have the key at all.  What a scenario or a collective
    returns by itself has no ``compute``.

    Reports and comparisons show it under its ``heading``, if it has one, in ``unit``, multiplied by
    ``scale``, with so many ``decimals``.  It stands with what was ``observed_at`` the same point,
    by its ``place``.  ``point_key`` is the key of the value that names the point where that is not
    the same in all rows.  ``better`` is 1 where more is better, -1 where less is, 0 where neither.
    ``name_of`` is True of a name, such as that of a port.  Users may write ``short`` in conditions.

    ``nccl``, ``traffic`` and ``compared`` are its cells in the tables of collectives, of traffic
    and of transports that are compared.  ``draft`` is what the BMWG drafts call it.
    """

    key: str
    meaning: str
    compute: Callable[[M], object] | None = None
    heading: str = ""
    unit: str = ""
    observed_at: str = ""
    better: int = 0
    scale: float = 1
    decimals: int = 2
    rows: Rows = "every"
    where: Callable[[M], bool] | None = None
    place: int = LAST
    point_key: str = ""
    name_of: bool = False
    short: str = ""
    nccl: Cell | None = None
    traffic: Cell | None = None
    compared: Cell | None = None
    draft: str = ""

    def __post_init__(self) -> None:
        if self.observed_at and self.observed_at not in (*MEANINGS, MIXED):
            raise ValueError(
                f"{self.key} is observed at {self.observed_at!r}; take one of "
                f"{', '.join(map(repr, MEANINGS))}"
            )
        if not self.scale > 0 or not 0 <= self.decimals <= 12:
            raise ValueError(f"{self.key} needs a scale above 0, and 0 to 12 decimals")
        if self.heading and not self.observed_at:
            raise ValueError(
                f"{self.key} does not say where it is observed: add observed_at=, one of "
                f"{', '.join(map(repr, MEANINGS))}"
            )

    @property
    def name(self) -> str:
        """The word that chooses it."""
        return self.key

    @property
    def numeric(self) -> bool:
        """Whether reports show a number that was measured or computed."""
        return bool(self.heading) and self.observed_at != INPUT and not self.name_of

    @property
    def headed(self) -> str:
        """The heading with the unit."""
        return f"{self.heading} ({self.unit})" if self.unit else self.heading

    def shown(self, row: Mapping[str, Any]) -> str:
        """Return the value of ``row`` as a cell of a report shows it."""
        return text(row.get(self.key), self.scale, self.decimals)

    def at(self, row: Mapping[str, Any]) -> Metric[M]:
        """Return this metric, observed at the point that ``row`` names."""
        named = str(row.get(self.point_key)) if self.point_key else ""
        return replace(self, observed_at=named) if named in MEANINGS else self

    def column(self, cell: Cell | None = None) -> TableColumn:
        """Return the column of a table with ``cell``; without, as reports show it."""
        if cell is None:
            unit = f"({self.unit})" if self.unit else ""
            width = max(8, len(self.heading), len(unit))
            cell = Cell(0, self.heading, unit, width, self.decimals, divisor=1 / self.scale)
        percent = self.scale == 100
        return TableColumn(
            key=self.key,
            heading=cell.heading,
            unit=cell.unit,
            width=cell.width,
            decimals=cell.decimals,
            percent=percent,
            divisor=1 if percent else cell.divisor,
            rank=cell.rank,
            words=cell.words,
        )


#: All metrics; those of ``emulator.run.measures`` are loaded by the first look-up.
METRICS: Registry[Metric[Any]] = Registry("metric", "emulator.run.measures", ending="_metrics")


def register(rows: Rows, metrics: Iterable[Metric[Any]]) -> None:
    """Enter metrics that stand in the same ``rows``."""
    for one in metrics:
        METRICS.register(replace(one, rows=rows), level=2)


def computed(rows: Rows, measured: object) -> dict[str, object]:
    """Return the values of all metrics of ``rows`` that are computed of ``measured``.

    UserError, with file and line, for a metric of a user that is no number.
    """
    values = {
        one.key: one.compute(measured)
        for one in METRICS.values()
        if one.rows == rows
        and one.compute is not None
        and (one.where is None or one.where(measured))
    }
    for one in METRICS.added():
        value = values.get(one.key)
        number = isinstance(value, int | float) and math.isfinite(value)
        if value is not None and not number:
            raise UserError(
                f"{METRICS.place(one.key)}: the metric {one.key} is {value!r}; compute must return "
                "a finite number, or None"
            )
    return values


def meanings(rows: Rows) -> dict[str, str]:
    """Return what the metrics of ``rows`` mean, by key."""
    return {one.key: one.meaning for one in METRICS.values() if one.rows == rows}


def table(name: Literal["nccl", "traffic", "compared"]) -> tuple[TableColumn, ...]:
    """Return the columns of a table of runs."""
    cells = [(cell, one) for one in METRICS.values() if (cell := getattr(one, name)) is not None]
    return tuple(one.column(cell) for cell, one in sorted(cells, key=lambda both: both[0].place))


def added_columns() -> list[TableColumn]:
    """Return the columns that users' metrics add to the table of any run."""
    return [one.column() for one in METRICS.added() if one.heading]


#: What a run folder says of a metric that its readers may not have, and of which kind that is.
_DESCRIBED: Mapping[str, Any] = {
    **dict.fromkeys(("key", "meaning", "heading", "unit", "observed_at", "point_key"), str),
    **dict.fromkeys(("better", "decimals", "place"), int),
    "scale": int | float,
}


def described() -> list[dict[str, object]]:
    """Return the users' metrics as JSON, for readers of the run folder."""
    return [{name: getattr(one, name) for name in _DESCRIBED} for one in METRICS.added()]


def known(folder: Iterable[Mapping[str, Any]]) -> dict[str, Metric[Any]]:
    """Return by key the metrics that a folder describes, and uetemu's own.

    ValueError for a description that is none.
    """
    metrics: dict[str, Metric[Any]] = {}
    for one in folder:
        if not all(isinstance(one.get(name), kind) for name, kind in _DESCRIBED.items()):
            raise ValueError(f"{one} describes no metric")
        metrics[one["key"]] = Metric(**{name: one[name] for name in _DESCRIBED})
    return metrics | dict(METRICS)


def readable(metrics: Iterable[Metric[Any]]) -> list[Metric[Any]]:
    """Return those that reports and comparisons show, in the order of their places."""
    return sorted((one for one in metrics if one.heading), key=lambda one: one.place)


def text(value: object, scale: float = 1, decimals: int = 2) -> str:
    """Return a value as a cell of a report shows it."""
    if value is None:
        return "n/a"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) and scale == 1:
        return str(value)
    return f"{value * scale:.{decimals}f}"
