"""The UET CRC: four octets at the end of a packet, CRC-32C (RFC 3720 polynomial).

It covers the packet from the source IP address on: addresses, IP options or extension headers,
UDP (checksum taken as zero) or entropy header, UET headers and payload.  What routers rewrite
(DSCP, ECN, TTL, lengths, IP checksum) lies outside.  The trailer is sent most significant octet
first.
"""

from __future__ import annotations

from typing import Final

import google_crc32c

from uet.wire.codes import CRC_SIZE

#: Offset of the source address, where the coverage begins, by IP version.
COVERAGE_START: Final = {4: 12, 6: 8}


def crc32c(data: bytes | memoryview) -> int:
    """CRC-32C (Castagnoli) of ``data``, a 32-bit number."""
    return int(google_crc32c.value(bytes(data)))


def extend(crc: int, data: bytes | memoryview) -> int:
    """Continue a CRC over more octets: ``extend(crc32c(a), b) == crc32c(a + b)``."""
    return int(google_crc32c.extend(crc, bytes(data)))


def packet_crc(ip_packet: bytes | memoryview, *, udp_offset: int | None) -> int:
    """CRC of an IP packet without its trailer (end it before the trailer's place).

    ``ip_packet`` begins with the innermost IP header; ``udp_offset`` is where the UDP header
    begins in it, ``None`` in native encapsulation.  The UDP and IP lengths count the trailer.
    """
    start = COVERAGE_START[ip_packet[0] >> 4]
    if udp_offset is None:
        return crc32c(ip_packet[start:])
    crc = crc32c(ip_packet[start : udp_offset + 6])
    crc = extend(crc, b"\0\0")
    return extend(crc, ip_packet[udp_offset + 8 :])


def trailer(ip_packet: bytes | memoryview, *, udp_offset: int | None) -> bytes:
    """The four octets to append to ``ip_packet``; arguments as for :func:`packet_crc`."""
    return packet_crc(ip_packet, udp_offset=udp_offset).to_bytes(CRC_SIZE, "big")


def verify(ip_packet: bytes | memoryview, *, udp_offset: int | None) -> bool:
    """Return whether ``ip_packet`` ends with its CRC.

    The trailer is included, and no padding is behind it.
    """
    body = memoryview(ip_packet)[:-CRC_SIZE]
    return bytes(ip_packet[-CRC_SIZE:]) == trailer(body, udp_offset=udp_offset)
