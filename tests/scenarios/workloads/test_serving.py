"""GPUs of a serving job compute and exchange by the published sizes of models."""

from dataclasses import replace

import pytest

from scenarios.training_jobs.inference import Parameters


def test_prefill_takes_its_floating_point_operations() -> None:
    job = Parameters(scale=1).job("70b", "whole")
    # all weights but the embedding and the norms, and the scores of half of all pairs of tokens
    weights = 70_553_706_496 - 128_256 * 8192 - 161 * 8192
    flops = 2 * weights * 4096 + 80 * 2 * 2 * 8192 * 4096**2 / 2
    assert job.prefill_ns == pytest.approx(flops / (4 * 400e12) * 1e9, rel=1e-9)
    assert sum(job.layer_ns(layer) for layer in range(80)) == job.prefill_ns
    assert Parameters(scale=8).job("70b", "whole").prefill_ns * 8 == pytest.approx(job.prefill_ns)


def test_a_step_reads_weights_and_cache_once() -> None:
    job = Parameters(scale=1).job("70b", "whole")
    octets = 2 * (70_553_706_496 - 128_256 * 8192 - 161 * 8192) + 1_342_177_280
    assert job.step_ns == pytest.approx(octets / (4 * 3350), abs=1)
    # a ring of four sends 2 (n-1)/n of two hidden states a layer, here to three peers
    assert job.reduce_bytes * 3 == 2 * 3 * 2 * 80 * 8192 * 2 // 4


def test_experts_get_a_tokens_state_once_for_each_choice() -> None:
    parameters = Parameters(models=("8x7b",), decode_by="experts", decode_gpus=8, scale=1)
    job = parameters.job("8x7b", "whole")
    assert job.expert_bytes * 8 == 32 * 2 * 4096 * 2
    assert job.cache_shards == 1
    assert job.places == 8 * 8


@pytest.mark.parametrize(("have", "need"), [(4, 4), (2, 8), (8, 2), (1, 4), (4, 1)])
def test_both_sides_divide_a_cache_by_heads(have: int, need: int) -> None:
    """Every GPU of decode gets its part, whole, of those that have it."""
    job = Parameters(prefill_gpus=have, decode_gpus=need).job("70b", "whole")
    shares = [[job.shared_cache(one, other) for other in range(need)] for one in range(have)]
    assert [sum(row) for row in shares] == [job.layer_cache_bytes // have] * have
    assert [sum(column) for column in zip(*shares, strict=True)] == (
        [job.layer_cache_bytes // need] * need
    )
    used = sum(octets > 0 for row in shares for octets in row)
    assert used == max(have, need)


def test_parts_of_an_odd_scale_are_equal() -> None:
    job = replace(Parameters(prefill_gpus=8, decode_gpus=2).job("70b", "whole"), scale=1000)
    assert job.layer_cache_bytes % 8 == 0
    assert 0 <= 4096 * 4096 / 1000 - job.layer_cache_bytes < 8
