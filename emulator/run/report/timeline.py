"""One iteration as a timeline in Chrome's trace format (JSON), which Perfetto opens.

Each GPU is a process.  Its tracks are ``compute`` (also sums), ``NIC out`` and ``NIC in`` (the
fabric), ``NVLink out`` and ``NVLink in``, ``barrier``, and ``steps``: what a scenario gave a name,
such as a micro-batch of a layer.  What overlaps has tracks beside each other.  Messages that arrive
stand at the moment the data were there; flows join them to where they were sent.  Switches are
processes as well, with counters and marks (:mod:`emulator.run.report.switch_tracks`), and so is
``faults``.  Times are microseconds of fabric time since the common start.

Where several processes share the GPUs, each brings the operations of its own that are shown, and
the first one makes the events.

Perfetto's importer has rules that the format has not: slices of a thread nest or are apart, or it
drops them; a flow begins before it ends; times are not negative; process 0 and thread 0 are the
idle ones; and names of threads are by thread id alone, so that no two threads here share one.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count, islice

import numpy as np

from emulator.run.measures.queue_depths import QueueSeries
from emulator.run.report import switch_tracks
from emulator.run.report.trace_events import Event, Tracks, named, slice_event, slice_text
from emulator.run.results import JsonText
from emulator.sim.endpoint.operations.elementwise import FUNCTION_NAMES
from emulator.sim.endpoint.operations.operation_table import (
    APPLY,
    BARRIER,
    COMPUTE,
    COPY,
    RECEIVE,
    REDUCE,
    WRITE,
    OperationTable,
)
from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.sim.endpoint.operations.schedule import Schedule
from emulator.workers.division import JobSchedules

#: Operations beyond which GPUs are left out: what a viewer still opens.
SHOWN = 250_000

_TRACKS: Mapping[int, str] = {
    WRITE: "NIC out",
    COPY: "NVLink out",
    REDUCE: "compute",
    COMPUTE: "compute",
    APPLY: "compute",
    BARRIER: "barrier",
}
_CATEGORIES = {kind: track.partition(" ")[0] for kind, track in _TRACKS.items()}
#: Events of operations that are one text: each by itself would pass through all that writes them.
_AT_ONCE = 1000
_ORDER = ("steps", "compute", "NVLink out", "NVLink in", "NIC out", "NIC in", "barrier")

#: Source and destination, and with the tag of a message between them.
_Pair = tuple[int, int]
_Message = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Everything beside the operations of ranks.

    ``collective`` names operations that the scenario gave no name.  ``queues`` are those of switch
    ports, by ``node:port``, and ``faults`` texts with their times (ns after the start).  ``row`` is
    the number from 1 of the row that the iteration belongs to.
    """

    collective: str = ""
    queues: Mapping[str, QueueSeries] = field(default_factory=dict)
    faults: Sequence[tuple[int, str]] = ()
    row: int | None = None


def timeline(
    names: Sequence[str],
    schedules: Sequence[Schedule],
    results: Sequence[RankResult],
    around: Surroundings | None = None,
) -> dict[str, object] | None:
    """Return the trace of one execution at the first of the processes, and None at the others.

    All processes call it.  ``names`` are the GPUs' names by rank.  ``schedules`` and ``results``
    are those of all GPUs in this order; those of others' GPUs need no operations, nor their times.
    Of many operations those of the first GPUs are in the trace, with :data:`SHOWN` at most.
    """
    around = around or Surroundings()
    facts: dict[str, object] = {"time": "fabric time since the start of the iteration"}
    if around.row is not None:
        facts["row"] = around.row
    job = JobSchedules.of(schedules)
    sizes = _sizes(job, results)
    shown = max(1, sum(total <= SHOWN for total in accumulate(sizes)))
    parts = job.division.processes.to_first("timeline", _Shown.own(job, results[:shown]))
    if not parts:
        return None
    if shown < len(results):
        facts["gpus"] = f"the first {shown} of {len(results)}: all have {sum(sizes)} operations"
    begin = min(result.start_ns for result in results)
    end = max(result.end_ns for result in results)
    ports = switch_tracks.shown_ports(around.queues, begin, end)
    if len(ports) < len(around.queues):
        facts["ports"] = (
            f"{len(ports)} of {len(around.queues)}: those that carried data, the deepest queues "
            "first"
        )
    trace = _Trace(names, _Shown.joined(parts), around.collective, begin)
    return {
        "displayTimeUnit": "ns",
        "otherData": facts,
        "traceEvents": _events(trace, ports, around.faults, (begin, end)),
    }


