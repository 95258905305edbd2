"""FLOPs and octets of training steps, against the worked examples of published configurations.

Models and configurations: Grattafiori et al., arXiv 2407.21783, tables 3 and 4.
"""

from __future__ import annotations

import dataclasses

import pytest

from emulator.errors import UserError
from scenarios.workloads.transformer.parallel_layout import ParallelLayout
from scenarios.workloads.transformer.step_shape import StepShape
from scenarios.workloads.transformer_shapes import SHAPES


def step(name: str, micro_batches: int, sequence: int = 8192, **given: object) -> StepShape:
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
