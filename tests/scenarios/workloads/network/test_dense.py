"""Dense layers: their gradients are derivatives, which small differences show."""

from __future__ import annotations

import numpy as np
import pytest

from scenarios.workloads.network.dense import (
    ACTIVATIONS,
    backward,
    forward,
    squared_error,
    step,
)


def random(key: int, *shape: int) -> np.ndarray:
    return np.random.default_rng((key, *shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_are_derivatives_of_the_loss(activation: str) -> None:
    w, x, target = random(1, 3, 4), random(2, 4, 5), random(3, 3, 5)

    def loss(w: np.ndarray, x: np.ndarray) -> float:
        return float(squared_error(forward(w, x, activation), target)[0])

    y = forward(w, x, activation)
    _, delta = squared_error(y, target)
    gradient, before = backward(w, x, y, delta, activation)
    for matrix, found in ((w, gradient), (x, before)):
        for place in np.ndindex(matrix.shape):
            small = np.float32(2**-8)
            more, less = matrix.copy(), matrix.copy()
            more[place] += small
            less[place] -= small
            first, second = ((more, x), (less, x)) if matrix is w else ((w, more), (w, less))
            slope = (loss(*first) - loss(*second)) / (2 * small)
            assert found[place] == pytest.approx(slope, abs=0.02, rel=0.02)


def test_a_step_goes_against_the_gradient() -> None:
    w = np.float32([[1, 2]])
    assert step(w, np.float32([[4, -4]]), 0.25).tolist() == [[0, 3]]
