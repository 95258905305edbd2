"""Algorithms in a circle: rail rings as NCCL builds them, and rotations, Bruck's and PAT.

Of rings (see ``scenarios.collectives.ring``), AllReduce is a reduce-scatter followed by an
all-gather.  Broadcast and Reduce are pipelines: the data go once round each ring in slices, away
from the root or towards it.

Bruck (1997): in step k each member sends all that it has to the one 2^k before it, and has twice
as much after it; n need not be a power of two.  PAT (NCCL 2.23, parallel aggregated trees) sends
the parts of all n binomial trees at once, far peers first, so that the least goes furthest.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from emulator.errors import UserError
from emulator.sim.endpoint.operations.schedule import Region
from scenarios.collectives import ring
from scenarios.collectives.algorithm_registry import WITHOUT_RINGS, algorithm
from scenarios.collectives.blocks import Block, Ready, Ring, RingChannel
from scenarios.collectives.collective_call import DIVISOR, STAGING, CollectiveCall, Pieces
from scenarios.collectives.data_types import function_of

#: Beyond this, a run would take hours.
MAX_OPERATIONS = 20_000_000


def rings(call: CollectiveCall) -> list[Ring]:
    """Return as many rings as the call has channels; those of the rails take turns."""
    made = call.communicator.rings
    return [made[channel % len(made)] for channel in range(call.channels)]


def part_channels(call: CollectiveCall) -> list[RingChannel]:
    """Divide each member's part over the rings: the part of position p begins at p parts."""
    chosen = rings(call)
    shares = call.blocks(len(chosen), within=Block(0, call.part))
    position = call.communicator.position
    return [
        RingChannel(
            one,
            tuple(Block(position(rank) * call.part + share.offset, share.length) for rank in one),
        )
        for one, share in zip(chosen, shares, strict=True)
    ]


def _reduced(call: CollectiveCall, channels: Sequence[RingChannel]) -> Ready:
    """Reduce the blocks of ``channels`` round their rings, and finish the sums."""
    ready = ring.reduce_scatter(
        call.program,
        channels,
        source=call.source,
        result=call.result,
        staging=STAGING,
        slice_bytes=call.slice_bytes,
        dtype=call.datatype.numpy_name,
        function=function_of(call.reduction),
    )
    if call.reduction != "avg":
        return ready
    for channel, by_position in zip(channels, ready, strict=True):
        for rank, block, operations in zip(channel.ring, channel.blocks, by_position, strict=True):
            if not call.program.wants(rank):
                continue
            for number, piece in enumerate(call.pieces(call.result, block)):
                operations[number] = call.program.reduce(
                    rank,
                    Region(DIVISOR, 0, piece.region.length),
                    piece.region,
                    dtype=call.datatype.numpy_name,
                    function="divide",
                    after=(operations[number],),
                )
    return ready


