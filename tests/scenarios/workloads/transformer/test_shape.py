"""FLOPs and octets of training steps, against the worked examples of published configurations.

Models and configurations: Grattafiori et al., arXiv 2407.21783, tables 3 and 4.
"""

import dataclasses
from fractions import Fraction
from typing import Any

import pytest

from emulator.errors import UserError
from scenarios.workloads.transformer.shape import (
    CP,
    DP,
    EP,
    EXPERT_DP,
    SHAPES,
    TP,
    ParallelLayout,
    StepShape,
    Task,
    bubble,
    pipeline_order,
    stage_layers,
)


@pytest.mark.parametrize(
    ("name", "layer", "weights"),
    [
        ("8b", 218_112_000, 8_030_261_248),
        ("70b", 855_654_400, 70_553_706_496),
        ("405b", 3_187_703_808, 405_853_388_800),
        ("8x7b", 1_451_270_144, 46_702_792_704),
        ("grok-1", 4_919_980_032, 316_489_340_928),  # 314B, whose embedding is the output head, too
        ("qwen3-235b", 2_487_754_752, 235_093_610_496),
    ],
)
def test_weights_add_up_to_the_published_totals(name: str, layer: int, weights: int) -> None:
    shape = SHAPES[name]
    assert (shape.layer_weights, shape.weights) == (layer, weights)


def test_a_token_passes_only_the_experts_that_its_router_chose() -> None:
    dense, experts = SHAPES["8b"], SHAPES["8x7b"]
    assert dense.active_layer_weights == dense.layer_weights - 2 * dense.hidden
    assert experts.active_layer_weights == (
        experts.attention_weights + 2 * experts.feed_forward_weights + 8 * experts.hidden
    )


def test_deepseek_v3_has_671b_weights_of_which_a_token_passes_36_6b() -> None:
    """README_WEIGHTS.md of the model: 671B, 36.6B active with the output head's 0.9B."""
    shape = SHAPES["deepseek-v3"]
    assert shape.weights == 671_026_279_424
    assert shape.active_weights + shape.head_weights == 36_624_596_992
    assert shape.layers * shape.key_value_bytes() == 61 * (512 + 64) * 2
    few = dataclasses.replace(shape, layers=4)
    step = StepShape(model=few, layout=ParallelLayout(dp=8, ep=8))
    held = 3 * (187_105_280 + 3 * 7168 * 18432 + 2 * 7168)  # the first layers
    held += step.dense_layer_weights + 32 * 3 * 7168 * 2048
    assert step.gpu_weights == held + step.embedding_weights + step.head_weights


def test_22b_of_235b_weights_are_active() -> None:
    shape = SHAPES["qwen3-235b"]
    assert shape.active_weights + 2 * shape.head_weights == 22_189_965_312
    assert shape.key_value_bytes() == 2 * 4 * 128 * 2  # heads of 128, and not of 4096 / 64


def test_keys_and_values_of_70b_at_4096_tokens() -> None:
    # 2 x 80 layers x 8 KV heads x 128 x 2 octets for each of 4096 tokens
    shape = SHAPES["70b"]
    assert shape.layers * shape.key_value_bytes() * 4096 == 1_342_177_280


LAYOUT = ParallelLayout(tp=2, cp=2, dp=2, pp=2, ep=2)


def test_tensor_ranks_are_neighbours_and_stages_are_far_apart() -> None:
    assert LAYOUT.ranks == 16
    assert LAYOUT.groups(TP)[:3] == [(0, 1), (2, 3), (4, 5)]
    assert LAYOUT.groups(CP)[:3] == [(0, 2), (4, 6), (1, 3)]
    assert LAYOUT.groups(DP) == [(0, 2, 4, 6), (1, 3, 5, 7), (8, 10, 12, 14), (9, 11, 13, 15)]
    assert list(LAYOUT.stage(1)) == list(range(8, 16))


def test_experts_are_spread_over_context_and_data_ranks() -> None:
    assert LAYOUT.groups(EP)[:2] == [(0, 2), (4, 6)]
    assert LAYOUT.groups(EXPERT_DP)[:2] == [(0, 4), (2, 6)]


@pytest.mark.parametrize("kind", [TP, CP, EP, DP, EXPERT_DP])
def test_each_rank_is_in_one_group(kind: str) -> None:
    members = [rank for group in LAYOUT.groups(kind) for rank in group]
    assert sorted(members) == list(range(16))


def test_ranks_have_one_place() -> None:
    for rank in range(LAYOUT.ranks):
        assert LAYOUT.rank(LAYOUT.place(rank)) == rank
    place = LAYOUT.place(11)
    assert (place.tp, place.cp, place.dp, place.pp) == (1, 1, 0, 1)


def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(ValueError, match="no kind of group 'XP'"):
        LAYOUT.groups("XP")


