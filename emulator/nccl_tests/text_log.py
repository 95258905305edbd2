"""The table that nccl-tests prints, of any version since 2.0, read from a log.

The heading above the rows names the columns, with or without ``#`` in front. So older tables (no
``root``, ``error`` for ``#wrong``, milliseconds in 2.0) and newer ones (statistics of iterations,
timestamps) are read alike.  What a launcher puts in front of a line is skipped.  A test prints the
first values of a row before it runs, and the times after it: where NCCL's messages (``NCCL_DEBUG``)
stand between, the row is put together again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from emulator.errors import UserError
from emulator.nccl_tests import cluster_log

#: The columns of a table without a heading, as nccl-tests prints them since 2.13.
USUAL = (
    "size", "count", "type", "redop", "root",
    "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong",
)  # fmt: skip
MOST_ROWS = 10_000

_NUMBER = re.compile(r"\d{1,18}")
_WORD = re.compile(r"[a-z][a-z0-9_]*")
_RANK = re.compile(
    r"\bRank\s+(\d{1,7})\s+(?:Group\s+(\d{1,7})\s+)?(?:Pid\s+(\d+)\s+)?on\s+(\S+)\s+device\s+\d+"
)
_VERSION = re.compile(r"\bnccl-tests version (\S{1,40})")
_COUNTS = re.compile(r"\bnThread\s.*?[^p] iters:\s*(\d{1,9})(?:.*?agg iters:\s*(\d{1,9}))?")
_STARTS = re.compile(r"\b((?:size\s+count|bytes\s+N)\s+type\b.*)$")
_BOUNDS = re.compile(r"\bOut of bounds values\s*:\s*\d+\s+FAILED")
#: What 2.0 called its columns; its times are milliseconds.
_OF_2_0 = {"bytes": "size", "n": "count", "op": "redop", "res": "error"}
_MEASURED = re.compile(r"N/A|[-+]?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|inf|nan)")
_DESCRIBED = {
    "type": re.compile("|".join(sorted(cluster_log.ELEMENT_BYTES, key=len, reverse=True))),
    "redop": re.compile("none|sum|prod|max|min|avg|mulsum|all"),
    "root": re.compile(r"-1|\d{1,9}"),
}


@dataclass
class _Reading:
    source: str
    columns: tuple[str, ...] = ()
    unit_us: float = 1.0
    test: str | None = None
    tests: dict[str, str] = field(default_factory=dict)
    ranks: dict[int, tuple[str, str]] = field(default_factory=dict)
    #: A rank that stands at two places, and these.
    apart: tuple[int, str, str] | None = None
    groups: set[str] = field(default_factory=set)
    rows: list[cluster_log.ClusterRow] = field(default_factory=list)
    version: str | None = None
    counts: tuple[int | None, int] = (None, 1)
    failed: bool = False
    #: The row whose times have not come yet: where it begins, and its values so far.
    begun: tuple[str, list[str]] | None = None

    def line(self, number: int, text: str) -> None:
        where = f"{self.source}, line {number}"
        if named := cluster_log.test_in(text):
            self.test = named
        if self._describes(where, text) or "#" in text:
            return
        if (found := _row_of(text)) is not None:
            self._end_of_row()
            self._begin(where, found, mixed="NCCL " in text)
        elif self.begun is not None:
            self._go_on(self.begun[1], text.split())

    def _describes(self, where: str, text: str) -> bool:
        """Take ``text`` if it is a line about the test; return whether it is one."""
        if heading := _STARTS.search(text):
            self._end_of_row()
            self.columns = _columns(where, heading[1])
            self.unit_us = 1000.0 if heading[1].startswith("bytes") else 1.0
        elif rank := _RANK.search(text):
            self._rank(int(rank[1]), rank[3] or "", rank[4])
            self.groups.add(rank[2] or "0")
        elif version := _VERSION.search(text):
            self.version = version[1]
        elif counts := _COUNTS.search(text):
            self.counts = int(counts[1]), int(counts[2] or 1)
        elif _BOUNDS.search(text):
            self.failed = True
        else:
            return False
        return True

    def _rank(self, rank: int, process: str, host: str) -> None:
        """Take the place of ``rank``; at two places before any row it is of two tests."""
        known = self.ranks.setdefault(rank, (host, process))
        if known != (host, process) and (not self.rows or len(self.ranks) == 1):
            self.apart = rank, _place(*known), _place(host, process)

    def _begin(self, where: str, values: Sequence[str], mixed: bool) -> None:
        """Take the first values of a row; ``mixed``: a message of NCCL stands behind them."""
        columns = self.columns
        if not columns:
            if values[2] not in cluster_log.ELEMENT_BYTES or (
                len(values) < len(USUAL) and not mixed
            ):
                return
            columns = self.columns = USUAL
        first = columns.index("time")
        # An unknown type is a mistake in a whole row, and else the words of a launcher.
        if values[2] not in cluster_log.ELEMENT_BYTES and (
            mixed or not _MEASURED.fullmatch("".join(values[first : first + 1]))
        ):
            return
        row = _taken(columns, values) if mixed else list(values)
        if columns[3:4] == ("redop",) and len(row) > 3 and _MEASURED.fullmatch(row[3]):
            row.insert(3, "none")  # alltoall before 2.13 leaves its operation blank
        self.begun = where, row
        if len(row) >= len(columns):
            self._end_of_row()

    def _go_on(self, row: list[str], words: Sequence[str]) -> None:
        """Take the times that belong to ``row``, which has begun, if ``words`` are them."""
        first = self.columns.index("time")
        ends = first + _width(self.columns), len(self.columns)
        for at in range(min(len(words), 8)):
            more = _taken(self.columns[len(row) :], words[at:])
            if more and len(row) + len(more) in ends:
                row.extend(more)
                break
        if len(row) == len(self.columns):
            self._end_of_row()

    def _end_of_row(self) -> None:
        """Add the row that has begun; UserError if values of it are missing."""
        if self.begun is None:
            return
        (where, values), self.begun = self.begun, None
        if len(values) < len(self.columns):
            raise UserError(
                f"{where}: the row has {len(values)} values and its heading {len(self.columns)}; "
                "is the log cut off here, or mixed with NCCL's messages? NCCL_DEBUG_FILE=PATH "
                "keeps these out"
            )
        self.rows.append(self._row(where, values))
        if len(self.rows) > MOST_ROWS:
            raise UserError(f"{where}: more than {MOST_ROWS} rows; cut the log to one test")
        if self.test is not None:
            self.tests.setdefault(self.test, where)

    def _row(self, where: str, values: Sequence[str]) -> cluster_log.ClusterRow:
        columns = self.columns
        first, width = columns.index("time"), _width(columns)
        described = dict(zip(columns[:first], values, strict=False))
        return cluster_log.ClusterRow(
            where=where,
            size=int(values[0]),
            count=int(values[1]),
            type=values[2],
            redop=described.get("redop", "none"),
            root=_root(where, described.get("root", "-1")),
            out_of_place=self._times(where, columns[first : first + width], values[first:]),
            in_place=self._times(where, columns[first + width :], values[first + width :]),
        )

    def _times(
        self, where: str, columns: Sequence[str], values: Sequence[str]
    ) -> cluster_log.ClusterTimes | None:
        """Return the numbers of one placement, None if the test does not run it."""
        named = dict(zip(columns, values, strict=False))
        if named.get("time", "N/A") == "N/A":
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
        wrong = named.get("#wrong", "")
        return cluster_log.ClusterTimes(
            numbers[0] * self.unit_us,
            *numbers[1:],
            wrong=int(wrong) if _NUMBER.fullmatch(wrong) else None,
            time_step_us=_step(named["time"]) * self.unit_us,
            algbw_step_gbps=_step(named["algbw"]),
        )

    def log(self) -> cluster_log.ClusterLog:
        """Return all of it; UserError if it is not the log of one test."""
        self._end_of_row()
        if self.apart is not None:
            rank, *places = self.apart
            raise UserError(
                f"{self.source} lists rank {rank} twice, as {places[0]} and {places[1]}: "
                "several tests ran beside each other, each of its own ranks alone; build "
                "nccl-tests with MPI=1, so that mpirun starts one of all ranks"
            )
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
        return cluster_log.ClusterLog(
            source=self.source,
            collective=next(iter(self.tests), self.test),
            ranks=len(self.ranks) or None,
            rows=self.rows,
            hosts=Counter(host for host, _ in self.ranks.values()),
            version=self.version,
            iterations=iterations,
            aggregated=aggregated,
            failed=self.failed,
        )


def read(source: str, lines: Iterable[str]) -> cluster_log.ClusterLog:
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
    """Return the columns by the names of today, less the timestamp at the end."""
    columns = [_OF_2_0.get(word, word) for word in heading.lower().split()]
    if columns[-1] == "timestamp":
        columns.pop()
    if "cputime" in columns:
        raise UserError(
            f"{where}: these are CPU times (-C 1), which end before the operation does; "
            "run the test without -C"
        )
    first = columns.index("time") if "time" in columns else 0
    measured = columns[first:]
    half = _width(columns)
    again = [] if heading.startswith("bytes") and half == len(measured) else measured[:half]
    needed = {"time", "algbw", "busbw"} <= set(measured[:half])
    if not first or not needed or measured[half:] != again:
        raise UserError(
            f"{where}: the heading has no columns time, algbw and busbw, out of place and in "
            "place; give the log as nccl-tests printed it"
        )
    return tuple(columns)


def _width(columns: Sequence[str]) -> int:
    """Return the columns of one placement; the broadcast of 2.0 has only one."""
    if "time" not in columns:
        return 0
    return (len(columns) - columns.index("time")) // columns.count("time")


def _taken(columns: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return the values that ``words`` begin with; the last may run into another text."""
    taken = []
    for column, word in zip(columns, words, strict=False):
        found = _DESCRIBED.get(column, _MEASURED).match(word)
        if found is None:
            break
        taken.append(found[0])
        if found[0] != word:
            break
    return taken


def _place(host: str, process: str) -> str:
    return f"process {process} on {host}" if process else f"a process on {host}"


def _step(number: str) -> float:
    """Return the unit of the last digit of ``number``, 0 where it has an exponent."""
    if "e" in number.lower():
        return 0.0
    return 10.0 ** -len(number.partition(".")[2])


def _root(where: str, text: str) -> int:
    if not re.fullmatch(r"-?\d{1,9}", text):
        raise UserError(f"{where}: {text!r} stands where root should, which is a rank or -1")
    return int(text)
