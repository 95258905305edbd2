"""GOAL, as binary: what LogGOPSim makes of a text before it simulates it.

Numbers are little-endian and packed.  After 8 octets of magic (4223) comes the number of ranks, and
two octets for the largest cpu and nic. Then follows for each rank where its part begins and ends,
counted from octet 8.  A part has the number of its operations and of those without dependency, the
numbers of the latter, and the operations (39 octets each). Behind them stand the
numbers of the operations that wait for the end or the start of another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from scenarios.traces.format_registry import FORMATS, ReadOptions, TraceFormat
from scenarios.traces.goal_starts import start_together
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


def _read(files: Sequence[TraceFile], options: ReadOptions) -> Trace:
    return _BinaryReader(files[0]).read()


FORMATS.register(
    TraceFormat(
        name="goal-binary",
        meaning="GOAL binary of LogGOPSim",
        suffixes=(".bin", ".goal"),
        recognises=lambda head: head[:_BASE] == MAGIC.to_bytes(_BASE, "little"),
        begins="begins with 4223",
        read=_read,
    )
)
