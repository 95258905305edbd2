"""Executions in a row are joined into one: each message has a tag of its own."""

from collections.abc import Sequence

import numpy as np

from emulator.run.measures.message_times import Recorder
from emulator.sim.endpoint.operations.data_arrival import Arrivals, DataArrival, lose_after
from emulator.sim.endpoint.operations.rank_result import RankResult, joined
from emulator.sim.endpoint.operations.schedule import (
    Compute,
    Operation,
    Receive,
    Region,
    Schedule,
    ScheduleSpan,
    Write,
)

HERE = Region("data", 0, 8)


def schedules(*names: str) -> list[Schedule]:
    """Rank 0 computes and sends each of two messages to rank 1."""
    sends: list[Operation] = []
    receives: list[Operation] = []
    for tag, _ in enumerate(names):
        sends.append(Compute(duration_ns=1))
        sends.append(Write(peer=1, tag=tag, local=HERE, remote=HERE, after=(2 * tag,)))
        receives.append(Receive(peer=0, tag=tag, into=HERE))
    spans = tuple(ScheduleSpan(name, 2 * at, 2 * at + 2) for at, name in enumerate(names))
    return [
        Schedule(rank=0, buffers={"data": 8}, operations=tuple(sends), spans=spans),
        Schedule(rank=1, buffers={"data": 8}, operations=tuple(receives)),
    ]


def results(start: int, *ends: Sequence[int], error: str | None = None) -> list[RankResult]:
    return [
        RankResult(
            rank=rank,
            node=f"h{rank}g0",
            execution=1,
            start_ns=start,
            end_ns=max(times),
            operation_start=np.array([end - 1 if end >= 0 else -1 for end in times]),
            operation_end=np.array(times),
            error=error,
        )
        for rank, times in enumerate(ends)
    ]


def test_of_an_interrupted_execution_only_what_arrived_is_a_message() -> None:
    first = schedules("one", "two"), results(100, (110, 120, 130, -1), (121, -1), error="aborted")
    then = schedules("again"), results(500, (510, 520), (521,))
    whole, found = joined([first, then])
    sender, receiver = (one.operations for one in whole)
    assert [one.tag for one in receiver if isinstance(one, Receive)] == [0, 1, 2]
    assert isinstance(sender[5], Write)
    assert sender[5].tag == 2
    assert sender[5].after == (4,)
    assert [(span.name, span.first, span.end) for span in whole[0].spans] == [
        ("one", 0, 2),
        ("two", 2, 4),
        ("again", 4, 6),
    ]
    assert [(one.start_ns, one.end_ns, one.error) for one in found] == [
        (100, 520, None),
        (100, 521, None),
    ]
    recorder, of_trial = Recorder(whole), Recorder(first[0])
    recorder.add(found)
    of_trial.take(recorder)
    (iteration,) = of_trial
    assert iteration.end_ns.tolist() == [21, 421]
    assert len(iteration) == 2


def test_a_dead_peers_copies_that_would_come_later_are_lost() -> None:
    arrivals: Arrivals = {
        (1, peer, tag): DataArrival(0, 0, 8, at)
        for peer, tag, at in ((0, 0, 90), (0, 1, 100), (0, 2, 101), (3, 0, 999))
    }
    assert lose_after(arrivals, [0], 100) == 1
    assert sorted(arrivals) == [(1, 0, 0), (1, 0, 1), (1, 3, 0)]
