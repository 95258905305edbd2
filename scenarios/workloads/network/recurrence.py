"""A small recurrent network: a hidden state that goes through a sequence, and a dense layer.

    h(0) = 0,   h(t) = tanh(U x(t) + V h(t-1)),   y = W h(T)

The gradient goes back through time: the delta of h(t-1) is V^T times that of the sum of h(t). The
gradients of U and V are sums over all times, the last one first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scenarios.workloads.network import dense
from scenarios.workloads.network.arithmetic import Matrix, product, tanh


@dataclass(frozen=True)
class RecurrentModel:
    """The network for sequences of ``length`` vectors of ``width`` numbers."""

    width: int
    hidden: int
    length: int
    outputs: int

    @property
    def inputs(self) -> int:
        """Return the numbers of a sample: all vectors, one after the other."""
        return self.width * self.length

    def shapes(self) -> list[tuple[int, int]]:
        """Return the shapes of U, V and W."""
        return [(self.hidden, self.width), (self.hidden, self.hidden), (self.outputs, self.hidden)]

    def forward(self, weights: list[Matrix], x: Matrix) -> Matrix:
        """Return the outputs for samples in columns."""
        return dense.forward(weights[2], self._states(weights, x)[-1], "linear")

    def backward(
        self, weights: list[Matrix], x: Matrix, target: Matrix
    ) -> tuple[np.float32, list[Matrix]]:
        """Return the loss of samples in columns, and the gradient of all weights."""
        u, v, w = weights
        states = self._states(weights, x)
        y = dense.forward(w, states[-1], "linear")
        loss, delta = dense.squared_error(y, target)
        w_gradient, delta = dense.backward(w, states[-1], y, delta, "linear")
        u_gradient, v_gradient = np.zeros_like(u), np.zeros_like(v)
        for time in reversed(range(self.length)):
            dz = delta * dense.slope("tanh", states[time + 1])
            u_gradient += product(dz, self._at(x, time).T)
            v_gradient += product(dz, states[time].T)
            delta = product(v.T, dz)
        return loss, [u_gradient, v_gradient, w_gradient]

    def _states(self, weights: list[Matrix], x: Matrix) -> list[Matrix]:
        """Return h(0) to h(T)."""
        u, v, _ = weights
        states = [np.zeros((self.hidden, x.shape[1]), np.float32)]
        for time in range(self.length):
            states.append(tanh(product(u, self._at(x, time)) + product(v, states[-1])))
        return states

    def _at(self, x: Matrix, time: int) -> Matrix:
        return x[time * self.width : (time + 1) * self.width]
