"""Counts of work over tensors are those of its schedules."""

from collections import Counter

import pytest

from emulator.sim.endpoint.operations.schedule import Copy, Write, only_operations_of
from scenarios.workloads.network.tensors import (
    Exchange,
    TensorProgram,
    TensorWork,
    drawn,
    octets_of,
)
from tests.harness.runs.observed_messages import columns_of
from topologies.catalogue import load

FABRIC = load("rail_clos:hosts=2,gpus_per_host=2,spines=1")
#: The last GPU takes no part.
RANKS = range(3)


def write(tensors: TensorProgram) -> None:
    parts = [tensors.new(rank, "parts", 7) for rank in RANKS]
    tensors.compute(0, 10)
    for _ in range(2):
        parts = tensors.all_reduce(parts, "sums", "turns")
    tensors.move(parts[0], tensors.new(1, "copy", 7), "result")


def test_the_size_is_that_of_the_schedules() -> None:
    work = TensorWork(FABRIC, write)
    schedules = work.compile()
    sent = [
        (one.rank, send.peer, send.local.length, isinstance(send, Copy))
        for one in schedules
        for send in one.operations
        if isinstance(send, Write | Copy)
    ]
    counted: Counter[tuple[int, int, int, bool]] = Counter()
    for one, times in work.size.exchanges.items():
        counted[one.source, one.destination, one.octets, one.nvlink] += times
    assert counted == Counter(sent)
    assert work.size.gpus == len(RANKS)
    assert work.size.memory_bytes == max(sum(one.buffers.values()) for one in schedules)


def test_transfers_are_in_their_order() -> None:
    work = TensorWork(FABRIC, write)
    transfers = work.transfers()
    assert Counter(transfers) == work.size.exchanges
    assert [one.what for one in transfers] == ["turns"] * (len(transfers) - 1) + ["result"]
    first = transfers[0]
    assert (first.source, first.destination, first.nvlink) == (0, 1, True)


@pytest.mark.parametrize(("nvlink", "octets"), [(None, 34), (True, 30), (False, 4)])
def test_octets_are_counted_as_often_as_they_travel(nvlink: bool | None, octets: int) -> None:
    exchanges = {Exchange("a", 0, 1, 10, nvlink=True): 3, Exchange("a", 0, 2, 4, nvlink=False): 1}
    assert octets_of(exchanges, nvlink=nvlink) == octets


def test_nothing_is_wanted_to_count() -> None:
    with only_operations_of(()):
        schedules = TensorWork(FABRIC, write).compile()
    assert [len(one.operations) for one in schedules] == [0] * len(FABRIC.gpus)
    assert all(schedules[rank].buffers for rank in RANKS)


def test_no_operation_is_made_while_work_is_counted() -> None:
    wanted: list[bool] = []
    work = TensorWork(FABRIC, lambda tensors: wanted.append(tensors.program.wants(*RANKS)))
    assert work.size.gpus == 0
    assert work.transfers() == []
    work.compile()
    assert wanted == [False, False, True]


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
