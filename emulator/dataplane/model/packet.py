"""Changes that the switch model makes to a frame: ``packet.h`` in Python, and the kernel's ECN.

A frame is octets from the Ethernet header on, without FCS.  Each function returns a new frame.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from librt.strings import BytesWriter, read_i16_be, read_i64_be, write_i16_be, write_i64_be

from emulator.dataplane.kernel.kernel_objects import VXLAN_UDP_PORT
from uet.wire.codes import UDP_PORT as UET_UDP_PORT

ETHERNET: Final = 14
IPV6_HEADER: Final = 40
_SMALLEST_IPV4_HEADER: Final = 20
_ECN: Final = 3
_word: Final = struct.Struct("!H")
_IPV4: Final = b"\x08\x00"
_IPV4_TYPE: Final = 0x0800
_IPV6: Final = b"\x86\xdd"
_IP_IN_IP, _UDP, _PORTS, _VXLAN = 4, 17, 4, 8 + 8
_IPV4_WITHOUT_OPTIONS: Final = 0x45
_LATER_FRAGMENT: Final = 0x1FFF
_TRANSPORT_PORTS = frozenset({UET_UDP_PORT, 4791})  # that of RoCEv2, as IANA has it


class ModelPacket(NamedTuple):
    """The outermost IP header: version (0: none that is well formed), DSCP with ECN, octets."""

    version: int
    traffic: int
    header: int
    payload: int


NO_PACKET: Final = ModelPacket(0, 0, 0, 0)


def parse(frame: bytes) -> ModelPacket:
    """Return the outermost IP header of ``frame``.

    Lengths that the frame does not bear out make it something else than IP.
    """
    rest = len(frame) - ETHERNET
    kind = frame[12:14]
    if rest < 8 or (kind != _IPV4 and kind != _IPV6):
        return NO_PACKET
    first = frame[14]
    if first >> 4 == 4:
        header, total = (first & 0xF) * 4, frame[16] << 8 | frame[17]
        if not _SMALLEST_IPV4_HEADER <= header <= total <= rest:
            return NO_PACKET
        return ModelPacket(4, frame[15], header, total - header)
    if first >> 4 == 6:
        payload = frame[18] << 8 | frame[19]
        if IPV6_HEADER + payload > rest:
            return NO_PACKET
        return ModelPacket(6, (first & 0xF) << 4 | frame[15] >> 4, IPV6_HEADER, payload)
    return NO_PACKET


def plain_payload(frame: bytes) -> int:
    """Return the octets behind the IPv4 header of ``frame`` as :func:`parse` does.

    -1: it has no such header, or one with options.
    """
    octets = len(frame)
    if octets < ETHERNET + _SMALLEST_IPV4_HEADER or frame[14] != _IPV4_WITHOUT_OPTIONS:
        return -1
    total = frame[16] << 8 | frame[17]
    if _SMALLEST_IPV4_HEADER <= total <= octets - ETHERNET and read_i16_be(frame, 12) == _IPV4_TYPE:
        return total - _SMALLEST_IPV4_HEADER
    return -1


def traffic_of(frame: bytes) -> int:
    """Return DSCP and ECN of ``frame`` as :func:`parse` does; -1 if it is no IP packet."""
    if plain_payload(frame) >= 0:
        return frame[15]
    packet = parse(frame)
    return packet.traffic if packet.version else -1


def _exchanged(checksum: int, old: int, new: int) -> int:
    """One's complement sum with a 16-bit word exchanged (RFC 1624, equation 3)."""
    total = (~checksum & 0xFFFF) + (~old & 0xFFFF) + new
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def trimmed(frame: bytes, packet: ModelPacket, payload: int, dscp: int) -> bytes:
    """Cut the IP payload to ``payload`` octets, and write ``dscp`` (UES 4.1).

    The payload's own lengths (UDP) stay, as do ECN and TTL.
    """
    traffic = dscp << 2 | packet.traffic & _ECN
    cut = bytearray(frame[: ETHERNET + packet.header + payload])
    if packet.version == 4:
        total = packet.header + payload
        first = cut[14] << 8 | cut[15]
        checksum = _exchanged(cut[24] << 8 | cut[25], first, first & 0xFF00 | traffic)
        checksum = _exchanged(checksum, cut[16] << 8 | cut[17], total)
        cut[15] = traffic
        _word.pack_into(cut, 16, total)
        _word.pack_into(cut, 24, checksum)
    else:
        cut[14] = 6 << 4 | traffic >> 4
        cut[15] = (traffic & 0xF) << 4 | cut[15] & 0xF
        _word.pack_into(cut, 18, payload)
    return bytes(cut)


