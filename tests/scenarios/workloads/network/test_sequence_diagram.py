"""Drawings of who sends to whom when."""

from __future__ import annotations

from scenarios.workloads.network.sequence_diagram import drawn
from scenarios.workloads.network.tensors import Exchange
from tests.harness.runs.observed_messages import columns_of

#: The messages of two epochs: 1 to 0 twice, then 0 to 2 twice.
ITERATION = columns_of(
    [1, 1, 0, 0],
    [0, 0, 2, 2],
    [8, 8, 16, 16],
    [2000, 5000, 1000, 4000],
    [2500, 5500, 1250, 4250],
)


def test_messages_are_drawn_in_the_order_of_their_starts() -> None:
    exchanges = [
        Exchange("deltas", 1, 0, 8, nvlink=True),
        Exchange("outputs", 0, 2, 16, nvlink=False),
    ]
    names = ["a", "b", "c", "d"]
    assert drawn(names, exchanges, ITERATION) == [
        "",
        "    start       end    a       b       c     (us; = NVLink, - fabric)",
        "     1.00      1.25     o--------------->    16 B outputs",
        "     2.00      2.50     <=======o            8 B deltas",
    ]


def test_gpus_that_are_silent_have_no_column() -> None:
    lines = drawn(["a", "b", "c"], [Exchange("x", 0, 2, 16, nvlink=False)], ITERATION)
    assert "b" not in lines[1].partition("(")[0]
    assert drawn(["a", "b"], [], ITERATION) == []


def test_each_message_of_a_pair_has_its_own_time() -> None:
    twice = [Exchange("x", 1, 0, 8, nvlink=True)] * 2
    assert [line.split()[0] for line in drawn(["a", "b"], twice, ITERATION)[2:]] == [
        "2.00",
        "5.00",
    ]
