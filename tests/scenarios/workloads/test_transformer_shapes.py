"""Shapes of language models against the published numbers of their weights."""

import pytest

from scenarios.workloads.transformer_shapes import SHAPES


@pytest.mark.parametrize(
    ("name", "layer", "weights"),
    [
        ("8b", 218_112_000, 8_030_261_248),
        ("70b", 855_654_400, 70_553_706_496),
        ("405b", 3_187_703_808, 405_853_388_800),
        ("8x7b", 1_451_270_144, 46_702_792_704),
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


def test_keys_and_values_of_70b_at_4096_tokens() -> None:
    # 2 x 80 layers x 8 KV heads x 128 x 2 octets for each of 4096 tokens
    shape = SHAPES["70b"]
    assert shape.layers * shape.key_value_bytes() * 4096 == 1_342_177_280
