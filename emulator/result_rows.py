"""Rows of ``result.json`` for people: cells of a table, names of transports, who was fastest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median

_ABSENT = "N/A"
#: Between a transport and the switch that it is run on.
ON = "@"
#: Times that differ by less are the same to a reader.
CLOSE = 0.005
#: Characters of a transport's name in the table; a longer one gets a number.
LONGEST_NAME = 24


@dataclass(frozen=True)
class TableColumn:
    """One column: the row's key, its heading, unit, width, and decimals for a fraction.

    ``percent`` shows a ratio as per cent, ``divisor`` a value in a larger unit.  With ``digits`` a
    fraction has so many significant digits instead of ``decimals``, however small it is.

    Where a line would be longer than :data:`WIDTH`, columns with a ``rank`` leave it, those with
    the largest first.  A ``fixed`` one stays even where it is N/A in every row.  The first one with
    ``words`` is what the sentence below the table is about: ``{}`` is the range of its values,
    ``{most}`` the largest.
    """

    key: str
    heading: str
    unit: str = ""
    width: int = 9
    decimals: int = 2
    percent: bool = False
    divisor: float = 1
    digits: int = 0
    rank: int = 0
    fixed: bool = False
    words: str = ""

    def cell(self, row: Mapping[str, object]) -> str:
        value = row.get(self.key)
        if isinstance(value, int | float) and self.percent:
            text = f"{100 * value:.{self.decimals}f}"
        elif isinstance(value, int | float) and self.divisor != 1:
            text = f"{value / self.divisor:.{self.decimals}f}"
        elif isinstance(value, float) and self.digits:
            text = f"{value:.{self.digits}g}"
        elif isinstance(value, float):
            text = f"{value:.{self.decimals}f}"
        else:
            text = _ABSENT if value is None else str(value)
        return f" {text:>{self.width}}"


#: Readers of nccl-tests' output know these by their places.
NCCL_COLUMNS = (
    TableColumn("size_bytes", "size", "(B)", 11, fixed=True),
    TableColumn("count", "count", "(elements)", 11, fixed=True),
    TableColumn("type", "type", "", 7, fixed=True),
    TableColumn("redop", "redop", "", 6, fixed=True),
    TableColumn("root", "root", "", 5, fixed=True),
    TableColumn("time_us", "time", "(us)", fixed=True),
    TableColumn("algbw_gbps", "algbw", "(GB/s)", 8, fixed=True),
    TableColumn("busbw_gbps", "busbw", "(GB/s)", 8, fixed=True),
    TableColumn("wrong", "#wrong", "", 7, fixed=True),
)


def short_names(transports: Sequence[str]) -> dict[str, str]:
    """Return what the table calls each transport.

    Its name, or with a number in place of parameters.
    """
    found: dict[str, str] = {}
    for number, name in enumerate(dict.fromkeys(transports), 1):
        short = name.partition(":")[0].partition(ON)[0]
        found[name] = name if len(name) <= LONGEST_NAME else f"{short}[{number}]"
    return found


@dataclass(frozen=True)
class Range:
    """The least and the most of a time over seeds, and its median (us)."""

    least: float
    middle: float
    most: float

    @classmethod
    def of(cls, times: Sequence[float]) -> Range:
        return cls(min(times), median(times), max(times))

    def overlaps(self, other: Range) -> bool:
        return self.least <= other.most and other.least <= self.most

    def over(self, other: Range) -> str:
        """Return the ratio of this range to ``other``, with the least and the most possible."""
        least, most = self.least / other.most, self.most / other.least
        return f"{self.middle / other.middle:.2f} times as long ({least:.2f} to {most:.2f})"

    def __str__(self) -> str:
        return f"{self.least:.1f} to {self.most:.1f} us"


def summary(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Return who was fastest, and how many times as long the others took, a sentence a place.

    ``rows`` are of all seeds.  Who took longer with every seed than the fastest did with any, and
    by :data:`CLOSE` or more, gets a ratio with its spread; others cannot be told from it.
    """
    times: dict[str, dict[object, list[Mapping[str, object]]]] = {}
    for row in rows:
        times.setdefault(str(row["transport"]), {}).setdefault(row["seed"], []).append(row)
    if len(times) < 2:
        return []
    seeds = len({row["seed"] for row in rows})
    if seeds < 2:
        return ["one seed has no spread, and so nothing says who is faster; --seeds 3 does"]
    names = short_names(list(times))
    places = _places([seed for of_seed in times.values() for seed in of_seed.values()])
    lines = []
    for number, place in enumerate(places):
        ranges = {
            names[name]: Range.of([_time(seed[number]) for seed in of_seed.values()])
            for name, of_seed in times.items()
            if all(len(seed) > number for seed in of_seed.values())
        }
        if len(ranges) > 1:
            lines.append(f"{place}{_judged(ranges)} ({seeds} seeds)")
    return lines


def _time(row: Mapping[str, object]) -> float:
    time = row["time_us"]
    assert isinstance(time, float | int)
    return time


def _places(tables: Sequence[Sequence[Mapping[str, object]]]) -> list[str]:
    """Return what parts the rows of a table, as the beginning of a sentence.

    ``tables`` are those of each transport and seed; what parts them is the same in all.
    """
    from emulator.metrics import METRICS  # whose columns are the ones above

    rows = min(tables, key=len)
    known = {one.key for one in METRICS.values() if one.rows not in ("scenario", "fault")}
    parting: list[str] = []
    kinds = 1
    for key in ("size_bytes", *(key for key in rows[0] if key not in known)):
        if any(
            one[place].get(key) != row.get(key) for one in tables for place, row in enumerate(rows)
        ):
            continue
        more = len({tuple(str(row.get(one)) for one in (*parting, key)) for row in rows})
        if more > kinds:
            parting, kinds = [*parting, key], more
    words = [", ".join(f"{key}={row.get(key)}" for key in parting) for row in rows]
    return [f"{place}: " if place else "" for place in words]


def _judged(ranges: Mapping[str, Range]) -> str:
    """Return who is fastest, and by how much."""
    (first, best), *others = sorted(ranges.items(), key=lambda one: one[1].middle)
    tied = [
        name for name, one in others if one.overlaps(best) or one.middle < (1 + CLOSE) * best.middle
    ]
    if len(tied) == len(others):
        told = (f"{name} {one.middle:.1f} us ({one})" for name, one in ((first, best), *others))
        return f"it cannot be told who is faster: {', '.join(told)}"
    words = [f"{first} is fastest with {best.middle:.1f} us ({best})"]
    if tied:
        words.append(f"{', '.join(tied)} cannot be told from it")
    words += [f"{name} takes {one.over(best)}" for name, one in others if name not in tied]
    return "; ".join(words)


def settings(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Return a line for each transport with another label, or with switches of its own."""
    used: dict[str, list[str]] = {}
    for row in rows:
        used.setdefault(str(row["transport"]), []).append(str(row["switch"]))
    names = short_names(list(used))
    lines = [f"{short} is {name}" for name, short in names.items() if short != name]
    if len({tuple(dict.fromkeys(switches)) for switches in used.values()}) < 2:
        return lines
    on: dict[str, list[str]] = {}
    for name, switches in used.items():
        on.setdefault(", ".join(dict.fromkeys(chain(switches))), []).append(names[name])
    return [*lines, *(f"{', '.join(whose)} on {switch}" for switch, whose in on.items())]
