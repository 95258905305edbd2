"""Peers by handle: ``fi_av``."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from uet.api.flags import ApiError
from uet.profiles import FepCapability, capabilities
from uet.ses.address import Address

#: ``FI_ADDR_UNSPEC``: any source, or one that is in no address vector.
ADDR_UNSPEC: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderAddress:
    """The address of an endpoint: the result of ``fi_getname``, which ``fi_av_insert`` takes.

    ``address`` is the fabric address (FA) of its FEP.  ``profiles`` are those that the peer has,
    ``None`` if they are not known: then only the peer itself refuses what it cannot do.
    """

    address: str
    job_id: int = 1
    pid_on_fep: int = 0
    resource_index: int = 15
    initiator_id: int = 16
    relative: bool = True
    profiles: tuple[str, ...] | None = None
    #: the same, as requests name it (UES 3.4.1)
    destination: Address = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            ipaddress.ip_address(self.address)
        except ValueError:
            raise ApiError(f"{self.address!r} is not an IP address; give the peer's FA") from None
        if not 0 <= self.initiator_id < 1 << 32:
            raise ApiError(f"initiator_id is {self.initiator_id}; it must fit into 32 bits")
        if self.profiles is not None:
            capabilities(self.profiles)
        destination = Address(
            job_id=self.job_id,
            pid_on_fep=self.pid_on_fep,
            resource_index=self.resource_index,
            relative=self.relative,
        )
        object.__setattr__(self, "destination", destination)

    def lacks(self, capability: FepCapability) -> bool:
        """Return whether the peer is known not to be able to do this."""
        return self.profiles is not None and capability not in capabilities(self.profiles)


class AddressVector:
    """Handles (``fi_addr_t``) for the addresses of peers: ``fi_av``, of type ``FI_AV_TABLE``.

    >>> from uet.api import AddressVector, ProviderAddress
    >>> av = AddressVector({"10.0.0.2": "02:00:00:00:00:02"})
    >>> peer = av.insert(ProviderAddress(address="10.0.0.2", resource_index=15, initiator_id=16))
    >>> peer
    0
    >>> av.lookup(peer).initiator_id
    16
    >>> av.remove(peer)
    >>> av.lookup(peer)
    Traceback (most recent call last):
    ...
    uet.api.flags.ApiError: there is no address with handle 0; insert it first

    Handles count up and are never used twice.  ``neighbours`` are those of the domain's
    configuration: who is not among them cannot be reached.
    """

    def __init__(self, neighbours: Mapping[str, str]) -> None:
        # An address may be spelled in several ways; the FEP has that of its configuration.
        self._neighbours = {ipaddress.ip_address(peer): peer for peer in neighbours}
        self._entries: dict[int, ProviderAddress] = {}
        self._by_source: dict[tuple[str, int], list[int]] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._entries)

    def insert(self, address: ProviderAddress) -> int:
        """Insert ``address`` and return its handle: ``fi_av_insert``.

        Raises :class:`ApiError` for an FA that has no MAC.
        """
        spelled = self._neighbours.get(ipaddress.ip_address(address.address))
        if spelled is None:
            raise ApiError(
                f"no MAC address is known for {address.address}; add it to the neighbours of the"
                " domain's configuration"
            )
        address = replace(address, address=spelled)
        handle = self._next
        self._next += 1
        self._entries[handle] = address
        source = (address.address, address.initiator_id)
        self._by_source.setdefault(source, []).append(handle)
        return handle

    def lookup(self, fi_addr: int) -> ProviderAddress:
        """The address of a handle: ``fi_av_lookup``."""
        try:
            return self._entries[fi_addr]
        except KeyError:
            raise ApiError(f"there is no address with handle {fi_addr}; insert it first") from None

    def remove(self, fi_addr: int) -> None:
        """Forget a handle: ``fi_av_remove``.  What has been posted to it goes on."""
        address = self.lookup(fi_addr)
        del self._entries[fi_addr]
        source = (address.address, address.initiator_id)
        self._by_source[source].remove(fi_addr)
        if not self._by_source[source]:
            del self._by_source[source]

    def find(self, address: str, initiator_id: int | None) -> int:
        """The first handle for where a message came from, or :data:`ADDR_UNSPEC`.

        A message names its FA and initiator id, and no more.
        """
        if initiator_id is None:
            return ADDR_UNSPEC
        handles = self._by_source.get((address, initiator_id))
        return handles[0] if handles else ADDR_UNSPEC
