"""Arithmetic of float32 whose results are the same on every machine.

IEEE 754 rounds +, -, * and / exactly, so that a result depends only on the order of the operations.
A matrix product of a BLAS library has an order of its own on every processor.  Here an element is
the sum of its products in the order of their index, whatever the shape of the matrices.  Half of a
matrix therefore gives the same bits as that half of the whole product.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float32]

_LOG2_E = np.float32(1.44269504)
#: ln 2 in two parts: the first has so few bits that a multiple of it is exact (Cody and Waite).
_LN_2 = np.float32(0.693359375), np.float32(-2.12194440e-4)
_TAYLOR = tuple(np.float32(1 / factor) for factor in (720, 120, 24, 6, 2, 1, 1))
_LIMIT = np.float32(80)


def product(a: Matrix, b: Matrix) -> Matrix:
    """Return the matrix product of ``a`` (n x k) and ``b`` (k x m), summed in the order of k."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for index in range(a.shape[1]):
        total += a[:, index : index + 1] * b[index]
    return total


def in_order(parts: Sequence[Matrix]) -> Matrix:
    """Return the sum of ``parts``, added one after the other."""
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


def total_of(values: Matrix) -> np.float32:
    """Return the sum of all elements, added in their order."""
    total: np.float32 = np.cumsum(values.ravel(), dtype=np.float32)[-1]
    return total


def exponential(x: Matrix) -> Matrix:
    """Return e to the power of ``x``, to about seven digits; ``x`` is held within 80 of 0."""
    x = np.clip(x, -_LIMIT, _LIMIT)
    power = np.rint(x * _LOG2_E)
    rest = x - power * _LN_2[0] - power * _LN_2[1]
    series = np.full_like(rest, _TAYLOR[0])
    for coefficient in _TAYLOR[1:]:
        series = series * rest + coefficient
    result: Matrix = np.ldexp(series, power.astype(np.int32))
    return result


def tanh(x: Matrix) -> Matrix:
    """Return the hyperbolic tangent of ``x``."""
    one, two = np.float32(1), np.float32(2)
    result: Matrix = one - two / (exponential(two * x) + one)
    return result
