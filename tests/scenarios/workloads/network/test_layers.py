"""Layers: products have the same bits in parts, and gradients are derivatives."""

import numpy as np
import pytest

from scenarios.workloads.network.layers import (
    ACTIVATIONS,
    Matrix,
    backward,
    exponential,
    forward,
    in_order,
    product,
    squared_error,
    stepped,
    tanh,
    total_of,
)


def matrix(*values: float) -> Matrix:
    return np.array(values, np.float32)


def random_matrix(*shape: int) -> Matrix:
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


def test_a_product_is_that_of_matrices() -> None:
    a, b = random_matrix(5, 70), random_matrix(70, 3)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    size = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    assert np.all(np.abs(product(a, b) - exact) <= 70 * 2.0**-24 * size * 1.001)


def test_a_half_of_a_product_has_the_bits_of_the_whole() -> None:
    a, b = random_matrix(8, 33), random_matrix(33, 6)
    whole = product(a, b)
    assert product(a[:3], b).tobytes() == whole[:3].tobytes()
    assert product(a, b[:, 2:]).tobytes() == np.ascontiguousarray(whole[:, 2:]).tobytes()


def test_sums_have_the_stated_order() -> None:
    large, one = matrix(2.0**24), matrix(1)
    assert in_order([large, one, one])[0] == 2.0**24  # each 1 is rounded away
    assert in_order([one, one, large])[0] == 2.0**24 + 2
    assert total_of(matrix(2.0**24, 1, 1)) == 2.0**24


def test_exponential_and_tanh_are_right_to_six_digits() -> None:
    x = np.linspace(-40, 40, 4001, dtype=np.float32)
    np.testing.assert_allclose(exponential(x), np.exp(x.astype(np.float64)), rtol=1e-6)
    np.testing.assert_allclose(tanh(x), np.tanh(x.astype(np.float64)), atol=3e-7)
    assert exponential(matrix(0))[0] == 1
    assert np.isfinite(exponential(matrix(-1e30, 1e30))).all()


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
    w, gradient = np.array([[1, 2]], np.float32), np.array([[4, -4]], np.float32)
    assert stepped(w, gradient, 0.25).tolist() == [[0, 3]]
