"""Layers of neural networks and their gradients, in numpy, and as GPUs apply them.

Arithmetic of float32 whose results are the same on every machine.

IEEE 754 rounds +, -, * and / exactly, so that a result depends only on the order of the operations.
A matrix product of a BLAS library has an order of its own on every processor.  Here an element is
the sum of its products in the order of their index, whatever the shape of the matrices.  Half of a
matrix therefore gives the same bits as that half of the whole product.

Dense layers, the loss and their gradients (back-propagation).

A sample is a column: a layer of o neurons with i inputs has a weight matrix W of o x i. From its
inputs X (i x samples) it makes

    Y = f(W X)

Backward, with the delta D of its outputs (the derivative of the loss with respect to Y):

    delta before f     dZ = D * f'(Y)
    gradient           G  = dZ X^T          delta times input, summed over the samples in order
    delta of inputs    dX = W^T dZ          summed over the neurons in order
    step               W  = W - learning rate * G

The loss is half of the sum of squared differences to the targets, so that its delta is Y - T.

A small convolutional network: two convolutions of 3x3, then a dense layer.

An image of one channel and side x side points goes through

    convolution  3x3, ``channels``    (side - 2) x (side - 2)     tanh
    convolution  3x3, ``channels``    (side - 4) x (side - 4)     tanh
    dense        ``outputs`` neurons over all of that             linear

A convolution is a product of matrices. Each column is the input under the kernel at one place, for
all channels; the kernels are the rows.

A small recurrent network: a hidden state that goes through a sequence, and a dense layer.

    h(0) = 0,   h(t) = tanh(U x(t) + V h(t-1)),   y = W h(T)

The gradient goes back through time: the delta of h(t-1) is V^T times that of the sum of h(t). The
gradients of U and V are sums over all times, the last one first.

An attention head: its outputs and its gradient.

A sequence X has a column for each token, ``hidden`` numbers high.  A head of size h has weights
Q, K, V (h x hidden) and O (hidden x h), and makes of the sequence

    q = Q X,  k = K X,  v = V X
    P = softmax over the keys of k^T q / sqrt(h)      a column for each query
    out = O v P

A block adds the outputs of all its heads to X.  So heads can be computed on different GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emulator.sim.endpoint.operations.gpu_functions import Octets, gpu_function
from scenarios.collectives.ring import split

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


def ring_sum(vectors: Sequence[Matrix]) -> Matrix:
    """Return the sum of ``vectors`` in the order of a ring AllReduce.

    Block b of n is the sum of vectors b, b + 1, ... n - 1, 0, ... in this order.
    """
    count = len(vectors)
    if count == 1:
        return vectors[0]
    blocks = []
    for first, block in enumerate(split(len(vectors[0]), count, 1)):
        part = slice(block.offset, block.offset + block.length)
        order = [(first + distance) % count for distance in range(count)]
        blocks.append(in_order([vectors[one][part] for one in order]))
    return np.concatenate(blocks)


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
    one, two = np.float32(1), np.float32(2)
    result: Matrix = one - two / (exponential(two * x) + one)
    return result


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


def stepped(w: Matrix, gradient: Matrix, rate: float) -> Matrix:
    result: Matrix = w - np.float32(rate) * gradient
    return result


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
    w, x = floats(inputs[0], neurons, wide), floats(inputs[1], wide, samples)
    floats(outputs[0], neurons, samples)[:] = forward(w, x, activation)


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
    gradient, before = backward(w, x, y, delta, activation)
    floats(outputs[0], neurons, wide)[:] = gradient
    floats(outputs[1], wide, samples)[:] = before


@gpu_function
def loss(inputs: Sequence[Octets], outputs: Sequence[Octets]) -> None:
    """Compute the loss and its delta of outputs and targets."""
    value, delta = squared_error(floats(inputs[0]), floats(inputs[1]))
    floats(outputs[0])[:] = value
    floats(outputs[1])[:] = delta


@gpu_function
def step(inputs: Sequence[Octets], outputs: Sequence[Octets], rate: float) -> None:
    """Step the weights against their gradient."""
    floats(outputs[0])[:] = stepped(floats(inputs[0]), floats(inputs[1]), rate)


@gpu_function
def sum_of_parts(inputs: Sequence[Octets], outputs: Sequence[Octets]) -> None:
    """Add the parts of tensor-parallel ranks in the order of the ranks."""
    floats(outputs[0])[:] = in_order([floats(one) for one in inputs])


_KERNEL = 3
#: Channels x samples x height x width.
Images = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ConvolutionalModel:
    """The network for images of ``side`` x ``side`` points."""

    side: int
    channels: int
    outputs: int

    @property
    def inputs(self) -> int:
        return self.side * self.side

    def shapes(self) -> list[tuple[int, int]]:
        """Return the shapes of all weights: kernels of both convolutions, and the dense layer."""
        field, last = _KERNEL * _KERNEL, self.side - 4
        return [
            (self.channels, field),
            (self.channels, self.channels * field),
            (self.outputs, self.channels * last * last),
        ]

    def forward(self, weights: list[Matrix], x: Matrix) -> Matrix:
        """Return the outputs for samples in columns."""
        return self._values(weights, x)[-1]

    def backward(
        self, weights: list[Matrix], x: Matrix, target: Matrix
    ) -> tuple[np.float32, list[Matrix]]:
        """Return the loss of samples in columns, and the gradient of all weights."""
        first, second, flat, y = self._values(weights, x)
        samples = x.shape[1]
        loss, delta = squared_error(y, target)
        dense_gradient, before = backward(weights[2], flat, y, delta, "linear")
        delta = _images(before, self.channels, samples)
        gradients = [dense_gradient]
        for kernels, images, out in (
            (weights[1], first, second),
            (weights[0], _images(x, 1, samples), first),
        ):
            columns = under_kernel(images)
            gradient, spread_out = backward(kernels, columns, _rows(out), _rows(delta), "tanh")
            gradients.insert(0, gradient)
            delta = added_back(spread_out, images.shape)
        return loss, gradients

    def _values(self, weights: list[Matrix], x: Matrix) -> tuple[Images, Images, Matrix, Matrix]:
        samples = x.shape[1]
        first = convolved(weights[0], _images(x, 1, samples))
        second = convolved(weights[1], first)
        flat = np.ascontiguousarray(second.transpose(0, 2, 3, 1)).reshape(-1, samples)
        return first, second, flat, forward(weights[2], flat, "linear")


def convolved(kernels: Matrix, images: Images) -> Images:
    _, samples, height, width = images.shape
    y = forward(kernels, under_kernel(images), "tanh")
    return y.reshape(-1, samples, height - _KERNEL + 1, width - _KERNEL + 1)


def under_kernel(images: Images) -> Matrix:
    """Return what lies under the kernel at each place of each sample, in columns."""
    channels, samples, height, width = images.shape
    high, wide = height - _KERNEL + 1, width - _KERNEL + 1
    columns = np.empty((channels, _KERNEL, _KERNEL, samples, high, wide), np.float32)
    for row in range(_KERNEL):
        for column in range(_KERNEL):
            columns[:, row, column] = images[:, :, row : row + high, column : column + wide]
    return columns.reshape(channels * _KERNEL * _KERNEL, -1)


def added_back(columns: Matrix, shape: tuple[int, ...]) -> Images:
    """Add each column of :func:`under_kernel` to the points where it came from."""
    channels, samples, height, width = shape
    high, wide = height - _KERNEL + 1, width - _KERNEL + 1
    parts = columns.reshape(channels, _KERNEL, _KERNEL, samples, high, wide)
    images = np.zeros(shape, np.float32)
    for row in range(_KERNEL):
        for column in range(_KERNEL):
            images[:, :, row : row + high, column : column + wide] += parts[:, row, column]
    return images


def _images(columns: Matrix, channels: int, samples: int) -> Images:
    side = round((columns.shape[0] // channels) ** 0.5)
    return columns.reshape(channels, side, side, samples).transpose(0, 3, 1, 2)


def _rows(images: Images) -> Matrix:
    return np.ascontiguousarray(images).reshape(images.shape[0], -1)


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
        return [(self.hidden, self.width), (self.hidden, self.hidden), (self.outputs, self.hidden)]

    def forward(self, weights: list[Matrix], x: Matrix) -> Matrix:
        """Return the outputs for samples in columns."""
        return forward(weights[2], self._states(weights, x)[-1], "linear")

    def backward(
        self, weights: list[Matrix], x: Matrix, target: Matrix
    ) -> tuple[np.float32, list[Matrix]]:
        """Return the loss of samples in columns, and the gradient of all weights."""
        u, v, w = weights
        states = self._states(weights, x)
        y = forward(w, states[-1], "linear")
        loss, delta = squared_error(y, target)
        w_gradient, delta = backward(w, states[-1], y, delta, "linear")
        u_gradient, v_gradient = np.zeros_like(u), np.zeros_like(v)
        for time in reversed(range(self.length)):
            dz = delta * slope("tanh", states[time + 1])
            u_gradient += product(dz, self._at(x, time).T)
            v_gradient += product(dz, states[time].T)
            delta = product(v.T, dz)
        return loss, [u_gradient, v_gradient, w_gradient]

    def _states(self, weights: list[Matrix], x: Matrix) -> list[Matrix]:
        u, v, _ = weights
        states = [np.zeros((self.hidden, x.shape[1]), np.float32)]
        for time in range(self.length):
            states.append(tanh(product(u, self._at(x, time)) + product(v, states[-1])))
        return states

    def _at(self, x: Matrix, time: int) -> Matrix:
        return x[time * self.width : (time + 1) * self.width]


@dataclass(frozen=True)
class AttentionHead:
    q: Matrix
    k: Matrix
    v: Matrix
    o: Matrix

    @classmethod
    def of(cls, flat: Matrix, hidden: int) -> AttentionHead:
        """Return the head whose weights lie in a row: Q, K, V and O."""
        q, k, v = (one.reshape(-1, hidden) for one in np.split(flat, 4)[:3])
        return cls(q, k, v, np.split(flat, 4)[3].reshape(hidden, -1))

    def forward(self, x: Matrix) -> Matrix:
        _, _, v, p = self._attention(x)
        return product(self.o, product(v, p))

    def backward(self, x: Matrix, delta: Matrix) -> tuple[Matrix, Matrix]:
        """Return the gradient of the weights, in a row, and what the head adds to the delta of x.

        ``delta`` is that of the head's outputs.
        """
        q, k, v, p = self._attention(x)
        before = product(self.o.T, delta)
        delta_v = product(before, p.T)
        delta_p = product(v.T, before)
        scale = np.float32(1 / math.sqrt(len(q)))
        delta_s = p * (delta_p - _over_keys(p * delta_p)) * scale
        delta_q, delta_k = product(k, delta_s), product(q, delta_s.T)
        deltas = (self.q, delta_q), (self.k, delta_k), (self.v, delta_v)
        gradients = [product(one, x.T) for _, one in deltas]
        gradients.append(product(delta, product(v, p).T))
        flat = np.concatenate([one.ravel() for one in gradients])
        return flat, in_order([product(weight.T, one) for weight, one in deltas])

    def _attention(self, x: Matrix) -> tuple[Matrix, Matrix, Matrix, Matrix]:
        """Return queries, keys, values, and how much each query takes of each value."""
        q, k, v = product(self.q, x), product(self.k, x), product(self.v, x)
        scores = product(k.T, q) * np.float32(1 / math.sqrt(len(q)))
        power = exponential(scores - scores.max(axis=0))
        return q, k, v, power / _over_keys(power)


def _over_keys(values: Matrix) -> Matrix:
    """Return the sum over all keys, in their order."""
    total: Matrix = np.cumsum(values, axis=0, dtype=np.float32)[-1]
    return total


def heads_of(flat: Matrix, hidden: int, heads: int) -> list[AttentionHead]:
    """Return ``heads`` whose weights lie in a row."""
    return [AttentionHead.of(one, hidden) for one in np.split(flat, heads)]


def heads_forward(heads: Sequence[AttentionHead], sequences: Sequence[Matrix]) -> list[Matrix]:
    """Return what ``heads`` add to each sequence, added up in the order of the heads."""
    return [in_order([head.forward(x) for head in heads]) for x in sequences]


def heads_backward(
    heads: Sequence[AttentionHead], sequences: Sequence[Matrix], deltas: Sequence[Matrix]
) -> tuple[Matrix, list[Matrix]]:
    """Return the gradient of the weights of ``heads``, in a row, and their part of all deltas.

    Gradients are added up in the order of the sequences, deltas in that of the heads.
    """
    gradients, before = [], []
    for x, delta in zip(sequences, deltas, strict=True):
        found = [head.backward(x, delta) for head in heads]
        gradients.append(np.concatenate([gradient for gradient, _ in found]))
        before.append(in_order([one for _, one in found]))
    return in_order(gradients), before
