"""Training steps that are written in part, and what is counted of them."""

import dataclasses
from collections import Counter
from typing import Any

import pytest

from emulator import scenario
from emulator.sim.endpoint.operations.operation_table import APPLY, COPY, WRITE, OperationTable
from emulator.sim.endpoint.operations.schedule import (
    Apply,
    Receive,
    Reduce,
    Region,
    Schedule,
    Write,
    only_operations_of,
)
from scenarios.workloads.transformer import step_trial
from scenarios.workloads.transformer.step_trial import (
    GpuOperations,
    StepRun,
    StepTimes,
    StepTrial,
    gpu_times,
)
from scenarios.workloads.transformer.streams import VERDICTS
from scenarios.workloads.transformer.training_step import Handover
from tests.harness.runs.observed_messages import gpu_in, iteration_of
from tests.harness.runs.step_runs import CASES, run
from tests.harness.runs.wanted_parts import assert_parts
from topologies.catalogue import load

#: Both halves of a job of two stages or replicas, one GPU, and two that are no neighbours.
WANTED = (frozenset(range(4)), frozenset(range(4, 8)), frozenset({1}), frozenset({0, 5}))
#: What a run keeps beside what it is made of.
KEPT = ("sizes", "roofline_ns")
CASES_AND_STATE: dict[str, dict[str, Any]] = {
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


HERE = Region("a", 0, 4)


def compute(duration: int, *after: int) -> Apply:
    return Apply(function="f", inputs=(), outputs=(), duration_ns=duration, after=after)


def times(messages: dict[tuple[int, int], tuple[int, int]], label: str = "TP") -> StepTimes:
    """Rank 0 computes 100 ns and sends; rank 1 computes 30, gets that, adds it, computes 50."""
    schedules = [
        Schedule(
            rank=0,
            buffers={"a": 4},
            operations=(
                compute(100),
                Write(peer=1, tag=0, local=HERE, remote=HERE, after=(0,)),
            ),
        ),
        Schedule(
            rank=1,
            buffers={"a": 4},
            operations=(
                compute(30),
                Receive(peer=0, tag=0, into=HERE),
                Reduce(source=HERE, into=HERE, after=(1, 0)),
                compute(50, 2),
            ),
        ),
    ]
    iteration = iteration_of(schedules, *messages[0, 1])
    operations = [
        GpuOperations({}, frozenset({0})),
        GpuOperations({1: label}, frozenset({0, 3})),
    ]
    found = [
        gpu_times(gpu_in(one, iteration), what, ["PP"])
        for one, what in zip(schedules, operations, strict=True)
    ]
    return StepTimes(
        {gpu: shares for gpu, (shares, _) in enumerate(found)},
        {gpu: end for gpu, (_, end) in enumerate(found)},
    )


def test_a_wait_counts_as_what_was_waited_for() -> None:
    found = times({(0, 1): (100, 140)})
    assert found.shares[1] == {"compute": 80, "bubble": 0, "TP": 110}
    assert found.ends_ns == {0: 100, 1: 190}
    shares = found.mean_shares([0, 1])
    assert shares["compute"] == pytest.approx(180 / 380)
    assert shares["TP"] == pytest.approx(110 / 380)
    assert shares["bubble"] == pytest.approx(90 / 380)  # rank 0 is idle at the end
    assert sum(shares.values()) == pytest.approx(1)


def test_time_before_another_stage_sends_is_bubble() -> None:
    found = times({(0, 1): (100, 140)}, "PP")
    assert found.shares[1] == {"compute": 80, "bubble": 70, "PP": 40}


def test_what_came_early_costs_nothing() -> None:
    found = times({(0, 1): (10, 20)}, "PP")
    assert found.shares[1] == {"compute": 80}
    assert found.end_ns([0, 1]) == 100


def test_a_textbook_s_times_of_a_training_of_175_billion_parameters() -> None:
    """165 years on one GPU and 16 days on 1,024 need GPUs of different rates."""
    flops, day, year = step_trial.GPT3_FLOPS, step_trial.DAY_S, step_trial.YEAR_S
    assert flops == pytest.approx(6 * 175e9 * 300e9, rel=0.01)  # weights, tokens
    one = step_trial.needed_tflops(flops, 1, 165 * year)
    many = step_trial.needed_tflops(flops, 1024, 16 * day)
    assert one == pytest.approx(60.3, abs=0.05)
    assert many == pytest.approx(221.8, abs=0.05)
    assert step_trial.seconds(flops, 1, one) / year == pytest.approx(165)
    assert step_trial.seconds(flops, 1024, many) / day == pytest.approx(16)
    assert step_trial.seconds(flops, 1024, one) / day == pytest.approx(58.9, abs=0.05)
    text = "\n".join(step_trial.example(395.6))
    assert "60.3 TFLOPS a GPU:  165.0 years on 1,  58.9 days on 1,024 GPUs" in text
    assert "221.8 TFLOPS a GPU:   44.9 years on 1,  16.0 days on 1,024 GPUs" in text


def test_bars_end_at_the_speed_up_and_dots_at_the_ideal() -> None:
    heading, first, second, third = step_trial.drawn([(4, 100.0), (8, 50.0), (16, 40.0)])
    assert heading.startswith("GPUs")
    assert first.endswith("   " + "#" * 10)
    assert second.split()[1:4] == ["50.00", "2.00", "2.00"]
    assert second.endswith("#" * 20)
    assert third.split()[1:4] == ["40.00", "2.50", "4.00"]
    assert third.endswith(" " + "#" * 25 + "." * 15)
