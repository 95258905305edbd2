"""The operations of training steps: right data in any legal order, and the octets of formulas."""

import dataclasses
import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from emulator.sim.endpoint.operations.operation_table import OperationTable
from emulator.sim.endpoint.operations.schedule import Apply
from scenarios.workloads.transformer.shape import SHAPES, ParallelLayout, StepShape
from scenarios.workloads.transformer.step_trial import StepRun
from scenarios.workloads.transformer.streams import StepScale
from scenarios.workloads.transformer.training_step import PP, Handover, StepChoices, handovers
from tests.harness.runs.schedule_executor import Executor, hazards
from tests.harness.runs.step_runs import CASES, run


@pytest.mark.parametrize("case", CASES)
def test_results_are_right_in_any_order_and_nothing_is_overwritten(case: str) -> None:
    one = run(**CASES[case])
    schedules = one.compile()
    executor = Executor(schedules, random.Random(5))
    for _ in range(2):
        executor.run()
        for schedule in schedules:
            for name, content in one.expected(schedule.rank).items():
                assert executor.memory[schedule.rank][name].tobytes() == content.tobytes()
                executor.memory[schedule.rank][name][:] = 0xFF
    assert hazards(schedules) == []
    assert (sum(one.sizes.results.values()) > 0) == (case != "one GPU")


def _spoiled(one: StepRun, rank: int) -> int:
    """Return how many results at all ranks have a wrong element, if a GPU makes a wrong one."""
    broken = []
    for schedule in one.compile():
        operations = list(schedule.operations)
        if schedule.rank == rank:
            place = next(
                at
                for at, operation in enumerate(operations)
                if isinstance(operation, Apply) and len(operation.arguments) == 2
            )
            made: Any = operations[place]
            arguments = (made.arguments[0], made.arguments[1] + 1)
            operations[place] = dataclasses.replace(made, arguments=arguments)
        broken.append(dataclasses.replace(schedule, operations=tuple(operations)))
    executor = Executor(broken, random.Random(5))
    executor.run()
    return sum(
        int(np.count_nonzero(memory["verdicts"].view(np.uint32)))
        for memory in executor.memory
        if "verdicts" in memory
    )


def test_a_wrong_tensor_is_noticed_by_all_that_get_it() -> None:
    assert _spoiled(run(tp=4, layers=1), 1) == 4
    assert _spoiled(run(tp=4, layers=1, sequence_parallel=True), 1) == 4


def _octets(one: StepRun) -> int:
    return sum(one.sizes.written.values()) + sum(one.sizes.copied.values())


#: Large slices, which compile faster.
LARGE = StepChoices(slice_bytes=2**24)
SCALE = 64


def _whole(layers: int, **given: Any) -> int:
    return _octets(run(layers=layers, scale=SCALE, choices=LARGE, **given))


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_tensor_octets_are_those_of_the_formula(sequence_parallel: bool) -> None:
    """Two layers more than two, so that embedding and head do not count."""
    given: dict[str, Any] = {"tp": 4, "micro_batches": 2, "sequence_parallel": sequence_parallel}
    more = _whole(4, **given) - _whole(2, **given)
    step = run(layers=2, **given).jobs[0].step
    assert more == pytest.approx(float(4 * step.tensor_step_bytes) / SCALE, rel=1e-6)


@pytest.mark.parametrize(("zero", "micro_batches"), [(0, 1), (1, 1), (2, 2), (3, 1), (3, 2)])
def test_octets_of_replicas_are_those_of_the_formula(zero: int, micro_batches: int) -> None:
    one = run(layers=2, scale=SCALE, choices=LARGE, dp=4, zero=zero, micro_batches=micro_batches)
    norm = 4 * 2 * 4
    derived = float(4 * one.jobs[0].step.gradient_step_bytes) / SCALE
    assert _octets(one) - norm == pytest.approx(derived, rel=1e-5)


