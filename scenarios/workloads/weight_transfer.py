"""New weights on their way from trainers to rollout servers, of another sharding.

Weights are numbers of 16 bits, in buckets.  Each trainer has a part of every bucket, as with FSDP;
each GPU of a rollout server has another one, as with tensor parallelism.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from emulator.run.measures.gpu_execution import GpuExecution
from emulator.scenario import Contents
from emulator.sim.endpoint.operations.gpu_functions import Octets, gpu_function, name_of
from emulator.sim.endpoint.operations.schedule import (
    Apply,
    Compute,
    Region,
    Schedule,
    only_operations_of,
)
from scenarios.collectives.blocks import Block
from scenarios.collectives.program import Program
from scenarios.collectives.ring import split
from topologies.model import Topology

NONE, BROADCAST, P2P, RELAY, DELTA = MODES = ("none", "broadcast", "p2p", "relay", "delta")
WEIGHTS, BEFORE, GATHERED, RECEIVED, CHANGES = (
    "weights",
    "before",
    "gathered",
    "received",
    "changes",
)
#: Octets of a weight (bfloat16), and of its index among the changes.
WEIGHT_BYTES, INDEX_BYTES = 2, 4
#: A bucket is broadcast in slices of so many octets.
SLICE_BYTES = 64 * 2**10


@gpu_function
def find_changes(inputs: Sequence[Octets], outputs: Sequence[Octets]) -> None:
    """Fill indices and values of the weights that differ from those before."""
    before, now = (one.view(np.uint16) for one in inputs)
    where = np.flatnonzero(before != now)
    outputs[0].view(np.uint32)[:] = where
    outputs[1].view(np.uint16)[:] = now[where]


@gpu_function
def apply_changes(inputs: Sequence[Octets], outputs: Sequence[Octets]) -> None:
    """Overwrite the weights at the indices by the values."""
    outputs[0].view(np.uint16)[inputs[0].view(np.uint32)] = inputs[1].view(np.uint16)


class Share(NamedTuple):
    """What ``rank`` has of a bucket: ``block`` of all weights lies in ``region`` of its memory."""

    rank: int
    block: Block
    region: Region


class Piece(NamedTuple):
    """The octets ``block`` of all weights, which place ``source`` has and place ``target`` needs.

    Places are those among the trainers, and among the GPUs of a server.
    """

    source: int
    target: int
    block: Block


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Messages of ``octets`` that a GPU sends, one each ``every_ns``: ``count`` of them.

    ``beside`` the transfer; else a GPU begins when it has the new weights.
    """

    count: int
    octets: int
    every_ns: int
    beside: bool


@dataclass
class _Written:
    program: Program
    #: operations after which a GPU has all of its weights, by rank
    complete: dict[int, list[int]]


