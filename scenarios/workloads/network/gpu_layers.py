"""The functions of layers as GPUs apply them, to the octets of their memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from emulator.sim.endpoint.operations.gpu_functions import Octets, gpu_function
from scenarios.workloads.network import dense
from scenarios.workloads.network.arithmetic import Matrix, in_order


def floats(octets: Octets, *shape: int) -> Matrix:
    """Return ``octets`` of a GPU's memory as a matrix over the same memory."""
    return octets.view(np.float32).reshape(shape or -1)


@gpu_function
def layer_forward(
    inputs: Sequence[Octets],
    outputs: Sequence[Octets],
    neurons: int,
    wide: int,
    samples: int,
    activation: str,
) -> None:
    """Compute a layer: weights and inputs to outputs."""
    w, x = floats(inputs[0], neurons, wide), floats(inputs[1], wide, samples)
    floats(outputs[0], neurons, samples)[:] = dense.forward(w, x, activation)


@gpu_function
def layer_backward(
    inputs: Sequence[Octets],
    outputs: Sequence[Octets],
    neurons: int,
    wide: int,
    samples: int,
    activation: str,
) -> None:
    """Compute the gradient of a layer and the delta of its inputs.

    Inputs are weights, inputs, outputs and the delta of the outputs.
    """
    w, x = floats(inputs[0], neurons, wide), floats(inputs[1], wide, samples)
    y, delta = (floats(one, neurons, samples) for one in inputs[2:])
    gradient, before = dense.backward(w, x, y, delta, activation)
    floats(outputs[0], neurons, wide)[:] = gradient
    floats(outputs[1], wide, samples)[:] = before


@gpu_function
def loss(inputs: Sequence[Octets], outputs: Sequence[Octets]) -> None:
    """Compute the loss and its delta of outputs and targets."""
    value, delta = dense.squared_error(floats(inputs[0]), floats(inputs[1]))
    floats(outputs[0])[:] = value
    floats(outputs[1])[:] = delta


@gpu_function
def step(inputs: Sequence[Octets], outputs: Sequence[Octets], rate: float) -> None:
    """Step the weights against their gradient."""
    floats(outputs[0])[:] = dense.step(floats(inputs[0]), floats(inputs[1]), rate)


@gpu_function
def sum_of_parts(inputs: Sequence[Octets], outputs: Sequence[Octets]) -> None:
    """Add the parts of tensor-parallel ranks in the order of the ranks."""
    floats(outputs[0])[:] = in_order([floats(one) for one in inputs])
