"""Test what goes with what in a trace, and which traces do not fit together."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.traces.trace_model import (
    Collective,
    Trace,
    TraceCollective,
    TraceCompute,
    TraceOperation,
    TraceReceive,
    TraceRefusal,
    TraceSend,
)
from scenarios.traces.trace_order import in_order
from tests.harness.examples import examples
from tests.harness.traces import outcome


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
