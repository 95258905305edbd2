"""The neighbours of many endpoints, which all know the same fabric: one table, which none copies.

::

    endpoint 10.0.0.1 --+
    endpoint 10.0.0.2 --+--> NeighbourTable: address, MAC, packed address
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
    def addresses(self) -> Mapping[bytes, str]:
        """The addresses as they are spelled here, by packed address.

        Raises ValueError for what is no address.
        """
        return {ip_of(address).packed: address for address in self.macs}

    @cached_property
    def versions(self) -> frozenset[int]:
        """The IP versions of the addresses; ValueError for what is no address."""
        return frozenset(ip_of(address).version for address in self.macs)


class Neighbours(Mapping[str, str]):
    """All of ``table`` but the endpoint's ``own`` address: MACs by address."""

    __slots__ = ("_packed", "own", "table")

    def __init__(self, table: NeighbourTable, own: str) -> None:
        self.table, self.own = table, own
        self._packed = ip_of(own).packed

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

    def find(self, key: bytes) -> tuple[str, str] | None:
        """Return address and MAC of the neighbour with packed address ``key``; None: no such."""
        address = None if key == self._packed else self.table.addresses.get(key)
        return None if address is None else (address, self.table.macs[address])