def _sizes(schedules: JobSchedules, results: Sequence[RankResult]) -> list[int]:
    """Return how many operations the GPUs of ``results`` have, whoever has them."""
    division = schedules.division
    own = [len(schedules[rank].operations) for rank in sorted(division.own)]
    parts = [iter(part) for part in division.processes.gather("sizes of schedules", own)]
    by_rank = [next(parts[home]) for home in division.home]
    return [by_rank[result.rank] for result in results]


@dataclass(frozen=True)
class _Shown:
    """The schedules and results of shown GPUs, by rank.

    ``fabric`` are pairs of GPUs of which the first writes to the second, a shown one, over the
    fabric.
    """

    schedules: Mapping[int, Schedule]
    results: Mapping[int, RankResult]
    fabric: Collection[_Pair]

    @classmethod
    def own(cls, schedules: JobSchedules, shown: Sequence[RankResult]) -> _Shown:
        """Return what this process has of the GPUs of ``shown``, in columns where it is sent."""
        division = schedules.division
        results = {result.rank: result for result in shown if result.rank in division.own}
        ranks = {result.rank for result in shown}
        fabric = [
            (schedule.rank, peer)
            for schedule in schedules
            if schedule.rank in division.own
            for peer in ranks.intersection(OperationTable.of(schedule.operations).peers(WRITE))
        ]
        found = {rank: schedules[rank] for rank in results}
        if not division.processes.reports:
            found = {rank: _compact(schedule) for rank, schedule in found.items()}
        return cls(found, results, fabric)

    @classmethod
    def joined(cls, parts: Sequence[_Shown]) -> _Shown:
        """Return what all processes have, in the order of ranks."""
        results = {rank: one for part in parts for rank, one in part.results.items()}
        return cls(
            {rank: one for part in parts for rank, one in part.schedules.items()},
            dict(sorted(results.items())),
            frozenset(pair for part in parts for pair in part.fabric),
        )


def _compact(schedule: Schedule) -> Schedule:
    """Return the part of ``schedule`` that a trace has, small when it is sent."""
    return replace(schedule, buffers={}, operations=OperationTable.of(schedule.operations))


def _events(
    trace: _Trace,
    ports: Mapping[str, QueueSeries],
    faults: Sequence[tuple[int, str]],
    span_ns: tuple[int, int],
) -> Iterator[Event | JsonText]:
    """Yield the events of all processes, made one by one; those of operations are texts."""
    yield from trace.events()
    tids = trace.tids
    processes = count(len(trace.names) + 1)
    if faults:
        pid, tid = next(processes), next(tids)
        yield named("process_name", "faults", pid)
        yield named("thread_name", "faults", pid, tid)
        for at_ns, text in sorted(faults):
            yield slice_event(text, "fault", (pid, tid), (at_ns, at_ns))
    yield from switch_tracks.events(ports, processes, tids, span_ns)


