"""Ring collectives: the order of the ring, reduce-scatter and all-gather.

Every rank sends to its successor and receives from its predecessor.  With n ranks the data is cut
into n blocks; block p belongs to the rank at position p::

    reduce-scatter, step k: position p sends block p-k-1 (mod n) to p+1, which adds its own part;
                            after n-1 steps position p holds the sum of block p
    all-gather,     step k: position p sends block p-k (mod n) to p+1;
                            after n-1 steps everybody holds every block

A rank sends (n-1)/n of the data in each half.  Blocks are cut into slices, and a slice is sent on
as soon as it is there. So other slices are transmitted during a hop's latency.

A ring visits each server once.  Inside a server it walks over the scale-up network; between servers
it leaves and enters through NICs.  A NIC belongs to one GPU. So the ring stays on a rail only if
the sender to the next server has the local rank of the GPU that receives there.  Channel c (one
ring per local rank) therefore snakes between two rails a = c and b = c+1::

    channel 0, 4 GPUs per server        (each number is a local rank)

      server 0        server 1        server 2        server 3
      0 2 3 1 ======> 1 3 2 0 ======> 0 2 3 1 ======> 1 3 2 0 ==+
      ^      rail 1          rail 0          rail 1             |  rail 0
      +=========================================================+

Even servers are entered at a and left at b, odd servers the other way round.  Over all channels
every NIC sends for exactly one channel and receives for exactly one.  An odd number of servers
cannot be closed like this: the last hop of each channel then crosses from rail b to rail a.

Where the GPUs of a server are a mesh, channel c zigzags: c, c+1, c-1, c+2, and so on to b = c+n/2.
The channels of an even number n of GPUs so use each link once, each way, as RCCL's rings of eight
MI300X do (``rome_models.cc``).  Eight GPUs without other servers have seven rings, closed over the
same links.

No region is written twice by reduce-scatter followed by all-gather: partial sums arrive in slots
of their own, the last one in the result, and the source is only read.  So neither the ring nor a
repetition of it has to wait until a neighbour has let go of a buffer.

Operations of all ranks are made in columns.  In step s of a walk whose first block is ``first``,
position p of m ranks sends the block p + first - s (modulo m). It gets the block before that one.
The program of a rank has its steps one after the other. Each step has the channels in turn, and
each channel the positions of the ring: what the predecessor sends stands before what a rank sends
itself, but for position 0.  A rank does the same in every step with other arguments, so that
columns of all steps are reckoned at once: a fabric of 512 GPUs has ten million operations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emulator.errors import UserError
from emulator.sim.endpoint.operations.elementwise import FUNCTION_NUMBERS
from emulator.sim.endpoint.operations.operation_table import (
    COPY,
    RECEIVE,
    REDUCE,
    WRITE,
    OperationTable,
)
from scenarios.collectives.blocks import Block, Ready, Ring, RingChannel
from scenarios.collectives.program import Program
from topologies.model import MESH, RING, SWITCH, Topology
from topologies.parts.scale_up import ScaleUpDomains

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Buffers:
    """Blocks come from ``source`` and end in ``result``.

    With ``staging`` they are sums: what arrives waits there until ``source`` is added to it.
    """

    source: str
    result: str
    staging: str | None = None
    dtype: str = ""
    function: str = "sum"


@dataclass
class _Pieces:
    """Slices of the blocks of all steps that a rank gets, or sends, in one channel.

    ``at`` and ``octets`` are where they belong, ``buffer`` and ``place`` where they lie in the
    memory of who gets them, ``index`` those of the operations.
    """

    step: Integers
    at: Integers
    octets: Integers
    channel: int
    peer: int
    first_of_step: bool
    buffer: Integers
    place: Integers
    index: Integers
    tag: Integers


class Walk:
    """One walk of all ``channels``, written into ``program``."""

    def __init__(
        self,
        program: Program,
        channels: Sequence[RingChannel],
        slice_bytes: int,
        buffers: Buffers,
        *,
        first: int,
    ) -> None:
        self._program, self._channels = program, channels
        self._slice, self._buffers, self._first = slice_bytes, buffers, first
        number = program.names.number
        self._source, self._result = number(buffers.source), number(buffers.result)
        self._staging = None if buffers.staging is None else number(buffers.staging)
        #: by channel: where its blocks begin, and how long they are
        self._blocks = [
            (
                np.array([block.offset for block in channel.blocks], np.int64),
                np.array([block.length for block in channel.blocks], np.int64),
            )
            for channel in channels
        ]
        #: by rank: channels, and positions in them
        self._places: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for channel, one in enumerate(channels):
            for position, rank in enumerate(one.ring):
                self._places[rank].append((channel, position))

    def ready(self, before: Ready | None) -> Ready:
        """Write the walk, and return what completes the slices of each position's last block.

        Slices of the first block are sent once what ``before`` names is over.  Of ranks that the
        program does not want, nothing is reckoned but where others write to, and nothing returned.
        """
        own = {rank: places for rank, places in self._places.items() if self._program.wants(rank)}
        written = self._successors(own)
        received: dict[int, list[_Pieces]] = {}
        for rank in self._places:
            if rank in own or rank in written:
                received[rank] = self._received(rank)
            else:
                self._reserve(rank)
        into = {
            (pieces.channel, position): pieces
            for rank, found in received.items()
            for pieces, (_, position) in zip(found, self._places[rank], strict=True)
        }
        last: Ready = [[[] for _ in channel.ring] for channel in self._channels]
        shares = {}
        for rank, places in own.items():
            sent = [
                self._pieces(channel, position, self._first, receives=False)
                for channel, position in places
            ]
            self._number(rank, received[rank], sent)
            shares[rank] = sent
        for rank, places in own.items():
            table = self._table(rank, received[rank], shares[rank], into, before)
            self._program.extend(rank, table)
            for (channel, position), pieces in zip(places, received[rank], strict=True):
                steps = len(self._channels[channel].ring) - 1
                held = (pieces.index + (self._staging is not None))[pieces.step == steps - 1]
                last[channel][position] = held.tolist()
                if not steps and before is not None:
                    last[channel][position] = before[channel][position]
        for (source, destination), count in self._transfers(received, shares).items():
            self._program.take_tags(source, destination, count)
        return last

    def _pieces(self, channel: int, position: int, first: int, *, receives: bool) -> _Pieces:
        one = self._channels[channel]
        size = len(one.ring)
        begin, length = self._blocks[channel]
        steps = np.arange(size - 1)
        blocks = (position + first - steps) % size
        count = -(-length[blocks] // self._slice)
        step = np.repeat(steps, count)
        piece = np.arange(len(step)) - np.repeat(np.cumsum(count) - count, count)
        at = begin[blocks][step] + piece * self._slice
        octets = np.minimum(self._slice, (begin + length)[blocks][step] - at)
        nothing = np.zeros(len(step), np.int64)
        return _Pieces(
            step,
            at,
            octets,
            channel,
            one.ring[(position - 1 if receives else position + 1) % size],
            receives == (position > 0),
            nothing,
            nothing,
            nothing,
            nothing,
        )

    def _successors(self, ranks: Collection[int]) -> frozenset[int]:
        return frozenset(
            one.ring[(position + 1) % len(one.ring)]
            for rank in ranks
            for channel, position in self._places[rank]
            for one in (self._channels[channel],)
        )

    def _reserve(self, rank: int) -> None:
        """Allocate the slots of sums that ``rank`` sends on."""
        if self._buffers.staging is None:
            return
        taken = 0
        for channel, position in self._places[rank]:
            _, length = self._blocks[channel]
            size = len(length)
            if size > 1:  # it gets all blocks but one, and keeps the last of them
                ends = (position + self._first) % size, (position + self._first + 1) % size
                taken += int(length.sum()) - int(length[list(ends)].sum())
        if taken:
            self._program.allocate(rank, self._buffers.staging, taken)

    def _received(self, rank: int) -> list[_Pieces]:
        """The slices that ``rank`` gets, with the places where they lie."""
        found = []
        for channel, position in self._places[rank]:
            pieces = self._pieces(channel, position, self._first - 1, receives=True)
            pieces.buffer = np.full(len(pieces.step), self._result)
            pieces.place = pieces.at
            found.append(pieces)
        if self._staging is None or self._buffers.staging is None:
            return found
        # Sums that go on have slots, in the order in which they come.
        octets, order, lengths = _in_turn(found)
        goes_on = np.concatenate(
            [one.step < len(self._channels[one.channel].ring) - 2 for one in found]
        )
        taken = np.where(goes_on, octets, 0)[order]
        if not taken.any():
            return found
        region = self._program.allocate(rank, self._buffers.staging, int(taken.sum()))
        slots = np.empty(len(order), np.int64)
        slots[order] = region.offset + np.cumsum(taken) - taken
        for one, waits, slot in zip(
            found, np.split(goes_on, lengths), np.split(slots, lengths), strict=True
        ):
            one.buffer = np.where(waits, self._staging, self._result)
            one.place = np.where(waits, slot, one.at)
        return found

    def _number(self, rank: int, received: list[_Pieces], sent: list[_Pieces]) -> None:
        """Give the operations of ``rank`` their indices and tags."""
        both = [*received, *sent]
        _, order, lengths = _in_turn(both)
        sums = [2 if self._summed(one, received) else 1 for one in both]
        each = np.repeat(sums, [len(one.step) for one in both])[order]
        index = np.empty(len(order), np.int64)
        index[order] = self._program.operations(rank) + np.cumsum(each) - each
        for one, own in zip(both, np.split(index, lengths), strict=True):
            one.index = own
        for way, parts in ((1, received), (0, sent)):
            peers = np.repeat([one.peer for one in parts], [len(one.step) for one in parts])
            _, order, lengths = _in_turn(parts)
            tags = np.empty(len(order), np.int64)
            for peer in {one.peer for one in parts}:
                own = order[peers[order] == peer]
                pair = (peer, rank) if way else (rank, peer)
                tags[own] = self._program.take_tags(*pair, 0) + np.arange(len(own))
            for one, of_one in zip(parts, np.split(tags, lengths), strict=True):
                one.tag = of_one

    def _summed(self, one: _Pieces, received: list[_Pieces]) -> bool:
        return self._staging is not None and any(one is each for each in received)

    def _transfers(
        self, received: dict[int, list[_Pieces]], sent: dict[int, list[_Pieces]]
    ) -> dict[tuple[int, int], int]:
        """Return how many messages go from rank to rank, of those that send or receive them."""
        count: dict[tuple[int, int], int] = defaultdict(int)
        for rank, parts in sent.items():
            for one in parts:
                count[rank, one.peer] += len(one.step)
            for one in received[rank]:
                if one.peer not in sent:
                    count[one.peer, rank] += len(one.step)
        return count

    def _table(
        self,
        rank: int,
        received: list[_Pieces],
        sent: list[_Pieces],
        into: dict[tuple[int, int], _Pieces],
        before: Ready | None,
    ) -> OperationTable:
        base = self._program.operations(rank)
        total = sum(len(one.step) for one in sent)
        sums = 2 if self._staging is not None else 1
        total += sums * sum(len(one.step) for one in received)
        columns = {name: np.zeros(total, np.int64) for name in _FILLED}
        waits = np.full(total, -1, np.int64)
        for one in received:
            at = one.index - base
            columns["kind"][at] = RECEIVE
            columns["peer"][at], columns["tag"][at] = one.peer, one.tag
            _put(columns, at, "near", one.buffer, one.place, one.octets)
            if self._staging is not None:
                columns["kind"][at + 1] = REDUCE
                columns["tag"][at + 1] = FUNCTION_NUMBERS[self._buffers.function]
                columns["number"][at + 1] = self._program.names.number(self._buffers.dtype)
                _put(columns, at + 1, "near", one.buffer, one.place, one.octets)
                _put(columns, at + 1, "far", self._source, one.at, one.octets)
                waits[at + 1] = one.index
        for (channel, position), got, one in zip(self._places[rank], received, sent, strict=True):
            at = one.index - base
            there = into[channel, (position + 1) % len(self._channels[channel].ring)]
            columns["kind"][at] = COPY if self._program.joins(rank, one.peer) else WRITE
            columns["peer"][at], columns["tag"][at] = one.peer, one.tag
            _put(columns, at, "far", there.buffer, there.place, one.octets)
            begins = int(np.count_nonzero(one.step == 0))
            behind = len(at) - begins  # what is sent on is what came in the step before
            buffer = np.full(len(at), self._source)
            place = one.at.copy()
            buffer[begins:], place[begins:] = got.buffer[:behind], got.place[:behind]
            _put(columns, at, "near", buffer, place, one.octets)
            waits[at[begins:]] = got.index[:behind] + sums - 1
            if before is not None:
                waits[at[:begins]] = before[channel][position]
        wait = waits >= 0
        begin = np.concatenate([[0], np.cumsum(wait)])
        return OperationTable(columns, begin, waits[wait], self._program.names.all())


_FILLED = (
    *("kind", "peer", "tag", "number"),
    *("near_buffer", "near_at", "near_octets", "far_buffer", "far_at", "far_octets"),
)


def _in_turn(parts: Sequence[_Pieces]) -> tuple[Integers, Integers, Integers]:
    """Return the octets of all pieces, their order in the program, and the ends of ``parts``."""
    step = np.concatenate([one.step for one in parts])
    counts = [len(one.step) for one in parts]
    channel = np.repeat([one.channel for one in parts], counts)
    later = np.repeat([not one.first_of_step for one in parts], counts)
    octets = np.concatenate([one.octets for one in parts])
    return octets, np.lexsort((later, channel, step)), np.cumsum(counts)[:-1]


def _put(
    columns: dict[str, Integers],
    at: Integers,
    side: str,
    buffer: Integers | int,
    place: Integers,
    octets: Integers,
) -> None:
    columns[f"{side}_buffer"][at] = buffer
    columns[f"{side}_at"][at] = place
    columns[f"{side}_octets"][at] = octets


def split(elements: int, parts: int, element_bytes: int, *, first: int = 0) -> list[Block]:
    """``parts`` consecutive blocks of whole elements, the first ones larger by one if need be.

    ``first`` is the index of the first element.  Blocks may be empty.
    """
    size, larger = divmod(elements, parts)
    blocks: list[Block] = []
    for part in range(parts):
        count = size + (part < larger)
        blocks.append(Block(first * element_bytes, count * element_bytes))
        first += count
    return blocks


def channels(rings: Sequence[Ring], elements: int, element_bytes: int) -> list[RingChannel]:
    """Divide ``elements`` over the rings, and each ring's share over its ranks."""
    return [
        RingChannel(
            ring,
            tuple(
                split(
                    share.length // element_bytes,
                    len(ring),
                    element_bytes,
                    first=share.offset // element_bytes,
                )
            ),
        )
        for ring, share in zip(rings, split(elements, len(rings), element_bytes), strict=True)
    ]


