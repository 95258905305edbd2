"""GOAL, as text: sends, receives and computations of each rank, with what they require.

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
Group Operation Assembly Language, ICPP 2009; LogGOPSim, LSAP 2010.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from emulator.packed_file import Pace
from scenarios.traces import trace_model
from scenarios.traces.format_registry import FORMATS, ReadOptions, TraceFormat
from scenarios.traces.goal_starts import start_together
from scenarios.traces.trace_file import TraceFile

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
