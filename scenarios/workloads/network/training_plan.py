"""Plans of trainings, and their training on one GPU, to which the GPUs of a fabric are compared.

A training of a dense network: its layers, its data, and the grid of its GPUs.

The grid has ``replicas`` (data parallel) times ``stages`` (pipeline or model parallel) times
``parts`` (tensor parallel) GPUs.  A replica has a mini-batch of its own, in ``micro_batches`` of
``samples`` columns each.  A stage has consecutive layers, a part consecutive neurons of each layer
of its stage.

The training of a plan on one GPU, in numpy: what the GPUs of a fabric are compared with.

Nothing here is divided but sums.  Where several GPUs add up what each of them has, the one GPU adds
the same parts in the same order. These are the deltas of the parts of a layer, the gradients of
micro-batches, and those of mini-batches.  So every result has to be the same to the bit.

Bounds of what rounding makes of a training step whose sums have another order.

A sum of N products of float32, added in any order, differs from the exact one. The difference is at
most g(N) times the sum of the absolute products. There g(N) = N u / (1 - N u) and u = 2^-24
(Higham, Accuracy and Stability of Numerical Algorithms, section 3.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from emulator.errors import UserError
from scenarios.collectives.ring import split
from scenarios.workloads.network import layers
from scenarios.workloads.network.compression import Compression, ReplicaSums
from scenarios.workloads.network.layers import Matrix, forward, in_order, product, ring_sum

#: Random numbers are whole multiples of one part of so many, which float32 holds exactly.
_GRAIN = 64
_WEIGHTS, _INPUTS, _TEACHER = range(3)


@dataclass(frozen=True)
class NeuronSlice:
    """``count`` neurons of a layer, from neuron ``first`` on."""

    layer: int
    first: int
    count: int


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """One training.  ``widths`` are the inputs of the network, then the neurons of each layer.

    ``layer_ns`` is what all neurons of a layer take to compute a micro-batch forward.  Backward
    they take twice that: one matrix product for the gradient and one for the delta.  ``order`` is
    that of a stage's micro-batches: ``gpipe`` or ``1f1b``.  The training goes on from the weights
    that ``resumed`` epochs before it have left.  Replicas that are not divided may exchange their
    gradients by a ``compression``.
    """

    widths: tuple[int, ...]
    replicas: int = 1
    stages: int = 1
    parts: int = 1
    micro_batches: int = 1
    samples: int = 4
    epochs: int = 8
    rate: float = 0.05
    order: str = "gpipe"
    layer_ns: int = 1000
    seed: int = 1
    resumed: int = 0
    compression: Compression | None = None

    def __post_init__(self) -> None:
        layers = len(self.widths) - 1
        if layers < 1:
            raise UserError("a network needs inputs and a layer; give widths such as 4,3,2")
        if self.stages > layers:
            raise UserError(
                f"{layers} layers cannot be divided over {self.stages} stages; give "
                f"{self.stages + 1} widths or more"
            )
        if self.parts > min(self.widths[1:]):
            raise UserError(
                f"a layer of {min(self.widths[1:])} neurons cannot be divided over {self.parts} "
                "GPUs; give wider layers"
            )

    @property
    def layers(self) -> int:
        return len(self.widths) - 1

    @property
    def gpus(self) -> int:
        """Return how many GPUs the grid has."""
        return self.replicas * self.stages * self.parts

    def activation(self, layer: int) -> str:
        """Return the activation of a layer: tanh, and none for the last one."""
        return "linear" if layer == self.layers - 1 else "tanh"

    def stage_layers(self, stage: int) -> range:
        block = split(self.layers, self.stages, 1)[stage]
        return range(block.offset, block.offset + block.length)

    def neurons(self, layer: int, part: int) -> NeuronSlice:
        block = split(self.widths[layer + 1], self.parts, 1)[part]
        return NeuronSlice(layer, block.offset, block.length)

    def slices(self, stage: int, part: int) -> list[NeuronSlice]:
        """Return the neurons of one GPU in the order of its weights."""
        return [self.neurons(layer, part) for layer in self.stage_layers(stage)]

    def weight_count(self, stage: int, part: int) -> int:
        """Return how many weights one GPU has."""
        return sum(one.count * self.widths[one.layer] for one in self.slices(stage, part))

    def first_weights(self) -> list[Matrix]:
        return self._random_weights(_WEIGHTS)

    def inputs(self, replica: int, micro: int) -> Matrix:
        """Return the samples of a micro-batch, one in each column."""
        rng = np.random.default_rng((self.seed, _INPUTS, replica, micro))
        return grains(rng, self.widths[0], self.samples)

    def targets(self, replica: int, micro: int) -> Matrix:
        """Return the outputs that the network learns: those of one with other weights."""
        x = self.inputs(replica, micro)
        for layer, w in enumerate(self._random_weights(_TEACHER)):
            x = forward(w, x, self.activation(layer))
        return x

    def _random_weights(self, which: int) -> list[Matrix]:
        found = []
        for layer in range(self.layers):
            rng = np.random.default_rng((self.seed, which, layer))
            wide = self.widths[layer]
            root = np.float32(max(1, math.isqrt(wide)))  # keeps sums of a wide layer small
            found.append(grains(rng, self.widths[layer + 1], wide) / root)
        return found


def flattened(matrices: Sequence[Matrix]) -> Matrix:
    return np.concatenate([matrix.ravel() for matrix in matrices])


def grains(rng: np.random.Generator, *shape: int) -> Matrix:
    """Return random numbers of -1 to 1 that float32 holds exactly."""
    return rng.integers(-_GRAIN, _GRAIN + 1, shape).astype(np.float32) / np.float32(_GRAIN)


@dataclass
class Trained:
    """The result: ``losses[epoch][replica][micro]``, and the numbers of the first epoch."""

    weights: list[Matrix]
    losses: list[list[list[np.float32]]] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)

    def epoch_loss(self, epoch: int) -> float:
        return float(np.sum(self.losses[epoch], dtype=np.float64))


@lru_cache(maxsize=2)  # the same for all ranks; that of another plan is not kept
def train(plan: TrainingPlan) -> Trained:
    trained = Trained(weights_before(plan))
    total_of = ReplicaSums(plan.compression).total if plan.compression else ring_sum
    for epoch in range(plan.epochs):
        steps = trained.steps if epoch == 0 else []
        gradients: list[list[Matrix]] = []
        losses: list[list[np.float32]] = []
        for replica in range(plan.replicas):
            losses.append([])
            total: list[Matrix] = []
            for micro in range(plan.micro_batches):
                title = f"mini-batch {replica + 1}, micro-batch {micro + 1}"
                loss, found = _back_propagated(plan, trained.weights, replica, micro, title, steps)
                losses[-1].append(loss)
                total = (
                    found
                    if not total
                    else [one + two for one, two in zip(total, found, strict=True)]
                )
            gradients.append(total)
        _step(plan, trained.weights, gradients, steps, total_of)
        trained.losses.append(losses)
    return trained


def weights_before(plan: TrainingPlan) -> list[Matrix]:
    """Return the weights that ``plan`` begins with: the first, or those of the epochs before."""
    if not plan.resumed:
        return plan.first_weights()
    return list(train(replace(plan, epochs=plan.resumed, resumed=0)).weights)


def _back_propagated(
    plan: TrainingPlan,
    weights: Sequence[Matrix],
    replica: int,
    micro: int,
    title: str,
    steps: list[str],
) -> tuple[np.float32, list[Matrix]]:
    """Return the loss of a micro-batch and the gradient of each layer."""
    values = [plan.inputs(replica, micro)]
    steps += shown(f"{title}: inputs", values[0])
    for layer, w in enumerate(weights):
        values.append(layers.forward(w, values[-1], plan.activation(layer)))
        steps += shown(f"{title}: layer {layer + 1}: outputs", values[-1])
    loss, delta = layers.squared_error(values[-1], plan.targets(replica, micro))
    steps.append(f"{title}: loss = {loss:.6g}")
    gradients: list[Matrix] = []
    for layer in reversed(range(plan.layers)):
        w, y = weights[layer], values[layer + 1]
        dz = delta * layers.slope(plan.activation(layer), y)
        gradients.insert(0, product(dz, values[layer].T))
        steps += shown(f"{title}: layer {layer + 1}: delta", dz)
        steps += shown(f"{title}: layer {layer + 1}: gradient = delta x input", gradients[0])
        delta = in_order(
            [
                product(w[rows].T, dz[rows])
                for rows in (_rows(plan, layer, part) for part in range(plan.parts))
            ]
        )
    return loss, gradients


def _rows(plan: TrainingPlan, layer: int, part: int) -> slice:
    neurons = plan.neurons(layer, part)
    return slice(neurons.first, neurons.first + neurons.count)


def _step(
    plan: TrainingPlan,
    weights: list[Matrix],
    gradients: Sequence[Sequence[Matrix]],
    steps: list[str],
    total_of: Callable[[Sequence[Matrix]], Matrix],
) -> None:
    """Add up the ``gradients`` of all replicas, as they do, and step the weights."""
    sums = [np.zeros_like(w) for w in weights]
    for stage in range(plan.stages):
        for part in range(plan.parts):
            own = plan.slices(stage, part)
            vectors = [
                flattened([one[piece.layer][_rows(plan, piece.layer, part)] for piece in own])
                for one in gradients
            ]
            total, at = total_of(vectors), 0
            for piece in own:
                rows = _rows(plan, piece.layer, part)
                count = sums[piece.layer][rows].size
                sums[piece.layer][rows] = total[at : at + count].reshape(piece.count, -1)
                at += count
    for layer, total in enumerate(sums):
        weights[layer] = layers.stepped(weights[layer], total, plan.rate)
        steps += shown(f"layer {layer + 1}: weights - rate x sum of gradients", weights[layer])


def shown(what: str, matrix: Matrix) -> list[str]:
    rows = ["[" + " ".join(f"{value:9.5f}" for value in row) + " ]" for row in matrix]
    return [f"{what} ({matrix.shape[0]}x{matrix.shape[1]})", *(f"    {row}" for row in rows)]


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
        whole[layer] = layers.stepped(w, product(dz, x.T), plan.rate)
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
        values.append(layers.forward(w, values[-1], plan.activation(layer)))
    targets = np.hstack([plan.targets(*one) for one in batch])
    _, delta = layers.squared_error(values[-1], targets)
    deltas: list[Matrix] = []
    for layer in reversed(range(plan.layers)):
        dz = delta * layers.slope(plan.activation(layer), values[layer + 1])
        deltas.insert(0, dz)
        delta = product(weights[layer].T, dz)
    return values[:-1], deltas
