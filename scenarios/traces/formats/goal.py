"""GOAL: sends, receives and computations of each rank, as text, and as the binary of LogGOPSim.

::

    num_ranks 2
    rank 0 {
      work: calc 2000 cpu 0
      out: send 65536b to 1 tag 7
      out requires work
    }
    rank 1 {
      recv 65536b from 0 tag 7
    }

Sizes are in octets and computations in ns.  ``requires`` waits for the end of an operation,
``irequires`` for its start.  Computations of one ``cpu`` take turns.  (Hoefler, Siebert, Lumsdaine:
Group Operation Assembly Language, ICPP 2009; LogGOPSim, LSAP 2010.)  An operation starts when all
that it waits for is over.  So who may start after its start waits for the same.

In the binary numbers are little-endian and packed.  After 8 octets of magic (4223) comes the number
of ranks, and two octets for the largest cpu and nic. Then follows for each rank where its part
begins and ends, counted from octet 8.  A part has the number of its operations and of those without
dependency, the numbers of the latter, and the operations (39 octets each). Behind them stand the
numbers of the operations that wait for the end or the start of another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from emulator.packed_file import Pace
from scenarios.traces import trace_model
from scenarios.traces.format_registry import FORMATS, ReadOptions, TraceFormat
from scenarios.traces.trace_file import TraceFile
from scenarios.traces.trace_model import (
    MOST_OPERATIONS,
    MOST_RANKS,
    Trace,
    TraceCompute,
    TraceOperation,
    TraceReceive,
    TraceRefusal,
    TraceSend,
)


def start_together(
    after: list[set[int]], starts: Sequence[tuple[int, int]]
) -> tuple[int, str] | None:
    """Let the first of each pair in ``starts`` wait for what the second waits for.

    Return None, or an operation and what is wrong with it.
    """
    follows: dict[int, list[int]] = {}
    waits = dict.fromkeys((one for pair in starts for one in pair), 0)
    for later, earlier in starts:
        follows.setdefault(earlier, []).append(later)
        waits[later] += 1
    ready = [one for one, count in waits.items() if not count]
    copied = 0
    while ready:
        earlier = ready.pop()
        for later in follows.get(earlier, ()):
            after[later] |= after[earlier]
            copied += len(after[earlier])
            if copied > MOST_OPERATIONS:
                return later, (
                    f"irequires leads to more than {MOST_OPERATIONS} dependencies; write requires"
                )
            waits[later] -= 1
            if not waits[later]:
                ready.append(later)
    circle = next((one for one, count in waits.items() if count), None)
    if circle is None:
        return None
    return circle, "operations start after each other in a circle; break it"


MAGIC = 4223
ANY = 0xFFFFFFFF
_SEND, _RECEIVE, _COMPUTE = 1, 2, 3
_BASE, _PARTS = 8, 14  # octets before offsets count, and before the table of parts
_WORD = np.dtype("<u4")
_PART = np.dtype([("start", "<u8"), ("end", "<u8")])
NODE = np.dtype(
    [
        ("waits", "<u4"),
        ("kind", "u1"),
        ("peer", "<u4"),
        ("size", "<u8"),
        ("tag", "<u4"),
        ("cpu", "u1"),
        ("nic", "u1"),
        ("followers", "<u4"),
        ("first_follower", "<u4"),
        ("starters", "<u4"),
        ("first_starter", "<u4"),
    ]
)


class _BinaryReader:
    def __init__(self, file: TraceFile) -> None:
        self._file, self._data = file, file.content
        self._total = 0

    def read(self) -> Trace:
        if len(self._data) < _PARTS or int.from_bytes(self._data[:_BASE], "little") != MAGIC:
            raise self._wrong(f"it does not begin with {MAGIC}; is it binary GOAL?")
        ranks = int.from_bytes(self._data[_BASE : _BASE + 4], "little")
        if not 1 <= ranks <= MOST_RANKS:
            raise self._wrong(f"it has {ranks} ranks; give a file with 1 to {MOST_RANKS}")
        parts = self._array(_PART, _PARTS, ranks, "the table of ranks")
        lists = []
        for rank, (start, end) in enumerate(parts.tolist()):
            if not start <= end <= len(self._data) - _BASE:
                raise self._wrong(
                    f"rank {rank} claims octets {start} to {end} of {len(self._data) - _BASE}; is "
                    "the file whole?"
                )
            lists.append(self._rank(rank, _BASE + start, _BASE + end))
        return Trace(self._file.stem, tuple(lists))

    def _rank(self, rank: int, start: int, end: int) -> list[TraceOperation]:
        what = f"rank {rank}"
        count, roots = self._array(_WORD, start, 2, what, end).tolist()
        self._total += count
        if self._total > MOST_OPERATIONS:
            raise self._wrong(
                f"up to {what} it has more than {MOST_OPERATIONS} operations; cut out what matters"
            )
        begin = start + 4 * (2 + roots)
        nodes = self._array(NODE, begin, count, what, end)
        appendix = begin + count * NODE.itemsize
        names = self._array(_WORD, appendix, max(0, (end - appendix) // 4), what, end)
        after: list[set[int]] = [set() for _ in range(count)]
        for earlier, later in self._edges(rank, nodes, names, "follower"):
            after[later].add(earlier)
        starts = [(later, earlier) for earlier, later in self._edges(rank, nodes, names, "starter")]
        problem = start_together(after, starts)
        if problem is not None:
            raise self._wrong(f"{what}, operation {problem[0]}: {problem[1]}")
        for number, (waits, found) in enumerate(zip(nodes["waits"].tolist(), after, strict=True)):
            if not starts and waits != len(found):
                raise self._wrong(
                    f"{what}, operation {number}: it waits for {waits} others, and {len(found)} "
                    "name it; is the file whole?"
                )
        return [
            self._operation(rank, number, row, tuple(sorted(after[number])))
            for number, row in enumerate(nodes.tolist())
        ]

    def _edges(
        self, rank: int, nodes: npt.NDArray[np.void], names: npt.NDArray[np.uint32], kind: str
    ) -> Iterator[tuple[int, int]]:
        counts, firsts = nodes[f"{kind}s"].tolist(), nodes[f"first_{kind}"].tolist()
        if sum(counts) > len(names):
            raise self._wrong(
                f"rank {rank} names {sum(counts)} dependencies and {len(names)} are there; is the "
                "file whole?"
            )
        for number, (count, first) in enumerate(zip(counts, firsts, strict=True)):
            if count and first + count > len(names):
                raise self._wrong(
                    f"rank {rank}, operation {number}: its dependencies lie behind the end of the "
                    "rank; is the file whole?"
                )
            for later in names[first : first + count].tolist():
                if later >= len(nodes):
                    raise self._wrong(
                        f"rank {rank}, operation {number}: there is no operation {later}; is the "
                        "file whole?"
                    )
                yield number, later

    def _operation(
        self, rank: int, number: int, row: Sequence[int], after: tuple[int, ...]
    ) -> TraceOperation:
        _, kind, peer, size, tag, cpu, *_ = row
        where = f"operation {number}"
        if kind == _COMPUTE:
            return TraceCompute(where=where, after=after, duration_ns=size, stream=cpu)
        if kind not in (_SEND, _RECEIVE):
            raise self._wrong(f"rank {rank}, {where}: its type {kind} is unknown; known are 1 to 3")
        if ANY in (peer, tag):
            raise self._wrong(
                f"rank {rank}, {where}: any rank or any tag: which message it gets would depend on "
                "the fabric; name both"
            )
        if kind == _SEND:
            return TraceSend(where=where, after=after, peer=peer, octets=size, tag=tag)
        return TraceReceive(where=where, after=after, peer=peer, octets=size, tag=tag)

    def _array(
        self, kind: np.dtype[Any], start: int, count: int, what: str, end: int | None = None
    ) -> npt.NDArray[Any]:
        left = (len(self._data) if end is None else end) - start
        if count * kind.itemsize > left:
            raise self._wrong(
                f"{what} claims {count * kind.itemsize} octets and {max(0, left)} are left; is the "
                "file whole?"
            )
        return np.frombuffer(self._data, kind, count, start)

    def _wrong(self, stated: str) -> TraceRefusal:
        return TraceRefusal(f"{self._file.name}: {stated}")


def _read_binary(files: Sequence[TraceFile], options: ReadOptions) -> Trace:
    return _BinaryReader(files[0]).read()


FORMATS.register(
    TraceFormat(
        name="goal-binary",
        meaning="GOAL binary of LogGOPSim",
        suffixes=(".bin", ".goal"),
        recognises=lambda head: head[:_BASE] == MAGIC.to_bytes(_BASE, "little"),
        begins="begins with 4223",
        read=_read_binary,
    )
)


_TOKEN = re.compile(r"\n|//[^\n]*|/\*(?:[\s\S]*?\*/)?|[{}]|[^\s{}/]+|/")
_OPTIONS = ("tag", "cpu", "nic")
_LONGEST_NUMBER = 20


@dataclass
class _Operation:
    line: int
    kind: str
    value: int
    peer: int
    options: dict[str, int]
    ends: list[str] = field(default_factory=list)
    starts: list[str] = field(default_factory=list)


class _Reader:
    def __init__(self, file: TraceFile) -> None:
        self._file = file
        self._tokens = _tokens(file)
        self._line, self._token = 1, ""
        self._count = 0
        self._take()

    def read(self) -> trace_model.Trace:
        self._keyword("num_ranks")
        ranks = self._number("a number of ranks")
        if not 1 <= ranks <= trace_model.MOST_RANKS:
            raise self._wrong(
                f"num_ranks is {ranks}; give a number from 1 to {trace_model.MOST_RANKS}"
            )
        lists: dict[int, Sequence[trace_model.TraceOperation]] = {}
        while self._token:
            self._keyword("rank")
            rank = self._number("the number of a rank")
            if rank >= ranks:
                raise self._wrong(f"there is no rank {rank}: num_ranks is {ranks}")
            if rank in lists:
                raise self._wrong(f"rank {rank} has a block already; join the two")
            lists[rank] = self._block()
        missing = [rank for rank in range(ranks) if rank not in lists]
        if missing:
            raise self._wrong(
                f"rank {missing[0]} has no block, though num_ranks is {ranks}; add "
                f"'rank {missing[0]} {{ }}' if it does nothing"
            )
        return trace_model.Trace(self._file.stem, tuple(lists[rank] for rank in range(ranks)))

    def _block(self) -> Sequence[trace_model.TraceOperation]:
        self._keyword("{")
        operations: list[_Operation] = []
        labels: dict[str, int] = {}
        edges: list[tuple[str, str, bool, int]] = []
        while self._token != "}":
            line, word = self._line, self._take()
            if not word:
                raise self._file.wrong(line, "the block of a rank does not end; add '}'")
            if self._token in ("requires", "irequires"):
                started = self._take() == "irequires"
                edges.append((word, self._take(), started, line))
                continue
            if word.endswith(":"):
                if word[:-1] in labels:
                    raise self._file.wrong(line, f"label {word[:-1]!r} is given twice; rename one")
                labels[word[:-1]] = len(operations)
                word = self._take()
            operations.append(self._operation(word, line))
            self._count += 1
            if self._count > trace_model.MOST_OPERATIONS:
                raise self._file.wrong(
                    line,
                    f"more than {trace_model.MOST_OPERATIONS} operations; cut out what matters",
                )
        self._take()
        return _resolved(self._file, operations, labels, edges)

    def _operation(self, word: str, line: int) -> _Operation:
        peer = 0
        if word == "calc":
            value = self._number("a duration in ns, such as 2000")
        elif word in ("send", "recv"):
            value = self._size()
            self._keyword("to" if word == "send" else "from")
            peer = self._peer()
        else:
            raise self._file.wrong(
                line, f"{_shown(word)} is none of send, recv, calc, and no label; correct it"
            )
        options: dict[str, int] = {}
        while self._token in _OPTIONS:
            name = self._take()
            if name in options:
                raise self._wrong(f"{name} is given twice; keep one of them")
            options[name] = self._tag() if name == "tag" else self._number(f"a number for {name}")
        return _Operation(line, word, value, peer, options)

    def _size(self) -> int:
        text = self._token
        if text.endswith("b"):
            self._token = text[:-1]
            return self._number("a size in octets, such as 4096b")
        raise self._wrong(f"the size {_shown(text)} has no unit; write octets as 4096b")

    def _peer(self) -> int:
        if self._token in ("-1", "4294967295"):
            raise self._wrong(
                "a receive from any rank: which message it gets would depend on the fabric; name "
                "the rank"
            )
        return self._number("the number of a rank")

    def _tag(self) -> int:
        if self._token in ("-1", "4294967295"):
            raise self._wrong(
                "any tag: which message it gets would depend on the fabric; give the tag"
            )
        return self._number("a number for tag")

    def _number(self, expected: str) -> int:
        text = self._token
        if not (text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER):
            raise self._wrong(f"{_shown(text)} is not {expected}; correct it")
        self._take()
        return int(text)

    def _keyword(self, word: str) -> None:
        if self._token != word:
            raise self._wrong(f"{_shown(self._token)} stands where {word!r} belongs; correct it")
        self._take()

    def _take(self) -> str:
        """Return the token that is next, and go on to the one behind it."""
        taken = self._token
        self._line, self._token = next(self._tokens, (self._line, ""))
        return taken

    def _wrong(self, stated: str) -> Exception:
        return self._file.wrong(self._line, stated)


def _shown(text: str) -> str:
    if not text:
        return "the end of the file"
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


def _tokens(file: TraceFile) -> Iterator[tuple[int, str]]:
    """Yield every token of ``file`` with its line; comments are left out."""
    line = 1
    pace = Pace(f"reading {file.name}")
    for found in _TOKEN.finditer(file.text):
        token = found.group()
        if token == "\n":
            line += 1
            if not line % 4096:
                pace.at(f"line {line}")
        elif token.startswith("/*"):
            if token == "/*":
                raise file.wrong(line, "a comment begins with /* and does not end; add */")
            line += token.count("\n")
        elif not token.startswith("//"):
            yield line, token


def _resolved(
    file: TraceFile,
    operations: Sequence[_Operation],
    labels: Mapping[str, int],
    edges: Sequence[tuple[str, str, bool, int]],
) -> Sequence[trace_model.TraceOperation]:
    after: list[set[int]] = [set() for _ in operations]
    starts: list[tuple[int, int]] = []
    for later, earlier, started, line in edges:
        for label in (later, earlier):
            if label not in labels:
                raise file.wrong(line, f"there is no label {_shown(label)} in this rank; add it")
        if started:
            starts.append((labels[later], labels[earlier]))
        else:
            after[labels[later]].add(labels[earlier])
    problem = start_together(after, starts)
    if problem is not None:
        raise file.wrong(operations[problem[0]].line, problem[1])
    names = {at: label for label, at in labels.items()}
    return [
        _operation(one, names.get(at, ""), tuple(sorted(after[at])))
        for at, one in enumerate(operations)
    ]


def _operation(one: _Operation, name: str, after: tuple[int, ...]) -> trace_model.TraceOperation:
    where = f"line {one.line}"
    if one.kind == "calc":
        stream = one.options.get("cpu", 0)
        return trace_model.TraceCompute(
            where=where, name=name, after=after, duration_ns=one.value, stream=stream
        )
    kind = trace_model.TraceSend if one.kind == "send" else trace_model.TraceReceive
    return kind(
        where=where,
        name=name,
        after=after,
        peer=one.peer,
        octets=one.value,
        tag=one.options.get("tag", 0),
    )


def _read(files: Sequence[TraceFile], options: ReadOptions) -> trace_model.Trace:
    return _Reader(files[0]).read()


def _write(run: trace_model.TraceRun) -> Mapping[str, bytes]:
    return {"": "\n".join(_lines(run.messages)).encode() + b"\n"}


def _lines(trace: trace_model.Trace) -> Iterator[str]:
    yield f"num_ranks {trace.ranks}"
    for rank, operations in enumerate(trace.operations):
        yield ""
        yield f"rank {rank} {{"
        for at, one in enumerate(operations):
            yield f"l{at + 1}: {_written(one)}"
            for earlier in one.after:
                yield f"l{at + 1} requires l{earlier + 1}"
        yield "}"


def _written(one: trace_model.TraceOperation) -> str:
    match one:
        case trace_model.TraceSend(peer=peer, octets=octets, tag=tag):
            return f"send {octets}b to {peer} tag {tag}"
        case trace_model.TraceReceive(peer=peer, octets=octets, tag=tag):
            return f"recv {octets}b from {peer} tag {tag}"
        case trace_model.TraceCompute(duration_ns=duration, stream=stream):
            return f"calc {duration} cpu {stream or 0}"
    raise TypeError(f"{type(one).__name__} is no message")


FORMATS.register(
    TraceFormat(
        name="goal",
        meaning="GOAL text of LogGOPSim and ATLAHS",
        suffixes=(".goal",),
        recognises=lambda head: b"num_ranks" in head,
        begins="begins with 'num_ranks'",
        read=_read,
        write=_write,
    )
)
