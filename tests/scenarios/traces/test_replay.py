"""Replays of traces, proven in memory: every element, in any legal order."""

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import UserError
from emulator.run.measures.message_times import Iteration
from emulator.sim.endpoint.operations.schedule import Compute, Copy, Write
from scenarios.traces.replay import Replay, ReplayChoice, in_order
from scenarios.traces.trace_model import (
    Collective,
    Trace,
    TraceCollective,
    TraceCompute,
    TraceOperation,
    TraceReceive,
    TraceRefusal,
    TraceSend,
    with_sizes,
)
from tests.harness.examples import examples
from tests.harness.runs.schedule_executor import Executor
from tests.harness.traces import jobs, outcome
from topologies.catalogue import load

FABRIC = load("rail_clos:hosts=4,gpus_per_host=2")
CHOICE = ReplayChoice(compute_scale=1.0, slice_bytes=64, seed=3)


def prove(replay: Replay, order: int = 5) -> Executor:
    schedules = replay.compile()
    executor = Executor(schedules, random.Random(order))
    for rank in range(len(schedules)):
        for buffer, content in replay.inputs(rank).items():
            executor.memory[rank][buffer][:] = content.view(np.uint8)
    executor.run()
    for rank in range(len(schedules)):
        for buffer, content in replay.expected(rank).items():
            there = executor.memory[rank][buffer].view(content.dtype)
            np.testing.assert_array_equal(there, content)
    return executor


def collective(
    kind: Collective, octets: int, group: tuple[int, ...], ranks: int, after: int = 0
) -> Trace:
    """A trace of one collective, before which every member computes."""
    lists: list[list[TraceOperation]] = [[] for _ in range(ranks)]
    root = group[-1] if kind.rooted else None
    for rank in group:
        lists[rank] = [
            TraceCompute(where="line 1", duration_ns=after * rank),
            TraceCollective(
                where="line 2", after=(0,), kind=kind, octets=octets, group="g", root=root
            ),
        ]
    return Trace("t", tuple(lists), {"g": group})


@pytest.mark.parametrize("kind", Collective)
@pytest.mark.parametrize("group", [(0, 1), (0, 1, 2, 3, 4, 5, 6, 7), (1, 2, 5), (6, 2, 0, 4)])
def test_every_collective_is_right(kind: Collective, group: tuple[int, ...]) -> None:
    for part in (1, 4, 36, 200):
        trace = collective(kind, part * len(group), group, 8, after=100)
        replay = Replay(trace, FABRIC, CHOICE)
        prove(replay)
        if kind is not Collective.BARRIER:
            assert any(replay.expected(rank) for rank in group)


SPLITS = ((8, 4, 0), (0, 0, 0), (400, 4, 16))


