"""Algorithms of members that turn in a circle: Bruck's and PAT.

Bruck (1997): in step k each member sends all that it has to the one 2^k before it, and has twice
as much after it; n need not be a power of two.  PAT (NCCL 2.23, parallel aggregated trees) sends
the parts of all n binomial trees at once, far peers first, so that the least goes furthest.
"""

from __future__ import annotations

from scenarios.collectives.algorithm_registry import WITHOUT_RINGS, algorithm
from scenarios.collectives.blocks import Block
from scenarios.collectives.collective_call import STAGING, CollectiveCall, Pieces


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
