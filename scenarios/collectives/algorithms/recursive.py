"""Recursive doubling and halving: partners at distances 1, 2, 4 and so on.

With n members that are no power of two, p is the largest power below n.  Members from p on first
fold their data into those n-p before them, and get the result from these at the end.  (Thakur,
Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, 2005.)
"""

from __future__ import annotations

from scenarios.collectives.algorithm_registry import WITHOUT_RINGS, algorithm
from scenarios.collectives.blocks import Block
from scenarios.collectives.collective_call import STAGING, CollectiveCall, Pieces


def _power(members: int) -> int:
    return 1 << (members.bit_length() - 1)


def _folded(call: CollectiveCall, power: int) -> dict[int, Pieces]:
    """Return what each of the first ``power`` members adds: its own, and that of who folds in."""
    whole = Block(0, call.size)
    held = {position: call.pieces(call.source, whole) for position in range(power)}
    for extra in range(power, call.members):
        partner = extra - power
        own = call.pieces(call.source, whole)
        arrived = call.send(extra, partner, own, None, STAGING)
        held[partner] = call.combine(partner, arrived, held[partner])
    return held


def _unfold(call: CollectiveCall, power: int, held: dict[int, Pieces], block: Block) -> None:
    for extra in range(power, call.members):
        call.send(extra - power, extra, held[extra - power], block, call.result)


@algorithm("allreduce", "recursive-doubling", idle=WITHOUT_RINGS)
def recursive_doubling(call: CollectiveCall) -> None:
    """Exchange and add everything with partners at 1, 2, 4: log2(n) steps of the whole size."""
    power, whole = _power(call.members), Block(0, call.size)
    held = _folded(call, power)
    distance = 1
    while distance < power:
        final = 2 * distance == power
        into, buffer = (whole, call.result) if final else (None, STAGING)
        arrived = {
            position: call.send(position ^ distance, position, pieces, into, buffer)
            for position, pieces in ((one, held[one ^ distance]) for one in range(power))
        }
        held = {
            position: call.combine(position, arrived[position], held[position])
            for position in range(power)
        }
        distance *= 2
    held = {position: call.complete(position, pieces) for position, pieces in held.items()}
    _unfold(call, power, held, whole)


def _halved(call: CollectiveCall, power: int, blocks: list[Block]) -> dict[int, Pieces]:
    """Reduce-scatter by halving: position i ends with the sum of ``blocks[i]`` in its result."""
    held = _folded(call, power)
    #: where the octets that a member still holds begin in the size, and in its buffer
    spans = dict.fromkeys(range(power), (0, power))
    origin = {position: held[position][0].region.offset for position in range(power)}
    distance = power // 2
    while distance:
        arrived: dict[int, Pieces] = {}
        kept: dict[int, Pieces] = {}
        for position in range(power):
            partner = position ^ distance
            low, high = spans[position]
            middle = (low + high) // 2
            mine = (middle, high) if position & distance else (low, middle)
            theirs = (low, middle) if position & distance else (middle, high)
            shift = origin[position] - blocks[low].offset
            kept[position] = _span(call, held[position], blocks, mine, shift)
            sent = _span(call, held[position], blocks, theirs, shift)
            final = distance == 1
            into = blocks[theirs[0]] if final else None
            buffer = call.result if final else STAGING
            arrived[partner] = call.send(position, partner, sent, into, buffer)
            spans[position] = mine
        for position in range(power):
            held[position] = call.combine(position, arrived[position], kept[position])
            if held[position]:
                origin[position] = held[position][0].region.offset
        distance //= 2
    return {position: call.complete(position, pieces) for position, pieces in held.items()}


def _span(
    call: CollectiveCall, held: Pieces, blocks: list[Block], span: tuple[int, int], shift: int
) -> Pieces:
    """Return the blocks of ``span`` out of what is ``held``, ``shift`` octets from their place."""
    begin = blocks[span[0]].offset
    end = blocks[span[1] - 1].offset + blocks[span[1] - 1].length
    return call.recut(held, Block(begin + shift, end - begin)) if end > begin else []