@pytest.mark.parametrize(("order", "chunks"), [("gpipe", 1), ("1f1b", 1), ("1f1b", 2), ("1f1b", 3)])
@pytest.mark.parametrize("stages", [2, 4])
def test_all_tasks_once_and_forward_before_backward(order: str, chunks: int, stages: int) -> None:
    for stage in range(stages):
        tasks = pipeline_order(order, stage, stages, 8, chunks)
        assert len(tasks) == len(set(tasks)) == 2 * 8 * chunks
        for task in tasks:
            if not task.forward:
                assert tasks.index(task._replace(forward=True)) < tasks.index(task)


def _slots(stages: int, micro_batches: int, chunks: int) -> int:
    """Return the time of a step in which a chunk takes 1 forward and 2 backward."""
    orders = [
        pipeline_order("1f1b", stage, stages, micro_batches, chunks) for stage in range(stages)
    ]
    done: dict[tuple[bool, int, int], int] = {}
    free = [0] * stages
    while any(orders):
        before = len(done)
        for stage, tasks in enumerate(orders):
            while tasks:
                task = tasks[0]
                number = task.chunk * stages + stage
                last = stages * chunks - 1
                needs: list[tuple[bool, int, int]] = []
                if task.forward and number:
                    needs.append((True, number - 1, task.micro))
                elif not task.forward:
                    needs.append((True, number, task.micro))
                    if number < last:
                        needs.append((False, number + 1, task.micro))
                if not all(need in done for need in needs):
                    break
                start = max([free[stage], *(done[need] for need in needs)])
                free[stage] = start + (1 if task.forward else 2)
                done[task.forward, number, task.micro] = free[stage]
                tasks.pop(0)
        assert len(done) > before, "the order deadlocks"
    return max(free)


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (3, 6)])
@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_the_bubble_of_an_order_is_its_formula(
    stages: int, micro_batches: int, chunks: int
) -> None:
    busy = 3 * micro_batches * chunks
    share = 1 - busy / _slots(stages, micro_batches, chunks)
    assert share == pytest.approx(bubble(stages, micro_batches, chunks))


def test_interleaved_micro_batches_go_in_groups_of_the_stages() -> None:
    first = pipeline_order("1f1b", 0, 2, 4, 2)[:4]
    assert first == [Task(True, 0, 0), Task(True, 0, 1), Task(True, 1, 0), Task(True, 1, 1)]
    with pytest.raises(UserError, match="interleave=1"):
        pipeline_order("gpipe", 0, 2, 4, 2)


def test_chunks_at_the_ends_have_fewer_layers() -> None:
    counts = [len(chunk) for chunk in stage_layers(126, 16)]
    assert counts == [7, *[8] * 14, 7]  # as Llama 3 405B
    assert [len(chunk) for chunk in stage_layers(6, 3)] == [2, 2, 2]
    assert [len(chunk) for chunk in stage_layers(32, 3)] == [11, 11, 10]
    layers = [layer for chunk in stage_layers(11, 4) for layer in chunk]
    assert layers == list(range(11))


def step(name: str, micro_batches: int, sequence: int = 8192, **given: Any) -> StepShape:
    ways = {key: given.pop(key) for key in ("tp", "cp", "ep", "dp", "pp") if key in given}
    return StepShape(
        model=SHAPES[name],
        layout=ParallelLayout(**ways),
        sequence=sequence,
        micro_batches=micro_batches,
        **given,
    )


SMALL = step("8b", 8, dp=64)
MIDDLE = step("70b", 32, tp=8, pp=4, dp=16, sequence_parallel=True)
LARGE = step("405b", 16, tp=8, pp=16, dp=128, sequence_parallel=True)
LONG = step("405b", 16, 131072, tp=8, cp=16, pp=16, dp=8, sequence_parallel=True)
MIB = 2**20


@pytest.mark.parametrize(
    ("one", "gpus", "batch", "activations"),
    [
        (SMALL, 64, 512, 64 * MIB),
        (MIDDLE, 512, 512, 128 * MIB),
        (LARGE, 16384, 2048, 256 * MIB),
        (LONG, 16384, 128, 256 * MIB),
    ],
)
def test_gpus_batches_and_activations(
    one: StepShape, gpus: int, batch: int, activations: int
) -> None:
    assert one.layout.ranks == gpus
    assert one.global_batch == batch
    assert one.activation_bytes == activations


def test_parameters_of_the_models_to_the_unit() -> None:
    numbers = {"8b": 8_030_261_248, "70b": 70_553_706_496, "405b": 405_853_388_800}
    assert {name: SHAPES[name].weights for name in numbers} == numbers
    assert SMALL.gpu_weights == numbers["8b"]
    assert SHAPES["8x7b"].weights == 46_702_792_704


@pytest.mark.parametrize(
    ("one", "flops"), [(SMALL, 3.58e15), (MIDDLE, 3.73e15), (LARGE, 2.60e15), (LONG, 4.16e15)]
)
def test_computing_is_six_flops_a_weight_and_token_and_causal_attention(
    one: StepShape, flops: float
) -> None:
    model, tokens = one.model, one.global_batch * one.sequence
    whole = 6 * model.weights * tokens
    whole += 6 * model.layers * one.global_batch * one.sequence**2 * model.hidden
    assert float(one.gpu_flops) == pytest.approx(whole / one.layout.ranks, rel=1e-12)
    assert float(one.gpu_flops) == pytest.approx(flops, rel=0.002)


