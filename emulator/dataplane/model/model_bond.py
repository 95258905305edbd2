"""Two ports of a modelled GPU that are one interface, as Linux's bond in mode ``balance-xor``.

It follows ``bond_xmit_hash`` with ``xmit_hash_policy=layer3+4`` and ``bond_3ad_xor_xmit`` (Linux,
drivers/net/bonding/bond_main.c): addresses and port numbers choose among the ports with carrier.
"""

from __future__ import annotations

from collections.abc import Sequence

from emulator.dataplane.model.model_switch import ModelInterface

_IPV4 = b"\x08\x00"
_ETHERNET = 14
#: More fragments, or an offset: such a packet counts by its addresses alone.
_FRAGMENT = 0x3FFF
#: Protocols whose header begins with two port numbers (``proto_ports_offset``).
_WITH_PORTS = frozenset({6, 17, 33, 50, 132, 136})


class ModelBond:
    """The bond of ``members``, in the order in which they have joined it."""

    def __init__(self, members: Sequence[ModelInterface]) -> None:
        self._members = members

    def member_for(self, frame: bytes) -> ModelInterface | None:
        """Return the port that ``frame`` leaves by; None if no port has carrier."""
        usable = [member for member in self._members if member.carrier]
        return usable[layer34_hash(frame) % len(usable)] if usable else None


def layer34_hash(frame: bytes) -> int:
    """Return the hash of an IPv4 frame that a bond chooses its port by.

    Raises ValueError for another frame: modelled endpoints send none.
    """
    if frame[12:14] != _IPV4:
        raise ValueError(f"a frame of type {frame[12:14].hex()} is not IPv4")
    ports = b""
    if not (frame[20] << 8 | frame[21]) & _FRAGMENT and frame[23] in _WITH_PORTS:
        start = _ETHERNET + (frame[14] & 0xF) * 4
        ports = frame[start : start + 4]
    source, destination = frame[26:30], frame[30:34]
    hash_ = 0
    for octets in (ports, source, destination):  # words as x86 and ARM load them
        hash_ ^= int.from_bytes(octets, "little")
    hash_ ^= hash_ >> 16
    hash_ ^= hash_ >> 8
    return hash_ >> 1
