"""The operations of a training step of a transformer on all GPUs, written as one program.

A stage goes through its micro-batches in the order of the pipeline, and in each through its layers.
Its GPUs compute one thing at a time.  Exchanges of tensor, context and expert parallelism are on
the way of the computing; messages to other stages, gradients and weights go beside it.  At the end
all GPUs exchange the norm of the gradients, and step.

The computations and exchanges of a GPU in a layer, the embedding and the output head.

Forward, with sequence parallelism (SP; without, an AllReduce at the end of each half)::

    attention     AllGather - q, k, v - [AllGather of keys and values: CP] - scores - ReduceScatter
    feed-forward  AllGather - three products - ReduceScatter
    experts       router - AlltoAll: EP - AllGather - three products - ReduceScatter - AlltoAll

Backward goes the other way, takes twice the computing, and has a ReduceScatter for each AllGather
and the reverse.  That each GPU keeps only its part of a layer's inputs, and gathers them again
backward, is left out.

Computing and exchanges on the way of it: those of tensor, context and expert parallelism.

Gradients and weights that replicas exchange: buckets beside backward, shards before a layer.

Without ZeRO, buckets of gradients are added up by AllReduce while backward goes on, as PyTorch's
DistributedDataParallel and Megatron do.  ZeRO 1 and 2 have a ReduceScatter instead, and an
AllGather of the weights after the optimiser.  With ZeRO 3 (FSDP) the weights of a layer are
gathered before it, forward and backward, one layer ahead of the computing.  Its gradients are
scattered after each micro-batch.

State that moves when a job loses or gains a replica between two steps.

A new replica gets the weights from one that was there, in 16 bits, and 14 octets of states for
each.  That is Adam in mixed precision (Rajbhandari et al., SC'20, section 3.1).  Where ZeRO divides
the states, every replica that was there sends a part of the new one's share.  One that leaves
gives its share to those that stay.  GPUs stay at their places in the widest layout.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import count

from emulator.sim.endpoint.operations.schedule import Region
from scenarios.collectives.communicators import Communicator
from scenarios.workloads.transformer import shape
from scenarios.workloads.transformer.dependent_program import DependentProgram
from scenarios.workloads.transformer.streams import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    NEVER_CHECKED,
    REDUCE_SCATTER,
    SENT,
    CheckedTensor,
    ComputeStream,
    FilledTensor,
    GpuBuffers,
    GroupStream,
    PendingExchange,
    StepScale,
    message_count,
)
from topologies.model import Topology

#: The loss needs the largest score of each token, the sum over the vocabulary, and the target's.
_LOSS_SUMS, _LOSS_BYTES = 3, 4


@dataclass(frozen=True)
class Computing:
    """FLOPs of one GPU."""

    flops: Fraction


@dataclass(frozen=True)
class Exchanging:
    """A collective over the GPU's group of ``kind``, of ``octets`` in all."""

    kind: str
    collective: str
    octets: int


Work = Computing | Exchanging
_REVERSED = {ALL_GATHER: REDUCE_SCATTER, REDUCE_SCATTER: ALL_GATHER}


