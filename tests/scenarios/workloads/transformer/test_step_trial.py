"""Training steps that are written in part, and what is counted of them."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from emulator.endpoint.operations.operation_table import APPLY, COPY, WRITE, OperationTable
from emulator.endpoint.operations.schedule import WantedSchedules
from scenarios.workloads.transformer.step_operations.compute_stream import VERDICTS
from scenarios.workloads.transformer.step_operations.training_step import Handover
from tests.harness.runs.step_runs import CASES, run
from tests.harness.runs.wanted_parts import assert_parts

#: Both halves of a job of two stages or replicas, one GPU, and two that are no neighbours.
WANTED = (frozenset(range(4)), frozenset(range(4, 8)), frozenset({1}), frozenset({0, 5}))
CASES_AND_STATE = {
    **CASES,
    "a new replica": {"dp": 2, "layers": 1, "given_to": (Handover(0, 1, 2**30),)},
    "two GPUs a server": {**CASES["3d"], "fabric": "rail_clos:hosts=4,gpus_per_host=2,spines=1"},
}


@pytest.mark.parametrize("case", CASES_AND_STATE)
def test_wanted_schedules_are_those_of_the_whole(case: str) -> None:
    one = run(**CASES_AND_STATE[case])
    whole = one.compile()
    for ranks in WANTED:
        assert_parts(one.compile(WantedSchedules(ranks)), whole, ranks)


@pytest.mark.parametrize("case", CASES_AND_STATE)
def test_sizes_are_those_of_the_operations(case: str) -> None:
    one = run(**CASES_AND_STATE[case])
    sent: dict[int, Counter[tuple[int, int]]] = {WRITE: Counter(), COPY: Counter()}
    busy: Counter[int] = Counter()
    schedules = one.compile()
    for schedule in schedules:
        table = OperationTable.of(schedule.operations)
        columns = table.columns
        for kind, found in sent.items():
            for row in table.where(kind).tolist():
                found[schedule.rank, int(columns["peer"][row])] += int(columns["near_octets"][row])
        busy[schedule.rank] = int(columns["number"][table.where(APPLY)].sum())
    sizes = one.sizes
    assert (sizes.written, sizes.copied) == (sent[WRITE], sent[COPY])
    assert sizes.busy_ns == {gpu: busy[gpu] for gpu in sizes.busy_ns}
    assert sum(sizes.busy_ns.values()) == busy.total()
    counted = {one.rank: one.buffers.get(VERDICTS, 0) // 4 for one in schedules}
    assert {gpu: count for gpu, count in counted.items() if count} == {
        gpu: count for gpu, count in sizes.results.items() if count
    }
    assert sizes.memory_bytes == max(sum(one.buffers.values()) for one in schedules)


def test_a_scale_counts_one_writing() -> None:
    one = run(**CASES["3d"])
    first = one.sizes
    one.compile()
    assert dataclasses.replace(one).sizes == first
    assert first.exchanges > 0
    assert one.scale.exchanges == 0
