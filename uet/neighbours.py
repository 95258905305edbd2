"""The neighbours of many endpoints, which all know the same fabric: one table, which none copies.

::

    endpoint 10.0.0.1 --+
    endpoint 10.0.0.2 --+--> NeighbourTable: address, MAC, packed address, place
    endpoint 10.0.0.3 --+
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from uet.addresses import ip_of


class NeighbourTable:
    """The MAC of the next hop to each address, as endpoints of one subnet see them."""

    def __init__(self, macs: Mapping[str, str]) -> None:
        self.macs = macs
        #: IP versions of endpoints for which all of these were found to be in reach
        self.reached: set[int] = set()

    def __reduce__(self) -> tuple[type[NeighbourTable], tuple[Mapping[str, str]]]:
        return type(self), (self.macs,)

    @cached_property
    def places(self) -> Mapping[bytes, tuple[str, int]]:
        """The address and its place in the table, by packed address.

        Raises ValueError for what is no address.
        """
        return {ip_of(address).packed: (address, at) for at, address in enumerate(self.macs)}

    @cached_property
    def versions(self) -> frozenset[int]:
        """The IP versions of the addresses; ValueError for what is no address."""
        return frozenset(ip_of(address).version for address in self.macs)


class Neighbours(Mapping[str, str]):
    """All of ``table`` but the endpoint's ``own`` address: MACs by address."""

    __slots__ = ("_at", "own", "table")

    def __init__(self, table: NeighbourTable, own: str) -> None:
        self.table, self.own = table, own
        found = table.places.get(ip_of(own).packed)
        self._at = len(table.macs) if found is None else found[1]

    def __getitem__(self, address: str) -> str:
        if address == self.own:
            raise KeyError(address)
        return self.table.macs[address]

    def __contains__(self, address: object) -> bool:
        return address != self.own and address in self.table.macs

    def __iter__(self) -> Iterator[str]:
        return (address for address in self.table.macs if address != self.own)

    def __len__(self) -> int:
        return len(self.table.macs) - (self.own in self.table.macs)

    def find(self, key: bytes) -> tuple[str, str, int] | None:
        """Return address, MAC and place among these of the neighbour with packed address ``key``.

        None: there is none.
        """
        found = self.table.places.get(key)
        if found is None or found[1] == self._at:
            return None
        address, at = found
        return address, self.table.macs[address], at - (at > self._at)
