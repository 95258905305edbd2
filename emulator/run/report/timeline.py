"""One iteration as a timeline in Chrome's trace format, which Perfetto opens.

One process per GPU; its operations lie in lanes ``send`` (fabric), ``copy`` (NVLink), ``reduce``
and ``compute``, in as many parallel lanes as overlap, and receives are marks at the moment the
data was there.  Times are microseconds of fabric time since the common start.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import accumulate

from emulator.endpoint.operations.rank_result import RankResult
from emulator.endpoint.operations.schedule import (
    Apply,
    Barrier,
    Compute,
    Copy,
    Operation,
    Receive,
    Reduce,
    Schedule,
    Write,
)

#: Operations beyond which GPUs are left out: what a viewer still opens.
SHOWN = 250_000

_LANES = {
    Write: "send",
    Copy: "copy",
    Reduce: "reduce",
    Compute: "compute",
    Apply: "compute",
    Barrier: "barrier",
}


def timeline(
    names: Sequence[str], schedules: Sequence[Schedule], results: Sequence[RankResult]
) -> dict[str, object]:
    """The trace of one execution; ``names`` are the GPUs' names by rank.

    Of many operations those of the first GPUs are in it, with :data:`SHOWN` at most.
    """
    facts = {"time": "fabric time since the start of the iteration"}
    sizes = [len(schedules[result.rank].operations) for result in results]
    shown = max(1, sum(total <= SHOWN for total in accumulate(sizes)))
    if shown < len(results):
        facts["gpus"] = f"the first {shown} of {len(results)}: all have {sum(sizes)} operations"
    return {
        "displayTimeUnit": "ns",
        "otherData": facts,
        "traceEvents": _events(names, schedules, results, shown),
    }


def _events(
    names: Sequence[str],
    schedules: Sequence[Schedule],
    results: Sequence[RankResult],
    shown: int,
) -> Iterator[dict[str, object]]:
    """The events of the first ``shown`` ranks, made when they are asked for."""
    origin = min(result.start_ns for result in results)
    for result in results[:shown]:
        rank = result.rank
        yield _named("process_name", names[rank], rank)
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
        yield from _rank_events(rank, names, schedules[rank], result, origin)


def _rank_events(
    rank: int, names: Sequence[str], schedule: Schedule, result: RankResult, origin: int
) -> list[dict[str, object]]:
    events: list[dict[str, object]] = []
    free: dict[str, list[tuple[int, int]]] = {}  # per kind: (free from, lane number)
    lanes: dict[tuple[str, int], int] = {}
    order = sorted(
        range(len(schedule.operations)), key=lambda index: int(result.operation_start[index])
    )
    operations = list(schedule.operations)
    for index in order:
        operation = operations[index]
        begin, end = int(result.operation_start[index]), int(result.operation_end[index])
        if begin < 0 or end < 0:
            continue  # never reached: the iteration was cut short
        if isinstance(operation, Receive):
            events.append(
                {
                    "ph": "i",
                    "s": "t",
                    "name": f"from {names[operation.peer]}",
                    "cat": "receive",
                    "pid": rank,
                    "tid": 0,
                    "ts": (end - origin) / 1000,
                    "args": _details(operation),
                }
            )
            continue
        kind = _LANES[type(operation)]
        heap = free.setdefault(kind, [])
        if heap and heap[0][0] <= begin:
            _, lane = heapq.heappop(heap)
        else:
            lane = len(heap)
        heapq.heappush(heap, (end, lane))
        tid = lanes.setdefault((kind, lane), len(lanes) + 1)
        events.append(
            {
                "ph": "X",
                "name": _title(operation, names),
                "cat": kind,
                "pid": rank,
                "tid": tid,
                "ts": (begin - origin) / 1000,
                "dur": (end - begin) / 1000,
                "args": _details(operation),
            }
        )
    events.append(_named("thread_name", "received", rank, 0))
    for (kind, lane), tid in lanes.items():
        events.append(_named("thread_name", f"{kind} {lane}" if lane else kind, rank, tid))
    return events


def _named(what: str, name: str, pid: int, tid: int | None = None) -> dict[str, object]:
    event: dict[str, object] = {"ph": "M", "name": what, "pid": pid, "args": {"name": name}}
    return event if tid is None else {**event, "tid": tid}


def _title(operation: Operation, names: Sequence[str]) -> str:
    match operation:
        case Write(peer=peer) | Copy(peer=peer):
            return f"to {names[peer]}"
        case Apply(function=function):
            return function.partition(":")[2]
        case Barrier(name=name):
            return f"barrier {name}"
        case _:
            return type(operation).__name__.lower()


def _details(operation: Operation) -> dict[str, object]:
    match operation:
        case Apply(inputs=inputs, outputs=outputs):
            return {
                "in": [f"{region.buffer}+{region.offset}" for region in inputs],
                "out": [f"{region.buffer}+{region.offset}" for region in outputs],
            }
        case Write(tag=tag, local=region) | Copy(tag=tag, local=region):
            return {"bytes": region.length, "tag": tag, "from": f"{region.buffer}+{region.offset}"}
        case Receive(tag=tag, into=region):
            return {"bytes": region.length, "tag": tag, "into": f"{region.buffer}+{region.offset}"}
        case Reduce(into=region):
            return {"bytes": region.length, "into": f"{region.buffer}+{region.offset}"}
        case _:
            return {}
