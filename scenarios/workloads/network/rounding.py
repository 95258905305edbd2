"""Bounds of what rounding makes of a training step whose sums have another order.

A sum of N products of float32, added in any order, differs from the exact one. The difference is at
most g(N) times the sum of the absolute products. There g(N) = N u / (1 - N u) and u = 2^-24
(Higham, Accuracy and Stability of Numerical Algorithms, section 3.1).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from scenarios.workloads.network import dense
from scenarios.workloads.network.arithmetic import Matrix, product
from scenarios.workloads.network.one_gpu import train, weights_before
from scenarios.workloads.network.training_plan import TrainingPlan

#: Half of the distance from 1 to the next number of float32.
UNIT = 2.0**-24


def gamma(count: int) -> float:
    """Return the relative error of a sum of ``count`` products at most."""
    return count * UNIT / (1 - count * UNIT)


def first_step_apart(plan: TrainingPlan) -> tuple[float, float]:
    """Compare the first step of ``plan`` with that of one GPU that adds up the whole batch at once.

    Returns the largest difference of a weight, and the largest bound of one.  The difference of
    each weight is checked against its own bound; where one exceeds it, the two are that weight's.
    ``plan`` divides the batch into mini-batches and micro-batches only: what comes before the
    gradient's sum over samples has the same bits.
    """
    stepped = train(replace(plan, epochs=1)).weights
    whole = [np.zeros_like(w) for w in stepped]
    weights = weights_before(plan)
    xs, deltas = _columns(plan, weights)
    apart: list[npt.NDArray[np.float64]] = []
    bounds: list[npt.NDArray[np.float64]] = []
    for layer, w in enumerate(weights):
        x, dz = xs[layer], deltas[layer]
        whole[layer] = dense.step(w, product(dz, x.T), plan.rate)
        size = np.abs(dz.astype(np.float64)) @ np.abs(x.T.astype(np.float64))
        # Each of the two: the sum is off by gamma(N), the product with the rate (itself rounded,
        # alike in both) adds one rounding, the difference another, of a result that is no larger
        # than |w| + rate * size * (1 + gamma(N + 1)).
        step = plan.rate * (1 + UNIT) * size
        one = gamma(x.shape[1] + 1) * step
        one += UNIT * (np.abs(w) + step * (1 + gamma(x.shape[1] + 1)))
        apart.append(np.abs(whole[layer].astype(np.float64) - stepped[layer]).ravel())
        bounds.append(2 * one.ravel())
    found, allowed = np.concatenate(apart), np.concatenate(bounds)
    worst = int(np.argmax(found - allowed))
    if found[worst] > allowed[worst]:
        return float(found[worst]), float(allowed[worst])
    return float(found.max()), float(allowed.max())


def _columns(plan: TrainingPlan, weights: list[Matrix]) -> tuple[list[Matrix], list[Matrix]]:
    """Return inputs and deltas of each layer for all samples of the batch, side by side."""
    batch = [
        (replica, micro) for replica in range(plan.replicas) for micro in range(plan.micro_batches)
    ]
    values = [np.hstack([plan.inputs(*one) for one in batch])]
    for layer, w in enumerate(weights):
        values.append(dense.forward(w, values[-1], plan.activation(layer)))
    targets = np.hstack([plan.targets(*one) for one in batch])
    _, delta = dense.squared_error(values[-1], targets)
    deltas: list[Matrix] = []
    for layer in reversed(range(plan.layers)):
        dz = delta * dense.slope(plan.activation(layer), values[layer + 1])
        deltas.insert(0, dz)
        delta = product(weights[layer].T, dz)
    return values[:-1], deltas