@algorithm("allreduce", "ring")
def allreduce(call: CollectiveCall) -> None:
    """Reduce-scatter, then all-gather: 2(n-1) steps, 2(n-1)/n of the size from each member."""
    octets = call.datatype.octets
    channels = ring.channels(rings(call), call.size // octets, octets)
    _check_slices(call, channels)
    _gathered(call, channels, _reduced(call, channels))


def _check_slices(call: CollectiveCall, channels: Sequence[RingChannel]) -> None:
    members, octets = call.members, call.datatype.octets
    block = max(block.length for channel in channels for block in channel.blocks)
    # Send and receive of each slice in each of 2(n-1) steps, and a sum in half of them.
    per_slice = 5 * members * (members - 1) * len(channels)
    operations = per_slice * -(-block // call.slice_bytes)
    if operations > MAX_OPERATIONS:
        most = max(1, MAX_OPERATIONS // per_slice)
        enough = -(-block // most // octets) * octets
        raise UserError(
            f"a size of {call.size} B in slices of {call.slice_bytes} B makes {operations} "
            f"operations, more than {MAX_OPERATIONS}; take slice_bytes={enough} or more"
        )


def _gathered(call: CollectiveCall, channels: Sequence[RingChannel], ready: Ready | None) -> None:
    ring.all_gather(
        call.program, channels, result=call.result, slice_bytes=call.slice_bytes, ready=ready
    )


@algorithm("reducescatter", "ring")
def reducescatter(call: CollectiveCall) -> None:
    """Send each part round the ring, to end summed at its owner after n-1 steps."""
    _reduced(call, part_channels(call))


@algorithm("allgather", "ring", in_place=True)
def allgather(call: CollectiveCall) -> None:
    """Send each part round the ring, from its owner to all others in n-1 steps."""
    channels = part_channels(call)
    position = call.communicator.position
    begun = [
        [
            [
                index
                for piece in call.own(
                    position(rank), Block(block.offset % call.part, block.length), block
                )
                for index in piece.after
            ]
            for rank, block in zip(channel.ring, channel.blocks, strict=True)
        ]
        for channel in channels
    ]
    _gathered(call, channels, None if call.source == call.result else begun)


def _from_root(call: CollectiveCall) -> list[tuple[list[int], Block]]:
    """Return the positions of each ring, from the root on, and the octets that it carries."""
    root = call.communicator.ranks[call.root]
    position = call.communicator.position
    chosen = rings(call)
    walks = []
    for one, share in zip(chosen, call.blocks(len(chosen)), strict=True):
        at = one.index(root)
        walks.append(([position(rank) for rank in (*one[at:], *one[:at])], share))
    return walks


@algorithm("broadcast", "ring", in_place=True)
def broadcast(call: CollectiveCall) -> None:
    """Pass slices on from the root along each ring: c + n-2 steps for c slices."""
    for walk, share in _from_root(call):
        pieces = call.own(call.root, share, share)
        for sender, receiver in pairwise(walk):
            pieces = call.send(sender, receiver, pieces, share, call.result)


@algorithm("reduce", "ring")
def reduce(call: CollectiveCall) -> None:
    """Add slices up along each ring towards the root: c + n-2 steps for c slices."""
    for walk, share in _from_root(call):
        order = [*walk[1:], walk[0]]
        pieces = call.pieces(call.source, share)
        for sender, receiver in pairwise(order):
            last = receiver == call.root
            into, buffer = (share, call.result) if last else (None, STAGING)
            arrived = call.send(sender, receiver, pieces, into, buffer)
            pieces = call.combine(receiver, arrived, call.pieces(call.source, share))
        call.complete(call.root, pieces)


def _place(call: CollectiveCall, part: int) -> Block:
    return Block(part * call.part, call.part)


def _distances(members: int) -> list[int]:
    """Return the powers of two below ``members``, the largest first."""
    return [1 << bit for bit in reversed(range((members - 1).bit_length()))]


@algorithm("allgather", "bruck", in_place=True, idle=WITHOUT_RINGS)
def bruck_allgather(call: CollectiveCall) -> None:
    """Have twice as many parts after each of log2(n) steps."""
    members = call.members
    held: list[dict[int, Pieces]] = [
        {position: call.own_part(position)} for position in range(members)
    ]
    distance = 1
    while distance < members:
        count = min(distance, members - distance)
        moved: list[dict[int, Pieces]] = []
        for position in range(members):
            source = (position + distance) % members
            parts = [(source + step) % members for step in range(count)]
            moved.append(
                {
                    part: call.send(
                        source, position, held[source][part], _place(call, part), call.result
                    )
                    for part in parts
                }
            )
        for own, more in zip(held, moved, strict=True):
            own.update(more)
        distance *= 2


@algorithm("allgather", "pat", in_place=True, idle=WITHOUT_RINGS)
def pat_allgather(call: CollectiveCall) -> None:
    """Send parts along n binomial trees at once, far peers first."""
    members = call.members
    held: list[dict[int, Pieces]] = [
        {position: call.own_part(position)} for position in range(members)
    ]
    for distance in _distances(members):
        for step in range(0, members - distance, 2 * distance):
            for part in range(members):
                sender = (part + step) % members
                receiver = (part + step + distance) % members
                held[receiver][part] = call.send(
                    sender, receiver, held[sender][part], _place(call, part), call.result
                )


@algorithm("reducescatter", "pat", idle=WITHOUT_RINGS)
def pat_reducescatter(call: CollectiveCall) -> None:
    """Add parts up along n binomial trees at once, near peers first."""
    members = call.members
    held: list[dict[int, Pieces]] = [
        {part: call.pieces(call.source, _place(call, part)) for part in range(members)}
        for _ in range(members)
    ]
    for distance in reversed(_distances(members)):
        last = 2 * distance >= members
        for step in range(0, members - distance, 2 * distance):
            for part in range(members):
                receiver = (part + step) % members
                sender = (part + step + distance) % members
                final = last and step == 0
                into, buffer = (_place(call, part), call.result) if final else (None, STAGING)
                arrived = call.send(sender, receiver, held[sender].pop(part), into, buffer)
                held[receiver][part] = call.combine(receiver, arrived, held[receiver][part])
    for part in range(members):
        call.complete(part, held[part][part])


@algorithm("alltoall", "bruck", idle=("peers",))
def bruck_alltoall(call: CollectiveCall) -> None:
    """Send half of the buffer in each of log2(n) steps; parts travel by the bits of their way.

    The parts of a step are packed into one message.
    """
    members = call.members
    held: list[dict[int, Pieces]] = [
        {
            way: call.pieces(call.source, _place(call, (position + way) % members))
            for way in range(1, members)
        }
        for position in range(members)
    ]
    distance = 1
    while distance < members:
        ways = [way for way in range(1, members) if way & distance]
        packed: list[Pieces] = []
        for position in range(members):
            if (distance == 1 and len(ways) > 1) or distance > 1:
                pack = call.program.allocate(
                    call.communicator.ranks[position], "packed", len(ways) * call.part
                )
                at = pack.offset
                copies: Pieces = []
                for way in ways:
                    copies += call.copy(position, held[position][way], Block(at, 0), "packed")
                    at += call.part
                packed.append(call.recut(copies, Block(pack.offset, pack.length)))
            else:
                packed.append(held[position][ways[0]])
        arrived: list[Pieces] = [[] for _ in range(members)]
        for position in range(members):
            receiver = (position + distance) % members
            arrived[receiver] = call.send(position, receiver, packed[position], None, STAGING)
        for position in range(members):
            begin = arrived[position][0].region.offset
            for number, way in enumerate(ways):
                part = Block(begin + number * call.part, call.part)
                held[position][way] = call.recut(arrived[position], part)
        distance *= 2
    for position in range(members):
        for way, pieces in held[position].items():
            call.copy(position, pieces, _place(call, (position - way) % members), call.result)
        own = _place(call, position)
        call.own(position, own, own)
