"""Gradients that replicas exchange in fewer octets: 16 or 8 bits, or the largest alone.

Each replica makes something shorter of its gradient, and all of them add that up:

- ``bfloat16``: a ring AllReduce of numbers of 16 bits, as PyTorch's ``bf16_compress_hook``
  (torch.distributed.algorithms.ddp_comm_hooks);
- ``fp8``: a ring AllReduce of E5M2, the format for gradients (Micikevicius et al., arXiv
  2209.05433).  All scale by the same power of two, which the largest gradient of all gives, so that
  no sum overflows (after Peng et al., FP8-LM, arXiv 2310.18313);
- ``topk``: an AllGather of values and indices, 4 octets each (Lin et al., Deep Gradient
  Compression, arXiv 1712.01887).

With error feedback a replica adds what was left out of a gradient to the next one (Karimireddy et
al., arXiv 1901.09847).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from emulator.sim.endpoint.operations.elementwise import element_type
from emulator.sim.endpoint.operations.gpu_functions import Octets, gpu_function
from scenarios.workloads.network.layers import Matrix, floats, in_order, ring_sum
from scenarios.workloads.network.tensors import Tensor, TensorProgram

FLOAT32, BFLOAT16, FP8, TOPK = KINDS = ("float32", "bfloat16", "fp8", "topk")
#: Element types on the wire, by kind.
_SHORT = {BFLOAT16: "bfloat16", FP8: "float8_e5m2"}
#: The largest number of E5M2.
_LARGEST = 57344.0
RESIDUALS = "residuals"


@dataclass(frozen=True)
class Compression:
    """How replicas shorten gradients; ``share`` is that of the numbers that ``topk`` sends."""

    kind: str
    share: float = 1.0
    feedback: bool = False

    def kept(self, count: int) -> int:
        """Return how many of ``count`` numbers are sent; at least one is."""
        return math.ceil(count * self.share)


def _scale(largest: Matrix) -> np.float32:
    """Return the power of two for which no sum of gradients, of these sizes, overflows E5M2."""
    most = float(np.sum(largest, dtype=np.float64))
    return np.float32(2.0 ** math.floor(math.log2(_LARGEST / most))) if most else np.float32(1)


def _shortened(gradient: Matrix, dtype: str, scale: np.float32) -> Matrix:
    short: Matrix = (gradient * scale).astype(element_type(dtype))
    return short


def _restored(short: Matrix, scale: np.float32) -> Matrix:
    return short.astype(np.float32) / scale


def _largest_of(gradient: Matrix, kept: int) -> np.ndarray:
    """Return the indices of the largest numbers, in their order; of equal ones the first."""
    order = np.argsort(-np.abs(gradient), kind="stable")
    found: np.ndarray = np.sort(order[:kept]).astype(np.uint32)
    return found


# -- on one GPU ------------------------------------------------------------------------------------


class ReplicaSums:
    """The sums of the gradients of all replicas, one step after the other."""

    def __init__(self, compression: Compression) -> None:
        self._compression = compression
        self._residuals: list[Matrix] = []

    def total(self, gradients: Sequence[Matrix]) -> Matrix:
        compression = self._compression
        whole = list(gradients)
        if compression.feedback and self._residuals:
            whole = [one + left for one, left in zip(whole, self._residuals, strict=True)]
        count = len(whole[0])
        if compression.kind == TOPK:
            chosen = [_largest_of(one, compression.kept(count)) for one in whole]
            sent = [np.zeros_like(one) for one in whole]
            for one, where, zeros in zip(whole, chosen, sent, strict=True):
                zeros[where] = one[where]
            total = in_order([np.zeros_like(whole[0]), *sent])
        else:
            scale = np.float32(1)
            if compression.kind == FP8:
                scale = _scale(np.array([np.abs(one).max() for one in whole]))
            short = [_shortened(one, _SHORT[compression.kind], scale) for one in whole]
            sent = [_restored(one, scale) for one in short]
            total = _restored(ring_sum(short), scale)
        self._residuals = [one - other for one, other in zip(whole, sent, strict=True)]
        return total


# -- on all GPUs -----------------------------------------------------------------------------------


@gpu_function
def add_residuals(inputs: Sequence[Octets], outputs: Sequence[Octets]) -> None:
    """Add a gradient to what was left of those before."""
    floats(outputs[0])[:] = floats(inputs[0]) + floats(inputs[1])


@gpu_function
def find_largest(inputs: Sequence[Octets], outputs: Sequence[Octets]) -> None:
    """Find the size of the largest number of a gradient."""
    floats(outputs[0])[:] = np.abs(floats(inputs[0])).max()


@gpu_function
def shorten(inputs: Sequence[Octets], outputs: Sequence[Octets], dtype: str) -> None:
    """Fill a short gradient and, where asked for, what it leaves out.

    The second input, where there is one, has the largest numbers of all replicas.
    """
    whole = floats(inputs[0])
    scale = _scale(floats(inputs[1])) if len(inputs) > 1 else np.float32(1)
    short = _shortened(whole, dtype, scale)
    outputs[0].view(short.dtype)[:] = short
    if len(outputs) > 1:
        floats(outputs[1])[:] = whole - _restored(short, scale)


@gpu_function
def restore(inputs: Sequence[Octets], outputs: Sequence[Octets], dtype: str) -> None:
    """Make numbers of 32 bits of a sum again."""
    scale = _scale(floats(inputs[1])) if len(inputs) > 1 else np.float32(1)
    floats(outputs[0])[:] = _restored(inputs[0].view(element_type(dtype)), scale)


@gpu_function
def choose_largest(inputs: Sequence[Octets], outputs: Sequence[Octets], kept: int) -> None:
    """Fill indices and values of the largest numbers and, where asked for, the others."""
    whole = floats(inputs[0])
    where = _largest_of(whole, kept)
    outputs[0].view(np.uint32)[:kept] = where
    floats(outputs[0])[kept:] = whole[where]
    if len(outputs) > 1:
        left = whole.copy()
        left[where] = 0
        floats(outputs[1])[:] = left


@gpu_function
def add_chosen(inputs: Sequence[Octets], outputs: Sequence[Octets], kept: int) -> None:
    """Add the numbers that all replicas have chosen, in the order of the replicas."""
    total = floats(outputs[0])
    total[:] = 0
    pairs = floats(inputs[0])
    for begin, end in pairwise(range(0, len(pairs) + 1, 2 * kept)):
        where = pairs[begin : begin + kept].view(np.uint32)
        total[where] += pairs[begin + kept : end]


class CompressedSums:
    """The same sums by operations in ``tensors``; ``residuals`` of each replica are tensors."""

    def __init__(self, compression: Compression, tensors: TensorProgram, what: str) -> None:
        self._compression, self._tensors, self._what = compression, tensors, what
        self._residuals: list[Tensor] = []

    def start(self, ranks: Sequence[int], count: int) -> None:
        """Give each replica a place for what gradients leave out, if that counts."""
        if self._compression.feedback:
            self._residuals = [self._tensors.new(rank, RESIDUALS, count) for rank in ranks]

    def total(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the sum of the gradients of all replicas, at each of them."""
        apply = self._tensors.apply
        if self._residuals:
            gradients = self._residuals = [
                apply(add_residuals, [one, left], [replace(left, ready=())])[0]
                for one, left in zip(gradients, self._residuals, strict=True)
            ]
        if self._compression.kind == TOPK:
            return self._chosen(gradients)
        return self._short(gradients)

    def _short(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        tensors, dtype = self._tensors, _SHORT[self._compression.kind]
        largest: list[list[Tensor]] = [[] for _ in gradients]
        if self._compression.kind == FP8:
            largest = [[one] for one in self._largest(gradients)]
        short = []
        for place, gradient in enumerate(gradients):
            new = tensors.new(gradient.rank, "short gradients", gradient.count, dtype=dtype)
            short += self._filled(shorten, [gradient, *largest[place]], new, place, dtype)
        sums = tensors.all_reduce(short, "short sums", self._what)
        return [
            tensors.apply(restore, [one, *most], [self._sum(gradient)], dtype)[0]
            for one, most, gradient in zip(sums, largest, gradients, strict=True)
        ]

    def _largest(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        tensors = self._tensors
        wholes = [tensors.new(one.rank, "largest gradients", len(gradients)) for one in gradients]
        own = [
            tensors.apply(find_largest, [gradient], [whole.part(place, 1)])[0]
            for place, (gradient, whole) in enumerate(zip(gradients, wholes, strict=True))
        ]
        return tensors.gather(wholes, own, self._what)

    def _chosen(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        tensors, kept = self._tensors, self._compression.kept(gradients[0].count)
        each = 2 * kept
        wholes, own = [], []
        for place, gradient in enumerate(gradients):
            whole = tensors.new(gradient.rank, "chosen gradients", len(gradients) * each)
            pairs = whole.part(place * each, each)
            own += self._filled(choose_largest, [gradient], pairs, place, kept)
            wholes.append(whole)
        gathered = tensors.gather(wholes, own, self._what)
        return [
            tensors.apply(add_chosen, [one], [self._sum(gradient)], kept)[0]
            for one, gradient in zip(gathered, gradients, strict=True)
        ]

    def _filled(
        self,
        function: Callable[..., object],
        inputs: Sequence[Tensor],
        new: Tensor,
        place: int,
        argument: int | str,
    ) -> list[Tensor]:
        """Fill ``new`` by ``function`` and, with feedback, what it leaves out."""
        left = [replace(one, ready=()) for one in self._residuals[place : place + 1]]
        filled = self._tensors.apply(function, inputs, [new, *left], argument)
        self._residuals[place : place + 1] = filled[1:]
        return filled[:1]

    def _sum(self, gradient: Tensor) -> Tensor:
        return self._tensors.new(gradient.rank, "summed gradients", gradient.count)
