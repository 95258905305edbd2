"""A plain list of collectives, messages and computations, in YAML or CSV, written by hand.

::

    ranks: 8                                            operation,size,ranks,duration,name,after
    operations:                                         ranks,,8,,,
    - {operation: compute, duration: 20us}              compute,,,20us,,
    - {operation: all_reduce, size: 1MiB}               all_reduce,1MiB,,,,
    - {operation: all_gather, size: 64KiB, ranks: 0-3}  all_gather,64KiB,0-3,,,
    - {operation: send, size: 4KiB, ranks: 0 4}         send,4KiB,0 4,,,

Each rank goes through the list from the top, and an operation begins when the one before it in
that rank is over.  ``after`` names others instead, or is ``-`` for the start.  ``ranks`` are
numbers and ranges, by default all; of a send they are its source and its destination.  ``root`` is
a rank, ``stream`` a number: computations of one stream take turns, and collectives and messages of
one stream of a rank follow each other.  ``group`` names a group, whose ranks stand in the first row
that names it.  ``splits`` of an all-to-all are the
octets from each rank to each, ``1KiB 2KiB; 0 4KiB``; one list is that of every rank.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ruamel.yaml.comments import CommentedSeq

from scenarios.traces.format_registry import FORMATS, ReadOptions, TraceFormat
from scenarios.traces.trace_file import TraceFile
from scenarios.traces.trace_model import (
    MOST_OPERATIONS,
    MOST_RANKS,
    Collective,
    Trace,
    TraceCollective,
    TraceCompute,
    TraceOperation,
    TraceReceive,
    TraceRefusal,
    TraceRun,
    TraceSend,
)
from topologies.advice import meant
from topologies.model import TopologyError
from topologies.profile.yaml_lines import LARGEST_TEXT, TextError, line_of, parse_mapping
from topologies.units import parse_size, parse_time_ns

FIELDS = (
    "operation",
    "size",
    "ranks",
    "root",
    "duration",
    "stream",
    "name",
    "after",
    "group",
    "splits",
)
#: Names that a reader gives to groups without one.
MADE_UP = re.compile(r"all|\d+(,\d+)*")
_KINDS = ("compute", "delay", "send", *(one.value for one in Collective))
_COLLECTIVES = {one.value for one in Collective}
#: What a field is not for.
_USED: Mapping[str, Callable[[str], bool]] = {
    "size": lambda kind: kind not in ("compute", "delay", "barrier"),
    "duration": lambda kind: kind in ("compute", "delay"),
    "stream": lambda kind: kind != "delay",
    "root": lambda kind: kind in _COLLECTIVES and Collective(kind).rooted,
    "group": lambda kind: kind in _COLLECTIVES,
    "splits": lambda kind: kind == Collective.ALL_TO_ALL.value,
}


_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def unnamed_group(ranks: Sequence[int], world: int) -> str:
    """Return the name of a group of ``ranks`` that is given none."""
    return ",".join(map(str, ranks)) if len(ranks) < world else "all"


@dataclass
class _Row:
    line: int
    fields: dict[str, str]


class _List:
    """The rows of ``file``, put into the lists of ``ranks``."""

    def __init__(self, file: TraceFile, ranks: int) -> None:
        self._file, self._ranks = file, ranks
        self._lists: list[list[TraceOperation]] = [[] for _ in range(ranks)]
        self._groups: dict[str, tuple[int, ...]] = {}
        #: by name of a row, and rank: where it stands
        self._named: dict[str, dict[int, int]] = {}
        #: by rank and stream: where the last collective or message stands
        self._last: dict[tuple[int, int], int] = {}
        self._count = 0

    def trace(self, rows: Iterable[_Row]) -> Trace:
        for row in rows:
            self._add(row)
        return Trace(self._file.stem, tuple(self._lists), self._groups)

    def _add(self, row: _Row) -> None:
        kind = row.fields.get("operation", "")
        if kind not in _KINDS:
            raise self._wrong(
                row,
                f"operation {kind[:40]!r}{meant(kind, _KINDS)} is none of {', '.join(_KINDS)}",
            )
        for name, used in _USED.items():
            if name in row.fields and not used(kind):
                raise self._wrong(row, f"a {kind} has no {name}; leave it out")
        ranks = self._members_of_group(row) if "group" in row.fields else self._members(row)
        self._count += len(ranks)
        if self._count > MOST_OPERATIONS:
            raise self._wrong(row, f"more than {MOST_OPERATIONS} operations; shorten the list")
        name = row.fields.get("name", "")
        if name in self._named:
            raise self._wrong(row, f"the name {name[:40]!r} is given twice; rename one")
        if kind == "send":
            self._add_send(row, ranks)
        elif kind in ("compute", "delay"):
            duration = self._quantity(row, "duration", parse_time_ns, "20us")
            stream = self._number(row, "stream", 0, 0, 2**31) if kind == "compute" else None
            for rank in ranks:
                one = TraceCompute(**self._common(row, rank), duration_ns=duration, stream=stream)
                self._append(row, rank, one)
        else:
            self._add_collective(row, Collective(kind), ranks)

    def _add_send(self, row: _Row, ranks: Sequence[int]) -> None:
        if len(ranks) != 2:
            raise self._wrong(row, "ranks of a send are its source and destination, such as 0 4")
        source, destination = ranks
        octets = self._quantity(row, "size", parse_size, "64KiB")
        send = TraceSend(**self._common(row, source), peer=destination, octets=octets)
        receive = TraceReceive(**self._common(row, destination), peer=source, octets=octets)
        self._append(row, source, send)
        self._append(row, destination, receive)

    def _add_collective(self, row: _Row, kind: Collective, ranks: tuple[int, ...]) -> None:
        octets = 0
        splits = self._splits(row, len(ranks)) if "splits" in row.fields else ()
        if kind is not Collective.BARRIER and not splits:
            octets = self._quantity(row, "size", parse_size, "1MiB")
        root = None
        if kind.rooted:
            root = self._number(row, "root", ranks[0], 0, self._ranks - 1)
        group = row.fields.get("group") or unnamed_group(ranks, self._ranks)
        self._groups.setdefault(group, ranks)
        for number, rank in enumerate(ranks):
            own = splits[number % len(splits)] if splits else ()
            one = TraceCollective(
                **self._common(row, rank),
                kind=kind,
                octets=sum(own) if splits else octets,
                group=group,
                root=root,
                splits=own,
            )
            self._append(row, rank, one)

    def _splits(self, row: _Row, members: int) -> list[tuple[int, ...]]:
        """Return the octets from each member to each, once if all send the same."""
        if "size" in row.fields:
            raise self._wrong(row, "it has splits, which are its size; leave the size out")
        lists = [text.split() for text in row.fields["splits"].split(";")]
        if len(lists) not in (1, members) or any(len(one) != members for one in lists):
            raise self._wrong(
                row,
                f"splits are a list of {members} sizes for each of the {members} ranks, with ; "
                "between lists, or one list for all; complete them",
            )
        try:
            return [tuple(parse_size(word) for word in one) for one in lists]
        except TopologyError as error:
            raise self._wrong(row, f"splits: {error}") from None

    def _append(self, row: _Row, rank: int, one: TraceOperation) -> None:
        if one.name:
            self._named.setdefault(one.name, {})[rank] = len(self._lists[rank])
        if "stream" in row.fields and not isinstance(one, TraceCompute):
            self._last[rank, int(row.fields["stream"])] = len(self._lists[rank])
        self._lists[rank].append(one)

    def _common(self, row: _Row, rank: int) -> dict[str, Any]:
        before = len(self._lists[rank])
        after: tuple[int, ...] = (before - 1,) if before else ()
        given = row.fields.get("after")
        if given == "-":
            after = ()
        elif given is not None:
            named = []
            for name in given.replace(",", " ").split():
                if name not in self._named:
                    raise self._wrong(row, f"no row before this one has the name {name[:40]!r}")
                if rank in self._named[name]:
                    named.append(self._named[name][rank])
            after = tuple(named)
        if "stream" in row.fields and row.fields["operation"] != "compute":
            stream = self._number(row, "stream", 0, 0, 2**31)
            if (rank, stream) in self._last:
                after = tuple(dict.fromkeys((*after, self._last[rank, stream])))
        return {"where": f"line {row.line}", "name": row.fields.get("name", ""), "after": after}

    def _members_of_group(self, row: _Row) -> tuple[int, ...]:
        name = row.fields["group"]
        if MADE_UP.fullmatch(name):
            raise self._wrong(
                row, f"{name[:40]!r} is no name of a group; take a word such as dp, or leave it out"
            )
        ranks = self._groups.get(name)
        if ranks is None or "ranks" in row.fields:
            given = self._members(row)
            if ranks not in (None, given):
                raise self._wrong(
                    row, f"group {name[:40]!r} has other ranks in a row before; rename one"
                )
            ranks = given
        return ranks

    def _members(self, row: _Row) -> tuple[int, ...]:
        text = row.fields.get("ranks", "all")
        if text == "all":
            return tuple(range(self._ranks))
        found: list[int] = []
        for word in text.replace(",", " ").split():
            low, dash, high = word.partition("-")
            ends = [low, high] if dash else [low, low]
            if not all(end.isascii() and end.isdecimal() and len(end) < 9 for end in ends):
                raise self._wrong(
                    row, f"ranks {text[:40]!r} are none; write for example 0-3 or 0 4"
                )
            first, last = map(int, ends)
            if not first <= last < self._ranks:
                raise self._wrong(
                    row, f"ranks {word} are not among 0 to {self._ranks - 1}; correct them"
                )
            found.extend(range(first, last + 1))
        if len(set(found)) != len(found) or not found:
            raise self._wrong(row, f"ranks {text[:40]!r} name one twice, or none; correct them")
        return tuple(found)

    def _quantity(self, row: _Row, name: str, parse: Callable[[str], int], example: str) -> int:
        if name not in row.fields:
            raise self._wrong(row, f"it has no {name}; give one, such as {example}")
        try:
            return parse(row.fields[name])
        except TopologyError as error:
            raise self._wrong(row, f"{name}: {error}") from None

    def _number(self, row: _Row, name: str, default: int, least: int, most: int) -> int:
        text = row.fields.get(name, str(default))
        if not (text.isascii() and text.isdecimal() and len(text) < 12):
            raise self._wrong(row, f"{name} {text[:40]!r} is not a whole number; write 0")
        if not least <= int(text) <= most:
            raise self._wrong(row, f"{name} is {text}; it lies in {least} to {most}")
        return int(text)

    def _wrong(self, row: _Row, stated: str) -> Exception:
        return self._file.wrong(row.line, stated)


def _ranks(file: TraceFile, line: int, text: str, options: ReadOptions) -> int:
    """Return the number of ranks; UserError if the file and the user disagree."""
    if not text and options.ranks:
        return options.ranks
    if not (text.isascii() and text.isdecimal() and len(text) < 9):
        raise file.wrong(
            line, f"{text[:40]!r} is not the number of ranks; state it, or use --param ranks=N"
        )
    number = int(text)
    if not 1 <= number <= MOST_RANKS:
        raise file.wrong(line, f"there are {number} ranks; give 1 to {MOST_RANKS}")
    if options.ranks not in (0, number):
        raise file.wrong(
            line, f"it has {number} ranks, but --param ranks={options.ranks}; leave that out"
        )
    return number


def _fields(file: TraceFile, line: int, given: Mapping[str, str]) -> _Row:
    unknown = [name for name in given if name not in FIELDS]
    if unknown:
        raise file.wrong(
            line,
            f"there is no field {unknown[0][:40]!r}{meant(unknown[0], FIELDS)}; known are "
            f"{', '.join(FIELDS)}",
        )
    return _Row(line, {name: text.strip() for name, text in given.items() if text.strip()})


def _read_yaml(files: Sequence[TraceFile], options: ReadOptions) -> Trace:
    file = files[0]
    try:
        content = parse_mapping(file.text, file.name)
    except TextError as error:
        problem = error.problems[0]
        raise file.wrong(problem.line, f"{problem.stated}; a longer list goes into CSV") from None
    unknown = [str(key) for key in content if key not in ("ranks", "operations")]
    if unknown:
        raise file.wrong(
            line_of(content, unknown[0]),
            f"there is no key {unknown[0][:40]!r}; take operations",
        )
    ranks = _ranks(file, line_of(content, "ranks"), str(content.get("ranks", "")), options)
    entries: Any = content.get("operations")
    if not isinstance(entries, CommentedSeq) or not entries:
        raise file.wrong(line_of(content, "operations"), "operations is no list; add '- {...}'")
    rows = []
    places: Any = entries.lc
    for number, entry in enumerate(entries):
        line = places.item(number)[0] + 1
        if not isinstance(entry, dict):
            raise file.wrong(line, "not a mapping; write {operation: all_reduce, size: 1MiB}")
        values = {}
        for key, value in entry.items():
            if isinstance(value, list):
                between = "; " if any(isinstance(one, list) for one in value) else " "
                value = between.join(_words(one) for one in value)
            if isinstance(value, dict):
                raise file.wrong(line, f"{str(key)[:40]} is a mapping; write a word or a number")
            values[str(key)] = "" if value is None else str(value)
        rows.append(_fields(file, line, values))
    return _List(file, ranks).trace(rows)


def _words(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _csv_rows(file: TraceFile) -> Iterator[_Row]:
    """Yield the rows of ``file``, one at a time; TraceRefusal for a line that is none."""
    texts = (found.group() for found in _LINE.finditer(file.text))
    lines = csv.reader(texts, skipinitialspace=True)
    try:
        heading = [name.strip() for name in next(lines, [])]
        if len(set(heading)) != len(heading):
            raise file.wrong(1, "two columns have the same name; rename one")
        _fields(file, 1, dict.fromkeys(heading, ""))
        for cells in lines:
            if not any(cells) or cells[0].startswith("#"):
                continue
            if len(cells) > len(heading):
                raise file.wrong(lines.line_num, f"more than {len(heading)} columns; correct it")
            yield _fields(file, lines.line_num, dict(zip(heading, cells, strict=False)))
    except csv.Error as error:
        raise file.wrong(lines.line_num, f"not CSV: {error}; correct the line") from None


def _is_of_aicb(head: bytes) -> bool:
    return head.lstrip(b"\xef\xbb\xbf").startswith(b"comm_type,comm_group")


def _read_csv(files: Sequence[TraceFile], options: ReadOptions) -> Trace:
    file = files[0]
    if _is_of_aicb(file.head):
        raise file.wrong(
            1,
            "a CSV of AICB (comm_type, comm_group), which has a line for each call and no ranks; "
            "give the .txt that AICB writes for SimAI",
        )
    # The number of ranks may stand anywhere, and a list that is too long is never in memory.
    ranks, count = "", 0
    for row in _csv_rows(file):
        if _states_ranks(row):
            ranks = row.fields.get("ranks", "")
            continue
        count += 1
        if count > MOST_OPERATIONS:
            raise file.wrong(row.line, f"more than {MOST_OPERATIONS} rows; shorten the list")
    rows = (row for row in _csv_rows(file) if not _states_ranks(row))
    return _List(file, _ranks(file, 1, ranks, options)).trace(rows)


def _states_ranks(row: _Row) -> bool:
    return row.fields.get("operation") == "ranks"


def _write_yaml(run: TraceRun) -> Mapping[str, bytes]:
    from scenarios.traces.plain_rows import text_rows

    lines = [f"ranks: {run.trace.ranks}", "operations:"]
    lines += [f"- {json.dumps(row)}" for row in text_rows(run.trace)]
    text = "\n".join(lines) + "\n"
    if len(text) > LARGEST_TEXT:
        raise TraceRefusal(
            f"{run.trace.name} is {len(text)} characters as YAML, and {LARGEST_TEXT} can be read; "
            "write it as .csv"
        )
    return {"": text.encode()}


def _write_csv(run: TraceRun) -> Mapping[str, bytes]:
    from scenarios.traces.plain_rows import text_rows

    text = io.StringIO()
    lines = csv.DictWriter(text, FIELDS, lineterminator="\n")
    lines.writeheader()
    lines.writerow({"operation": "ranks", "ranks": run.trace.ranks})
    lines.writerows(text_rows(run.trace))
    return {"": text.getvalue().encode()}


FORMATS.register(
    TraceFormat(
        name="yaml",
        meaning="plain list of collectives as YAML",
        suffixes=(".yaml", ".yml"),
        recognises=lambda head: b"operations" in head,
        begins="has 'operations'",
        read=_read_yaml,
        write=_write_yaml,
        facts=("ranks",),
    )
)
FORMATS.register(
    TraceFormat(
        name="csv",
        meaning="plain list of collectives as CSV",
        suffixes=(".csv",),
        recognises=lambda head: (
            head.lstrip(b"\xef\xbb\xbf").startswith(b"operation") or _is_of_aicb(head)
        ),
        begins="has a heading with 'operation' first",
        read=_read_csv,
        write=_write_csv,
        facts=("ranks",),
    )
)