@pytest.mark.parametrize("unit", [1, 4])
def test_parts_of_an_all_to_all_may_differ(unit: int) -> None:
    group = (4, 0, 5)
    lists: list[list[TraceOperation]] = [[] for _ in range(8)]
    one: dict[str, Any] = {"where": "line 1", "kind": Collective.ALL_TO_ALL, "group": "g"}
    for rank, parts in zip(group, SPLITS, strict=True):
        own = tuple(octets * unit // 4 for octets in parts)
        lists[rank] = [TraceCollective(octets=sum(own), splits=own, **one)]
    lists[5] = [TraceCollective(octets=420 * unit // 4 // 3 * 3, **one)]  # equal parts
    replay = Replay(Trace("t", tuple(lists), {"g": group}), FABRIC, CHOICE)
    executor = prove(replay)
    assert replay.message_octets == 420 * unit // 4
    assert len(replay.expected(4)["output0"].view(np.uint8)) == (8 + 140) * unit // 4
    assert len(executor.memory[0]["output0"]) == (4 + 140) * unit // 4


BAD_SPLITS = {
    "a all_reduce has no splits": (Collective.ALL_REDUCE, 8, (4, 4)),
    "it has splits for 3 ranks and group 'g' has 2": (Collective.ALL_TO_ALL, 9, (3, 3, 3)),
    "its splits come to 9 B and its size is 8 B": (Collective.ALL_TO_ALL, 8, (4, 5)),
    "its size is -4 B": (Collective.ALL_TO_ALL, 8, (12, -4)),
}


@pytest.mark.parametrize("stated", BAD_SPLITS)
def test_splits_that_do_not_fit_are_refused(stated: str) -> None:
    kind, octets, splits = BAD_SPLITS[stated]
    one = TraceCollective(where="line 1", kind=kind, octets=octets, group="g", splits=splits)
    with pytest.raises(TraceRefusal, match=stated):
        in_order(Trace("t", ([one], [one]), {"g": (0, 1)}))


def test_splits_are_scaled_in_whole_elements_and_none_becomes_empty() -> None:
    one = TraceCollective(
        where="a", kind=Collective.ALL_TO_ALL, octets=4117, group="g", splits=(4096, 0, 17, 4)
    )
    scaled = with_sizes(Trace("t", ([one],), {"g": (0,)}), 1 / 16)
    (found,) = scaled.operations[0]
    assert isinstance(found, TraceCollective)
    assert found.splits == (256, 0, 1, 4)
    assert found.octets == 261


def test_operations_have_the_names_of_the_trace_in_the_timeline() -> None:
    one: dict[str, Any] = {"where": "line 2", "octets": 64, "group": "g"}
    one["kind"] = Collective.ALL_REDUCE
    lists: list[list[TraceOperation]] = [
        [
            TraceCompute(where="line 1", name="mlp forward", duration_ns=5),
            TraceCollective(after=(0,), root=None, **one),
            TraceCollective(name="mlp", after=(1,), root=None, **one),
            TraceSend(where="line 4", name="weights", after=(2,), peer=1, octets=8)
            if rank == 0
            else TraceReceive(where="line 4", peer=0, octets=8),
        ]
        for rank in range(2)
    ]
    schedules = Replay(Trace("t", tuple(lists), {"g": (0, 1)}), FABRIC, CHOICE).compile()
    for schedule in schedules[:2]:
        spans = sorted(schedule.spans, key=lambda span: span.first)
        names = ["mlp forward", "line 2 all_reduce", "mlp all_reduce", "weights"]
        assert [span.name for span in spans] == names
        assert spans[0].first == 0
        assert spans[-1].end == len(schedule.operations)
        for before, after in pairwise(spans):
            assert before.end <= after.first


@pytest.mark.parametrize("kind", Collective)
def test_nothing_leaves_a_member_before_it_may(kind: Collective) -> None:
    trace = collective(kind, 800, tuple(range(8)), 8, after=1)
    for schedule in Replay(trace, FABRIC, CHOICE).compile():
        before: list[set[int]] = []
        for index, operation in enumerate(schedule.operations):
            reached = {index}.union(*(before[one] for one in operation.after))
            before.append(reached)
            sends_or_sums = hasattr(operation, "local") or hasattr(operation, "source")
            assert not sends_or_sums or 0 in reached
        assert isinstance(schedule.operations[0], Compute)


def test_a_collective_of_one_rank_or_of_nothing_moves_nothing() -> None:
    for trace in (
        collective(Collective.ALL_REDUCE, 64, (3,), 4),
        collective(Collective.ALL_REDUCE, 0, (0, 1), 4),
    ):
        executor = prove(Replay(trace, FABRIC, CHOICE))
        assert not executor.sent


def test_messages_with_one_tag_keep_their_order() -> None:
    sizes = (5, 70, 1)
    sends = [TraceSend(where=f"line {n}", peer=1, octets=n, tag=2) for n in sizes]
    receives = [TraceReceive(where=f"line {n}", peer=0, octets=n, tag=2) for n in sizes]
    replay = Replay(Trace("t", (sends, receives)), FABRIC, CHOICE)
    prove(replay)
    assert [len(replay.expected(1)["received"])] == [sum(sizes)]
    assert replay.messages == 3


def test_a_message_without_octets_carries_one_and_is_counted() -> None:
    trace = Trace(
        "t",
        (
            [TraceSend(where="line 1", peer=1, octets=0)],
            [TraceReceive(where="line 2", peer=0, octets=0)],
        ),
    )
    replay = Replay(trace, FABRIC, CHOICE)
    prove(replay)
    assert replay.empty_messages == 1


def test_computations_of_a_stream_take_turns_and_are_scaled() -> None:
    recorded = [
        TraceCompute(where="line 1", duration_ns=100, stream=0),
        TraceCompute(where="line 2", duration_ns=200, stream=0),
        TraceCompute(where="line 3", duration_ns=400, stream=1),
        TraceCompute(where="line 4", duration_ns=800, stream=None),
    ]
    choice = ReplayChoice(compute_scale=0.5, slice_bytes=64, seed=3)
    replay = Replay(Trace("t", (recorded, [])), FABRIC, choice)
    operations = list(replay.compile()[0].operations)
    computing = [one.duration_ns for one in operations if isinstance(one, Compute)]
    assert computing == [50, 100, 200, 800]
    assert [one.after for one in operations] == [(), (0,), (), ()]
    assert replay.compute_ns() == 200


def test_more_ranks_than_gpus_are_refused() -> None:
    trace = collective(Collective.ALL_REDUCE, 64, tuple(range(9)), 9)
    with pytest.raises(UserError, match=r"has 9 ranks and topology .* has 8 GPUs"):
        Replay(trace, FABRIC, CHOICE)


def test_a_replay_beyond_all_measure_is_refused_before_it_is_made() -> None:
    trace = collective(Collective.ALL_REDUCE, 2**40, tuple(range(8)), 8)
    with pytest.raises(UserError, match=r"line 2 .* larger slice_bytes"):
        Replay(trace, FABRIC, CHOICE)


@examples(60)
@given(jobs(), st.integers(0, 1000))
def test_any_job_ends_with_every_element_right(trace: Trace, order: int) -> None:
    prove(Replay(trace, FABRIC, CHOICE), order)


def test_completion_times_are_those_of_the_traces_own_messages() -> None:
    lists: list[list[TraceOperation]] = [
        [
            TraceCollective(where="a", kind=Collective.ALL_REDUCE, octets=64, group="g"),
            TraceSend(where="b", peer=1, octets=8)
            if rank == 0
            else TraceReceive(where="b", peer=0, octets=8),
            TraceCollective(where="c", kind=Collective.ALL_REDUCE, octets=64, group="g"),
        ]
        for rank in range(2)
    ]
    replay = Replay(Trace("t", tuple(lists), {"g": (0, 1)}), FABRIC, CHOICE)
    ends = []
    for rank, schedule in enumerate(replay.compile()[:2]):
        for index, one in enumerate(schedule.operations):
            if isinstance(one, Write | Copy):
                ends.append((rank, one.peer, one.local.length, index))
    source, destination, length, send = np.array(ends).T
    start = np.arange(len(ends))
    took = np.where(length == 8, 70, 500)
    iteration = Iteration(
        origin_ns=0,
        source=source,
        destination=destination,
        length=length,
        start_ns=start,
        end_ns=start + took,
        send=send,
        receive=send,
        writes=np.ones(len(ends), bool),
    )
    assert len(ends) > 1
    assert took[replay.own_messages(iteration)].tolist() == [70]


def send(peer: int, octets: int = 8, *after: int, line: int = 1) -> TraceSend:
    return TraceSend(where=f"line {line}", peer=peer, octets=octets, after=after)


def receive(peer: int, octets: int = 8, *after: int, line: int = 2) -> TraceReceive:
    return TraceReceive(where=f"line {line}", peer=peer, octets=octets, after=after)


def reduced(octets: int = 8, *after: int, group: str = "all", line: int = 3) -> TraceCollective:
    return TraceCollective(
        where=f"line {line}",
        kind=Collective.ALL_REDUCE,
        octets=octets,
        group=group,
        after=after,
    )


def trace(*lists: list[TraceOperation], **groups: tuple[int, ...]) -> Trace:
    return Trace("job.goal", lists, groups)


WRONG = {
    "no rank does anything": trace([], []),
    r"line 2 \(rank 1\): rank 0 sends nothing with tag 0": trace([], [receive(0)]),
    r"line 1 \(rank 0\): rank 1 has no receive with tag 0": trace([send(1)], []),
    "it receives 9 B, but line 1 .* sends 8 B": trace([send(1)], [receive(0, 9)]),
    r"line 1 \(rank 0\): there is no rank 7": trace([send(7)], []),
    "its peer is the rank itself": trace([send(0)], []),
    "its size is -1 B": trace([send(1, -1)], []),
    "it waits for an operation that its rank does not have": trace([send(1, 8, 4)], []),
    "nothing says which ranks the group 'all' has": trace([reduced()], [reduced()]),
    "rank 1 of group 'all' does not take part": trace([reduced()], [], all=(0, 1)),
    "rank 2 is not in the group": trace([], [], [reduced()], all=(0, 1)),
    "group 'all' has rank 5 and the trace has ranks 0 to 1": trace(
        [reduced()], [reduced()], all=(0, 5)
    ),
    "a all_reduce of 9 B here, but a all_reduce of 8 B": trace(
        [reduced()], [reduced(9)], all=(0, 1)
    ),
    "operations wait for each other in a circle .line 3 .rank 0. waits for line 3": trace(
        [reduced(8, 1), reduced(8, 0)], [reduced(), reduced()], all=(0, 1)
    ),
    "circle .*line 1 .rank 0. waits for": trace(
        [send(1, 8, 1), receive(1)], [send(0, 8, 1), receive(0)]
    ),
}


@pytest.mark.parametrize("stated", WRONG)
def test_what_does_not_fit_is_refused_with_its_place(stated: str) -> None:
    with pytest.raises(TraceRefusal, match=stated) as refused:
        in_order(WRONG[stated])
    assert str(refused.value).startswith("job.goal: ")


def test_groups_entered_in_different_orders_are_a_circle() -> None:
    crossed = trace(
        [reduced(group="a"), reduced(8, 0, group="b")],
        [reduced(group="b"), reduced(8, 0, group="a")],
        a=(0, 1),
        b=(0, 1),
    )
    with pytest.raises(TraceRefusal, match="circle"):
        in_order(crossed)


def test_who_can_begin_first_has_the_stream_first() -> None:
    """The second computation waits for nothing, the first one for a message."""
    late = TraceCompute(where="line 5", duration_ns=10, after=(0,))
    early = TraceCompute(where="line 6", duration_ns=500)
    before = TraceCompute(where="line 7", duration_ns=100)
    order = in_order(trace([receive(1), late, early], [before, send(0, 8, 0)]))
    assert order.turn_after == {(0, 1): (0, 2)}
    assert order.starts.index((0, 2)) < order.starts.index((0, 1))
    assert order.receive_of == {(1, 1): (0, 0)}


@st.composite
def any_jobs(draw: st.DrawFn) -> Trace:
    """A job whose operations wait for any others of their rank."""
    ranks = draw(st.integers(1, 4))
    lists: list[list[TraceOperation]] = [[] for _ in range(ranks)]
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(("compute", "message", "collective")))
        one, other = draw(st.integers(0, ranks - 1)), draw(st.integers(0, ranks - 1))
        if kind == "compute":
            lists[one].append(TraceCompute(where="line 1", duration_ns=draw(st.integers(0, 9))))
        elif kind == "message" and one != other:
            lists[one].append(send(other))
            lists[other].append(receive(one))
        else:
            for each in lists:
                each.append(reduced(group=draw(st.sampled_from(("a", "b")))))
    waiting = []
    for each in lists:
        places = st.integers(0, len(each) - 1)
        waiting.append(
            [replace(one, after=tuple(draw(st.sets(places, max_size=2)))) for one in each]
        )
    return trace(*waiting, a=tuple(range(ranks)), b=tuple(range(ranks)))


@examples(200)
@given(any_jobs())
def test_any_job_has_an_order_or_one_sentence(job: Trace) -> None:
    refused = outcome(lambda: in_order(job))
    if refused:
        assert any(word in refused for word in ("circle", "does not take part", "no receive"))
        return
    order = in_order(job)
    began = {at: number for number, at in enumerate(order.starts)}
    leader = {one: first for first, members in order.members.items() for one in members}
    for rank, operations in enumerate(job.operations):
        for index, operation in enumerate(operations):
            own = began[leader.get((rank, index), (rank, index))]
            for earlier in operation.after:
                assert began[leader.get((rank, earlier), (rank, earlier))] < own