class LayerWork:
    """The work of one micro-batch in the parts of the model of ``step``."""

    def __init__(self, step: shape.StepShape) -> None:
        self.step = step

    def attention(self) -> list[Work]:
        """Return the work of a layer's attention, forward."""
        step, model = self.step, self.step.model
        output = model.hidden * model.attention_size
        projections = model.attention_weights - output + model.hidden  # and a norm
        scores = step.weight_flops(output) + step.score_flops()
        return self._divided(
            step.activation_bytes,
            [
                Computing(step.weight_flops(projections)),
                Exchanging(shape.CP, ALL_GATHER, step.key_value_bytes),
                Computing(scores),
            ],
        )

    def feed_forward(self, layer: int) -> list[Work]:
        """Return the work of a layer's feed-forward network, or of its experts, forward."""
        step, model = self.step, self.step.model
        weights = model.experts_per_token * model.feed_forward_weights
        if model.experts == 1 or layer < model.dense_layers:
            whole = weights + model.shared_weights + model.hidden
            return self._divided(step.activation_bytes, [Computing(step.weight_flops(whole))])
        dispatch = Exchanging(shape.EP, ALL_TO_ALL, step.dispatch_bytes)
        octets = step.activation_bytes * model.experts_per_token
        return [
            Computing(
                step.weight_flops(model.router_weights + model.shared_weights + model.hidden)
            ),
            dispatch,
            *self._divided(octets, [Computing(step.weight_flops(weights))]),
            dispatch,
        ]

    def embedding(self) -> list[Work]:
        """Return the work of the lookup, whose table is divided by the words of the vocabulary."""
        step = self.step
        joined = REDUCE_SCATTER if step.sequence_parallel else ALL_REDUCE
        return [
            Computing(step.weight_flops(step.model.head_weights)),
            Exchanging(shape.TP, joined, step.activation_bytes),
        ]

    def embedding_backward(self) -> list[Work]:
        gathered = [Exchanging(shape.TP, ALL_GATHER, self.step.activation_bytes)]
        computing = shape.BACKWARD * self.step.weight_flops(self.step.model.head_weights)
        return [*(gathered if self.step.sequence_parallel else []), Computing(computing)]

    def head(self) -> list[Work]:
        """Return the work of the last norm, the output head and the loss."""
        step = self.step
        gathered = [Exchanging(shape.TP, ALL_GATHER, step.activation_bytes)]
        loss = Exchanging(shape.TP, ALL_REDUCE, int(step.tokens) * _LOSS_BYTES)
        return [
            *(gathered if step.sequence_parallel else []),
            Computing(step.weight_flops(step.model.head_weights + step.model.hidden)),
            *[loss] * _LOSS_SUMS,
        ]

    def head_backward(self) -> list[Work]:
        step = self.step
        joined = REDUCE_SCATTER if step.sequence_parallel else ALL_REDUCE
        weights = step.model.head_weights + step.model.hidden
        return [
            Computing(shape.BACKWARD * step.weight_flops(weights)),
            Exchanging(shape.TP, joined, step.activation_bytes),
        ]

    def _divided(self, octets: int, inner: list[Work]) -> list[Work]:
        """Return ``inner`` between the exchanges of tensor parallelism."""
        if not self.step.sequence_parallel:
            return [*inner, Exchanging(shape.TP, ALL_REDUCE, octets)]
        return [
            Exchanging(shape.TP, ALL_GATHER, octets),
            *inner,
            Exchanging(shape.TP, REDUCE_SCATTER, octets),
        ]


def backward(work: Sequence[Work]) -> list[Work]:
    inner: list[Work] = []
    summed: list[Work] = []
    for one in reversed(work):
        if isinstance(one, Computing):
            inner.append(Computing(shape.BACKWARD * one.flops))
        elif one.collective == ALL_REDUCE:
            summed.append(one)  # of the gradients of what went in, at the end
        else:
            other = _REVERSED.get(one.collective, one.collective)
            inner.append(Exchanging(one.kind, other, one.octets))
    return [*inner, *summed]


@dataclass
class _Waiting:
    """The work of a GPU before the next tensor leaves it; ``read`` are exchanges whose results are.

    Those results are among ``checks``.
    """

    duration_ns: int = 0
    checks: list[CheckedTensor] = field(default_factory=list)
    read: list[PendingExchange] = field(default_factory=list)


class GpuWork:
    """The work of all GPUs, in their order; ``streams`` has by kind and GPU that of its group."""

    def __init__(
        self,
        computing: ComputeStream,
        scale: StepScale,
        streams: Mapping[str, Mapping[int, GroupStream]],
        numbers: Iterator[int],
    ) -> None:
        self._computing, self._scale = computing, scale
        self._streams, self._numbers = streams, numbers
        self._waiting: dict[int, _Waiting] = {}

    def expect(self, gpu: int, check: CheckedTensor, read: PendingExchange | None = None) -> None:
        """Let the next computation of ``gpu`` wait for ``check``, a result of ``read``."""
        waiting = self._waiting.setdefault(gpu, _Waiting())
        waiting.checks.append(check)
        if read is not None:
            waiting.read.append(read)

    def flush(self, gpu: int, fills: Sequence[FilledTensor] = ()) -> int:
        """Let ``gpu`` compute what waits, and fill what leaves it; return the operation's index."""
        waiting = self._waiting.pop(gpu, _Waiting())
        index = self._computing.compute(gpu, waiting.duration_ns, waiting.checks, fills)
        for read in waiting.read:
            read.consumed[gpu] = index
        return index

    def do(self, gpus: Sequence[int], work: Iterable[Work]) -> None:
        for one in work:
            if isinstance(one, Computing):
                duration = self._scale.duration_ns(one.flops)
                for gpu in gpus:
                    self._waiting.setdefault(gpu, _Waiting()).duration_ns += duration
            else:
                self._exchange(gpus, one)

    def _exchange(self, gpus: Sequence[int], one: Exchanging) -> None:
        groups = {
            stream.communicator.ranks: stream
            for stream in map(self._streams[one.kind].__getitem__, gpus)
        }
        for stream in groups.values():
            if len(stream.communicator) == 1:
                continue
            parts = message_count(one.collective, stream.communicator)
            octets = self._scale.octets(one.octets, parts)
            exchange = stream.open(one.collective, octets, next(self._numbers), one.kind)
            entry = {gpu: self.flush(gpu, [fill]) for gpu, fill in exchange.fills().items()}
            for gpu, check in exchange.begin(entry).items():
                self.expect(gpu, check, exchange)


