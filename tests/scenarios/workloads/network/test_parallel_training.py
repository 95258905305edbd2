"""Training plans on grids of GPUs: in any legal order of operations, to the bit as on one GPU."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from emulator.errors import UserError
from emulator.sim.endpoint.operations.gpu_memory import Layout
from emulator.sim.endpoint.operations.operation_table import OperationTable
from emulator.sim.endpoint.operations.schedule import Region
from emulator.sim.endpoint.operations.schedule_program import ScheduleProgram
from scenarios.workloads.network.compression import Compression
from scenarios.workloads.network.layers import ring_sum
from scenarios.workloads.network.parallel_training import (
    BACKWARD,
    FORWARD,
    micro_batch_order,
    most_held,
)
from scenarios.workloads.network.training_plan import (
    TrainingPlan,
    first_step_apart,
    flattened,
    train,
)
from scenarios.workloads.network.training_trial import (
    PlacedTraining,
    TrainingParameters,
    check_learning,
    grid,
)
from tests.harness.runs.schedule_executor import Executor, Flight, hazards
from topologies.catalogue import load

PLANS = {
    "four layers in a row": TrainingPlan(widths=(4, 5, 3, 3, 2), stages=4, epochs=3),
    "three parts of uneven size": TrainingPlan(widths=(3, 4, 5), parts=3, epochs=3),
    "three replicas": TrainingPlan(widths=(3, 4, 2), replicas=3, epochs=3),
    "gpipe": TrainingPlan(widths=(3, 4, 4, 2), stages=3, micro_batches=4, epochs=2),
    "1f1b": TrainingPlan(widths=(3, 4, 4, 2), stages=3, micro_batches=4, epochs=2, order="1f1b"),
    **{
        f"{kind}, {'with' if feedback else 'without'} feedback": TrainingPlan(
            widths=(4, 6, 3), replicas=3, epochs=3, compression=Compression(kind, 0.3, feedback)
        )
        for kind in ("bfloat16", "fp8", "topk")
        for feedback in (False, True)
    },
    "all at once": TrainingPlan(
        widths=(4, 5, 4, 2), replicas=3, stages=2, parts=2, micro_batches=3, epochs=2, order="1f1b"
    ),
}


def placed(plan: TrainingPlan) -> PlacedTraining:
    topology = load("rail_clos:hosts=6,gpus_per_host=2,spines=1")
    return PlacedTraining("test", plan, topology, grid(topology, plan))


class Flipping(Executor):
    """Flips one bit in the first outputs that arrive."""

    flipped = False

    def progress(self, flight: Flight, arrived: dict[tuple[int, int, int], Region]) -> None:
        operation = flight.operation
        fresh = not flight.delivered
        super().progress(flight, arrived)
        if fresh and not self.flipped and operation.remote.buffer == "arrived outputs":
            self.view(operation.peer, operation.remote)[2] ^= 1
            self.flipped = True


def executed(training: PlacedTraining, seed: int = 1, kind: type[Executor] = Executor) -> Executor:
    trial = training.trial(TrainingParameters())
    executor = kind(trial.compile(), random.Random(seed))
    for rank in range(len(executor.schedules)):
        for name, content in trial.inputs(rank).items():
            executor.memory[rank][name][:] = content.view(np.uint8)
    executor.run()
    return executor


def wrong(training: PlacedTraining, executor: Executor) -> dict[str, int]:
    """Elements of each buffer that differ from the reference, at all GPUs."""
    trial = training.trial(TrainingParameters())
    found: dict[str, int] = {}
    for rank in range(len(executor.schedules)):
        for name, content in trial.expected(rank).items():
            there = executor.memory[rank][name].view(content.dtype)
            found[name] = found.get(name, 0) + int(np.count_nonzero(there != content))
    return found


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_weights_and_losses_are_those_of_one_gpu_to_the_bit(plan: TrainingPlan, seed: int) -> None:
    training = placed(replace(plan, seed=seed))
    assert wrong(training, executed(training, seed)) == {"weights": 0, "losses": 0}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_no_region_is_written_while_others_use_it(plan: TrainingPlan) -> None:
    assert hazards(placed(plan).work.compile()) == []


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_endpoints_accept_the_schedules(plan: TrainingPlan) -> None:
    training = placed(plan)
    schedules = training.work.compile()
    layouts = {one.rank: Layout(one.buffers) for one in schedules}
    everybody = range(len(training.topology.gpus))
    for schedule in schedules:
        program = ScheduleProgram(schedule, layouts, fabric=everybody, scale_up=everybody)
        table = OperationTable.of(schedule.operations)
        assert len(program.calls) == len(table.calls)


@pytest.mark.parametrize("name", ["four layers in a row", "all at once"])
def test_a_bit_flipped_in_a_delivered_activation_changes_the_final_weights(name: str) -> None:
    """Nothing is computed ahead: what counts is what lies in the GPU's memory."""
    training = placed(PLANS[name])
    executor = executed(training, kind=Flipping)
    assert isinstance(executor, Flipping)
    assert executor.flipped
    found = wrong(training, executor)
    assert found["weights"] > 0
    assert found["losses"] > 0


