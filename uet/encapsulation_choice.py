"""The encapsulation of one endpoint's packets: addresses, UDP or native, with a CRC or without."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address

from uet.addresses import ip_of
from uet.wire import headers
from uet.wire.codes import IPV6_EXTENSIONS, NATIVE_PROTOCOL, UDP_PORT

#: IP protocol numbers: of UDP, and of the IPv6 fragment header.
UDP, FRAGMENT = 17, 44


class EncapsulationError(ValueError):
    """An address or parameter cannot be used; the sentence names it."""


@dataclass(frozen=True, kw_only=True)
class Encapsulation:
    """The encapsulation of one endpoint's packets.  ``EncapsulationError`` for bad values.

    ``address`` is the fabric address (FA), and decides between IPv4 and IPv6.  ``native`` takes
    the entropy header and the IP ``protocol`` number in place of UDP (UES Table 3-31).  ``crc``
    ends every packet that TSS does not secure with a CRC, and expects it of peers.
    """

    address: str
    mac: str
    native: bool = False
    protocol: int = NATIVE_PROTOCOL
    udp_port: int = UDP_PORT
    crc: bool = False
    ttl: int = 64

    def __post_init__(self) -> None:
        fabric_address("address", self.address)
        mac_octets("mac", self.mac)
        for name, value, low, high in (
            ("protocol", self.protocol, 0, 255),
            ("udp_port", self.udp_port, 1, 65_535),
            ("ttl", self.ttl, 1, 255),
        ):
            if not low <= value <= high:
                raise EncapsulationError(f"{name} is {value}; it must lie in {low}..{high}")
        if self.protocol in (UDP, FRAGMENT, *IPV6_EXTENSIONS):
            raise EncapsulationError(
                f"protocol {self.protocol} is UDP or an IPv6 extension header; choose one that is"
                " not assigned, such as 253 or 254"
            )

    @property
    def packed(self) -> bytes:
        """The address as it stands in the IP header: 4 or 16 octets."""
        return ip_of(self.address).packed

    @property
    def version(self) -> int:
        """Return the version of IP: 4 or 6."""
        return ip_of(self.address).version

    @property
    def carrier_protocol(self) -> int:
        """IP protocol, or next header, of what stands between IP and UET."""
        return self.protocol if self.native else UDP

    @property
    def overhead(self) -> int:
        """Octets of the UDP or entropy header."""
        return headers.ENTROPY.size if self.native else headers.UDP_HEADER.size


@lru_cache(maxsize=8192)
def fabric_address(name: str, text: str) -> IPv4Address | IPv6Address:
    try:
        address = ip_of(str(text))
    except ValueError:
        raise EncapsulationError(f"{name}: {text!r} is not an IPv4 or IPv6 address") from None
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        raise EncapsulationError(f"{name}: {text!r} has a zone; leave out what follows the %")
    if address.is_multicast or address.is_unspecified:
        raise EncapsulationError(f"{name}: {text!r} is not the address of one endpoint")
    return address


@lru_cache(maxsize=8192)
def mac_octets(name: str, text: str) -> bytes:
    if not re.fullmatch(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}", str(text)):
        raise EncapsulationError(f"{name}: {text!r} is not a MAC address like 02:00:00:00:00:01")
    octets = bytes.fromhex(text.replace(":", ""))
    if octets[0] & 1:
        raise EncapsulationError(f"{name}: {text!r} is a group address; give that of one port")
    return octets
