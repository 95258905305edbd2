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


@algorithm("allreduce", "hierarchical")
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
