"""Times of a training by its FLOPs, and the drawing of a speed-up."""

from __future__ import annotations

import pytest

from scenarios.workloads.transformer import strong_scaling


def test_a_textbook_s_times_of_a_training_of_175_billion_parameters() -> None:
    """165 years on one GPU and 16 days on 1,024 need GPUs of different rates."""
    flops, day, year = strong_scaling.GPT3_FLOPS, strong_scaling.DAY_S, strong_scaling.YEAR_S
    assert flops == pytest.approx(6 * 175e9 * 300e9, rel=0.01)  # weights, tokens
    one = strong_scaling.needed_tflops(flops, 1, 165 * year)
    many = strong_scaling.needed_tflops(flops, 1024, 16 * day)
    assert one == pytest.approx(60.3, abs=0.05)
    assert many == pytest.approx(221.8, abs=0.05)
    assert strong_scaling.seconds(flops, 1, one) / year == pytest.approx(165)
    assert strong_scaling.seconds(flops, 1024, many) / day == pytest.approx(16)
    assert strong_scaling.seconds(flops, 1024, one) / day == pytest.approx(58.9, abs=0.05)
    text = "\n".join(strong_scaling.example(395.6))
    assert "60.3 TFLOPS a GPU:  165.0 years on 1,  58.9 days on 1,024 GPUs" in text
    assert "221.8 TFLOPS a GPU:   44.9 years on 1,  16.0 days on 1,024 GPUs" in text


def test_bars_end_at_the_speed_up_and_dots_at_the_ideal() -> None:
    heading, first, second, third = strong_scaling.drawn([(4, 100.0), (8, 50.0), (16, 40.0)])
    assert heading.startswith("GPUs")
    assert first.endswith("   " + "#" * 10)
    assert second.split()[1:4] == ["50.00", "2.00", "2.00"]
    assert second.endswith("#" * 20)
    assert third.split()[1:4] == ["40.00", "2.50", "4.00"]
    assert third.endswith(" " + "#" * 25 + "." * 15)
