"""Hierarchical algorithms: NVLink inside a host, rails between hosts.

AllReduce: a reduce-scatter inside each host leaves member i of every host with part i; these form
a ring on rail i that sums part i over the hosts; an all-gather inside each host ends it.  Each NIC
carries 2(H-1)/H of one part for H hosts, and no octet leaves its rail.
"""

from __future__ import annotations

from emulator.errors import UserError
from scenarios.collectives.algorithm_registry import algorithm
from scenarios.collectives.blocks import Block
from scenarios.collectives.collective_call import STAGING, CollectiveCall, Pieces


def _hosts(call: CollectiveCall) -> list[list[int]]:
    if not call.communicator.uniform:
        counts = ", ".join(str(len(host)) for host in call.communicator.hosts)
        raise UserError(
            f"algorithm=hierarchical needs equally many GPUs of each host, and there are {counts}; "
            "take algorithm=ring, or name other ranks"
        )
    return call.communicator.hosts


def _summed_inside(call: CollectiveCall, host: list[int], parts: list[Block]) -> list[Pieces]:
    """Return, by member of ``host``, the pieces of its part summed over the host."""
    summed = []
    for number, (owner, part) in enumerate(zip(host, parts, strict=True)):
        pieces = call.pieces(call.source, part)
        for step in range(1, len(host)):
            other = host[(number + step) % len(host)]
            own = call.pieces(call.source, part)
            arrived = call.send(other, owner, own, None, STAGING)
            pieces = call.combine(owner, arrived, pieces)
        summed.append(pieces)
    return summed


def _ring(call: CollectiveCall, ring: list[int], held: list[Pieces], part: Block) -> list[Pieces]:
    """Return what each member of ``ring`` has of ``part`` once it is summed along the ring."""
    size = len(ring)
    blocks = call.blocks(size, within=part)
    begins = [pieces[0].region.offset - part.offset for pieces in held]

    def own(place: int, block: Block) -> Pieces:
        if not block.length:
            return []
        return call.recut(held[place], Block(block.offset + begins[place], block.length))

    moving = [own(place, blocks[(place - 1) % size]) for place in range(size)]
    for step in range(size - 1):
        arrived: list[Pieces] = [[] for _ in ring]
        for place in range(size):
            block = blocks[(place - 1 - step) % size]
            final = step == size - 2
            into, buffer = (block, call.result) if final else (None, STAGING)
            there = (place + 1) % size
            sent = call.send(ring[place], ring[there], moving[place], into, buffer)
            arrived[there] = call.combine(ring[there], sent, own(there, block))
        moving = arrived
    gathered: list[dict[int, Pieces]] = []
    for place in range(size):
        moving[place] = call.complete(ring[place], moving[place])
        gathered.append({place: moving[place]})
    for step in range(size - 1):
        sent_on = [gathered[place][(place - step) % size] for place in range(size)]
        for place in range(size):
            number, there = (place - step) % size, (place + 1) % size
            gathered[there][number] = call.send(
                ring[place], ring[there], sent_on[place], blocks[number], call.result
            )
    return [[piece for number in range(size) for piece in one[number]] for one in gathered]


@algorithm("allreduce", "hierarchical", idle=("channels",))
def allreduce(call: CollectiveCall) -> None:
    """Reduce-scatter inside hosts, AllReduce along rails, all-gather inside hosts."""
    hosts = _hosts(call)
    parts = call.blocks(len(hosts[0]))
    inside = [_summed_inside(call, host, parts) for host in hosts]
    for number, part in enumerate(parts):
        if not part.length:
            continue
        rail = [host[number] for host in hosts]
        held = [summed[number] for summed in inside]
        if len(hosts) == 1:
            done = [call.copy(rail[0], call.complete(rail[0], held[0]), part, call.result)]
        else:
            done = _ring(call, rail, held, part)
        for host, pieces in zip(hosts, done, strict=True):
            for other in host:
                if other != host[number]:
                    call.send(host[number], other, pieces, part, call.result)


def _part(call: CollectiveCall, position: int) -> Block:
    return Block(position * call.part, call.part)


@algorithm("reducescatter", "hierarchical", idle=("channels",))
def reducescatter(call: CollectiveCall) -> None:
    """Sum the parts of a rail's members inside each host, then along the rail.

    Member i of a host first collects what its host adds to the parts of all members i; these then
    go round the ring of rail i, each to its owner.
    """
    hosts = _hosts(call)
    for number in range(len(hosts[0])):
        rail = [host[number] for host in hosts]
        held = [
            [_inside(call, host, number, _part(call, owner), owner in host) for owner in rail]
            for host in hosts
        ]
        size = len(rail)
        moving = [held[place][(place - 1) % size] for place in range(size)]
        for step in range(size - 1):
            arrived: list[Pieces] = [[] for _ in rail]
            for place in range(size):
                there, owner = (place + 1) % size, (place - 1 - step) % size
                final = step == size - 2
                into = _part(call, rail[owner]) if final else None
                buffer = call.result if final else STAGING
                sent = call.send(rail[place], rail[there], moving[place], into, buffer)
                arrived[there] = call.combine(rail[there], sent, held[there][owner])
            moving = arrived
        for place, pieces in enumerate(moving):
            call.complete(rail[place], pieces)


def _inside(call: CollectiveCall, host: list[int], number: int, part: Block, owned: bool) -> Pieces:
    """Return what ``host`` adds to ``part``, at its member ``number``."""
    final = owned and len(call.communicator.hosts) == 1
    pieces = call.pieces(call.source, part)
    for step in range(1, len(host)):
        other = host[(number + step) % len(host)]
        last = final and step == len(host) - 1
        into, buffer = (part, call.result) if last else (None, STAGING)
        arrived = call.send(other, host[number], call.pieces(call.source, part), into, buffer)
        pieces = call.combine(host[number], arrived, pieces)
    return pieces


@algorithm("allgather", "hierarchical", in_place=True, idle=("channels",))
def allgather(call: CollectiveCall) -> None:
    """Pass parts on along rails, and share each with the own host at once."""
    hosts = _hosts(call)
    for number in range(len(hosts[0])):
        rail = [host[number] for host in hosts]
        moving = [call.own_part(member) for member in rail]
        owners = list(rail)
        for step in range(len(rail)):
            for place, host in enumerate(hosts):
                for other in host:
                    if other != rail[place]:
                        part = _part(call, owners[place])
                        call.send(rail[place], other, moving[place], part, call.result)
            if step == len(rail) - 1:
                break
            moving = [
                call.send(
                    rail[place - 1], rail[place], moving[place - 1],
                    _part(call, owners[place - 1]), call.result,
                )
                for place in range(len(rail))
            ]  # fmt: skip
            owners = [owners[place - 1] for place in range(len(rail))]
