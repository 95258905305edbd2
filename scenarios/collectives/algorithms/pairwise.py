"""Pairwise exchanges in rounds: AlltoAll, Gather, Scatter, SendRecv, and the barrier.

``call.peers`` rounds are under way at a time, as NCCL has eight.
"""

from __future__ import annotations

from collections.abc import Sequence

from emulator.endpoint.operations.schedule import Region
from scenarios.collectives.algorithm_registry import algorithm
from scenarios.collectives.blocks import Block
from scenarios.collectives.collective_call import STAGING, CollectiveCall

#: Pairs (sender, receiver) of positions of one round.
Round = Sequence[tuple[int, int]]


def _in_rounds(call: CollectiveCall, rounds: Sequence[Round]) -> None:
    """Send each member's part for each other one; a member has ``peers`` rounds under way."""
    ranks, part = call.communicator.ranks, call.part
    for position in range(call.members):
        block = Block(position * part, part)
        call.own(position, block, block)
    ended: list[list[tuple[int, ...]]] = [[] for _ in ranks]
    for pairs in rounds:
        waits = [own[-call.peers] if len(own) >= call.peers else () for own in ended]
        done: list[list[int]] = [[] for _ in ranks]
        for sender, receiver in pairs:
            sent, received = call.program.transfer(
                ranks[sender],
                ranks[receiver],
                Region(call.source, receiver * part, part),
                Region(call.result, sender * part, part),
                after=waits[sender],
            )
            done[sender].append(sent)
            done[receiver].append(received)
        for own, operations in zip(ended, done, strict=True):
            if operations:
                own.append(tuple(operations))


def _shifted(members: int, shift: int) -> Round:
    return [(position, (position + shift) % members) for position in range(members)]


@algorithm("alltoall", "shift")
def shift(call: CollectiveCall) -> None:
    """Send to the member k ahead and receive from the one k behind in round k."""
    _in_rounds(call, [_shifted(call.members, step) for step in range(1, call.members)])


@algorithm("alltoall", "xor")
def xor(call: CollectiveCall) -> None:
    """Exchange with the member whose number differs in the bits of k in round k."""
    members = call.members
    rounds = 1 << (members - 1).bit_length()
    _in_rounds(
        call,
        [
            [(one, one ^ step) for one in range(members) if one ^ step < members]
            for step in range(1, rounds)
        ],
    )


def quadratic_deltas(count: int) -> list[int]:
    """Return 0 to ``count`` - 1 in NCCL's order: triangular numbers modulo a power of two.

    The power is the least of at least ``count``; what is not below ``count`` is left out.
    """
    power = 1 << (count - 1).bit_length()
    deltas = (step * (step + 1) // 2 % power for step in range(power))
    return [delta for delta in deltas if delta < count]


@algorithm("alltoall", "nccl")
def nccl(call: CollectiveCall) -> None:
    """Take peers in NCCL's order: by hosts and then by members of a host, in quadratic steps.

    Where hosts have unequal numbers of members, all count as one host.
    """
    communicator = call.communicator
    hosts = communicator.hosts if communicator.uniform else [list(range(call.members))]
    width = len(hosts[0])
    rounds = []
    for host_delta in quadratic_deltas(len(hosts)):
        for local_delta in quadratic_deltas(width):
            pairs = [
                (member, hosts[(h + host_delta) % len(hosts)][(local + local_delta) % width])
                for h, host in enumerate(hosts)
                for local, member in enumerate(host)
            ]
            if host_delta or local_delta:
                rounds.append(pairs)
    _in_rounds(call, rounds)


@algorithm("sendrecv", "shift")
def sendrecv(call: CollectiveCall) -> None:
    """Send the whole buffer to the next member and receive that of the one before."""
    ranks = call.communicator.ranks
    for sender, receiver in _shifted(call.members, 1):
        call.program.transfer(
            ranks[sender],
            ranks[receiver],
            Region(call.source, 0, call.size),
            Region(call.result, 0, call.size),
        )


def _others(call: CollectiveCall) -> list[int]:
    """Return all members but the root, in NCCL's turn: from the root on."""
    return [(call.root + step) % call.members for step in range(1, call.members)]


@algorithm("gather", "direct")
def gather(call: CollectiveCall) -> None:
    """Send every part straight to the root, all at once: an incast."""
    ranks, part = call.communicator.ranks, call.part
    call.own_part(call.root)
    for member in _others(call):
        call.program.transfer(
            ranks[member],
            ranks[call.root],
            Region(call.source, 0, part),
            Region(call.result, member * part, part),
        )


@algorithm("scatter", "direct")
def scatter(call: CollectiveCall) -> None:
    """Send every part from the root; ``peers`` members are served at a time."""
    ranks, part = call.communicator.ranks, call.part
    sends: list[int] = []
    call.own(call.root, Block(call.root * part, part), Block(0, part))
    for number, member in enumerate(_others(call)):
        before = (sends[number - call.peers],) if number >= call.peers else ()
        sent, _ = call.program.transfer(
            ranks[call.root],
            ranks[member],
            Region(call.source, member * part, part),
            Region(call.result, 0, part),
            after=before,
        )
        sends.append(sent)


@algorithm("barrier", "dissemination")
def dissemination(call: CollectiveCall) -> None:
    """Notify the member 2^k ahead in step k, once the notice of the step before has come.

    After ceil(log2 n) steps each member knows of all others (Hensgen, Finkel, Manber, 1988).
    """
    ranks = call.communicator.ranks
    heard: list[tuple[int, ...]] = [() for _ in ranks]
    distance, step = 1, 0
    while distance < call.members:
        received: list[tuple[int, ...]] = [() for _ in ranks]
        for sender, receiver in _shifted(call.members, distance):
            there = call.program.allocate(ranks[receiver], STAGING, call.size)
            _, index = call.program.transfer(
                ranks[sender],
                ranks[receiver],
                Region(call.source, 0, call.size),
                there,
                after=heard[sender],
            )
            received[receiver] = (index,)
        heard = [(*old, *new) for old, new in zip(heard, received, strict=True)]
        distance, step = 2 * distance, step + 1