#: Seven rings of eight GPUs that together use each way from one to another once.
_RINGS_OF_EIGHT = (
    *("01234567", "02135476", "03146275", "04157263"),
    *("05361742", "06524371", "07325164"),
)


def rail_rings(servers: Sequence[Sequence[int]], *, shape: str = SWITCH) -> list[Ring]:
    """One ring per local rank, each rail-local between servers (see the module's drawing).

    ``servers[h][i]`` is the rank of local rank ``i`` in server ``h``.  Scale-up networks have
    ``shape``: where links lead in a ring, a ring walks from each local rank to the one before it.
    """
    width = len(servers[0])
    if shape == MESH and len(servers) == 1 and width == len(_RINGS_OF_EIGHT[0]):
        return [tuple(servers[0][int(local)] for local in walk) for walk in _RINGS_OF_EIGHT]
    uneven = next((h for h, server in enumerate(servers) if len(server) != width), None)
    if uneven is not None:
        raise UserError(
            f"rail-aligned rings need equally many GPUs in every server, but server 0 has {width} "
            f"and server {uneven} has {len(servers[uneven])}: choose a uniform topology"
        )
    rings: list[Ring] = []
    for channel in range(width):
        order = [channel, *((channel + 2 + i) % width for i in range(width - 2))]
        if width > 1:
            order.append((channel + 1) % width)
        if shape == RING:
            order = [(channel - i) % width for i in range(width)]
        elif shape == MESH:
            steps = ((i + 1) // 2 if i % 2 else -i // 2 for i in range(width))
            order = [(channel + step) % width for step in steps]
        ring: list[int] = []
        for number, server in enumerate(servers):
            walk = order if number % 2 == 0 else order[::-1]
            ring.extend(server[local] for local in walk)
        rings.append(tuple(ring))
    return rings


def shape_of(topology: Topology) -> str:
    """Return the shape of the servers' scale-up networks; a switch where they differ."""
    shapes = {server.scale_up.shape for server in topology.servers}
    return shapes.pop() if len(shapes) == 1 else SWITCH


def cross_rail_hops(rings: Sequence[Ring], topology: Topology) -> int:
    """Return how many hops of all rings go from one rail to another over the fabric."""
    gpus = topology.gpus
    hops = (
        (gpus[rank], gpus[successor])
        for ring in rings
        for rank, successor in zip(ring, (*ring[1:], ring[0]), strict=True)
    )
    domains = ScaleUpDomains(topology)
    return sum(not domains.joins(a.name, b.name) and a.rail != b.rail for a, b in hops)


def reduce_scatter(
    program: Program,
    channels: Sequence[RingChannel],
    *,
    source: str,
    result: str,
    staging: str,
    slice_bytes: int,
    dtype: str,
    function: str = "sum",
) -> Ready:
    """Sum the buffers ``source`` of all ranks; position p gets block p in its ``result``.

    Partial sums travel through slots that are added to the buffer ``staging``.  ``function`` names
    what stands for the sum.
    """
    buffers = Buffers(source=source, result=result, staging=staging, dtype=dtype, function=function)
    # The block that position p sends first is its predecessor's, straight from the source.
    return Walk(program, channels, slice_bytes, buffers, first=-1).ready(None)


def all_gather(
    program: Program,
    channels: Sequence[RingChannel],
    *,
    result: str,
    slice_bytes: int,
    ready: Ready | None,
) -> Ready:
    """Give every rank every block: position p starts with block p in its ``result``.

    ``ready`` (for example what :func:`reduce_scatter` returned) names the operations after which
    the slices of that block may be sent; None: they are there from the start.
    """
    buffers = Buffers(source=result, result=result)
    return Walk(program, channels, slice_bytes, buffers, first=0).ready(ready)
