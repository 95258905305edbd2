"""The fabric addresses of all ranks but one's own, in a table that the ranks of a run share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property


class RankAddresses:
    """The fabric address of each rank, by number."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses = addresses

    def __reduce__(self) -> tuple[type[RankAddresses], tuple[Sequence[str]]]:
        return type(self), (self.addresses,)

    @cached_property
    def ranks(self) -> Mapping[str, int]:
        """The rank at each address."""
        return {address: rank for rank, address in enumerate(self.addresses)}


class PeerAddresses(Mapping[int, str]):
    """The addresses of all ranks of ``table`` but ``own``."""

    __slots__ = ("own", "table")

    def __init__(self, table: RankAddresses, own: int) -> None:
        self.table, self.own = table, own

    def __getitem__(self, rank: int) -> str:
        if rank == self.own or not 0 <= rank < len(self.table.addresses):
            raise KeyError(rank)
        return self.table.addresses[rank]

    def __iter__(self) -> Iterator[int]:
        return (rank for rank in range(len(self.table.addresses)) if rank != self.own)

    def __len__(self) -> int:
        return len(self.table.addresses) - 1


def ranks_at(peers: Mapping[int, str]) -> Mapping[str, int]:
    """Return the rank at each address of ``peers``; one's own may be among them."""
    if isinstance(peers, PeerAddresses):
        return peers.table.ranks
    return {address: rank for rank, address in peers.items()}