@dataclass(frozen=True, kw_only=True)
class WeightTransfer:
    """The transfer of ``octets`` of weights from ``trainers`` to the GPUs of each of ``servers``.

    All servers have as many GPUs, and a bucket a weight for each GPU at least.  A server passes
    weights on to ``fan_out`` others (relay); ``changed`` is the share of weights that is new
    (delta).  ``swap_ns`` is how long a GPU stands once it has them.
    """

    topology: Topology
    trainers: Sequence[int]
    servers: Sequence[Sequence[int]]
    mode: str
    octets: int
    buckets: int
    fan_out: int
    changed: float
    swap_ns: int
    serving: Serving | None
    seed: int

    def compile(self) -> Sequence[Schedule]:
        """Return the schedules of all GPUs, with the operations of those that are compiled now."""
        return self._written().program.schedules()

    @cached_property
    def _counted(self) -> _Written:
        with only_operations_of(()):
            return self._written()

    @property
    def memory_bytes(self) -> int:
        program = self._counted.program
        return max(sum(program.buffers(rank).values()) for rank in range(program.ranks))

    @property
    def busiest_bytes(self) -> int:
        """Return what the GPU that sends most of the weights sends of them over the fabric."""
        program, sent = self._counted.program, dict[int, int]()
        for (source, target), octets in program.sent.items():
            if (source, target) not in self.serving_pairs and not program.joins(source, target):
                sent[source] = sent.get(source, 0) + octets
        return max(sent.values(), default=0)

    def complete_ns(self, gpu: GpuExecution) -> int | None:
        """Return when a GPU had its new weights, after the common start; None if it gets none."""
        indices = self._counted.complete.get(gpu.result.rank)
        if not indices:
            return None
        return int(gpu.result.operation_end[indices].max()) - gpu.origin_ns

    # -- operations ----------------------------------------------------------------------------

    def _written(self) -> _Written:
        program = Program.on(self.topology)
        written = _Written(program, {rank: [] for server in self.servers for rank in server})
        for number, bucket in enumerate(self._bucket_blocks):
            held = _allocated(program, self.trainers, bucket)
            wanted = [_allocated(program, server, bucket) for server in self.servers]
            if self.mode == DELTA:
                for share in held:
                    program.allocate(share.rank, BEFORE, share.region.length)
            with program.named(f"bucket {number + 1}"):
                done = self._moved(program, bucket, held, wanted)
            for rank, indices in done.items():
                written.complete[rank] += indices
        if self.swap_ns and self.mode != NONE:
            for rank, indices in written.complete.items():
                stand = Compute(duration_ns=self.swap_ns, after=tuple(indices))
                indices[:] = [program.append(rank, stand)]
        if self.serving is not None:
            with program.named("serving"):
                self._serve(program, self.serving, written.complete)
        return written

    def _moved(
        self, program: Program, bucket: Block, held: list[Share], wanted: list[list[Share]]
    ) -> dict[int, list[int]]:
        """Move a bucket; return the operations after which each rollout GPU has its part."""
        if self.mode == BROADCAST:
            return self._broadcast(program, bucket, held, wanted)
        if self.mode == P2P:
            return self._direct(program, bucket, held, wanted)
        if self.mode == RELAY:
            return self._relay(program, bucket, held, wanted)
        if self.mode == DELTA:
            return self._delta(program, bucket, held, wanted)
        return {}

    def _broadcast(
        self, program: Program, bucket: Block, held: list[Share], wanted: list[list[Share]]
    ) -> dict[int, list[int]]:
        """Gather the bucket at the first trainer, and pass all of it on along all GPUs."""
        root = held[0].rank
        there = program.allocate(root, GATHERED, bucket.length)
        ready = []
        for share in held:
            into = _part(there, bucket, share.block)
            if share.rank == root:
                ready.append(_copied(program, root, share.region, into))
            else:
                ready.append(program.transfer(share.rank, root, share.region, into)[1])
        shares = [share for server in wanted for share in server]
        arrived: dict[int, list[int]] = {share.rank: [] for share in shares}
        places = {
            share.rank: program.allocate(share.rank, RECEIVED, bucket.length) for share in shares
        }
        places[root] = there
        for at in range(0, bucket.length, SLICE_BYTES):
            part = Block(bucket.offset + at, min(SLICE_BYTES, bucket.length - at))
            after: Sequence[int] = ready
            for source, target in pairwise([root, *arrived]):
                local, remote = (_part(places[rank], bucket, part) for rank in (source, target))
                _, received = program.transfer(source, target, local, remote, after=after)
                arrived[target].append(received)
                after = (received,)
        done = {}
        for share in shares:
            here = _part(places[share.rank], bucket, share.block)
            after = arrived[share.rank]
            done[share.rank] = [_copied(program, share.rank, here, share.region, after)]
        return done

    def _direct(
        self, program: Program, bucket: Block, held: list[Share], wanted: list[list[Share]]
    ) -> dict[int, list[int]]:
        """Let each trainer write what it has to each GPU that needs it, beginning at another."""
        done: dict[int, list[int]] = {}
        for turn in range(len(wanted)):
            for source, target, block in self._pieces(bucket):
                share, place = held[source], wanted[(source + turn) % len(wanted)][target]
                local, remote = (_part(one.region, one.block, block) for one in (share, place))
                _, received = program.transfer(share.rank, place.rank, local, remote)
                done.setdefault(place.rank, []).append(received)
        return done

    def _relay(
        self, program: Program, bucket: Block, held: list[Share], wanted: list[list[Share]]
    ) -> dict[int, list[int]]:
        """Write to the first server; each one passes its parts on to ``fan_out`` others."""
        done = self._direct(program, bucket, held, wanted[:1])
        for number, server in enumerate(wanted[1:]):
            for here, there in zip(wanted[number // self.fan_out], server, strict=True):
                _, received = program.transfer(
                    here.rank, there.rank, here.region, there.region, after=done[here.rank]
                )
                done[there.rank] = [received]
        return done

    def _delta(
        self, program: Program, bucket: Block, held: list[Share], wanted: list[list[Share]]
    ) -> dict[int, list[int]]:
        """Write indices and values of the changed weights, which the GPUs overwrite."""
        done: dict[int, list[int]] = {}
        for source, target, block in self._pieces(bucket):
            share = held[source]
            indices = INDEX_BYTES * self._changes(block)
            length = indices + WEIGHT_BYTES * self._changes(block)
            changes = program.allocate(share.rank, CHANGES, length)
            now = _part(share.region, share.block, block)
            found = program.append(
                share.rank,
                Apply(
                    function=name_of(find_changes),
                    inputs=(Region(BEFORE, now.offset, now.length), now),
                    outputs=_halves(changes, indices),
                ),
            )
            for turn in range(len(wanted)):
                place = wanted[(source + turn) % len(wanted)][target]
                there = program.allocate(place.rank, CHANGES, length)
                _, received = program.transfer(
                    share.rank, place.rank, changes, there, after=(found,)
                )
                overwrite = Apply(
                    function=name_of(apply_changes),
                    inputs=_halves(there, indices),
                    outputs=(_part(place.region, place.block, block),),
                    after=(received,),
                )
                done.setdefault(place.rank, []).append(program.append(place.rank, overwrite))
        return done

    def _serve(
        self, program: Program, serving: Serving, complete: Mapping[int, Sequence[int]]
    ) -> None:
        for source, target in sorted(self.serving_pairs):
            before = () if serving.beside else tuple(complete[source])
            for _ in range(serving.count):
                local = program.allocate(source, f"to{target}", serving.octets)
                remote = program.allocate(target, f"from{source}", serving.octets)
                pause = Compute(duration_ns=serving.every_ns, after=before)
                before = (program.append(source, pause),)
                program.transfer(source, target, local, remote, after=before)

    @cached_property
    def serving_pairs(self) -> frozenset[tuple[int, int]]:
        """Return who sends while serving: each server to the one before it, on the next rail.

        Weights never go that way.
        """
        if self.serving is None:
            return frozenset()
        return frozenset(
            (source, before[(place + 1) % len(before)])
            for before, server in pairwise(self.servers)
            for place, source in enumerate(server)
        )

    # -- divisions -----------------------------------------------------------------------------

    @property
    def _bucket_blocks(self) -> list[Block]:
        return split(self.octets // WEIGHT_BYTES, self.buckets, WEIGHT_BYTES)

    def _pieces(self, bucket: Block) -> Iterator[Piece]:
        """Yield the pieces of a bucket that one trainer has and one GPU of a server needs."""
        for source, held in enumerate(_parts(bucket, len(self.trainers))):
            for target, wanted in enumerate(_parts(bucket, len(self.servers[0]))):
                begin = max(held.offset, wanted.offset)
                end = min(held.offset + held.length, wanted.offset + wanted.length)
                if begin < end:
                    yield Piece(source, target, Block(begin, end - begin))

    def _changes(self, block: Block) -> int:
        """Return how many weights of a piece are new; at least one is."""
        return math.ceil(block.length // WEIGHT_BYTES * self.changed)

    # -- contents ------------------------------------------------------------------------------

    @cached_property
    def _new(self) -> np.ndarray:
        rng = np.random.default_rng((self.seed, 0))
        return rng.integers(0, 2**16, self.octets // WEIGHT_BYTES, np.uint16)

    @cached_property
    def _old(self) -> np.ndarray:
        """Return the weights before: in each piece some others."""
        rng, old = np.random.default_rng((self.seed, 1)), self._new.copy()
        for bucket in self._bucket_blocks:
            for piece in self._pieces(bucket):
                count, first = (
                    piece.block.length // WEIGHT_BYTES,
                    piece.block.offset // WEIGHT_BYTES,
                )
                where = first + rng.choice(count, self._changes(piece.block), replace=False)
                old[where] ^= rng.integers(1, 2**16, len(where), np.uint16)
        return old

    def _share(self, weights: np.ndarray, ranks: Sequence[int], rank: int) -> np.ndarray:
        parts = [_parts(bucket, len(ranks))[ranks.index(rank)] for bucket in self._bucket_blocks]
        return np.concatenate(
            [weights.view(np.uint8)[one.offset : one.offset + one.length] for one in parts]
        )

    def _server(self, rank: int) -> Sequence[int] | None:
        return next((server for server in self.servers if rank in server), None)

    def _served(self, pair: tuple[int, int]) -> np.ndarray:
        assert self.serving is not None
        rng = np.random.default_rng((self.seed, 2, *pair))
        return rng.integers(0, 256, self.serving.count * self.serving.octets, np.uint8)

    def inputs(self, rank: int) -> Contents:
        """Return what the buffers of ``rank`` hold at the start."""
        found = {
            f"to{pair[1]}": self._served(pair) for pair in self.serving_pairs if pair[0] == rank
        }
        server = self._server(rank)
        if rank in self.trainers:
            found[WEIGHTS] = self._share(self._new, self.trainers, rank)
            if self.mode == DELTA:
                found[BEFORE] = self._share(self._old, self.trainers, rank)
        elif server is not None and self.mode == DELTA:
            found[WEIGHTS] = self._share(self._old, server, rank)
        return found

    def expected(self, rank: int) -> Contents:
        """Return what the buffers of ``rank`` hold at the end."""
        found = {
            f"from{pair[0]}": self._served(pair) for pair in self.serving_pairs if pair[1] == rank
        }
        server = self._server(rank)
        if server is not None and self.mode != NONE:
            found[WEIGHTS] = self._share(self._new, server, rank)
        return found


def _copied(
    program: Program, rank: int, here: Region, there: Region, after: Sequence[int] = ()
) -> int:
    return program.reduce(rank, here, there, dtype="uint16", function="replace", after=after)


def _parts(bucket: Block, count: int) -> list[Block]:
    return split(
        bucket.length // WEIGHT_BYTES, count, WEIGHT_BYTES, first=bucket.offset // WEIGHT_BYTES
    )


def _allocated(program: Program, ranks: Sequence[int], bucket: Block) -> list[Share]:
    return [
        Share(rank, block, program.allocate(rank, WEIGHTS, block.length))
        for rank, block in zip(ranks, _parts(bucket, len(ranks)), strict=True)
    ]


def _part(region: Region, holds: Block, block: Block) -> Region:
    """Return where ``block`` of all weights lies in ``region``, which ``holds`` others as well."""
    return Region(region.buffer, region.offset + block.offset - holds.offset, block.length)


def _halves(region: Region, first: int) -> tuple[Region, Region]:
    """Return the first octets of ``region``, and the others."""
    return (
        Region(region.buffer, region.offset, first),
        Region(region.buffer, region.offset + first, region.length - first),
    )
