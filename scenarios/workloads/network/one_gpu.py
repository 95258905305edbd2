"""The training of a plan on one GPU, in numpy: what the GPUs of a fabric are compared with.

Nothing here is divided but sums.  Where several GPUs add up what each of them has, the one GPU adds
the same parts in the same order. These are the deltas of the parts of a layer, the gradients of
micro-batches, and those of mini-batches.  So every result has to be the same to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from scenarios.collectives.ring import split
from scenarios.workloads.network import dense
from scenarios.workloads.network.arithmetic import Matrix, in_order, product
from scenarios.workloads.network.training_plan import TrainingPlan, flattened


@dataclass
class Trained:
    """The result: ``losses[epoch][replica][micro]``, and the numbers of the first epoch."""

    weights: list[Matrix]
    losses: list[list[list[np.float32]]] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)

    def epoch_loss(self, epoch: int) -> float:
        """Return the loss of all samples in an epoch."""
        return float(np.sum(self.losses[epoch], dtype=np.float64))


@lru_cache(maxsize=2)  # the same for all ranks; that of another plan is not kept
def train(plan: TrainingPlan) -> Trained:
    """Train the network of ``plan``."""
    trained = Trained(weights_before(plan))
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
        _step(plan, trained.weights, gradients, steps)
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
        values.append(dense.forward(w, values[-1], plan.activation(layer)))
        steps += shown(f"{title}: layer {layer + 1}: outputs", values[-1])
    loss, delta = dense.squared_error(values[-1], plan.targets(replica, micro))
    steps.append(f"{title}: loss = {loss:.6g}")
    gradients: list[Matrix] = []
    for layer in reversed(range(plan.layers)):
        w, y = weights[layer], values[layer + 1]
        dz = delta * dense.slope(plan.activation(layer), y)
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
) -> None:
    """Add up the ``gradients`` of all replicas, as their rings do, and step the weights."""
    sums = [np.zeros_like(w) for w in weights]
    for stage in range(plan.stages):
        for part in range(plan.parts):
            own = plan.slices(stage, part)
            vectors = [
                flattened([one[piece.layer][_rows(plan, piece.layer, part)] for piece in own])
                for one in gradients
            ]
            total, at = ring_sum(vectors), 0
            for piece in own:
                rows = _rows(plan, piece.layer, part)
                count = sums[piece.layer][rows].size
                sums[piece.layer][rows] = total[at : at + count].reshape(piece.count, -1)
                at += count
    for layer, total in enumerate(sums):
        weights[layer] = dense.step(weights[layer], total, plan.rate)
        steps += shown(f"layer {layer + 1}: weights - rate x sum of gradients", weights[layer])


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


def shown(what: str, matrix: Matrix) -> list[str]:
    """Return the lines that show ``matrix``."""
    rows = ["[" + " ".join(f"{value:9.5f}" for value in row) + " ]" for row in matrix]
    return [f"{what} ({matrix.shape[0]}x{matrix.shape[1]})", *(f"    {row}" for row in rows)]
