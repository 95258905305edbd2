"""The invariant CRC that ends every RoCEv2 packet (IBA 7.8.1 and annex A17).

It is the CRC of Ethernet over 64 ones and everything from the IP header to the pad octets. The ones
stand for the InfiniBand local route header that is not there. What routers may change is set to
ones: TOS, TTL and checksum of IPv4; traffic class, flow label and hop limit of IPv6; the UDP
checksum; FECN, BECN and six reserved bits in octet 4 of the BTH.  It stands least significant octet
first.
"""

from __future__ import annotations

from zlib import crc32

from emulator.rocev2.wire.rocev2_codes import ICRC_SIZE

_UDP_SIZE = 8
_LOCAL_ROUTE = b"\xff" * 8
_VARIANT_IN_BTH = 4
#: CRC-32 of any octets and their own CRC behind them.
RESIDUE = 0x2144_DF1C


def seed(headers: bytes | memoryview, bth: bytes | memoryview) -> int:
    """The CRC from the start through the first octets of the BTH.

    ``headers`` are the IP header (with options or extension headers) and the UDP header, ``bth``
    at least five octets.  Go on with ``zlib.crc32(octets, seed)``.
    """
    masked = bytearray(headers)
    if masked[0] >> 4 == 4:
        masked[1] = masked[8] = 0xFF
        masked[10:12] = b"\xff\xff"
    else:
        masked[0] |= 0x0F
        masked[1:4] = b"\xff\xff\xff"
        masked[7] = 0xFF
    masked[-2:] = b"\xff\xff"  # the UDP checksum
    masked += bth
    masked[len(headers) + _VARIANT_IN_BTH] = 0xFF
    return crc32(masked, crc32(_LOCAL_ROUTE))


def packed(crc: int) -> bytes:
    """The ICRC as it stands in the packet."""
    return crc.to_bytes(ICRC_SIZE, "little")


def icrc(packet: bytes | memoryview, udp_at: int) -> bytes:
    """The ICRC of ``packet``: from the IP header through the pad, its UDP header at ``udp_at``."""
    bth_at = udp_at + _UDP_SIZE
    return packed(crc32(packet[bth_at + 8 :], seed(packet[:bth_at], packet[bth_at : bth_at + 8])))
