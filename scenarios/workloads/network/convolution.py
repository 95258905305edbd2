"""A small convolutional network: two convolutions of 3x3, then a dense layer.

An image of one channel and side x side points goes through

    convolution  3x3, ``channels``    (side - 2) x (side - 2)     tanh
    convolution  3x3, ``channels``    (side - 4) x (side - 4)     tanh
    dense        ``outputs`` neurons over all of that             linear

A convolution is a product of matrices. Each column is the input under the kernel at one place, for
all channels; the kernels are the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scenarios.workloads.network import dense
from scenarios.workloads.network.arithmetic import Matrix

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
        """Return the numbers of a sample."""
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
        loss, delta = dense.squared_error(y, target)
        dense_gradient, before = dense.backward(weights[2], flat, y, delta, "linear")
        delta = _images(before, self.channels, samples)
        gradients = [dense_gradient]
        for kernels, images, out in (
            (weights[1], first, second),
            (weights[0], _images(x, 1, samples), first),
        ):
            columns = under_kernel(images)
            gradient, spread_out = dense.backward(
                kernels, columns, _rows(out), _rows(delta), "tanh"
            )
            gradients.insert(0, gradient)
            delta = added_back(spread_out, images.shape)
        return loss, gradients

    def _values(self, weights: list[Matrix], x: Matrix) -> tuple[Images, Images, Matrix, Matrix]:
        samples = x.shape[1]
        first = convolved(weights[0], _images(x, 1, samples))
        second = convolved(weights[1], first)
        flat = np.ascontiguousarray(second.transpose(0, 2, 3, 1)).reshape(-1, samples)
        return first, second, flat, dense.forward(weights[2], flat, "linear")


def convolved(kernels: Matrix, images: Images) -> Images:
    """Return tanh of the convolution of ``images`` with ``kernels``."""
    _, samples, height, width = images.shape
    y = dense.forward(kernels, under_kernel(images), "tanh")
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
    """Return samples in columns as images."""
    side = round((columns.shape[0] // channels) ** 0.5)
    return columns.reshape(channels, side, side, samples).transpose(0, 3, 1, 2)


def _rows(images: Images) -> Matrix:
    """Return a row for each channel."""
    return np.ascontiguousarray(images).reshape(images.shape[0], -1)
