"""The operations of a training step of a transformer on all GPUs, written as one program.

A stage goes through its micro-batches in the order of the pipeline, and in each through its layers.
Its GPUs compute one thing at a time.  Exchanges of tensor, context and expert parallelism are on
the way of the computing; messages to other stages, gradients and weights go beside it.  At the end
all GPUs exchange the norm of the gradients, and step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from emulator.sim.endpoint.operations.schedule import Region
from scenarios.collectives.communicators import Communicator
from scenarios.workloads.transformer.parallel_layout import CP, DP, EP, EXPERT_DP, TP
from scenarios.workloads.transformer.pipeline_order import ONE_F_ONE_B, Task, pipeline_order
from scenarios.workloads.transformer.step_operations.compute_stream import ComputeStream
from scenarios.workloads.transformer.step_operations.dependent_program import DependentProgram
from scenarios.workloads.transformer.step_operations.gpu_work import GpuWork
from scenarios.workloads.transformer.step_operations.group_stream import (
    ALL_REDUCE,
    GpuBuffers,
    GroupStream,
)
from scenarios.workloads.transformer.step_operations.layer_work import LayerWork, Work
from scenarios.workloads.transformer.step_operations.layer_work import backward as reversed_work
from scenarios.workloads.transformer.step_operations.synthetic_tensors import (
    NEVER_CHECKED,
    SENT,
    CheckedTensor,
    FilledTensor,
)
from scenarios.workloads.transformer.step_operations.weight_exchange import (
    GatheredWeights,
    ReplicaStreams,
    WeightExchange,
    WeightUnit,
)
from scenarios.workloads.transformer.step_scale import StepScale
from scenarios.workloads.transformer.step_shape import StepShape
from topologies.model import Topology

#: What a receive can be for, beside the kinds of groups.
PP, NORM, STATE = "PP", "norm", "state"
#: The norm of all gradients is one number.
NORM_OCTETS = 4
_EMBEDDING, _HEAD = "embedding", "head"
#: A handover goes in messages of at most so many octets.
_HANDOVER_OCTETS = 2**20


@dataclass(frozen=True, kw_only=True)
class StepChoices:
    """How a framework runs a step.

    ``overlap``: gradients go beside backward, and weights are gathered ahead; else each waits for
    the computing before it.  ``bucket_bytes`` of gradients are exchanged at once, and at least
    those of a layer.
    """

    order: str = ONE_F_ONE_B
    overlap: bool = True
    bucket_bytes: int = 25 * 2**20
    slice_bytes: int = 64 * 2**10


@dataclass(frozen=True)
class Handover:
    """State that a GPU sends to another one before the step: ``octets``, unscaled."""

    source: int
    destination: int
    octets: int


#: Parts of a chunk of the model with their work forward.
Units = Sequence[tuple[WeightUnit, Sequence[Work]]]


class TrainingStep:
    """One step of ``step`` in ``program``; rank r of the job is GPU ``gpus[r]``."""

    def __init__(
        self,
        program: DependentProgram,
        topology: Topology,
        step: StepShape,
        gpus: Sequence[int],
        scale: StepScale,
        choices: StepChoices,
    ) -> None:
        self.program, self.step, self.gpus = program, step, tuple(gpus)
        self._topology, self._scale, self._choices = topology, scale, choices
        self.computing = ComputeStream(program)
        self._memory = GpuBuffers(program)
        self._numbers = count(1)
        self._layers = LayerWork(step)
        self._chunk_layers = step.stage_layers()
        streams = {
            kind: {gpu: stream for stream in self._of(kind) for gpu in stream.communicator.ranks}
            for kind in (TP, CP, EP)
        }
        self._work = GpuWork(self.computing, scale, streams, self._numbers)
        self._weights = WeightExchange(
            self.computing,
            scale,
            self._numbers,
            list(self._replicas()),
            zero=step.zero,
            gradient_bytes=step.gradient_bytes,
        )
        #: by direction, chunk of the model and micro-batch: what each GPU gets from another stage
        self._arrivals: dict[tuple[bool, int, int], dict[int, CheckedTensor]] = {}
        #: gradients that wait for the end of all computing
        self._late: list[tuple[Sequence[int], WeightUnit]] = []
        #: by stage: the parts whose weights are gathered next, and those gathered ahead (ZeRO 3)
        self._ahead: dict[int, Iterator[WeightUnit]] = {}
        self._gathered: dict[int, deque[GatheredWeights]] = {}

    # -- groups --------------------------------------------------------------------------------

    def _of(self, kind: str) -> Iterator[GroupStream]:
        for group in self.step.layout.groups(kind):
            yield self._stream(kind, tuple(self.gpus[rank] for rank in group), kind)

    def _stream(
        self, kind: str, gpus: tuple[int, ...], name: str, *, fresh: bool = False
    ) -> GroupStream:
        return GroupStream(
            program=self.program,
            memory=self._memory,
            communicator=Communicator(gpus, self._topology),
            kind=kind,
            name=name,
            slice_bytes=self._choices.slice_bytes,
            fresh=fresh,
        )

    def _replicas(self) -> Iterator[ReplicaStreams]:
        kinds = [DP] if self.step.model.experts == 1 else [DP, EXPERT_DP]
        for kind in kinds:
            for group in self.step.layout.groups(kind):
                gpus = tuple(self.gpus[rank] for rank in group)
                yield ReplicaStreams(
                    gpus,
                    self._stream(kind, gpus, f"{kind} gradients", fresh=self.step.zero < 3),
                    self._stream(kind, gpus, f"{kind} weights"),
                    of_experts=kind == EXPERT_DP,
                )

    # -- the order of the step -----------------------------------------------------------------

    def write(self, handovers: Sequence[Handover] = ()) -> None:
        """Write all operations; ``handovers`` come before those that need them."""
        for handover in handovers:
            self._hand_over(handover)
        stages, step = range(self.step.layout.pp), self.step
        tasks = {
            stage: deque(
                pipeline_order(
                    self._choices.order, stage, len(stages), step.micro_batches, step.interleave
                )
            )
            for stage in stages
        }
        for stage, own in tasks.items():
            self._ahead[stage] = iter(
                [unit for task in own for unit, _ in self._in_order(stage, task)]
            )
            self._gathered[stage] = deque()
        while any(tasks.values()):
            for stage, own in tasks.items():
                while own and self._possible(stage, own[0]):
                    task = own.popleft()
                    with self.program.named(f"micro-batch {task.micro + 1}"):
                        self._task(stage, task)
        self._finish()

    def _chunk(self, stage: int, task: Task) -> int:
        """Return which chunk of the model a task is about."""
        return task.chunk * self.step.layout.pp + stage

    def _possible(self, stage: int, task: Task) -> bool:
        """Return whether what the task needs from another stage has been written down."""
        chunk = self._chunk(stage, task)
        first = 0 if task.forward else len(self._chunk_layers) - 1
        return chunk == first or (task.forward, chunk, task.micro) in self._arrivals

    def _gpus(self, stage: int) -> list[int]:
        return [self.gpus[rank] for rank in self.step.layout.stage(stage)]

    def _in_order(self, stage: int, task: Task) -> Units:
        units = self._units(self._chunk(stage, task))
        return units if task.forward else units[::-1]

    def _task(self, stage: int, task: Task) -> None:
        gpus = self._gpus(stage)
        arrived = self._arrivals.pop((task.forward, self._chunk(stage, task), task.micro), {})
        for gpu, check in arrived.items():
            self._work.expect(gpu, check)
        units = self._in_order(stage, task)
        exchanged = not task.forward and (
            self.step.zero == 3 or task.micro == self.step.micro_batches - 1
        )
        bucket: WeightUnit | None = None
        for number, (unit, work) in enumerate(units):
            with self.program.named(f"{unit.name} {'forward' if task.forward else 'backward'}"):
                self._take_weights(stage)
                self._work.do(gpus, work if task.forward else self._backward(unit, work))
                if exchanged:
                    bucket = unit if bucket is None else bucket.joined(unit)
                    if self._is_full(bucket) or number == len(units) - 1:
                        self._exchange_gradients(gpus, bucket)
                        bucket = None
                if self.step.zero == 3:
                    self._read_weights(gpus)
        self._leave(stage, task, gpus)

    def _leave(self, stage: int, task: Task, gpus: Sequence[int]) -> None:
        """Send what a task has made to the stage that needs it."""
        chunk = self._chunk(stage, task) + (1 if task.forward else -1)
        if not 0 <= chunk < len(self._chunk_layers):
            for gpu in gpus:
                self._work.flush(gpu)
            return
        peers = self._gpus(chunk % self.step.layout.pp)
        octets = self._scale.octets(self.step.stage_bytes, 1)
        arrivals = self._arrivals[task.forward, chunk, task.micro] = {}
        what = "outputs" if task.forward else "gradients of inputs"
        with self.program.named(f"{what} to stage {chunk % self.step.layout.pp + 1}"):
            for gpu, peer in zip(gpus, peers, strict=True):
                number = next(self._numbers)
                here = self.program.allocate(gpu, f"{PP} out", octets)
                filled = self._work.flush(gpu, [FilledTensor(here, number, 0)])
                arrivals[peer] = self._send(PP, gpu, peer, here, number, filled)

    def _send(
        self, label: str, gpu: int, peer: int, here: Region, number: int, filled: int
    ) -> CheckedTensor:
        there = self.program.allocate(peer, f"{label} in", here.length)
        received = self.program.send(label, gpu, peer, here, there, filled)
        if not self.program.wants(peer):
            return NEVER_CHECKED
        return CheckedTensor(
            region=there, number=number, mode=SENT, members=2, place=0, ready=(received,)
        )

    # -- parts of the model --------------------------------------------------------------------

    def _units(self, chunk: int) -> list[tuple[WeightUnit, Sequence[Work]]]:
        """Return the parts of a chunk, each with its work forward."""
        step, layers = self.step, self._layers
        found: list[tuple[WeightUnit, Sequence[Work]]] = []
        if chunk == 0:
            found.append((WeightUnit(_EMBEDDING, step.embedding_weights), layers.embedding()))
        work = [*layers.attention(), *layers.feed_forward()]
        for layer in self._chunk_layers[chunk]:
            name = f"layer {layer + 1}"
            unit = WeightUnit(name, step.dense_layer_weights, step.expert_layer_weights)
            found.append((unit, work))
        if chunk == len(self._chunk_layers) - 1:
            found.append((WeightUnit(_HEAD, step.head_weights), layers.head()))
        return found

    def _backward(self, unit: WeightUnit, forward: Sequence[Work]) -> Sequence[Work]:
        layers = self._layers
        if unit.name == _EMBEDDING:
            return layers.embedding_backward()
        if unit.name == _HEAD:
            return layers.head_backward()
        return [*reversed_work(layers.feed_forward()), *reversed_work(layers.attention())]

    # -- weights and gradients -----------------------------------------------------------------

    def _is_full(self, bucket: WeightUnit) -> bool:
        octets = (bucket.dense + bucket.experts) * self.step.gradient_bytes
        return self.step.zero == 3 or octets >= self._choices.bucket_bytes

    def _exchange_gradients(self, gpus: Sequence[int], bucket: WeightUnit) -> None:
        if not self._choices.overlap and self.step.zero < 3:
            self._late.append((gpus, bucket))
            return
        opened = self._weights.open_gradients(gpus, bucket)
        if opened.exchanges:
            filled = {gpu: self._work.flush(gpu, opened.by_gpu.get(gpu, ())) for gpu in gpus}
            self._weights.exchange_gradients(opened, filled)

    def _take_weights(self, stage: int) -> None:
        """Let the next computing wait for its weights, and gather those after them (ZeRO 3)."""
        if self.step.zero < 3:
            return
        gathered = self._gathered[stage]
        if not gathered:
            self._gather_next(stage)
        for exchange, results in gathered.popleft():
            for gpu, check in results.items():
                self._work.expect(gpu, check, exchange)
        if self._choices.overlap:
            self._gather_next(stage)

    def _gather_next(self, stage: int) -> None:
        unit = next(self._ahead[stage], None)
        if unit is not None:
            gpus = self._gpus(stage)
            ahead = self._choices.overlap
            after = {} if ahead else {gpu: (self._work.flush(gpu),) for gpu in gpus}
            self._gathered[stage].append(self._weights.gather_weights(gpus, unit, after))

    def _read_weights(self, gpus: Sequence[int]) -> None:
        """End the computing with gathered weights, which are let go after it."""
        for gpu in gpus:
            self._work.flush(gpu)

    def _finish(self) -> None:
        """Exchange late gradients and the norm, step, and gather what the step has changed."""
        late, self._late = self._late, []
        for gpus, bucket in late:
            with self.program.named("gradients"):
                opened = self._weights.open_gradients(gpus, bucket)
                filled = {gpu: self._work.flush(gpu, opened.by_gpu.get(gpu, ())) for gpu in gpus}
                self._weights.exchange_gradients(opened, filled)
        for gpu, checks in self._weights.reduced.items():
            for check in checks:
                self._work.expect(gpu, check)
        if len(self.gpus) > 1:
            stream = self._stream(NORM, self.gpus, NORM)
            norm = stream.open(
                ALL_REDUCE, NORM_OCTETS, next(self._numbers), NORM, "recursive-doubling"
            )
            entry = {gpu: self._work.flush(gpu, [fill]) for gpu, fill in norm.fills().items()}
            for gpu, check in norm.begin(entry).items():
                self._work.expect(gpu, check, norm)
        with self.program.named("optimiser"):
            for gpu in self.gpus:
                self._work.flush(gpu)
            self._weights.gather_updated()

    # -- replicas that come and go -------------------------------------------------------------

    def _hand_over(self, one: Handover) -> None:
        octets = self._scale.octets(one.octets, 1)
        with self.program.named("state of a replica"):
            for begin in range(0, octets, _HANDOVER_OCTETS):
                length = min(_HANDOVER_OCTETS, octets - begin)
                number = next(self._numbers)
                here = self.program.allocate(one.source, f"{STATE} out", length)
                filled = self.computing.beside(one.source, fills=[FilledTensor(here, number, 0)])
                check = self._send(STATE, one.source, one.destination, here, number, filled)
                self._work.expect(one.destination, check)
