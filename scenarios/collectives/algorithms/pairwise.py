"""Pairwise exchanges in rounds: AlltoAll, Gather, Scatter, SendRecv, and the barrier.

``call.peers`` rounds are under way at a time, as NCCL has eight.
"""

from __future__ import annotations

from collections.abc import Sequence

from emulator.sim.endpoint.operations.schedule import Region
from scenarios.collectives.algorithm_registry import algorithm
from scenarios.collectives.blocks import Block
from scenarios.collectives.collective_call import STAGING, CollectiveCall

#: Pairs (sender, receiver) of positions of one round.
Round = Sequence[tuple[int, int]]


def _in_rounds(call: CollectiveCall, rounds: Sequence[Round]) -> None:
    """Send what each member has for each other one; a member has ``peers`` rounds under way."""
    ranks = call.communicator.ranks
    wants = call.program.wants
    for position in range(call.members):
        if not wants(ranks[position]):
            continue
        kept, place = call.exchanged(position, position)
        if kept.length:
            call.own(position, kept, place)
    ended: list[list[tuple[int, ...]]] = [[] for _ in ranks]
    for pairs in rounds:
        waits = [own[-call.peers] if len(own) >= call.peers else () for own in ended]
        done: list[list[int]] = [[] for _ in ranks]
        for sender, receiver in pairs:
            if not wants(ranks[sender], ranks[receiver]):
                continue
            local, remote = call.exchanged(sender, receiver)
            if not local.length:
                continue
            sent, received = call.program.transfer(
                ranks[sender],
                ranks[receiver],
                Region(call.source, local.offset, local.length),
                Region(call.result, remote.offset, remote.length),
                after=waits[sender],
            )
            done[sender].append(sent)
            done[receiver].append(received)
        for own, operations in zip(ended, done, strict=True):
            if operations:
                own.append(tuple(operations))


def _shifted(members: int, shift: int) -> Round:
    return [(position, (position + shift) % members) for position in range(members)]


def shift_rounds(call: CollectiveCall) -> list[Round]:
    """Return rounds in which member p sends to p + k and receives from p - k, for all k."""
    return [_shifted(call.members, step) for step in range(1, call.members)]


def xor_rounds(call: CollectiveCall) -> list[Round]:
    """Return rounds in which members exchange whose numbers differ in the bits of k."""
    members = call.members
    return [
        [(one, one ^ step) for one in range(members) if one ^ step < members]
        for step in range(1, 1 << (members - 1).bit_length())
    ]


def quadratic_deltas(count: int) -> list[int]:
    """Return 0 to ``count`` - 1 in NCCL's order: triangular numbers modulo a power of two.

    The power is the least of at least ``count``; what is not below ``count`` is left out.
    """
    power = 1 << (count - 1).bit_length()
    deltas = (step * (step + 1) // 2 % power for step in range(power))
    return [delta for delta in deltas if delta < count]


def nccl_rounds(call: CollectiveCall) -> list[Round]:
    """Return rounds in NCCL's order: by hosts, then by members of a host, in quadratic steps.

    Where hosts have unequal numbers of members, all count as one host.
    """
    communicator = call.communicator
    hosts = communicator.hosts if communicator.uniform else [list(range(call.members))]
    width = len(hosts[0])
    return [
        [
            (member, hosts[(h + host_delta) % len(hosts)][(local + local_delta) % width])
            for h, host in enumerate(hosts)
            for local, member in enumerate(host)
        ]
        for host_delta in quadratic_deltas(len(hosts))
        for local_delta in quadratic_deltas(width)
        if host_delta or local_delta
    ]


@algorithm("alltoall", "shift")
@algorithm("alltoallv", "shift")
def shift(call: CollectiveCall) -> None:
    """Send to the member k ahead and receive from the one k behind in round k."""
    _in_rounds(call, shift_rounds(call))


@algorithm("alltoall", "xor")
@algorithm("alltoallv", "xor")
def xor(call: CollectiveCall) -> None:
    """Exchange with the member whose number differs in the bits of k in round k."""
    _in_rounds(call, xor_rounds(call))


@algorithm("alltoall", "nccl")
@algorithm("alltoallv", "nccl")
def nccl(call: CollectiveCall) -> None:
    """Take peers in NCCL's order."""
    _in_rounds(call, nccl_rounds(call))


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

    After ceil(log2 n) steps each member has a notice from all others, directly or through another
    one (Hensgen, Finkel, Manber, 1988).
    """
    ranks = call.communicator.ranks
    notified: list[tuple[int, ...]] = [() for _ in ranks]
    distance = 1
    while distance < call.members:
        received: list[tuple[int, ...]] = [() for _ in ranks]
        for sender, receiver in _shifted(call.members, distance):
            there = call.program.allocate(ranks[receiver], STAGING, call.size)
            _, index = call.program.transfer(
                ranks[sender],
                ranks[receiver],
                Region(call.source, 0, call.size),
                there,
                after=notified[sender],
            )
            received[receiver] = (index,)
        notified = [(*old, *new) for old, new in zip(notified, received, strict=True)]
        distance *= 2
