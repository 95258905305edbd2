"""Blocks that go round a ring: one of each rank, in slices."""

from __future__ import annotations

from dataclasses import dataclass

#: A ring: ranks in the order in which the data visits them.
Ring = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """``length`` octets at ``offset`` of the source and of the result."""

    offset: int
    length: int


@dataclass(frozen=True)
class RingChannel:
    """One ring and the blocks it carries; ``blocks[p]`` belongs to the rank ``ring[p]``."""

    ring: Ring
    blocks: tuple[Block, ...]


#: Per channel and position: which operation completes each slice of the block that is held.
Ready = list[list[list[int]]]
