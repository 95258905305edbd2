"""Permutations: every GPU sends to one other, and every GPU receives from one other."""

from __future__ import annotations

import random
from collections.abc import Sequence

from emulator.errors import UserError
from scenarios.workloads.places import scale_up_domains, switch_of, uplinks
from topologies.model import Topology


def across_rails(topology: Topology, seed: int) -> list[int]:
    """The destination of each rank: another server on another rail switch, each rank once.

    Where one switch has all rails and no uplinks, another server.  The seed decides which.
    :class:`UserError` if the fabric has no such permutation.
    """
    domains = scale_up_domains(topology)
    ranks = range(len(domains))
    switches = [switch_of(topology, rank) for rank in ranks]
    single = len(set(switches)) == 1 and not uplinks(topology, switches[0])
    allowed = [
        [
            to
            for to in ranks
            if (single or switches[to] != switches[rank]) and domains[to] != domains[rank]
        ]
        for rank in ranks
    ]
    rng = random.Random(f"permutation {seed}")
    for candidates in allowed:
        rng.shuffle(candidates)
    order = list(ranks)
    rng.shuffle(order)
    sender: dict[int, int] = {}
    for rank in order:
        if not _place(rank, allowed, sender, set()):
            raise UserError(
                f"in topology {topology.name} not every GPU can have a partner of its own on "
                "another rail switch and server; take at least two hosts and two GPUs per host, as "
                "many on each rail switch"
            )
    destination = {source: to for to, source in sender.items()}
    return [destination[rank] for rank in ranks]


def _place(
    rank: int, allowed: Sequence[Sequence[int]], sender: dict[int, int], seen: set[int]
) -> bool:
    """Find ``rank`` a destination, moving others if need be (augmenting paths, Kuhn 1955).

    A path may be as long as there are ranks, so it is a list and no recursion.
    """
    path = [(rank, iter(allowed[rank]))]
    wanted: list[int] = []  # by each but the last of the path
    while path:
        _, untried = path[-1]
        to = next((one for one in untried if one not in seen), None)
        if to is None:
            path.pop()
            if wanted:
                wanted.pop()
            continue
        seen.add(to)
        wanted.append(to)
        if to in sender:
            path.append((sender[to], iter(allowed[sender[to]])))
            continue
        for (mover, _), destination in zip(path, wanted, strict=True):
            sender[destination] = mover
        return True
    return False