def _doubled(
    call: CollectiveCall, power: int, blocks: list[Block], held: dict[int, Pieces]
) -> dict[int, Pieces]:
    """All-gather by doubling: position i begins with ``blocks[i]``, and all end with all."""
    distance = 1
    while distance < power:
        arrived = {}
        for position in range(power):
            first = position & -distance
            into = Block(blocks[first].offset, 0)
            arrived[position ^ distance] = call.send(
                position, position ^ distance, held[position], into, call.result
            )
        for position in range(power):
            lower, upper = held[position], arrived[position]
            joined = [*upper, *lower] if position & distance else [*lower, *upper]
            first = position & -(2 * distance)
            last = first + 2 * distance - 1
            end = blocks[last].offset + blocks[last].length
            span = Block(blocks[first].offset, end - blocks[first].offset)
            held[position] = call.recut(joined, span) if span.length else []
        distance *= 2
    return held


@algorithm("allreduce", "halving-doubling", idle=WITHOUT_RINGS)
def halving_doubling(call: CollectiveCall) -> None:
    """Reduce-scatter by halving, all-gather by doubling: 2 log2(n) steps, 2(n-1)/n of the size."""
    power = _power(call.members)
    blocks = call.blocks(power)
    held = _doubled(call, power, blocks, _halved(call, power, blocks))
    _unfold(call, power, held, Block(0, call.size))


@algorithm("reducescatter", "recursive-halving", idle=WITHOUT_RINGS)
def recursive_halving(call: CollectiveCall) -> None:
    """Send away half of what is left in each of log2(n) steps.

    With other numbers than powers of two, the first n-p members keep two parts until the end.
    """
    power = _power(call.members)
    if power == call.members:
        _halved(call, power, call.blocks(power))
        return
    _scatter_folded(call, power)


def _scatter_folded(call: CollectiveCall, power: int) -> None:
    """Halve over ``power`` members by parts, of which some stand for two owners."""
    owners = [
        [position, *([position + power] if position + power < call.members else [])]
        for position in range(power)
    ]
    held: dict[int, dict[int, Pieces]] = {
        position: {
            part: call.pieces(call.source, Block(part * call.part, call.part))
            for part in range(call.members)
        }
        for position in range(call.members)
    }
    for extra in range(power, call.members):
        partner = extra - power
        for part in range(call.members):
            arrived = call.send(extra, partner, held[extra][part], None, STAGING)
            held[partner][part] = call.combine(partner, arrived, held[partner][part])
    distance = power // 2
    while distance:
        moved: dict[int, dict[int, Pieces]] = {position: {} for position in range(power)}
        for position in range(power):
            partner = position ^ distance
            theirs = [
                part
                for node in range(power)
                if node & distance == partner & distance
                for part in owners[node]
                if part in held[position]
            ]
            for part in theirs:
                final = distance == 1 and part == partner
                into = Block(part * call.part, call.part) if final else None
                buffer = call.result if final else STAGING
                pieces = held[position].pop(part)
                moved[partner][part] = call.send(position, partner, pieces, into, buffer)
        for position in range(power):
            for part, arrived in moved[position].items():
                held[position][part] = call.combine(position, arrived, held[position][part])
        distance //= 2
    for position in range(power):
        for part, pieces in held[position].items():
            summed = call.complete(position, pieces)
            if part != position:
                call.send(position, part, summed, Block(part * call.part, call.part), call.result)


@algorithm("allgather", "recursive-doubling", in_place=True, idle=WITHOUT_RINGS)
def gather_doubling(call: CollectiveCall) -> None:
    """Exchange all that is held with partners at 1, 2, 4: log2(n) steps.

    With other numbers than powers of two, the last n-p members give their parts away first and get
    everything at the end.
    """
    power = _power(call.members)

    def place(part: int) -> Block:
        return Block(part * call.part, call.part)

    held: dict[int, dict[int, Pieces]] = {
        position: {position: call.own_part(position)} for position in range(call.members)
    }

    def hand_over(sender: int, receiver: int, parts: list[int]) -> dict[int, Pieces]:
        return {
            part: call.send(sender, receiver, held[sender][part], place(part), call.result)
            for part in parts
        }

    for extra in range(power, call.members):
        held[extra - power].update(hand_over(extra, extra - power, [extra]))
    distance = 1
    while distance < power:
        moved = {
            position ^ distance: hand_over(position, position ^ distance, list(held[position]))
            for position in range(power)
        }
        for position in range(power):
            held[position].update(moved[position])
        distance *= 2
    for extra in range(power, call.members):
        hand_over(extra - power, extra, [part for part in held[extra - power] if part != extra])
