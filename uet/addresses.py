"""IP addresses as configurations spell them, each read once, and the neighbours of endpoints.

All endpoints of a fabric know the same neighbours: one table, which none copies::

    endpoint 10.0.0.1 --+
    endpoint 10.0.0.2 --+--> NeighbourTable: address, MAC, packed address
    endpoint 10.0.0.3 --+
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property, lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address


@lru_cache(maxsize=2**16)  # fabrics of thousands of GPUs ask for one after the other
def ip_of(text: str) -> IPv4Address | IPv6Address:
    """The address that ``text`` spells; ``ValueError`` if it is none."""
    return ip_address(text)


class KnownAddresses:
    """The addresses of a fabric, which the tables of all its subnets have in common."""

    def __init__(self, addresses: Collection[str]) -> None:
        self.addresses = addresses
        #: IP versions of endpoints for which all of these were found to be in reach
        self.reached: set[int] = set()

    def __reduce__(self) -> tuple[type[KnownAddresses], tuple[Collection[str]]]:
        return type(self), (tuple(self.addresses),)

    @cached_property
    def by_packed(self) -> Mapping[bytes, str]:
        """The addresses as they are spelled here, by packed address.

        Raises ValueError for what is no address.
        """
        return {ip_of(address).packed: address for address in self.addresses}

    @cached_property
    def versions(self) -> frozenset[int]:
        """The IP versions of the addresses; ValueError for what is no address."""
        return frozenset(ip_of(address).version for address in self.addresses)


class NeighbourTable:
    """The MAC of the next hop to each address, as endpoints of one subnet see them.

    ``known`` are these addresses, others of the fabric among them; ``hops`` are all the MACs.
    """

    def __init__(
        self,
        macs: Mapping[str, str],
        known: KnownAddresses | None = None,
        hops: Collection[str] | None = None,
    ) -> None:
        self.macs = macs
        self.known = KnownAddresses(macs) if known is None else known
        self.hops = frozenset(macs.values() if hops is None else hops)
        #: whether all of these were found to be MACs
        self.checked = False

    def __reduce__(self) -> tuple[type[NeighbourTable], tuple[object, ...]]:
        return type(self), (self.macs, self.known, self.hops)

    @property
    def versions(self) -> frozenset[int]:
        """The IP versions of the addresses; ValueError for what is no address."""
        return self.known.versions

    def spelled(self, key: bytes) -> str | None:
        """Return the address that is packed as ``key``, if a next hop to it is known."""
        address = self.known.by_packed.get(key)
        return address if address in self.macs else None


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
        address = None if key == self._packed else self.table.spelled(key)
        return None if address is None else (address, self.table.macs[address])
