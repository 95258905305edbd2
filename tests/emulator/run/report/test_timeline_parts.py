"""Processes that share the GPUs of a run make the trace that one process with all of them makes."""

import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest

from emulator.run.report import timeline
from emulator.run.results import JsonText
from emulator.sim.endpoint.operations.operation_table import OperationTable
from emulator.sim.endpoint.operations.rank_result import RankResult, joined
from emulator.sim.endpoint.operations.schedule import (
    Apply,
    Barrier,
    Compute,
    Copy,
    Operation,
    Receive,
    Reduce,
    Region,
    Schedule,
    ScheduleSpan,
    Write,
    only_operations_of,
    without_others,
)
from emulator.workers.division import Division, JobSchedules
from emulator.workers.ranks.exchange import Ranks
from tests.harness.engine.rank_threads import in_ranks

GPUS, PER_SERVER = 8, 2
NAMES = [f"h{rank // PER_SERVER}g{rank % PER_SERVER}" for rank in range(GPUS)]
A, B = Region("a", 0, 64), Region("b", 64, 32)
#: Messages to every other GPU, and six operations of its own.
OPERATIONS = 2 * (GPUS - 1) + 6

Execution = tuple[Sequence[Schedule], Sequence[RankResult]]


def sent(rank: int, peer: int, tag: int) -> Operation:
    """A copy within a server, and a write to another one."""
    kind = Copy if rank // PER_SERVER == peer // PER_SERVER else Write
    return kind(peer=peer, tag=tag, local=A, remote=B)


def everybody_to_everybody(seed: int, *, tables: bool) -> Execution:
    """Every GPU sends to every other one, and some operations are never reached."""
    random = Random(seed)
    schedules, results = [], []
    for rank in range(GPUS):
        others = [peer for peer in range(GPUS) if peer != rank]
        operations: list[Operation] = [
            Compute(duration_ns=40),
            *(sent(rank, peer, tag=seed) for peer in others),
            *(Receive(peer=peer, tag=seed, into=B) for peer in others),
            Reduce(source=B, into=A, after=(1,)),
            Reduce(source=B, into=A, function="max"),
            Apply(function="some.place:backward", inputs=(A,), outputs=(B,), arguments=(2, "x")),
            Apply(function="some.place:forward", inputs=(A,), outputs=(B,), duration_ns=9),
            Barrier(name="all"),
        ]
        spans = (ScheduleSpan(f"layer {rank}", 2, 9), ScheduleSpan("epoch 1", 0, OPERATIONS))
        schedules.append(
            Schedule(
                rank=rank,
                buffers={"a": 64, "b": 96},
                operations=OperationTable.of(operations) if tables else tuple(operations),
                spans=spans[: rank % 3],
            )
        )
        begins = np.array([random.randrange(1000, 9000) for _ in operations])
        ends = begins + [random.randrange(500) for _ in operations]
        for column in (begins, ends):
            column[random.randrange(OPERATIONS)] = -1
        results.append(
            RankResult(
                rank=rank,
                node=NAMES[rank],
                execution=1,
                start_ns=1000 - rank,
                end_ns=int(ends.max()),
                operation_start=begins,
                operation_end=ends,
            )
        )
    return schedules, results


def interrupted() -> Execution:
    """An execution that was cut short, and the one that followed it."""
    return joined([everybody_to_everybody(seed, tables=False) for seed in (1, 2)])


def own_part(execution: Execution, own: frozenset[int]) -> Execution:
    """Return the part of an execution that a process has which knows its ``own`` GPUs alone."""
    schedules, results = execution
    brief = [one if one.rank in own else one.brief() for one in results]
    with only_operations_of(own):
        return without_others(schedules), brief


def everything(execution: Execution, own: frozenset[int]) -> Execution:
    """Return the whole of an execution, for a process that knows the operations of all GPUs."""
    return execution


Known = Callable[[Execution, frozenset[int]], Execution]
Content = dict[str, Any]


def trace_of(execution: Execution, division: Division) -> Content | None:
    """The trace as this process gets it, with its events made."""
    around = timeline.Surroundings(collective="alltoall", faults=[(300, "nic h0g0 down")], row=2)
    schedules, results = execution
    job = JobSchedules(schedules, division)
    content = timeline.timeline(NAMES, job, results, around)
    if content is None:
        return None
    return {**content, "traceEvents": list(events_of(content))}


