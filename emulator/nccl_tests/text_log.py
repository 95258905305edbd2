"""The table that nccl-tests prints, of any version since 2.0, read from a log.

The heading above the rows names the columns. So older tables (no ``root``, ``error`` for
``#wrong``) and newer ones (statistics of iterations, timestamps) are read alike.  What a launcher
puts in front of a line is skipped.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from emulator.errors import UserError
from emulator.nccl_tests.cluster_log import ELEMENT_BYTES, ClusterLog, ClusterRow, ClusterTimes

#: The columns of a table without a heading, as nccl-tests prints them since 2.13.
USUAL = (
    "size", "count", "type", "redop", "root",
    "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong",
)  # fmt: skip
MOST_ROWS = 10_000

_NUMBER = re.compile(r"\d{1,18}")
_WORD = re.compile(r"[a-z][a-z0-9_]*")
_RANK = re.compile(
    r"#\s+Rank\s+(\d{1,7})\s+(?:Group\s+(\d{1,7})\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+"
)
_TEST = re.compile(r"\b([a-z_]{2,32})_perf\b")
_VERSION = re.compile(r"#\s*nccl-tests version (\S{1,40})")
_COUNTS = re.compile(r"#\s*nThread\s.*?[^p] iters:\s*(\d{1,9})(?:.*?agg iters:\s*(\d{1,9}))?")
_STARTS = re.compile(r"#\s+(size\s+count\s+type\b.*)$")


@dataclass
class _Reading:
    """A log while it is read."""

    source: str
    columns: tuple[str, ...] = ()
    test: str | None = None
    tests: dict[str, str] = field(default_factory=dict)
    ranks: dict[int, str] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)
    rows: list[ClusterRow] = field(default_factory=list)
    version: str | None = None
    counts: tuple[int | None, int] = (None, 1)

    def line(self, number: int, text: str) -> None:
        """Take one line of the log."""
        where = f"{self.source}, line {number}"
        if named := _TEST.search(text):
            self.test = named[1]
        comment = text.find("#")
        if comment >= 0:
            self._comment(where, text[comment:])
        elif (found := _row_of(text)) is not None:
            row = self._row(where, found)
            if row is None:
                return
            self.rows.append(row)
            if len(self.rows) > MOST_ROWS:
                raise UserError(f"{where}: more than {MOST_ROWS} rows; cut the log to one test")
            if self.test is not None:
                self.tests.setdefault(self.test, where)

    def _comment(self, where: str, text: str) -> None:
        if rank := _RANK.match(text):
            self.ranks[int(rank[1])] = rank[3]
            self.groups.add(rank[2] or "0")
        elif heading := _STARTS.match(text):
            self.columns = _columns(where, heading[1])
        elif version := _VERSION.match(text):
            self.version = version[1]
        elif counts := _COUNTS.match(text):
            self.counts = int(counts[1]), int(counts[2] or 1)

    def _row(self, where: str, values: Sequence[str]) -> ClusterRow | None:
        """Return the row of ``values``, or None if they are something else after all."""
        columns = self.columns
        if not columns:
            if len(values) < len(USUAL) or values[2] not in ELEMENT_BYTES:
                return None
            columns = USUAL
        first = columns.index("time")
        # An unknown type is a mistake in a whole row, and else the words of a launcher.
        if values[2] not in ELEMENT_BYTES and not _is_number(values[first : first + 1]):
            return None
        width = (len(columns) - first) // 2
        described = dict(zip(columns[:first], values, strict=False))
        if len(values) < len(columns):
            raise UserError(
                f"{where}: the row has {len(values)} values and its heading {len(columns)}; "
                "is the log cut off here?"
            )
        return ClusterRow(
            where=where,
            size=int(values[0]),
            count=int(values[1]),
            type=values[2],
            redop=described.get("redop", "none"),
            root=_root(where, described.get("root", "-1")),
            out_of_place=_times(where, columns[first : first + width], values[first:]),
            in_place=_times(where, columns[first + width :], values[first + width :]),
        )

    def log(self) -> ClusterLog:
        """Return all of it; UserError if it is not the log of one test."""
        if not self.rows:
            raise UserError(
                f"{self.source} has no row of nccl-tests: size, count, type, redop, root, time, "
                "algbw, busbw; give what a test such as all_reduce_perf printed, or its -J file"
            )
        if len(self.tests) > 1:
            (one, _), (other, where) = list(self.tests.items())[:2]
            raise UserError(
                f"{where}: here {other}_perf begins, after {one}_perf; cut the log to one test"
            )
        if len(self.groups) > 1:
            raise UserError(
                f"{self.source} has {len(self.groups)} groups of ranks beside each other "
                "(NCCL_TESTS_SPLIT); predict takes a test of all ranks in one"
            )
        if self.ranks and sorted(self.ranks) != list(range(len(self.ranks))):
            raise UserError(
                f"{self.source} lists {len(self.ranks)} ranks, and the last is rank "
                f"{max(self.ranks)}; complete the lines '# Rank ...', or take all of them out"
            )
        iterations, aggregated = self.counts
        return ClusterLog(
            source=self.source,
            collective=next(iter(self.tests), self.test),
            ranks=len(self.ranks) or None,
            rows=self.rows,
            hosts=Counter(self.ranks.values()),
            version=self.version,
            iterations=iterations,
            aggregated=aggregated,
        )


def read(source: str, lines: Iterable[str]) -> ClusterLog:
    """Return the log of one test; UserError, with the line, if that is not what it is."""
    reading = _Reading(source)
    for number, text in enumerate(lines, 1):
        reading.line(number, text)
    return reading.log()


def _row_of(text: str) -> list[str] | None:
    """Return the values of a row, without what a launcher put in front."""
    words = text.split()
    for at in range(min(len(words) - 3, 8)):
        two_numbers = _NUMBER.fullmatch(words[at]) and _NUMBER.fullmatch(words[at + 1])
        if two_numbers and _WORD.fullmatch(words[at + 2]):
            return words[at:]
    return None


def _columns(where: str, heading: str) -> tuple[str, ...]:
    """Return the columns, less the timestamp at the end."""
    columns = [{"error": "#wrong"}.get(word, word) for word in heading.lower().split()]
    if columns[-1] == "timestamp":
        columns.pop()
    if "cputime" in columns:
        raise UserError(
            f"{where}: these are CPU times (-C 1), which end before the operation does; "
            "run the test without -C"
        )
    first = columns.index("time") if "time" in columns else 0
    measured = columns[first:]
    half = len(measured) // 2
    if not first or measured[:half] != measured[half:] or "busbw" not in measured:
        raise UserError(
            f"{where}: the heading has no columns time, algbw and busbw, out of place and in "
            "place; give the log as nccl-tests printed it"
        )
    return tuple(columns)


def _times(where: str, columns: Sequence[str], values: Sequence[str]) -> ClusterTimes | None:
    """Return the numbers of one placement, None if the test does not run it."""
    named = dict(zip(columns, values, strict=False))
    if named["time"] == "N/A":
        return None
    numbers = []
    for name in ("time", "algbw", "busbw"):
        try:
            numbers.append(float(named[name]))
        except ValueError:
            raise UserError(
                f"{where}: {named[name]!r} stands where {name} should; "
                "is the line mixed with another one?"
            ) from None
    return ClusterTimes(*numbers)


def _is_number(values: Sequence[str]) -> bool:
    try:
        return bool(values) and bool(float(values[0]) + 1)
    except ValueError:
        return False


def _root(where: str, text: str) -> int:
    if not re.fullmatch(r"-?\d{1,9}", text):
        raise UserError(f"{where}: {text!r} stands where root should, which is a rank or -1")
    return int(text)