def test_tensor_parallelism_sends_most() -> None:
    assert SMALL.tensor_layer_bytes == 0
    assert float(MIDDLE.tensor_layer_bytes) == pytest.approx(939.5e6, rel=1e-4)
    assert float(LARGE.tensor_layer_bytes) == pytest.approx(1879e6, rel=1e-4)
    assert float(MIDDLE.tensor_step_bytes) == pytest.approx(601e9, rel=1e-3)
    assert float(LARGE.tensor_step_bytes) == pytest.approx(237e9, rel=2e-3)
    assert LONG.tensor_step_bytes == LARGE.tensor_step_bytes


def test_stages_send_activations_divided_over_the_tensor_ranks() -> None:
    assert MIDDLE.stage_bytes == 16 * MIB
    assert LARGE.stage_bytes == 32 * MIB
    assert MIDDLE.stage_step_bytes == pytest.approx(1.07e9, rel=0.005)
    assert LARGE.stage_step_bytes == pytest.approx(1.07e9, rel=0.005)
    assert SMALL.stage_step_bytes == 0
    whole = dataclasses.replace(LARGE, sequence_parallel=False)
    assert whole.stage_bytes == 256 * MIB


def test_gradients_and_weights_of_replicas() -> None:
    for one, weights, bf16, fp32, sharded, fsdp in (
        (SMALL, 8.03e9, 31.6e9, 63.2e9, 47.4e9, 47.4e9),
        (MIDDLE, 2.20e9, 8.27e9, 16.5e9, 12.4e9, 12.4e9),
        (LARGE, 3.17e9, 12.6e9, 25.2e9, 18.9e9, 18.9e9),
        (LONG, 3.17e9, 12.6e9, 25.2e9, 18.9e9, 18.9e9),
    ):
        assert float(one.gpu_weights) == pytest.approx(weights, rel=3e-3)
        half = dataclasses.replace(one, gradient_bytes=2)
        assert float(half.gradient_step_bytes) == pytest.approx(bf16, rel=4e-3)
        assert float(one.gradient_step_bytes) == pytest.approx(fp32, rel=4e-3)
        first = dataclasses.replace(one, zero=1)
        assert float(first.gradient_step_bytes) == pytest.approx(sharded, rel=4e-3)
        top = dataclasses.replace(half, gradient_share=Fraction(1, 100))
        ranks = one.layout.dp * one.layout.cp
        chosen = (ranks - 1) * float(one.gpu_weights) / 100 * (2 + 4)
        assert float(top.gradient_step_bytes) == pytest.approx(chosen, rel=1e-6)
        third = dataclasses.replace(half, zero=3)
        each = third.gradient_step_bytes / one.micro_batches
        assert float(each) == pytest.approx(fsdp, rel=4e-3)


def test_context_ranks_gather_keys_and_values() -> None:
    assert float(LONG.context_layer_bytes) == pytest.approx(62.9e6, rel=1e-3)
    assert LARGE.context_layer_bytes == 0


def test_experts_get_the_tokens_of_other_ranks() -> None:
    one = step("8x7b", 1, tp=2, dp=8, ep=8, sequence_parallel=True)
    assert one.expert_layer_bytes == 8192 // 2 * 2 * 4096 * 2 * 7 / 8
    layer = 8 * 3 * 4096 * 14336
    assert one.expert_layer_weights == layer // 16
    assert one.dense_layer_weights == (SHAPES["8x7b"].layer_weights - layer) // 2
    assert SMALL.expert_layer_weights == 0


@pytest.mark.parametrize(("one", "share"), [(SMALL, 0.0), (MIDDLE, 0.086), (LARGE, 0.484)])
def test_the_bubble_by_its_formula(one: StepShape, share: float) -> None:
    assert one.bubble == pytest.approx(share, abs=5e-4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tp": 3}, "32 heads cannot be divided over 3"),
        ({"tp": 16}, "8 key-value heads"),
        ({"cp": 3}, "8192 tokens"),
        ({"dp": 3, "ep": 3}, "1 experts"),
        ({"pp": 33}, "at most pp x interleave = 32"),
        ({"interleave": 2}, "needs several stages"),
        ({"pp": 4, "interleave": 2}, "multiples of them"),
    ],
)
def test_what_cannot_be_divided_is_refused(given: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        step("8b", 6, **given)


def test_experts_beside_tensor_ranks_need_sequence_parallelism() -> None:
    with pytest.raises(UserError, match="sp=on"):
        step("8x7b", 1, tp=2, dp=2, ep=2)
    with pytest.raises(UserError, match="does not divide the 2 ranks"):
        step("8x7b", 1, dp=2, ep=4)