def events_of(content: Mapping[str, object]) -> Iterator[dict[str, Any]]:
    """The events of a trace, of which texts have several."""
    events: Any = content["traceEvents"]
    for one in events:
        if isinstance(one, JsonText):
            yield from json.loads(f"[{one}]")
        else:
            yield one


def traces_of(
    execution: Execution, owner: Sequence[int], known: Known = own_part
) -> list[Content | None]:
    """The traces of processes that have the GPUs that ``owner`` gives them."""

    def work(ranks: Ranks) -> Content | None:
        owners = Division(ranks, owner)
        return trace_of(known(execution, owners.own), owners)

    return in_ranks(1 + max(owner), work)


#: The owners of GPUs: parts in a row, unequal ones, parts of which none is in a row.
OWNERS = {
    "two": [rank // 4 for rank in range(GPUS)],
    "three": [0, 0, 0, 1, 1, 1, 1, 2],
    "four": [rank // 2 for rank in range(GPUS)],
    "mixed": [2, 0, 1, 3, 3, 1, 0, 2],
    "first has the last": [1, 1, 2, 2, 1, 2, 0, 0],
}
by_owners = pytest.mark.parametrize("owner", OWNERS.values(), ids=list(OWNERS))


@by_owners
@pytest.mark.parametrize("tables", [False, True], ids=["objects", "tables"])
@pytest.mark.parametrize("shown", [GPUS, 5, 3, 1])
def test_parts_make_the_trace_of_the_whole(
    owner: Sequence[int], tables: bool, shown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "SHOWN", (shown + 1) * OPERATIONS - 1)
    execution = everybody_to_everybody(1, tables=tables)
    whole = trace_of(execution, Division.alone(GPUS))
    assert whole is not None
    assert {one["pid"] for one in whole["traceEvents"]} == {*range(1, shown + 1), GPUS + 1}
    assert ("gpus" in whole["otherData"]) == (shown < GPUS)
    first, *others = traces_of(execution, owner)
    assert first == whole
    assert others == [None] * len(others)


@by_owners
@pytest.mark.parametrize("known", [own_part, everything])
def test_parts_of_an_interrupted_execution_make_the_trace_of_the_whole(
    owner: Sequence[int], known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "SHOWN", 2 * 4 * OPERATIONS)
    whole = trace_of(interrupted(), Division.alone(GPUS))
    assert traces_of(interrupted(), owner, known)[0] == whole


def test_a_receive_from_a_gpu_that_is_not_shown_has_its_track(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timeline, "SHOWN", OPERATIONS)
    first, *_ = traces_of(everybody_to_everybody(1, tables=True), OWNERS["four"])
    assert first is not None
    received = {
        one["name"].rpartition(" ")[2]: one["cat"]
        for one in first["traceEvents"]
        if " from " in one["name"]
    }
    assert received.items() <= {"h0g1": "NVLink", **dict.fromkeys(NAMES[2:], "NIC")}.items()
    assert set(received.values()) == {"NVLink", "NIC"}


def test_operations_of_gpus_that_are_not_shown_stay_where_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timeline, "SHOWN", 4 * OPERATIONS)
    small = everybody_to_everybody(1, tables=True)
    last = small[0][-1]
    longer = OperationTable.of([*last.operations, *[Compute(duration_ns=1)] * 10_000])
    large = [*small[0][:-1], replace(last, operations=longer)], small[1]

    def octets(ranks: Ranks, execution: Execution) -> int:
        sent, to_first = [], ranks.to_first

        def counted(what: str, value: object) -> list[Any]:
            sent.append(len(pickle.dumps(value)))
            return to_first(what, value)

        monkeypatch.setattr(ranks, "to_first", counted)
        owners = Division(ranks, OWNERS["two"])
        trace_of(own_part(execution, owners.own), owners)
        return sum(sent)

    for_small, for_large = (
        in_ranks(2, partial(octets, execution=execution)) for execution in (small, large)
    )
    assert for_small[1] == for_large[1]


def test_one_process_has_events_made_of_the_results_it_has() -> None:
    schedules, results = everybody_to_everybody(1, tables=True)
    content = timeline.timeline(NAMES, schedules, results)
    assert content is not None
    events = events_of(content)
    next(events)
    results[0].operation_start[:] = -1  # before the events of its operations are made
    senders = {one["pid"] for one in events if one.get("flow_out")}
    assert senders == set(range(2, GPUS + 1))
