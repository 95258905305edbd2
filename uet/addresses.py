"""IP addresses as configurations spell them, each read once: all endpoints of a fabric name all."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address


@lru_cache(maxsize=2**16)  # fabrics of thousands of GPUs ask for one after the other
def ip_of(text: str) -> IPv4Address | IPv6Address:
    """The address that ``text`` spells; ``ValueError`` if it is none."""
    return ip_address(text)
