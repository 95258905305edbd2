"""Training steps that are written in part, and what is counted of them."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from emulator import scenario
from emulator.sim.endpoint.operations.operation_table import APPLY, COPY, WRITE, OperationTable
from emulator.sim.endpoint.operations.schedule import only_operations_of
from scenarios.workloads.transformer.step_operations.compute_stream import VERDICTS
from scenarios.workloads.transformer.step_operations.training_step import Handover
from scenarios.workloads.transformer.step_trial import StepRun, StepTrial
from tests.harness.runs.step_runs import CASES, run
from tests.harness.runs.wanted_parts import assert_parts
from topologies.catalogue import load

#: Both halves of a job of two stages or replicas, one GPU, and two that are no neighbours.
WANTED = (frozenset(range(4)), frozenset(range(4, 8)), frozenset({1}), frozenset({0, 5}))
#: What a run keeps beside what it is made of.
KEPT = ("sizes", "roofline_ns")
CASES_AND_STATE = {
    **CASES,
    "a new replica": {"dp": 2, "layers": 1, "given_to": (Handover(0, 1, 2**30),)},
    "a new replica of which one has much": {
        **{"dp": 2, "layers": 1, "given_to": (Handover(0, 1, 2**42), Handover(3, 1, 2**20))},
    },
    "interleaved, sharded": {
        **{"pp": 2, "dp": 2, "tp": 2, "interleave": 2, "layers": 4, "micro_batches": 2, "zero": 1},
    },
    "rings through uneven hosts": {"dp": 6, "layers": 1, "zero": 2, "micro_batches": 2},
    "two GPUs a server": {**CASES["3d"], "fabric": "rail_clos:hosts=4,gpus_per_host=2,spines=1"},
}


def _assert_written_in_part(one: StepRun) -> None:
    """Compile for each GPU, for others of ``WANTED``, and for none."""
    whole = one.compile()
    assert len(whole.labels) == len(whole)
    alone = [frozenset({rank}) for rank in range(len(whole))]
    for ranks in (*alone, *WANTED, frozenset[int]()):
        with only_operations_of(ranks):
            some = one.compile()
        assert_parts(some, whole, ranks)
        for rank in range(len(whole)):
            wanted = rank in ranks
            assert some.labels[rank] == (whole.labels[rank] if wanted else {})
            assert some.streams.get(rank) == (whole.streams.get(rank) if wanted else None)


@pytest.mark.parametrize("case", CASES_AND_STATE)
def test_wanted_schedules_are_those_of_the_whole(case: str) -> None:
    _assert_written_in_part(run(**CASES_AND_STATE[case]))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("llm", {"dp": "1,2,1", "elastic": "on", "layers": "2", "tp": "2", "pp": "2", "zero": "1"}),
        ("jobs", {"dp": "4"}),
    ],
)
def test_rows_of_scenarios_are_written_in_part(name: str, given: dict[str, str]) -> None:
    chosen = scenario.load(name)
    parameters = chosen.parameters({"batch": "4", "scale": "65536", **given})
    fabric = load(str(chosen.topology(parameters)))
    for trial in chosen.schedules(parameters, fabric, 1):
        assert isinstance(trial, StepTrial)
        assert set(vars(trial.run)) <= {"topology", "jobs", "scale", "choices", "compiled", *KEPT}
        _assert_written_in_part(trial.run)
        with only_operations_of({1}):
            some = trial.compile()
        busy = any(1 in job.touched for job in trial.run.jobs)
        assert [len(one.operations) > 0 for one in some] == [
            busy and rank == 1 for rank in range(len(some))
        ]


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
