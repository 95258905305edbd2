"""Data of collectives in which every rank owns one part: AllGather, ReduceScatter, AlltoAll."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from emulator.errors import UserError
from scenarios.collectives import ring
from scenarios.collectives.blocks import Block, Ring, RingChannel
from scenarios.collectives.size_sweep import DTYPE, ELEMENT_BYTES
from topologies.model import Topology


def rings_of(topology: Topology, collective: str) -> list[Ring]:
    """Return the rail rings over all GPUs; UserError if there is one GPU only."""
    check_ranks(topology, collective)
    return ring.rail_rings(ring.servers_of(topology), neighbours=ring.joined_in_rings(topology))


def check_ranks(topology: Topology, collective: str) -> None:
    """Raise UserError unless ``topology`` has two GPUs or more."""
    if len(topology.gpus) < 2:
        raise UserError(
            f"{collective} needs at least two GPUs and topology {topology.name} has "
            f"{len(topology.gpus)}; add hosts or GPUs"
        )


def channels(rings: Sequence[Ring], part: int) -> list[RingChannel]:
    """Divide each rank's part, of ``part`` octets, over the rings.

    The part of rank r begins at r * ``part``, and the block of a position is the channel's share
    of its rank's part.
    """
    shares = ring.split(part // ELEMENT_BYTES, len(rings), ELEMENT_BYTES)
    return [
        RingChannel(one, tuple(Block(rank * part + share.offset, share.length) for rank in one))
        for one, share in zip(rings, shares, strict=True)
    ]


def numbers(seed: int, ranks: int, *key: int, octets: int) -> np.ndarray:
    """Return whole numbers so small that float32 holds every sum over ``ranks`` of them exactly.

    The order of additions cannot matter then, and a comparison needs no tolerance.
    """
    bound = 2**24 // ranks
    rng = np.random.default_rng((seed, *key, octets))
    return rng.integers(-bound, bound, octets // ELEMENT_BYTES, np.int32).astype(DTYPE)