class _Trace:
    """The events of the GPUs that are ``shown``."""

    def __init__(self, names: Sequence[str], shown: _Shown, collective: str, origin: int) -> None:
        self.names, self._fabric = names, shown.fabric
        self._spans = {rank: one.spans for rank, one in shown.schedules.items()}
        self._tables = {
            rank: OperationTable.of(one.operations) for rank, one in shown.schedules.items()
        }
        self._results = tuple(shown.results.values())
        self._collective, self._origin = collective, origin
        #: not those of processes, which would be their main threads
        self.tids = count(100_000)
        self._flows = count(1)
        #: flow of each message that was sent, until it is received
        self._sent: dict[_Message, int] = {}

    def events(self) -> Iterator[Event | JsonText]:
        """Yield the events: all sends before all receives, as a flow has to begin first."""
        tracks = {
            result.rank: Tracks(result.rank + 1, self.tids, _ORDER) for result in self._results
        }
        for result in self._results:
            pid = result.rank + 1
            yield named("process_name", self.names[result.rank], pid)
            order = {"sort_index": result.rank}
            yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": order}
            yield from _grouped(self._operations(result, tracks[result.rank]))
            yield from self._steps(result, tracks[result.rank])
        for result in self._results:
            yield from _grouped(self._receives(result, tracks[result.rank]))
            yield from tracks[result.rank].names()

    def _operations(self, result: RankResult, tracks: Tracks) -> Iterator[str]:
        rank, table, origin = result.rank, self._tables[result.rank], self._origin
        kinds, peers, tags, buffers, offsets, octets = _columns(table)
        numbers = table.columns["number"].tolist()
        starts, ends = result.operation_start.tolist(), result.operation_end.tolist()
        labels, names = self._labels(rank), [json.dumps(name)[:-1] for name in table.names]
        quoted: dict[str, str] = {}
        for index in np.argsort(result.operation_start, kind="stable").tolist():
            kind, begin, end = kinds[index], starts[index], ends[index]
            if begin < 0 or end < 0 or kind == RECEIVE:
                continue  # or never reached: the iteration was cut short
            more = where = ""
            if kind in (WRITE, COPY):
                peer, tag = peers[index], tags[index]
                words = f"to {self.names[peer]}"
                flow = self._sent[rank, peer, tag] = next(self._flows)
                more = f', "bind_id": "{flow:#x}", "flow_out": true'
                near = f'{names[buffers[index]]}+{offsets[index]}"'
                where = f'"bytes": {octets[index]}, "tag": {tag}, "from": {near}'
            elif kind == REDUCE:
                words = FUNCTION_NAMES[tags[index]]
                near = f'{names[buffers[index]]}+{offsets[index]}"'
                where = f'"bytes": {octets[index]}, "into": {near}'
            elif kind == BARRIER:
                words = f"barrier {table.names[numbers[index]]}"
            elif kind == APPLY:
                words = table.calls[tags[index]].function.rpartition(":")[2]
            else:
                words = "compute"
            title = f"{labels[index]} {words}".strip()
            span = (begin - origin, end - origin)
            track = _TRACKS[kind]
            yield slice_text(
                quoted.get(title) or quoted.setdefault(title, json.dumps(title)),
                _CATEGORIES[kind],
                tracks.take(track, span),
                span,
                f', "args": {{{where}}}{more}' if where else "",
            )

    def _receives(self, result: RankResult, tracks: Tracks) -> Iterator[str]:
        rank, table = result.rank, self._tables[result.rank]
        _, peers, tags, buffers, offsets, octets = _columns(table)
        ends, labels = result.operation_end.tolist(), self._labels(rank)
        names = [json.dumps(name)[:-1] for name in table.names]
        quoted: dict[str, str] = {}
        for index in table.where(RECEIVE).tolist():
            end, peer, tag = ends[index], peers[index], tags[index]
            if end < 0:
                continue
            track = "NIC in" if (peer, rank) in self._fabric else "NVLink in"
            at = end - self._origin
            title = f"{labels[index]} from {self.names[peer]}".strip()
            flow = self._sent.pop((peer, rank, tag), None)
            near = f'{names[buffers[index]]}+{offsets[index]}"'
            more = "" if flow is None else f', "bind_id": "{flow:#x}", "flow_in": true'
            yield slice_text(
                quoted.get(title) or quoted.setdefault(title, json.dumps(title)),
                track.partition(" ")[0],
                tracks.one(track),
                (at, at),
                f', "args": {{"bytes": {octets[index]}, "tag": {tag}, "into": {near}}}{more}',
            )

    def _steps(self, result: RankResult, tracks: Tracks) -> Iterator[Event]:
        """Yield what has a name as a whole: from its first operation to the end of its last.

        A receive waits from the start of the iteration on, and counts from when it ended.
        """
        spans = self._spans[result.rank]
        if not spans:
            return
        receives = self._tables[result.rank].columns["kind"] == RECEIVE
        all_begins = np.where(receives, result.operation_end, result.operation_start)
        found = []
        for span in spans:
            begins = all_begins[span.first : span.end]
            ends = result.operation_end[span.first : span.end]
            reached = (begins >= 0) & (ends >= 0)
            if reached.any():
                begin, end = int(begins[reached].min()), int(ends[reached].max())
                found.append(((begin - self._origin, end - self._origin), span.name))
        for (begin, end), name in sorted(found, key=lambda one: (one[0][0], -one[0][1], one[1])):
            span_ns = begin, end
            yield slice_event(name, "step", tracks.nest("steps", span_ns), span_ns)

    def _labels(self, rank: int) -> Sequence[str]:
        """Return the name of each operation: that of the shortest span around it.

        Of spans around the same operations the inner one ends, and so stands, first.
        """
        labels = [self._collective] * len(self._tables[rank])
        for span in sorted(self._spans[rank], key=lambda span: span.end - span.first)[::-1]:
            labels[span.first : span.end] = [span.name] * (span.end - span.first)
        return labels


def _grouped(texts: Iterator[str]) -> Iterator[JsonText]:
    while group := list(islice(texts, _AT_ONCE)):
        yield JsonText.of(group)


def _columns(table: OperationTable) -> tuple[list[int], ...]:
    """Return kinds, peers and tags of all operations, and their near regions in three columns."""
    columns = ("kind", "peer", "tag", "near_buffer", "near_at", "near_octets")
    return tuple(table.columns[name].tolist() for name in columns)