@dataclass(frozen=True)
class WeightUnit:
    """Weights that are exchanged together: a layer's, the embedding's or the head's.

    ``experts`` are those that another group of replicas has.
    """

    name: str
    dense: int
    experts: int = 0

    def joined(self, other: WeightUnit) -> WeightUnit:
        name = f"{self.name}, {other.name}"
        return WeightUnit(name, self.dense + other.dense, self.experts + other.experts)


@dataclass
class ReplicaStreams:
    """The exchanges of a set of replicas: of gradients, and of weights.

    ``of_experts``: they have the experts' weights, and not the others.
    """

    ranks: tuple[int, ...]
    gradients: GroupStream
    weights: GroupStream
    of_experts: bool

    def count(self, unit: WeightUnit) -> int:
        return unit.experts if self.of_experts else unit.dense


@dataclass
class OpenGradients:
    """Gradients that a computation is to fill; ``by_gpu`` is what it fills."""

    exchanges: list[PendingExchange] = field(default_factory=list)
    by_gpu: dict[int, list[FilledTensor]] = field(default_factory=dict)


#: Exchanges of weights, each with the whole weights that GPUs get of it.
GatheredWeights = list[tuple[PendingExchange, dict[int, CheckedTensor]]]


class WeightExchange:
    """Exchanges of ``streams``; ``numbers`` gives each a number for its contents."""

    def __init__(
        self,
        computing: ComputeStream,
        scale: StepScale,
        numbers: Iterator[int],
        streams: Sequence[ReplicaStreams],
        step: shape.StepShape,
    ) -> None:
        self._computing, self._scale = computing, scale
        self._numbers, self._streams = numbers, streams
        self._step, self._zero = step, step.zero
        #: results that the optimiser waits for, by rank
        self.reduced: dict[int, list[CheckedTensor]] = {}
        #: weights that ZeRO 1 and 2 gather after the optimiser
        self._sharded: list[tuple[ReplicaStreams, WeightUnit]] = []

    def _of_stage(self, ranks: Iterable[int]) -> list[ReplicaStreams]:
        stage = set(ranks)
        return [one for one in self._streams if one.ranks[0] in stage and len(one.ranks) > 1]

    def open_gradients(self, ranks: Iterable[int], unit: WeightUnit) -> OpenGradients:
        """Return the gradients of ``unit``, for the computation that makes them to fill."""
        opened = OpenGradients()
        step = self._step
        collective = REDUCE_SCATTER if self._zero else ALL_REDUCE
        if step.gradient_share:
            collective = ALL_GATHER
        for replicas in self._of_stage(ranks):
            count = replicas.count(unit)
            if not count:
                continue
            stream = replicas.gradients
            whole = count * step.gradient_bytes
            if step.gradient_share:
                whole = len(replicas.ranks) * step.chosen_bytes(count)
            octets = self._octets(stream, collective, whole)
            label = f"{unit.name} gradients {stream.kind}"
            pending = stream.open(collective, octets, next(self._numbers), label)
            opened.exchanges.append(pending)
            for rank, fill in pending.fills().items():
                opened.by_gpu.setdefault(rank, []).append(fill)
            if self._zero in (1, 2):
                self._sharded.append((replicas, unit))
        return opened

    def exchange_gradients(self, opened: OpenGradients, filled: Mapping[int, int]) -> None:
        """Begin the exchanges; ``filled`` is the operation of each rank that filled them."""
        for pending in opened.exchanges:
            ranks = pending.stream.communicator.ranks
            results = pending.begin({rank: filled[rank] for rank in ranks})
            for rank, check in results.items():
                if self._zero == 3:  # regions are used again, and nobody else reads this
                    pending.consumed[rank] = self._computing.beside(rank, [check])
                else:
                    self.reduced.setdefault(rank, []).append(check)

    def gather_weights(
        self, ranks: Iterable[int], unit: WeightUnit, after: Mapping[int, tuple[int, ...]]
    ) -> GatheredWeights:
        """Gather the weights of ``unit`` from the shards of all replicas, after operations."""
        found = []
        for replicas in self._of_stage(ranks):
            if count := replicas.count(unit):
                found.append(self._gather(replicas, unit.name, count, after))
        return found

    def gather_updated(self) -> None:
        """Gather the weights that the optimiser has changed, where shards of them lie apart."""
        for replicas, unit in self._sharded:
            after = {rank: self._computing.last(rank) for rank in replicas.ranks}
            pending, results = self._gather(replicas, unit.name, replicas.count(unit), after)
            for rank, check in results.items():
                pending.consumed[rank] = self._computing.beside(rank, [check])

    def _gather(
        self,
        replicas: ReplicaStreams,
        name: str,
        count: int,
        after: Mapping[int, tuple[int, ...]],
    ) -> tuple[PendingExchange, dict[int, CheckedTensor]]:
        stream = replicas.weights
        octets = self._octets(stream, ALL_GATHER, count * shape.WEIGHT_BYTES)
        label = f"{name} weights {stream.kind}"
        pending = stream.open(ALL_GATHER, octets, next(self._numbers), label)
        filled = {
            rank: self._computing.beside(rank, fills=[fill], after=after.get(rank, ()))
            for rank, fill in pending.fills().items()
        }
        return pending, pending.begin(filled)

    def _octets(self, stream: GroupStream, collective: str, whole: int) -> int:
        return self._scale.octets(whole, message_count(collective, stream.communicator))


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

    order: str = shape.ONE_F_ONE_B
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
        step: shape.StepShape,
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
            for kind in (shape.TP, shape.CP, shape.EP)
        }
        self._work = GpuWork(self.computing, scale, streams, self._numbers)
        self._weights = WeightExchange(
            self.computing,
            scale,
            self._numbers,
            list(self._replicas()),
            step,
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
        kinds = [shape.DP] if self.step.model.experts == 1 else [shape.DP, shape.EXPERT_DP]
        for kind in kinds:
            for group in self.step.layout.groups(kind):
                gpus = tuple(self.gpus[rank] for rank in group)
                yield ReplicaStreams(
                    gpus,
                    self._stream(kind, gpus, f"{kind} gradients", fresh=self.step.zero < 3),
                    self._stream(kind, gpus, f"{kind} weights"),
                    of_experts=kind == shape.EXPERT_DP,
                )

    # -- the order of the step -----------------------------------------------------------------

    def write(self, handovers: Sequence[Handover] = ()) -> None:
        """Write all operations; ``handovers`` come before those that need them."""
        for handover in handovers:
            self._hand_over(handover)
        stages, step = range(self.step.layout.pp), self.step
        tasks = {
            stage: deque(
                shape.pipeline_order(
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

    def _chunk(self, stage: int, task: shape.Task) -> int:
        return task.chunk * self.step.layout.pp + stage

    def _possible(self, stage: int, task: shape.Task) -> bool:
        """Return whether what the task needs from another stage has been written down."""
        chunk = self._chunk(stage, task)
        first = 0 if task.forward else len(self._chunk_layers) - 1
        return chunk == first or (task.forward, chunk, task.micro) in self._arrivals

    def _gpus(self, stage: int) -> list[int]:
        return [self.gpus[rank] for rank in self.step.layout.stage(stage)]

    def _in_order(self, stage: int, task: shape.Task) -> Units:
        units = self._units(self._chunk(stage, task))
        return units if task.forward else units[::-1]

    def _task(self, stage: int, task: shape.Task) -> None:
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

    def _leave(self, stage: int, task: shape.Task, gpus: Sequence[int]) -> None:
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
        for layer in self._chunk_layers[chunk]:
            name = f"layer {layer + 1}"
            if layer < step.model.dense_layers:
                unit = WeightUnit(name, step.first_layer_weights)
            else:
                unit = WeightUnit(name, step.dense_layer_weights, step.expert_layer_weights)
            found.append((unit, [*layers.attention(), *layers.feed_forward(layer)]))
        if chunk == len(self._chunk_layers) - 1:
            found.append((WeightUnit(_HEAD, step.head_weights), layers.head()))
        return found

    def _backward(self, unit: WeightUnit, forward: Sequence[Work]) -> Sequence[Work]:
        layers = self._layers
        if unit.name == _EMBEDDING:
            return layers.embedding_backward()
        if unit.name == _HEAD:
            return layers.head_backward()
        attention = layers.attention()
        return [*backward(forward[len(attention) :]), *backward(attention)]

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


def handovers(
    before: shape.StepShape, after: shape.StepShape, widest: shape.ParallelLayout
) -> Iterator[Handover]:
    """Yield what GPUs send before the step ``after``, if ``before`` was the one before it."""
    old, new = before.layout.dp, after.layout.dp
    weights = int(after.gpu_weights)
    for rank in range(widest.ranks):
        place = widest.place(rank)
        peers = [widest.rank(replace(place, dp=dp)) for dp in range(widest.dp)]
        if old <= place.dp < new:
            source = peers[(place.dp - old) % old]
            octets = weights * shape.WEIGHT_BYTES
            if not after.zero:
                octets += weights * shape.STATE_BYTES
            yield Handover(source, rank, octets)
            if after.zero:
                share = weights * shape.STATE_BYTES // new // old
                yield from (Handover(peers[other], rank, share) for other in range(old))
        elif new <= place.dp < old and after.zero:
            each = shape.STATE_BYTES + (shape.WEIGHT_BYTES if after.zero == 3 else 0)
            share = weights * each // old // new
            yield from (Handover(rank, peers[other], share) for other in range(new))
