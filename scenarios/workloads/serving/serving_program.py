"""A serving job as schedules: prefill, transfer of keys and values, and decode of each request.

Prefill instance r mod P serves request r, one after the other in the order of arrival. Decode
instance r mod D serves it next.  There it takes the place that an earlier request leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from emulator.scenario import Contents
from emulator.sim.endpoint.operations.schedule import (
    Compute,
    Region,
    Schedule,
)
from scenarios.collectives.program import Program
from scenarios.workloads.serving.serving_job import ServingJob
from topologies.model import Topology

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
        """Return the name of its transfer in the timeline."""
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
