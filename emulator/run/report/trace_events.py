"""Events of Chrome's trace format, and tracks on which slices do not overlap."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence

Event = dict[str, object]
#: Process and thread.
Place = tuple[int, int]


def slice_event(
    title: str,
    category: str,
    place: Place,
    span_ns: tuple[int, int],
    details: Mapping[str, object] | None = None,
) -> Event:
    """Return a slice from the first to the second time of ``span_ns``."""
    begin, end = span_ns
    event: Event = {
        "ph": "X",
        "name": title,
        "cat": category,
        "pid": place[0],
        "tid": place[1],
        "ts": begin / 1000,
        "dur": (end - begin) / 1000,
    }
    if details:
        event["args"] = details
    return event


def slice_text(title: str, category: str, place: Place, span_ns: tuple[int, int], more: str) -> str:
    """Return a slice as JSON text, several times as fast; ``title`` and ``more`` are such texts."""
    begin, end = span_ns
    return (
        f'{{"ph": "X", "name": {title}, "cat": "{category}", "pid": {place[0]}, "tid": {place[1]},'
        f' "ts": {begin / 1000}, "dur": {(end - begin) / 1000}{more}}}'
    )


def counter_event(name: str, unit: str, pid: int, at_ns: float, value: float) -> Event:
    return {"ph": "C", "name": name, "pid": pid, "ts": at_ns / 1000, "args": {unit: value}}


def named(what: str, name: str, pid: int, tid: int | None = None) -> Event:
    """Return the metadata event that names a process or a thread."""
    event: Event = {"ph": "M", "name": what, "pid": pid, "args": {"name": name}}
    return event if tid is None else {**event, "tid": tid}


class Tracks:
    """The tracks of process ``pid``; ``order`` is how a viewer sorts their kinds.

    ``tids`` numbers the threads of all processes, as no two may share an id.
    """

    def __init__(self, pid: int, tids: Iterator[int], order: Sequence[str]) -> None:
        self._pid, self._tids, self._order = pid, tids, order
        self._free: dict[str, list[tuple[int, int]]] = {}  # per kind: (free from, tid)
        self._threads: dict[str, list[int]] = {}
        self._open: dict[int, list[int]] = {}  # per tid: ends of slices that are open

    def take(self, kind: str, span_ns: tuple[int, int]) -> Place:
        """Return a track of ``kind`` that is free from the first to the second time.

        Calls come in the order of the first times.
        """
        begin, end = span_ns
        free = self._free.setdefault(kind, [])
        tid = heapq.heappop(free)[1] if free and free[0][0] <= begin else self._made(kind)
        heapq.heappush(free, (end, tid))
        return self._pid, tid

    def nest(self, kind: str, span_ns: tuple[int, int]) -> Place:
        """Return the first track of ``kind`` on which a slice lies in those around it.

        Calls come in the order of the first times, and of one time the longest slice first.
        """
        begin, end = span_ns
        for tid in self._threads.setdefault(kind, []):
            ends = self._open[tid]
            while ends and ends[-1] <= begin:
                ends.pop()
            if not ends or end <= ends[-1]:
                break
        else:
            tid = self._made(kind)
        self._open[tid].append(end)
        return self._pid, tid

    def one(self, kind: str) -> Place:
        """Return the only track of ``kind``, for what takes no time."""
        threads = self._threads.get(kind)
        return self._pid, threads[0] if threads else self._made(kind)

    def names(self) -> Iterator[Event]:
        """Yield the names of all tracks and their places."""
        for kind, threads in self._threads.items():
            for number, tid in enumerate(threads, 1):
                title = kind if number == 1 else f"{kind} {number}"
                yield named("thread_name", title, self._pid, tid)
                place = {"sort_index": 1000 * self._order.index(kind) + number}
                yield {
                    "ph": "M", "name": "thread_sort_index", "pid": self._pid, "tid": tid,
                    "args": place,
                }  # fmt: skip

    def _made(self, kind: str) -> int:
        tid = next(self._tids)
        self._threads.setdefault(kind, []).append(tid)
        self._open[tid] = []
        return tid
