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

No region is written twice by reduce-scatter followed by all-gather: partial sums arrive in slots
of their own, the last one in the result, and the source is only read.  So neither the ring nor a
repetition of it has to wait until a neighbour has let go of a buffer.
"""

from __future__ import annotations

from collections.abc import Sequence

from emulator.errors import UserError
from scenarios.collectives.blocks import Block, Ready, Ring, RingChannel
from scenarios.collectives.program import Program
from scenarios.collectives.ring_walk import Buffers, Walk
from topologies.model import RING, Topology
from topologies.parts.scale_up import ScaleUpDomains


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


def rail_rings(servers: Sequence[Sequence[int]], *, neighbours: bool = False) -> list[Ring]:
    """One ring per local rank, each rail-local between servers (see the module's drawing).

    ``servers[h][i]`` is the rank of local rank ``i`` in server ``h``.  With ``neighbours`` a ring
    walks from each local rank to the one before it, as scale-up links in a ring lead.
    """
    width = len(servers[0])
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
        if neighbours:
            order = [(channel - i) % width for i in range(width)]
        ring: list[int] = []
        for number, server in enumerate(servers):
            walk = order if number % 2 == 0 else order[::-1]
            ring.extend(server[local] for local in walk)
        rings.append(tuple(ring))
    return rings


def joined_in_rings(topology: Topology) -> bool:
    """Return whether scale-up links lead from each GPU to its neighbours only."""
    return all(server.scale_up.shape == RING for server in topology.servers)


def servers_of(topology: Topology) -> list[list[int]]:
    """The ranks of each server, by local rank."""
    rank = {gpu.name: number for number, gpu in enumerate(topology.gpus)}
    return [[rank[gpu] for gpu in server.gpus] for server in topology.servers]


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
