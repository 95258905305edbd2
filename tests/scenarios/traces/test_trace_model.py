"""Traces with smaller messages."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from emulator.errors import UserError
from scenarios.traces.trace_model import (
    Collective,
    Trace,
    TraceCollective,
    TraceOperation,
    TraceReceive,
    TraceSend,
    check,
    with_sizes,
    without_idle_ranks,
)


def trace(octets: int, kind: Collective) -> Trace:
    lists: list[list[TraceOperation]] = [
        [TraceCollective(where="line 1", kind=kind, octets=octets, group="g")] for _ in range(3)
    ]
    lists[0].append(TraceSend(where="line 2", peer=1, octets=1000))
    lists[1].append(TraceReceive(where="line 2", peer=0, octets=1000))
    return Trace("t", tuple(lists), {"g": (0, 1, 2)})


@pytest.mark.parametrize(
    ("octets", "kind", "factor", "scaled"),
    [
        (1200, Collective.ALL_REDUCE, 0.5, 600),
        (1200, Collective.ALL_REDUCE, 0.001, 4),
        (1200, Collective.ALL_GATHER, 0.33, 396),
        (1200, Collective.ALL_GATHER, 0.001, 12),
        (3, Collective.ALL_TO_ALL, 0.5, 3),
        (0, Collective.ALL_REDUCE, 0.5, 0),
        (12, Collective.REDUCE_SCATTER, 3, 36),
    ],
)
def test_sizes_stay_whole_elements_of_each_part(
    octets: int, kind: Collective, factor: float, scaled: int
) -> None:
    smaller = with_sizes(trace(octets, kind), factor)
    check(smaller)
    assert [one[0].octets for one in smaller.operations] == [scaled] * 3  # type: ignore[attr-defined]
    send, receive = smaller.operations[0][1], smaller.operations[1][1]
    assert isinstance(send, TraceSend)
    assert isinstance(receive, TraceReceive)
    assert send.octets == receive.octets == max(1, int(1000 * factor))


def test_one_leaves_everything_and_nothing_is_refused() -> None:
    whole = trace(12, Collective.ALL_REDUCE)
    assert with_sizes(whole, 1) is whole
    with pytest.raises(UserError, match="leaves nothing to send"):
        with_sizes(whole, 0)


def test_idle_ranks_are_left_out() -> None:
    whole = trace(12, Collective.BROADCAST)
    moved: list[Sequence[Any]] = [[], *([] for _ in range(4)), *whole.operations]
    for rank, operations in enumerate(moved):
        moved[rank] = [
            replace(one, root=7)
            if isinstance(one, TraceCollective)
            else replace(one, peer=one.peer + 5)
            for one in operations
        ]
    groups = {"g": (5, 6, 7), "of others": (0, 1)}
    kept = without_idle_ranks(Trace("t", tuple(moved), groups))
    check(kept)
    assert kept.groups == {"g": (0, 1, 2)}
    assert [one[0].root for one in kept.operations] == [2] * 3  # type: ignore[attr-defined]
    assert kept.operations[0][1].peer == 1  # type: ignore[attr-defined]
    assert without_idle_ranks(kept) is kept