def test_octets_of_stages_context_and_experts_are_those_of_the_formulas() -> None:
    pipeline = run(pp=4, layers=4, micro_batches=3, scale=SCALE, choices=LARGE)
    step = pipeline.jobs[0].step
    between = 3 * 3 * 2 * step.stage_bytes // SCALE
    assert _octets(pipeline) == between + 4 * 2 * 4
    context = _whole(2, cp=2) - _whole(1, cp=2)
    one = run(cp=2).jobs[0].step
    replicas = 2 * one.dense_layer_weights * one.gradient_bytes
    assert context == pytest.approx(float(4 * one.context_layer_bytes + replicas) / SCALE, rel=1e-5)
    share = Fraction(1, 50)
    top = run(dp=3, gradient_share=share, gradient_bytes=1, scale=SCALE, choices=LARGE)
    chosen = float(3 * top.jobs[0].step.gradient_step_bytes)
    assert _octets(top) == pytest.approx(chosen / SCALE, rel=1e-4)
    experts = _whole(2, model="8x7b", dp=2, ep=2) - _whole(1, model="8x7b", dp=2, ep=2)
    one = run(model="8x7b", dp=2, ep=2).jobs[0].step
    replicas = 2 * one.dense_layer_weights * one.gradient_bytes
    assert experts == pytest.approx(
        float(2 * 4 * one.expert_layer_bytes + replicas) / SCALE, rel=1e-5
    )


def test_each_gpu_computes_what_the_formula_says() -> None:
    one = run(layers=4, tp=2, pp=2, dp=2, micro_batches=2, scale=SCALE, choices=LARGE)
    busy = one.sizes.busy_ns
    flops = one.jobs[0].step.gpu_flops
    mean = sum(busy.values()) / len(busy)
    assert mean == pytest.approx(float(flops) / (400e3 * SCALE), rel=1e-4)


def test_messages_are_not_scaled_below_an_mtu_and_equal_in_parts() -> None:
    scale = StepScale(1000, 1.0)
    assert scale.octets(80_000_000, 8) == 80_000
    assert (scale.raised, scale.exchanges) == (0, 1)
    assert scale.octets(80_000, 8) == 8 * 4096
    assert scale.octets(80, 8) == 8 * 8  # it was smaller before; whole elements
    assert (scale.raised, scale.exchanges) == (2, 3)
    assert scale.duration_ns(Fraction(7_000_000)) == 7000


def test_names_say_layer_micro_batch_and_collective() -> None:
    schedules = run(**CASES["3d"]).compile()
    names = {span.name for schedule in schedules for span in schedule.spans}
    assert "micro-batch 1, layer 1 forward, TP AllReduce" in names
    assert "micro-batch 2, layer 2 backward, layer 2 gradients DP AllReduce" in names
    assert "micro-batch 1, outputs to stage 2" in names
    assert "norm AllReduce" in names
    labels = {label for of_rank in schedules.labels for label in of_rank.values()}
    assert labels == {"TP", "DP", PP, "norm"}
    for schedule, of_rank in zip(schedules, schedules.labels, strict=True):
        table = OperationTable.of(schedule.operations)
        assert sorted(of_rank) == table.where(2).tolist()  # every receive is for something


def test_a_new_replica_gets_weights_and_states() -> None:
    layout = {dp: ParallelLayout(tp=2, dp=dp) for dp in (1, 2, 3)}
    steps = {
        (dp, zero): StepShape(model=SHAPES["8b"], layout=layout[dp], zero=zero)
        for dp in layout
        for zero in (0, 1, 3)
    }
    weights = int(steps[1, 0].gpu_weights)
    found = list(handovers(steps[1, 0], steps[2, 0], layout[3]))
    assert found == [Handover(0, 2, 16 * weights), Handover(1, 3, 16 * weights)]
    assert list(handovers(steps[2, 0], steps[1, 0], layout[3])) == []
    found = list(handovers(steps[2, 1], steps[3, 1], layout[3]))
    assert sum(one.octets for one in found) == pytest.approx(2 * (2 + 14 / 3) * weights, rel=1e-6)
    assert {one.destination for one in found} == {4, 5}
    found = list(handovers(steps[3, 3], steps[2, 3], layout[3]))
    assert {(one.source, one.destination) for one in found} == {(4, 0), (4, 2), (5, 1), (5, 3)}
    assert sum(one.octets for one in found) == pytest.approx(2 * 16 / 3 * weights, rel=1e-6)


def test_computing_of_a_new_replica_waits_for_its_state() -> None:
    one = run(dp=2, layers=1, given_to=(Handover(0, 1, 2**30), Handover(3, 1, 2**20)))
    schedules = one.compile()
    executor = Executor(schedules, random.Random(7))
    executor.run()
    for schedule in schedules:
        for name, content in one.expected(schedule.rank).items():
            assert executor.memory[schedule.rank][name].tobytes() == content.tobytes()
    assert hazards(schedules) == []
    (first, *_) = schedules.streams[1]
    waiting = schedules[1].operations[first]
    assert isinstance(waiting, Apply)
    assert len(waiting.inputs) == 2
