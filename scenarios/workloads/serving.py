"""Serving of language models with prefill and decode on GPUs of their own.

A serving job in numbers: what its GPUs compute, how long, and the octets that they exchange.

Times and octets are those of the full-size model, divided by ``scale``.

- Prefill is bound by arithmetic: 2 FLOPs for each active weight and token, and 2 x hidden x
  tokens^2 for the causal attention of a layer, at ``tflops`` a GPU.  Exchanges inside the group are
  part of that efficiency.
- A decode step is bound by memory: it reads the GPU's weights, and the prompt's keys and values, at
  ``bandwidth``.  Requests of one GPU are a batch: they read the weights together, so that
  each takes the time of a step whatever the others do.

A serving job as schedules: prefill, transfer of keys and values, and decode of each request.

Prefill instance r mod P serves request r, one after the other in the order of arrival. Decode
instance r mod D serves it next.  There it takes the place that an earlier request leaves.

When requests of a serving job got their tokens, from the messages of an iteration.

TTFT is the time from arrival to the first token, which decode makes.  It is the sum of the wait
until prefill begins, T_prefill, T_transfer and T_decode_init
(draft-calabria-bmwg-ai-fabric-inference-bench, 6.1). T_transfer lasts from the end of prefill until
all keys and values are at the decode GPUs.  ITL is the time between two tokens.  GPUs compute
exactly as long as in the schedule, so that the moments between messages follow from these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import lcm

import numpy as np
import numpy.typing as npt

from emulator.run.measures.message_times import Iteration
from emulator.scenario import Contents
from emulator.sim.endpoint.operations.schedule import (
    Compute,
    Region,
    Schedule,
)
from scenarios.collectives.program import Program
from scenarios.workloads.exchange_times import ExchangeParts
from scenarios.workloads.transformer.shape import TransformerShape
from topologies.model import Topology


def poisson_arrivals(requests: int, rate: float, scale: int, seed: int) -> tuple[int, ...]:
    """Return the times (ns) of ``requests`` that arrive at random, ``rate`` a second on average.

    The first one arrives at 0.  Times are divided by ``scale``.
    """
    gaps = np.random.default_rng((seed, 4)).exponential(1e9 / rate / scale, requests - 1)
    return (0, *(int(time) for time in np.cumsum(gaps)))


def listed_arrivals(times: Sequence[int], scale: int) -> tuple[int, ...]:
    """Return ``times`` (ns) in order, divided by ``scale``."""
    return tuple(time // scale for time in sorted(times))


#: Octets of a weight, an activation, and an element of keys and values.
NUMBER_BYTES = 2


@dataclass(frozen=True, kw_only=True)
class ServingJob:
    """A model and how it is served.

    ``prefill`` instances of ``prefill_gpus`` each, and ``decode`` instances of ``decode_gpus``.
    ``by_experts``: decode instances divide the experts, and each request has one of their GPUs for
    its attention; else they divide every layer by tensor parallelism.  ``by_layer``: keys and
    values leave as soon as their layer is computed.  ``slots`` requests decode at a time in an
    instance by tensor parallelism, and in each GPU of an instance by experts.
    """

    shape: TransformerShape
    prompt: int
    output: int
    prefill: int
    prefill_gpus: int
    decode: int
    decode_gpus: int
    by_experts: bool
    by_layer: bool
    slots: int
    tflops: int
    bandwidth_gbps: int
    scale: int

    @property
    def gpus(self) -> int:
        """Return how many GPUs serve."""
        return self.prefill * self.prefill_gpus + self.decode * self.decode_gpus

    @property
    def places(self) -> int:
        """Return how many requests a decode instance takes at a time."""
        return self.slots * (self.decode_gpus if self.by_experts else 1)

    # -- octets ----------------------------------------------------------------------------------

    @property
    def cache_shards(self) -> int:
        """Return over how many GPUs a decode instance divides the keys and values of a request."""
        return 1 if self.by_experts else self.decode_gpus

    @property
    def layer_cache_bytes(self) -> int:
        """Return the octets of a prompt's keys and values in a layer: equal parts for all GPUs."""
        octets = self.prompt * self.shape.key_value_bytes(NUMBER_BYTES) // self.scale
        parts = lcm(self.prefill_gpus, self.cache_shards)
        return octets // parts * parts

    @property
    def cache_bytes(self) -> int:
        """Return the octets of a prompt's keys and values in all layers."""
        return self.shape.layers * self.layer_cache_bytes

    def shared_cache(self, source: int, target: int) -> int:
        """Return the octets of a layer that GPU ``source`` of prefill has for ``target`` of decode.

        Each side divides a layer's keys and values by heads, in the order of its GPUs.
        """
        have, need = (self.layer_cache_bytes // n for n in (self.prefill_gpus, self.cache_shards))
        low = max(source * have, target * need)
        high = min((source + 1) * have, (target + 1) * need)
        return max(0, high - low)

    @property
    def reduce_bytes(self) -> int:
        """Return what each GPU of a decode instance sends to each other one for a token.

        A layer has two AllReduces of a token's hidden state (Shoeybi et al., arXiv 1909.08053), in
        which a GPU sends 2 (n-1)/n of it. Those of all layers are one exchange.  It is one octet at
        least.
        """
        hidden = 2 * self.shape.layers * self.shape.hidden * NUMBER_BYTES
        return max(1, 2 * hidden // (self.decode_gpus * self.scale))

    @property
    def expert_bytes(self) -> int:
        """Return what a token's GPU sends to each of the others, and gets back of them.

        A layer sends the hidden state to each expert of the token. The exchanges of all layers are
        one, spread evenly, of one octet at least.
        """
        copies = self.shape.expert_layers * self.shape.experts_per_token
        return max(1, copies * self.shape.hidden * NUMBER_BYTES // (self.decode_gpus * self.scale))

    # -- times -----------------------------------------------------------------------------------

    @property
    def prefill_ns(self) -> int:
        shape = self.shape
        per_token = 2 * (shape.active_weights + shape.head_weights)
        attention = 2 * shape.layers * shape.attention_size * self.prompt**2
        flops = per_token * self.prompt + attention
        return round(flops / (self.tflops * 1000 * self.prefill_gpus * self.scale))

    def layer_ns(self, layer: int) -> int:
        """Return the time of prefill in ``layer``; all of them add up to :attr:`prefill_ns`."""
        layers = self.shape.layers
        return (layer + 1) * self.prefill_ns // layers - layer * self.prefill_ns // layers

    @property
    def before_exchange_ns(self) -> int:
        """Return how long a decode step reads memory before its exchange."""
        shape = self.shape
        if self.by_experts:
            chosen = shape.expert_layers * shape.experts_per_token * shape.feed_forward_weights
            weights = shape.active_weights - chosen
            return self._reading_ns(weights + shape.head_weights, 1)
        weights = shape.active_weights + shape.head_weights
        return self._reading_ns(weights, self.decode_gpus)

    @property
    def expert_ns(self) -> int:
        """Return how long the experts of a GPU take for a step: all their weights are read."""
        shape = self.shape
        weights = shape.expert_layers * shape.experts * shape.feed_forward_weights
        return round(weights * NUMBER_BYTES / self._rate(self.decode_gpus))

    @property
    def step_ns(self) -> int:
        """Return the computing time of a decode step."""
        return self.before_exchange_ns + (self.expert_ns if self.by_experts else 0)

    def _reading_ns(self, weights: int, gpus: int) -> int:
        context = self.prompt * self.shape.layers * self.shape.key_value_bytes(NUMBER_BYTES)
        return round((weights * NUMBER_BYTES + context) / self._rate(gpus))

    def _rate(self, gpus: int) -> float:
        """Return the octets of the full-size job that ``gpus`` read in a scaled nanosecond."""
        return self.bandwidth_gbps * gpus * self.scale


_CACHE, _CACHED, _STATES, _GATHERED = "keys and values", "cache", "states", "peers' states"


@dataclass(frozen=True, kw_only=True)
class Served:
    """Where one request is served: ranks of its GPUs, and the request whose place it takes."""

    number: int
    arrival_ns: int
    prefill: tuple[int, ...]
    decode: tuple[int, ...]
    owner: int
    prefill_after: int | None
    decode_after: int | None

    @property
    def cache_targets(self) -> tuple[int, ...]:
        """Return the ranks that get its keys and values; an owner gets all."""
        return (self.decode[self.owner],) if self.owner >= 0 else self.decode

    @property
    def cache_name(self) -> str:
        return f"request {self.number + 1} KV cache"

    def token_name(self, token: int) -> str:
        """Return the name of a decode step in the timeline, from token 0 on."""
        return f"request {self.number + 1} token {token + 1}"


class ServingProgram:
    """``job`` with requests at ``arrivals``; GPUs are taken in rank order, prefill first."""

    def __init__(
        self, job: ServingJob, arrivals: Sequence[int], topology: Topology, seed: int
    ) -> None:
        self.job, self.topology, self._seed = job, topology, seed
        self.requests = [self._served(number, at) for number, at in enumerate(arrivals)]

    def _served(self, number: int, arrival_ns: int) -> Served:
        job = self.job
        instance, decoder = number % job.prefill, number % job.decode
        first = job.prefill * job.prefill_gpus + decoder * job.decode_gpus
        turn = number // job.decode
        before = number - job.decode * job.places
        return Served(
            number=number,
            arrival_ns=arrival_ns,
            prefill=tuple(range(instance * job.prefill_gpus, (instance + 1) * job.prefill_gpus)),
            decode=tuple(range(first, first + job.decode_gpus)),
            owner=turn % job.decode_gpus if job.by_experts else -1,
            prefill_after=number - job.prefill if number >= job.prefill else None,
            decode_after=before if before >= 0 else None,
        )

    # -- schedules -------------------------------------------------------------------------------

    def compile(self) -> tuple[Schedule, ...]:
        """Return the schedules of all GPUs; those that are not compiled have buffers alone."""
        program = Program.on(self.topology)
        prefilled: list[dict[int, int]] = []
        decoded: list[dict[int, tuple[int, ...]]] = []
        for one in self.requests:
            with program.named(f"until request {one.number + 1}"):
                arrived = {
                    rank: _compute(program, rank, one.arrival_ns, ()) for rank in one.prefill
                }
            with program.named(f"request {one.number + 1} prefill"):
                layers = self._prefill(program, one, arrived, prefilled)
            prefilled.append({rank: done[-1] for rank, done in layers.items()})
            with program.named(one.cache_name):
                cached = self._transfer(program, one, layers)
            ready = {rank: list(cached.get(rank, ())) for rank in one.decode}
            if one.decode_after is not None:
                for rank, done in decoded[one.decode_after].items():
                    ready[rank] += done
            decoded.append(self._decode(program, one, ready))
        return program.schedules()

    def _prefill(
        self,
        program: Program,
        one: Served,
        arrived: dict[int, int],
        prefilled: Sequence[dict[int, int]],
    ) -> dict[int, list[int]]:
        """Compute layer by layer; return the operations of each GPU, one for each layer."""
        found = {}
        for rank in one.prefill:
            after = [arrived[rank]]
            if one.prefill_after is not None:
                after.append(prefilled[one.prefill_after][rank])
            done: list[int] = []
            for layer in range(self.job.shape.layers):
                length = self.job.layer_ns(layer)
                done.append(_compute(program, rank, length, tuple(after)))
                after = [done[-1]]
            found[rank] = done
        return found

    def _transfer(
        self, program: Program, one: Served, layers: dict[int, list[int]]
    ) -> dict[int, list[int]]:
        """Send keys and values; return the receives of each decode GPU."""
        job, count = self.job, self.job.shape.layers
        shares = [
            (
                *(source, target, octets),
                program.allocate(source, _CACHE, count * octets),
                program.allocate(target, _CACHED, count * octets),
            )
            for source, target, octets in self._shares(one)
        ]
        shares = [share for share in shares if program.wants(*share[:2])]
        found: dict[int, list[int]] = {}
        parts = [(layer, 1) for layer in range(count)] if job.by_layer else [(0, count)]
        for first, some in parts:
            for source, target, octets, here, there in shares:
                _, received = program.transfer(
                    source,
                    target,
                    Region(_CACHE, here.offset + first * octets, some * octets),
                    Region(_CACHED, there.offset + first * octets, some * octets),
                    after=(layers[source][first + some - 1],),
                )
                found.setdefault(target, []).append(received)
        return found

    def _decode(
        self, program: Program, one: Served, ready: dict[int, list[int]]
    ) -> dict[int, tuple[int, ...]]:
        """Make the tokens one after the other; return what each GPU's last step ends with."""
        current = {rank: tuple(after) for rank, after in ready.items()}
        if not program.wants(*one.decode):
            self._reserve(program, one)
            return current
        for token in range(self.job.output):
            with program.named(one.token_name(token)):
                if self.job.by_experts:
                    current = self._expert_step(program, one, current)
                else:
                    current = self._tensor_step(program, one, current)
        return current

    def _reserve(self, program: Program, one: Served) -> None:
        """Allocate what the tokens exchange, where no GPU that decodes is compiled."""
        for source, target in self._step_messages(one):
            program.allocate(source, _STATES, self.job.output * self._step_bytes)
            program.allocate(target, _GATHERED, self.job.output * self._step_bytes)

    def _tensor_step(
        self, program: Program, one: Served, current: dict[int, tuple[int, ...]]
    ) -> dict[int, tuple[int, ...]]:
        length = self.job.before_exchange_ns
        found = {rank: [_compute(program, rank, length, current[rank])] for rank in one.decode}
        begun = {rank: tuple(done) for rank, done in found.items()}
        for source, target in self._pairs(one):
            _, received = self._send(program, source, target, self.job.reduce_bytes, begun[source])
            found[target].append(received)
        return {rank: tuple(done) for rank, done in found.items()}

    def _expert_step(
        self, program: Program, one: Served, current: dict[int, tuple[int, ...]]
    ) -> dict[int, tuple[int, ...]]:
        owner, octets = one.decode[one.owner], self.job.expert_bytes
        attended = _compute(program, owner, self.job.before_exchange_ns, current[owner])
        ends = [_compute(program, owner, self.job.expert_ns, (attended,))]
        for rank in one.decode:
            if rank == owner:
                continue
            _, dispatched = self._send(program, owner, rank, octets, (attended,))
            worked = _compute(program, rank, self.job.expert_ns, (dispatched,))
            _, combined = self._send(program, rank, owner, octets, (worked,))
            ends.append(combined)
        return {rank: tuple(ends) if rank == owner else () for rank in one.decode}

    def _send(
        self, program: Program, source: int, target: int, octets: int, after: tuple[int, ...]
    ) -> tuple[int, int]:
        return program.transfer(
            source,
            target,
            program.allocate(source, _STATES, octets),
            program.allocate(target, _GATHERED, octets),
            after=after,
        )

    def _shares(self, one: Served) -> Iterator[tuple[int, int, int]]:
        """Yield source and target of keys and values, and the octets of a layer between them."""
        for place, source in enumerate(one.prefill):
            for number, target in enumerate(one.cache_targets):
                octets = self.job.shared_cache(place, number)
                if octets:
                    yield source, target, octets

    def _pairs(self, one: Served) -> list[tuple[int, int]]:
        """Return source and target of all messages of a tensor-parallel step, in rounds."""
        gpus = one.decode
        return [
            (gpus[place], gpus[(place + step) % len(gpus)])
            for step in range(1, len(gpus))
            for place in range(len(gpus))
        ]

    # -- data ------------------------------------------------------------------------------------

    def inputs(self, rank: int) -> Contents:
        """Return what the buffers of ``rank`` hold at the start."""
        return self._contents(rank, 0, (_CACHE, _STATES))

    def expected(self, rank: int) -> Contents:
        """Return what the buffers of ``rank`` hold at the end."""
        return self._contents(rank, 1, (_CACHED, _GATHERED))

    def _contents(self, rank: int, end: int, names: tuple[str, str]) -> Contents:
        """Return the octets that ``rank`` sends (``end`` 0) or gets (1), region by region."""
        caches, states = [], []
        for one in self.requests:
            count = self.job.shape.layers
            for source, target, octets in self._shares(one):
                if (source, target)[end] == rank:
                    caches.append(self._drawn(count * octets, 0, one.number, source, target))
            if rank not in one.decode:
                continue
            for token in range(self.job.output):
                for source, target in self._step_messages(one):
                    if (source, target)[end] == rank:
                        name = (1, one.number, token, source, target)
                        states.append(self._drawn(self._step_bytes, *name))
        both = zip(names, (caches, states), strict=True)
        return {name: np.concatenate(parts) for name, parts in both if parts}

    @property
    def _step_bytes(self) -> int:
        return self.job.expert_bytes if self.job.by_experts else self.job.reduce_bytes

    def _step_messages(self, one: Served) -> list[tuple[int, int]]:
        """Return source and target of all messages of a step, in the order of the schedule."""
        if not self.job.by_experts:
            return self._pairs(one)
        owner = one.decode[one.owner]
        return [
            pair for rank in one.decode if rank != owner for pair in ((owner, rank), (rank, owner))
        ]

    def _drawn(self, octets: int, *name: int) -> np.ndarray:
        rng = np.random.default_rng((self._seed, *name))
        return np.frombuffer(rng.bytes(octets), np.uint8)

    @property
    def memory_bytes(self) -> int:
        """Return about what the buffers of the busiest GPU take."""
        job = self.job
        steps = len(self.requests) * job.output * job.decode_gpus * 2 * self._step_bytes
        return len(self.requests) * job.cache_bytes + steps


def _compute(program: Program, rank: int, duration_ns: int, after: tuple[int, ...]) -> int:
    if not program.wants(rank):
        return program.count(rank)
    return program.append(rank, Compute(duration_ns=duration_ns, after=after))


@dataclass(frozen=True, kw_only=True)
class RequestTimes:
    """The moments of a request in ns after the common start, and its transfer of keys and values.

    ``transfer_gbps`` are the octets of keys and values over the time in which any of them was
    under way.
    """

    arrival_ns: int
    prefill_start_ns: int
    prefill_end_ns: int
    cached_ns: int
    tokens_ns: tuple[int, ...]
    transfer_gbps: float

    @property
    def wait_ns(self) -> int:
        """Return how long the request waits for its prefill."""
        return self.prefill_start_ns - self.arrival_ns

    @property
    def transfer_ns(self) -> int:
        return self.cached_ns - self.prefill_end_ns

    @property
    def decode_init_ns(self) -> int:
        """Return T_decode_init: a place in the batch, and the first step."""
        return self.tokens_ns[0] - self.cached_ns

    @property
    def ttft_ns(self) -> int:
        return self.tokens_ns[0] - self.arrival_ns

    @property
    def itl_ns(self) -> list[int]:
        return [int(gap) for gap in np.diff(self.tokens_ns)]

    @property
    def fabric_share(self) -> float:
        """Return which part of the time to the first token is transfer."""
        return self.transfer_ns / self.ttft_ns


def request_times(
    job: ServingJob, requests: Sequence[Served], parts: ExchangeParts, iteration: Iteration
) -> list[RequestTimes]:
    found: list[RequestTimes] = []
    for one in requests:
        which = parts.messages[one.cache_name]
        starts, ends = iteration.start_ns[which], iteration.end_ns[which]
        # what leaves last does so when the last layer is computed
        prefilled, cached = int(starts.max()), int(ends.max())
        begin = cached
        if one.decode_after is not None:
            begin = max(begin, found[one.decode_after].tokens_ns[-1])
        tokens = []
        for token in range(job.output):
            messages = parts.messages.get(one.token_name(token))
            begin = (
                begin + job.step_ns if messages is None else int(iteration.end_ns[messages].max())
            )
            tokens.append(begin)
        octets = int(iteration.length[which].sum())
        found.append(
            RequestTimes(
                arrival_ns=one.arrival_ns,
                prefill_start_ns=prefilled - job.prefill_ns,
                prefill_end_ns=prefilled,
                cached_ns=cached,
                tokens_ns=tuple(tokens),
                transfer_gbps=octets / _under_way_ns(starts, ends),
            )
        )
    return found


def _under_way_ns(starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> int:
    """Return for how long any of the intervals was under way."""
    order = np.argsort(starts, kind="stable")
    begins, reach = starts[order], np.maximum.accumulate(ends[order])
    # an interval adds what lies beyond the reach of those before it
    before = np.concatenate([begins[:1], reach[:-1]])
    return int((reach - np.maximum(begins, before)).sum())
