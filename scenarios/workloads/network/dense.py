"""Dense layers, the loss and their gradients (back-propagation).

A sample is a column: a layer of o neurons with i inputs has a weight matrix W of o x i. From its
inputs X (i x samples) it makes

    Y = f(W X)

Backward, with the delta D of its outputs (the derivative of the loss with respect to Y):

    delta before f     dZ = D * f'(Y)
    gradient           G  = dZ X^T          delta times input, summed over the samples in order
    delta of inputs    dX = W^T dZ          summed over the neurons in order
    step               W  = W - learning rate * G

The loss is half of the sum of squared differences to the targets, so that its delta is Y - T.
"""

from __future__ import annotations

import numpy as np

from scenarios.workloads.network.arithmetic import Matrix, product, tanh, total_of

#: What a layer applies to its sums.
ACTIVATIONS = ("linear", "relu", "tanh")


def activated(name: str, z: Matrix) -> Matrix:
    """Return the outputs of neurons whose sums are ``z``."""
    if name == "relu":
        result: Matrix = np.maximum(z, np.float32(0))
        return result
    return tanh(z) if name == "tanh" else z


def slope(name: str, y: Matrix) -> Matrix:
    """Return the derivative of the activation where the output is ``y``."""
    if name == "relu":
        return (y > 0).astype(np.float32)
    one = np.float32(1)
    return one - y * y if name == "tanh" else np.full_like(y, one)


def forward(w: Matrix, x: Matrix, activation: str) -> Matrix:
    """Return the outputs of a layer."""
    return activated(activation, product(w, x))


def backward(
    w: Matrix, x: Matrix, y: Matrix, delta: Matrix, activation: str
) -> tuple[Matrix, Matrix]:
    """Return the gradient of the weights and the delta of the inputs."""
    dz = delta * slope(activation, y)
    return product(dz, x.T), product(w.T, dz)


def squared_error(y: Matrix, target: Matrix) -> tuple[np.float32, Matrix]:
    """Return the loss and the delta of the outputs ``y``."""
    delta = y - target
    return np.float32(0.5) * total_of(delta * delta), delta


def step(w: Matrix, gradient: Matrix, rate: float) -> Matrix:
    """Return the weights after one step against the gradient."""
    result: Matrix = w - np.float32(rate) * gradient
    return result
