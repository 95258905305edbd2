"""Collectives of a trace as messages: rings on their rails, and pairs.

Nothing of a member leaves before its own operations allow it, and its part enters a sum only then.
Sums arrive in places of their own, so no region is written twice.

All-reduce is reduce-scatter and all-gather on rings, one for each member of a server (drawing in
``scenarios.collectives.ring``).  Broadcast and reduce go along a ring's ranks from or to the root,
in slices.  All-to-all goes in rounds: in round k the member at position p sends to p+k; whose part
is empty sends nothing.  Gather and scatter are messages to and from the root.  A barrier is an
all-reduce of one element.

Real data of a replayed collective: what each member puts in, and what it must get.

Elements are whole numbers so small that float32 holds every sum exactly. Where the size is no
multiple of four they are octets, whose sums are taken modulo 256.  So the order of additions cannot
matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np

from emulator.sim.endpoint.operations.schedule import Region
from scenarios.collectives import ring
from scenarios.collectives.blocks import Block, Ring, RingChannel
from scenarios.collectives.program import Program
from scenarios.traces.trace_model import Collective

#: The octets that each member of an all-to-all sends to each, where parts differ.
Splits = tuple[tuple[int, ...], ...]
#: Rounds of an all-to-all that are under way at a time, as NCCL has eight.
ROUNDS_AT_ONCE = 8


def split_equally(octets: int, members: int) -> tuple[int, ...]:
    return (octets // members,) * members


@dataclass(frozen=True)
class Held:
    """A region of a member, and the operations after which its contents are there."""

    region: Region
    after: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ReplayedCollective:
    """One collective, written into ``program``.

    ``ranks`` are the members by position, ``rings`` the same as rings.  Buffers are ``input`` and
    ``output``, ``entry`` has by rank what must be over before it begins.  ``ends`` collects by rank
    what must be over before it is done.  ``root`` is for collectives that have one.
    """

    program: Program
    kind: Collective
    ranks: tuple[int, ...]
    rings: Sequence[Ring]
    octets: int
    element: int
    dtype: str
    root: int
    splits: Splits
    source: str
    result: str
    staging: str
    slice_bytes: int
    entry: Mapping[int, tuple[int, ...]]
    ends: dict[int, list[int]]

    def write(self) -> None:
        if len(self.ranks) > 1 and (self.octets or self.splits):
            _WRITERS[self.kind](self)

    @property
    def part(self) -> int:
        return self.octets // len(self.ranks)

    def result_begin(self, rank: int) -> int:
        if self.kind is Collective.REDUCE_SCATTER:
            return self.ranks.index(rank) * self.part
        return 0

    def move(self, source: int, held: Held, destination: int, into: Region) -> Held:
        """Send what ``source`` holds to ``destination``; return what that holds then."""
        after = dict.fromkeys((*held.after, *self.entry[source]))
        send, receive = self.program.transfer(source, destination, held.region, into, after=after)
        self.ends[source].append(send)
        self.ends[destination].append(receive)
        return Held(into, (receive,))

    def add(self, rank: int, own: Region, held: Held) -> Held:
        index = self.program.reduce(
            rank,
            own,
            held.region,
            dtype=self.dtype,
            after=(*held.after, *self.entry[rank]),
        )
        self.ends[rank].append(index)
        return Held(held.region, (index,))

    def slices(self, block: Block) -> list[Block]:
        end = block.offset + block.length
        return [
            Block(at, min(self.slice_bytes, end - at))
            for at in range(block.offset, end, self.slice_bytes)
        ]

    def channels(self) -> list[RingChannel]:
        """Return the rings with their shares of the whole, and a block for each member."""
        return ring.channels(self.rings, self.octets // self.element, self.element)

    def part_channels(self) -> list[RingChannel]:
        position = {rank: at for at, rank in enumerate(self.ranks)}
        shares = ring.split(self.part // self.element, len(self.rings), self.element)
        return [
            RingChannel(
                one,
                tuple(
                    Block(position[rank] * self.part + share.offset, share.length) for rank in one
                ),
            )
            for one, share in zip(self.rings, shares, strict=True)
        ]


#: By channel, position and slice: what a member holds of the block of its position.
HeldBlocks = list[list[list[Held]]]


def _reduce_scatter(one: ReplayedCollective, channels: Sequence[RingChannel]) -> HeldBlocks:
    held: HeldBlocks = []
    for channel in channels:
        held.append(
            [
                [
                    Held(Region(one.source, piece.offset, piece.length), one.entry[rank])
                    for piece in one.slices(channel.blocks[at - 1])
                ]
                for at, rank in enumerate(channel.ring)
            ]
        )
    for step in range(len(one.ranks) - 1):
        last = step == len(one.ranks) - 2
        for number, channel in enumerate(channels):
            size = len(channel.ring)
            arrived: list[list[Held]] = [[] for _ in channel.ring]
            for at, rank in enumerate(channel.ring):
                to = (at + 1) % size
                peer = channel.ring[to]
                block = channel.blocks[(at - step - 1) % size]
                for piece, mine in zip(one.slices(block), held[number][at], strict=True):
                    if last:
                        begin = piece.offset - one.result_begin(peer)
                        into = Region(one.result, begin, piece.length)
                    else:
                        into = one.program.allocate(peer, one.staging, piece.length)
                    got = one.move(rank, mine, peer, into)
                    own = Region(one.source, piece.offset, piece.length)
                    arrived[to].append(one.add(peer, own, got))
            held[number] = arrived
    return held


def _all_gather(one: ReplayedCollective, channels: Sequence[RingChannel], held: HeldBlocks) -> None:
    for step in range(len(one.ranks) - 1):
        for number, channel in enumerate(channels):
            size = len(channel.ring)
            arrived: list[list[Held]] = [[] for _ in channel.ring]
            for at, rank in enumerate(channel.ring):
                to = (at + 1) % size
                block = channel.blocks[(at - step) % size]
                for piece, mine in zip(one.slices(block), held[number][at], strict=True):
                    into = Region(one.result, piece.offset, piece.length)
                    arrived[to].append(one.move(rank, mine, channel.ring[to], into))
            held[number] = arrived


def _write_all_reduce(one: ReplayedCollective) -> None:
    channels = one.channels()
    _all_gather(one, channels, _reduce_scatter(one, channels))


def _write_reduce_scatter(one: ReplayedCollective) -> None:
    _reduce_scatter(one, one.part_channels())


def _write_all_gather(one: ReplayedCollective) -> None:
    channels = one.part_channels()
    held = [
        [
            [
                Held(Region(one.result, piece.offset, piece.length), one.entry[rank])
                for piece in one.slices(channel.blocks[at])
            ]
            for at, rank in enumerate(channel.ring)
        ]
        for channel in channels
    ]
    _all_gather(one, channels, held)


def _write_all_to_all(one: ReplayedCollective) -> None:
    ranks = one.ranks
    splits = one.splits or (split_equally(one.octets, len(ranks)),) * len(ranks)
    begins = [[0, *accumulate(parts)] for parts in splits]
    places = [[0, *accumulate(parts)] for parts in zip(*splits, strict=True)]
    rounds: list[dict[int, tuple[int, ...]]] = []
    for number in range(1, len(ranks)):
        before = rounds[number - 1 - ROUNDS_AT_ONCE] if number > ROUNDS_AT_ONCE else {}
        over: dict[int, list[int]] = {rank: [] for rank in ranks}
        for at, rank in enumerate(ranks):
            to = (at + number) % len(ranks)
            part = splits[at][to]
            if not part:
                continue
            send, receive = one.program.transfer(
                rank,
                ranks[to],
                Region(one.source, begins[at][to], part),
                Region(one.result, places[to][at], part),
                after=(*one.entry[rank], *before.get(rank, ())),
            )
            over[rank].append(send)
            over[ranks[to]].append(receive)
        rounds.append({rank: tuple(done) for rank, done in over.items()})
        for rank, done in over.items():
            one.ends[rank] += done


def _from_root(one: ReplayedCollective, channel: Ring) -> Ring:
    at = channel.index(one.root)
    return (*channel[at:], *channel[:at])


def _write_broadcast(one: ReplayedCollective) -> None:
    shares = ring.split(one.octets // one.element, len(one.rings), one.element)
    for channel, share in zip(one.rings, shares, strict=True):
        walk = _from_root(one, channel)
        for piece in one.slices(share):
            region = Region(one.result, piece.offset, piece.length)
            held = Held(region, one.entry[walk[0]])
            for rank, following in pairwise(walk):
                held = one.move(rank, held, following, region)


def _write_reduce(one: ReplayedCollective) -> None:
    shares = ring.split(one.octets // one.element, len(one.rings), one.element)
    for channel, share in zip(one.rings, shares, strict=True):
        first, *behind = _from_root(one, channel)
        walk = (*behind, first)  # the root is the last
        for piece in one.slices(share):
            own = Region(one.source, piece.offset, piece.length)
            held = Held(own, one.entry[walk[0]])
            for rank, following in pairwise(walk):
                if following == one.root:
                    into = Region(one.result, piece.offset, piece.length)
                else:
                    into = one.program.allocate(following, one.staging, piece.length)
                held = one.add(following, own, one.move(rank, held, following, into))


def _write_gather(one: ReplayedCollective) -> None:
    for at, rank in enumerate(one.ranks):
        if rank != one.root:
            for piece in one.slices(Block(0, one.part)):
                held = Held(Region(one.source, piece.offset, piece.length), one.entry[rank])
                into = Region(one.result, at * one.part + piece.offset, piece.length)
                one.move(rank, held, one.root, into)


def _write_scatter(one: ReplayedCollective) -> None:
    for at, rank in enumerate(one.ranks):
        if rank != one.root:
            for piece in one.slices(Block(0, one.part)):
                source = Region(one.source, at * one.part + piece.offset, piece.length)
                into = Region(one.result, piece.offset, piece.length)
                one.move(one.root, Held(source, one.entry[one.root]), rank, into)


_WRITERS: Mapping[Collective, Callable[[ReplayedCollective], None]] = {
    Collective.ALL_REDUCE: _write_all_reduce,
    Collective.ALL_GATHER: _write_all_gather,
    Collective.REDUCE_SCATTER: _write_reduce_scatter,
    Collective.ALL_TO_ALL: _write_all_to_all,
    Collective.BROADCAST: _write_broadcast,
    Collective.REDUCE: _write_reduce,
    Collective.GATHER: _write_gather,
    Collective.SCATTER: _write_scatter,
    Collective.BARRIER: _write_all_reduce,
}


Buffers = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class CollectivePayload:
    """The buffers ``input`` and ``output`` of each of ``ranks``; ``key`` chooses the numbers."""

    kind: Collective
    ranks: tuple[int, ...]
    octets: int
    root: int
    key: tuple[int, ...]
    splits: Splits = ()

    @cached_property
    def dtype(self) -> np.dtype:
        """The type of an element, of which each part has a whole number."""
        if self.splits:
            uneven = any(octets % 4 for parts in self.splits for octets in parts)
            return np.dtype(np.uint8 if uneven else np.float32)
        unit = len(self.ranks) * 4 if self.kind.divided else 4
        return np.dtype(np.uint8 if self.octets % unit else np.float32)

    @property
    def moves(self) -> bool:
        return (self.octets > 0 or bool(self.splits)) and len(self.ranks) > 1

    def memory_octets(self, rank: int) -> int:
        """Return about what the buffers of ``rank`` take, also those on the way."""
        return sum(self.buffers(rank).values()) if self.splits else 3 * self.octets

    def buffers(self, rank: int) -> dict[str, int]:
        if not self.moves:
            return {}
        found = {}
        if self.splits:
            at = self.ranks.index(rank)
            sizes = {"input": sum(self.splits[at]), "output": sum(self._arriving(at))}
            return {name: octets for name, octets in sizes.items() if octets}
        if self._input_parts(rank):
            found["input"] = self._input_parts(rank) * self._part
        if self._output_parts(rank):
            found["output"] = self._output_parts(rank) * self._part
        return found

    def inputs(self, rank: int) -> Buffers:
        if not self.moves:
            return {}
        found: dict[str, np.ndarray] = {}
        if self.splits:
            return self._split_inputs(self.ranks.index(rank))
        if self._input_parts(rank):
            found["input"] = self._own(rank)
        own = self._in_place(rank)
        if own is not None:
            found["output"] = own
        return found

    def expected(self, rank: int) -> Buffers:
        if not self.moves or not self._output_parts(rank):
            return {}
        if self.splits:
            at = self.ranks.index(rank)
            arriving = enumerate(self._arriving(at))
            parts = [self._numbers(source, at, octets) for source, octets in arriving]
            return _unless_empty(output=np.concatenate(parts))
        return {"output": self._result(rank)}

    def _arriving(self, at: int) -> list[int]:
        """Return the octets that the member at this position gets from each."""
        return [parts[at] for parts in self.splits]

    def _split_inputs(self, at: int) -> Buffers:
        parts = [self._numbers(at, to, octets) for to, octets in enumerate(self.splits[at])]
        output = np.zeros(sum(self._arriving(at)) // self.dtype.itemsize, self.dtype)
        begin = sum(self._arriving(at)[:at]) // self.dtype.itemsize
        output[begin : begin + len(parts[at])] = parts[at]
        return _unless_empty(input=np.concatenate(parts), output=output)

    @property
    def _part(self) -> int:
        """Return the octets of which buffers hold one, or one for each rank."""
        return self.octets // len(self.ranks) if self.kind.divided else self.octets

    def _input_parts(self, rank: int) -> int:
        match self.kind:
            case Collective.ALL_GATHER | Collective.BROADCAST:
                return 0
            case Collective.GATHER:
                return int(rank != self.root)
            case Collective.SCATTER:
                return len(self.ranks) if rank == self.root else 0
            case Collective.REDUCE_SCATTER | Collective.ALL_TO_ALL:
                return len(self.ranks)
        return 1

    def _output_parts(self, rank: int) -> int:
        match self.kind:
            case Collective.ALL_GATHER | Collective.ALL_TO_ALL:
                return len(self.ranks)
            case Collective.GATHER:
                return len(self.ranks) if rank == self.root else 0
            case Collective.REDUCE:
                return int(rank == self.root)
        return 1

    def _own(self, rank: int) -> np.ndarray:
        at = self.ranks.index(rank)
        match self.kind:
            case Collective.ALL_TO_ALL | Collective.SCATTER:
                return np.concatenate(
                    [self._numbers(at, to, self._part) for to in range(len(self.ranks))]
                )
            case Collective.ALL_GATHER | Collective.GATHER:
                return self._numbers(at, 0, self._part)
        return self._numbers(at, 0, self.octets)

    def _in_place(self, rank: int) -> np.ndarray | None:
        """Return what the result of ``rank`` holds from the start, if it holds anything."""
        at = self.ranks.index(rank)
        parts = self._output_parts(rank)
        place = at
        match self.kind:
            case Collective.ALL_GATHER:
                own = self._own(rank)
            case Collective.ALL_TO_ALL:
                own = self._numbers(at, at, self._part)
            case Collective.BROADCAST if rank == self.root:
                own, place = self._own(rank), 0
            case Collective.GATHER if rank == self.root:
                own = self._own(rank)
            case Collective.SCATTER if rank == self.root:
                own, place = self._numbers(at, at, self._part), 0
            case _:
                return None
        result = np.zeros((parts, len(own)), own.dtype)
        result[place] = own
        return result.reshape(-1)

    def _result(self, rank: int) -> np.ndarray:
        at = self.ranks.index(rank)
        members = range(len(self.ranks))
        match self.kind:
            case Collective.ALL_GATHER | Collective.GATHER:
                return self._joined
            case Collective.ALL_TO_ALL:
                return np.concatenate([self._numbers(source, at, self._part) for source in members])
            case Collective.BROADCAST:
                return self._own(self.root)
            case Collective.SCATTER:
                return self._numbers(self.ranks.index(self.root), at, self._part)
            case Collective.REDUCE_SCATTER:
                part = self._part // self.dtype.itemsize
                return self._total[at * part : (at + 1) * part]
        return self._total

    @cached_property
    def _joined(self) -> np.ndarray:
        return np.concatenate([self._own(rank) for rank in self.ranks])

    @cached_property
    def _total(self) -> np.ndarray:
        total = self._numbers(0, 0, self.octets)
        for at in range(1, len(self.ranks)):
            total += self._numbers(at, 0, self.octets)
        return total

    def _numbers(self, at: int, to: int, octets: int) -> np.ndarray:
        rng = np.random.default_rng((*self.key, at, to))
        count = octets // self.dtype.itemsize
        if self.dtype == np.uint8:
            return np.frombuffer(rng.bytes(count), np.uint8).copy()
        bound = 2**24 // len(self.ranks)
        return rng.integers(-bound, bound, count, np.int32).astype(np.float32)


def _unless_empty(**buffers: np.ndarray) -> Buffers:
    return {name: content for name, content in buffers.items() if len(content)}
