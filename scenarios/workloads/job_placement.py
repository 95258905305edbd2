"""Placement of several jobs on the GPUs of a fabric.

A unit of GPUs, such as a tensor-parallel group, stays together in one server::

    2 jobs of 4 units       host 0    host 1    host 2    host 3
    packed                  A A       A A       B B       B B
    spread                  A B       A B       A B       A B
    random                  B A       A A       B B       A B
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from emulator.errors import UserError
from topologies.model import Topology

PACKED, SPREAD, RANDOM = "packed", "spread", "random"
PLACEMENTS = (PACKED, SPREAD, RANDOM)
Unit = tuple[int, ...]


def placed(
    topology: Topology, placement: str, jobs: int, gpus: int, unit: int, seed: int
) -> list[tuple[int, ...]]:
    """Return the ranks of each of ``jobs`` of ``gpus`` GPUs, in units of ``unit``.

    Raises UserError if there are not enough of them.
    """
    needed = gpus // unit
    found = _in_order(units(topology, unit), placement, seed)
    if len(found) < jobs * needed:
        raise UserError(
            f"{jobs} jobs of {gpus} GPUs need {jobs * needed} units of {unit} in one server each, "
            f"and topology {topology.name} has {len(found)}; take fewer jobs, or more hosts"
        )
    chosen = (sorted(found[job * needed : (job + 1) * needed]) for job in range(jobs))
    return [tuple(rank for one in job for rank in one) for job in chosen]


def units(topology: Topology, unit: int) -> list[list[Unit]]:
    """Return the units of each server, in rank order; GPUs that are left over are in none."""
    servers: dict[object, list[int]] = {}
    for rank, gpu in enumerate(topology.gpus):
        servers.setdefault(gpu.server, []).append(rank)
    return [
        [tuple(ranks[at : at + unit]) for at in range(0, len(ranks) - unit + 1, unit)]
        for ranks in servers.values()
    ]


def _in_order(servers: list[list[Unit]], placement: str, seed: int) -> list[Unit]:
    """Return the units in the order in which jobs get them."""
    packed = [one for server in servers for one in server]
    if placement == PACKED:
        return packed
    if placement == RANDOM:
        random.Random(f"jobs {seed}").shuffle(packed)
        return packed
    most = max(map(len, servers), default=0)
    return [server[turn] for turn in range(most) for server in _with(servers, turn)]


def _with(servers: Iterable[list[Unit]], turn: int) -> list[list[Unit]]:
    return [server for server in servers if turn < len(server)]