def test_operations_have_the_names_of_their_layers_in_the_timeline() -> None:
    schedule = placed(PLANS["all at once"]).work.compile()[0]
    names = {span.name for span in schedule.spans}
    assert {
        "epoch 1, micro-batch 3",
        "epoch 1, micro-batch 1, layer 2 backward",
        "epoch 2, gradients all_reduce",
    } <= names
    named = {index for span in schedule.spans for index in range(span.first, span.end)}
    assert named == set(range(len(schedule.operations)))


def test_a_training_that_is_divided_learns_what_the_undivided_one_learns() -> None:
    plan = PLANS["all at once"]
    losses = [train(plan).epoch_loss(epoch) for epoch in range(plan.epochs)]
    undivided = replace(plan, stages=1, parts=1, order="gpipe")
    assert losses[-1] < losses[0]
    assert losses == pytest.approx([train(undivided).epoch_loss(epoch) for epoch in range(2)])


@pytest.mark.parametrize("seed", range(1, 9))
def test_mini_batches_differ_from_the_whole_batch_by_rounding_only(seed: int) -> None:
    plan = TrainingPlan(widths=(4, 16, 3), replicas=5, micro_batches=3, samples=7, seed=seed)
    apart, bound = first_step_apart(plan)
    assert 0 < apart <= bound < 1e-4


def test_a_ring_adds_each_block_from_its_own_place_on() -> None:
    large, ones = np.array([2.0**24, 0, 0], np.float32), np.ones(3, np.float32)
    # Block 0 begins with 2^24, which swallows each 1; block 0 of the other order does not.
    assert ring_sum([large, ones, ones]).tolist() == [2.0**24, 2, 2]
    assert ring_sum([ones, ones, large]).tolist() == [2.0**24 + 2, 2, 2]


def test_the_orders_of_micro_batches() -> None:
    forward = [(FORWARD, micro) for micro in range(3)]
    backward = [(BACKWARD, micro) for micro in range(3)]
    assert micro_batch_order("gpipe", 0, 2, 3) == forward + backward
    one, two, three = zip(forward, backward, strict=True)
    assert micro_batch_order("1f1b", 1, 2, 3) == [*one, *two, *three]
    assert micro_batch_order("1f1b", 0, 2, 3) == [
        forward[0], forward[1], backward[0], forward[2], backward[1], backward[2]
    ]  # fmt: skip
    assert [most_held("gpipe", stage, 4, 8) for stage in range(4)] == [8, 8, 8, 8]
    assert [most_held("1f1b", stage, 4, 8) for stage in range(4)] == [4, 3, 2, 1]
    assert most_held("1f1b", 0, 4, 2) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"widths": (4,)}, "needs inputs and a layer"),
        ({"widths": (4, 2), "stages": 2}, "1 layers cannot be divided over 2 stages; give 3"),
        ({"widths": (4, 8, 2), "parts": 3}, "a layer of 2 neurons cannot be divided over 3 GPUs"),
    ],
)
def test_plans_that_make_no_sense_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TrainingPlan(**given)


def test_a_loss_that_rises_is_refused() -> None:
    check_learning([2.0, 1.0], 0.1)
    with pytest.raises(
        UserError, match=r"from 1 to 2 in 2 epochs; take a smaller rate, such as --param rate=1"
    ):
        check_learning([1.0, 2.0], 4.0)


def test_too_few_gpus_are_refused() -> None:
    plan = TrainingPlan(widths=(4, 2), replicas=13)
    with pytest.raises(UserError, match=r"needs 13 GPUs and topology rail_clos.* has 12"):
        placed(plan)


@pytest.mark.parametrize(("before", "after"), [(1, 1), (3, 4)])
def test_a_resumed_training_comes_to_the_same_bits(before: int, after: int) -> None:
    plan = TrainingPlan(widths=(4, 5, 2), replicas=3, epochs=before + after)
    whole = train(plan)
    resumed = train(replace(plan, epochs=after, resumed=before))
    assert flattened(resumed.weights).tobytes() == flattened(whole.weights).tobytes()
    assert resumed.losses == whole.losses[before:]
