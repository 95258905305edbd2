"""Compiles a training plan into the schedules of all GPUs of a fabric.

For each epoch, in each replica::

    stage 0               stage 1                      last stage
    layers -> outputs --> layers -> outputs --> ... -> layers -> loss      forward
    layers <- delta  <--- layers <- delta  <--- ... <- layers <- delta     backward, gradients
       |                     |                            |
    AllReduce of gradients with the same stage and part of all replicas, then a step

Inside a stage of several parts, each GPU computes its neurons.  An AllGather joins their outputs
before the next layer.  Backward each part has a sum over its own neurons only. The GPUs exchange
these deltas, and each adds all of them in the order of the parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from scenarios.workloads.network import layers
from scenarios.workloads.network.compression import CompressedSums
from scenarios.workloads.network.tensors import Tensor, TensorProgram
from scenarios.workloads.network.training_plan import TrainingPlan

FORWARD, BACKWARD = "forward", "backward"
#: What transfers are for.
OUTPUTS, DELTAS = "outputs to the next stage", "deltas to the stage before"
JOINED, PARTIAL = "outputs of the parts of a layer", "deltas of the parts of a layer"
GRADIENTS = "gradients of replicas"


def micro_batch_order(
    order: str, stage: int, stages: int, micro_batches: int
) -> list[tuple[str, int]]:
    """Return the order in which a stage computes its micro-batches, each forward and backward.

    ``gpipe``: all forward, then all backward.  ``1f1b``: as many forward as there are later stages,
    then one forward and one backward in turns.
    """
    early = micro_batches if order == "gpipe" else min(micro_batches, stages - 1 - stage)
    found = [(FORWARD, micro) for micro in range(early)]
    for micro in range(early, micro_batches):
        found += [(FORWARD, micro), (BACKWARD, micro - early)]
    found += [(BACKWARD, micro) for micro in range(micro_batches - early, micro_batches)]
    return found


def most_held(order: str, stage: int, stages: int, micro_batches: int) -> int:
    """Return of how many micro-batches a stage keeps activations at most."""
    held = most = 0
    for what, _ in micro_batch_order(order, stage, stages, micro_batches):
        held += 1 if what == FORWARD else -1
        most = max(most, held)
    return most


@dataclass
class _Gpu:
    """The tensors of one GPU; those of a micro-batch by its number."""

    weights: Tensor
    inputs: dict[int, Tensor] = field(default_factory=dict)
    targets: list[Tensor] = field(default_factory=list)
    deltas: dict[int, Tensor] = field(default_factory=dict)
    #: Inputs of each layer of the stage, and the outputs of the last.
    values: dict[int, list[Tensor]] = field(default_factory=dict)


class ParallelTraining:
    """The operations of ``plan`` in ``tensors``; ``ranks[replica][stage][part]`` is the grid."""

    def __init__(
        self, plan: TrainingPlan, tensors: TensorProgram, ranks: Sequence[Sequence[Sequence[int]]]
    ) -> None:
        self.plan = plan
        self.tensors = tensors
        self._losses: dict[int, Tensor] = {}
        self._gradients: dict[int, Tensor] = {}
        self._grid = [
            [
                [self._gpu(rank, stage, part) for part, rank in enumerate(parts)]
                for stage, parts in enumerate(stages)
            ]
            for stages in ranks
        ]
        self._sums = None
        if plan.compression:
            self._sums = CompressedSums(plan.compression, tensors, GRADIENTS)
            self._sums.start([stages[0][0] for stages in ranks], plan.weight_count(0, 0))
        for epoch in range(plan.epochs):
            with tensors.program.named(f"epoch {epoch + 1}"):
                self._epoch(epoch)

    def _gpu(self, rank: int, stage: int, part: int) -> _Gpu:
        plan, new = self.plan, self.tensors.new
        gpu = _Gpu(new(rank, "weights", plan.weight_count(stage, part)))
        if stage == 0:
            for micro in range(plan.micro_batches):
                gpu.inputs[micro] = new(rank, "inputs", plan.widths[0], plan.samples)
        if stage == plan.stages - 1:
            for _ in range(plan.micro_batches):
                gpu.targets.append(new(rank, "targets", plan.widths[-1], plan.samples))
            self._losses[rank] = new(rank, "losses", plan.epochs * plan.micro_batches)
        return gpu

    def _epoch(self, epoch: int) -> None:
        plan = self.plan
        pending = {
            (replica, stage): micro_batch_order(plan.order, stage, plan.stages, plan.micro_batches)
            for replica in range(plan.replicas)
            for stage in range(plan.stages)
        }
        for (replica, stage), order in pending.items():
            for gpu in self._grid[replica][stage]:
                rank, shape = gpu.weights.rank, gpu.weights.shape
                self._gradients[rank] = self.tensors.new(rank, "gradients", *shape)
            order.reverse()
        while any(pending.values()):
            for (replica, stage), order in pending.items():
                while order and self._possible(replica, stage, *order[-1]):
                    what, micro = order.pop()
                    with self.tensors.program.named(f"micro-batch {micro + 1}"):
                        if what == FORWARD:
                            self._forward(replica, stage, micro, epoch)
                        else:
                            self._backward(replica, stage, micro)
        for stage in range(plan.stages):
            for part in range(plan.parts):
                self._step([stages[stage][part] for stages in self._grid])

    def _possible(self, replica: int, stage: int, what: str, micro: int) -> bool:
        """Return whether what a stage needs for a micro-batch has been written down."""
        gpu = self._grid[replica][stage][0]
        return micro in (gpu.inputs if what == FORWARD else gpu.deltas)

    def _weights(self, gpu: _Gpu, stage: int, part: int) -> list[Tensor]:
        """Return the weight matrix of each layer of a GPU."""
        return self._matrices(gpu.weights, stage, part)

    def _matrices(self, whole: Tensor, stage: int, part: int) -> list[Tensor]:
        found, at = [], 0
        for piece in self.plan.slices(stage, part):
            wide = self.plan.widths[piece.layer]
            found.append(whole.part(at, piece.count, wide))
            at += piece.count * wide
        return found

    def _forward(self, replica: int, stage: int, micro: int, epoch: int) -> None:
        plan, tensors, gpus = self.plan, self.tensors, self._grid[replica][stage]
        values = [gpu.inputs[micro] for gpu in gpus]
        if stage:  # those of the first stage are the same in each epoch
            for gpu in gpus:
                del gpu.inputs[micro]
        for gpu, value in zip(gpus, values, strict=True):
            gpu.values[micro] = [value]
        for place, layer in enumerate(plan.stage_layers(stage)):
            with tensors.program.named(f"layer {layer + 1} forward"):
                self._layer_forward(gpus, stage, place, micro)
        for part, gpu in enumerate(gpus):
            y = gpu.values[micro][-1]
            if stage < plan.stages - 1:
                there = self._grid[replica][stage + 1][part]
                place_there = tensors.new(there.weights.rank, "arrived outputs", *y.shape)
                there.inputs[micro] = tensors.move(y, place_there, OUTPUTS)
                continue
            rank = gpu.weights.rank
            one = self._losses[rank].part(epoch * plan.micro_batches + micro, 1)
            delta = tensors.new(rank, "deltas", *y.shape)
            filled = tensors.apply(layers.loss, [y, gpu.targets[micro]], [one, delta])
            gpu.deltas[micro] = filled[1]

    def _layer_forward(self, gpus: Sequence[_Gpu], stage: int, place: int, micro: int) -> None:
        """Write down the outputs of one layer on the GPUs that share it."""
        plan, tensors = self.plan, self.tensors
        layer = plan.stage_layers(stage)[place]
        shape = plan.widths[layer + 1], plan.samples
        wholes = [tensors.new(gpu.weights.rank, "activations", *shape) for gpu in gpus]
        own = []
        for part, gpu in enumerate(gpus):
            piece = plan.neurons(layer, part)
            rows = wholes[part].part(piece.first * plan.samples, piece.count, plan.samples)
            own += tensors.apply(
                layers.layer_forward,
                [self._weights(gpu, stage, part)[place], gpu.values[micro][-1]],
                [rows],
                *(piece.count, plan.widths[layer], plan.samples, plan.activation(layer)),
                duration_ns=plan.layer_ns // plan.parts,
            )
        for gpu, whole in zip(gpus, tensors.gather(wholes, own, JOINED), strict=True):
            gpu.values[micro].append(whole)

    def _backward(self, replica: int, stage: int, micro: int) -> None:
        plan, tensors, gpus = self.plan, self.tensors, self._grid[replica][stage]
        deltas = [gpu.deltas.pop(micro) for gpu in gpus]
        layers = plan.stage_layers(stage)
        for place, layer in reversed(list(enumerate(layers))):
            with tensors.program.named(f"layer {layer + 1} backward"):
                before = [
                    self._layer_backward(gpu, stage, part, place, micro, deltas[part])
                    for part, gpu in enumerate(gpus)
                ]
                deltas = self._summed(before) if layer else before
        for gpu in gpus:
            del gpu.values[micro]
        if stage:
            for part, delta in enumerate(deltas):
                there = self._grid[replica][stage - 1][part]
                place_there = tensors.new(there.weights.rank, "arrived deltas", *delta.shape)
                there.deltas[micro] = tensors.move(delta, place_there, DELTAS)

    def _layer_backward(
        self, gpu: _Gpu, stage: int, part: int, place: int, micro: int, delta: Tensor
    ) -> Tensor:
        """Write down the gradient of one layer on one GPU; return the delta of its inputs."""
        plan, tensors = self.plan, self.tensors
        piece = plan.slices(stage, part)[place]
        wide, rank = plan.widths[piece.layer], gpu.weights.rank
        whole = self._gradients[rank]
        total = self._matrices(whole, stage, part)[place]
        gradient = total if micro == 0 else tensors.new(rank, "micro-batch gradients", *total.shape)
        x, y = gpu.values[micro][place : place + 2]
        before = tensors.new(rank, "deltas", wide, plan.samples)
        rows = piece.first * plan.samples, piece.count, plan.samples
        gradient, before = tensors.apply(
            layers.layer_backward,
            [self._weights(gpu, stage, part)[place], x, y.part(*rows), delta.part(*rows)],
            [replace(gradient, ready=()), before],
            *(piece.count, wide, plan.samples, plan.activation(piece.layer)),
            duration_ns=2 * plan.layer_ns // plan.parts,
        )
        if micro:
            gradient = tensors.reduce(gradient, total)
        ready = tuple(sorted({*whole.ready, *gradient.ready}))
        self._gradients[rank] = replace(whole, ready=ready)
        return before

    def _summed(self, parts: Sequence[Tensor]) -> list[Tensor]:
        if len(parts) == 1:
            return list(parts)
        tensors, found = self.tensors, []
        for mine in parts:
            here = [
                one
                if one is mine
                else tensors.move(one, tensors.new(mine.rank, "arriving", *one.shape), PARTIAL)
                for one in parts
            ]
            total = tensors.new(mine.rank, "deltas", *mine.shape)
            found += tensors.apply(layers.sum_of_parts, here, [total])
        return found

    def _step(self, gpus: Sequence[_Gpu]) -> None:
        gradients = [self._gradients[gpu.weights.rank] for gpu in gpus]
        with self.tensors.program.named("gradients all_reduce"):
            if self._sums is None:
                sums = self.tensors.all_reduce(gradients, "summed gradients", GRADIENTS)
            else:
                sums = self._sums.total(gradients)
        for gpu, total in zip(gpus, sums, strict=True):
            (gpu.weights,) = self.tensors.apply(
                layers.step, [gpu.weights, total], [gpu.weights], self.plan.rate
            )