def marked(frame: bytes, packet: ModelPacket) -> bytes:
    """Set CE in a packet that is ECN-capable (RFC 3168), and its checksum (RFC 1624).

    The sum is the one that ``IP_ECN_set_ce`` of Linux leaves (include/net/inet_ecn.h).
    """
    if packet.version == 4:
        checksum = frame[24] << 8 | frame[25]
        checksum += 0xFFFB + (packet.traffic + 1 & _ECN)
        if checksum > 0xFFFF:
            checksum -= 0xFFFF
        return b"".join(
            (
                frame[:15],
                bytes((frame[15] | _ECN,)),
                frame[16:24],
                _word.pack(checksum),
                frame[26:],
            )
        )
    return frame[:15] + bytes((frame[15] | _ECN << 4,)) + frame[16:]


def corrupted(frame: bytes, packet: ModelPacket, where: int) -> bytes | None:
    """Flip one bit of the IP payload, or of what follows the Ethernet header if it is not IP.

    None if there is no octet.
    """
    start = ETHERNET + packet.header
    octets = len(frame) - start
    if octets <= 0:
        return None
    start += (where >> 3) % octets
    return b"".join((frame[:start], bytes((frame[start] ^ 1 << (where & 7),)), frame[start + 1 :]))


def is_transport(frame: bytes, native_protocol: int) -> bool:
    """Return whether ``frame`` is a transport's, or has one's in a tunnel over IPv4.

    ``transport.h`` in Python: no other frame is an engine's.
    """
    kind, start = frame[12:14], ETHERNET
    for tunnelled in (False, True):
        least = {_IPV4: _SMALLEST_IPV4_HEADER, _IPV6: IPV6_HEADER}.get(kind)
        if least is None or len(frame) < start + least:
            return False
        if kind == _IPV4:
            if (frame[start + 6] << 8 | frame[start + 7]) & _LATER_FRAGMENT:
                return False
            protocol, header = frame[start + 9], (frame[start] & 0xF) * 4
        else:
            protocol, header = frame[start + 6], IPV6_HEADER
        start += header
        if protocol == native_protocol:
            return True
        if protocol == _IP_IN_IP and kind == _IPV4 and not tunnelled:
            continue
        if protocol != _UDP or len(frame) < start + _PORTS:
            return False
        port = frame[start + 2] << 8 | frame[start + 3]
        if port in _TRANSPORT_PORTS:
            return True
        if port != VXLAN_UDP_PORT or kind != _IPV4:
            return False
        start += _VXLAN + ETHERNET
        kind = frame[start - 2 : start]
    return False


def next_hop(frame: bytes, macs: bytes) -> bytes:
    """Return an IPv4 packet as a router sends it on: ``macs``, TTL less one, its checksum.

    The sum is the one that ``ip_decrease_ttl`` of Linux leaves (include/net/ip.h).  What follows
    the packet in the frame is gone, as from ``ip_rcv_core``.
    """
    checksum = (frame[24] << 8 | frame[25]) + 0x0100
    if checksum > 0xFFFF:
        checksum -= 0xFFFF
    elif checksum == 0xFFFF:
        checksum = 0
    head = BytesWriter()
    head.write(macs)
    write_i64_be(head, read_i64_be(frame, 12))
    write_i16_be(head, read_i16_be(frame, 20))
    head.append(frame[22] - 1)
    head.append(frame[23])
    head.append(checksum >> 8)
    head.append(checksum & 0xFF)
    end = ETHERNET + (frame[16] << 8 | frame[17])
    return head.getvalue() + (frame[26:] if end >= len(frame) else frame[26 : max(end, 26)])
