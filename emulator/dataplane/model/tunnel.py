"""A modelled tunnel port (VXLAN, RFC 7348): what Linux puts around a frame, and takes off it again.

It follows ``vxlan_xmit`` and ``vxlan_rcv`` (Linux, drivers/net/vxlan/vxlan_core.c) with the
settings of :mod:`emulator.dataplane.kernel.fabric.tunnels`, and has the fields that
:mod:`emulator.dataplane.kernel.fabric.tunnel_fields` fixes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mypy_extensions import i64

from emulator.dataplane.kernel.fabric.tunnel_fields import tunnel_hash
from emulator.dataplane.kernel.kernel_objects import TUNNEL_TTL, VXLAN_UDP_PORT
from emulator.dataplane.model.packet import ETHERNET, is_transport, marked, parse
from uet.wire.codes import NATIVE_PROTOCOL

_IPV4, _IPV4_WITHOUT_OPTIONS, _UDP, _UDP_OCTETS = b"\x08\x00", 0x45, 17, 8
_HEADERS = struct.Struct("!BBHHHBBH4s4sHHHHII")  # IPv4, UDP, VXLAN
_ADDRESSES = struct.Struct("!4H")
_ADDED, _IPV4_OCTETS = _HEADERS.size, 20
_FLAGS = 0x0800_0000  # the VNI is valid, all else is reserved
_ECN, _CE, _ECT_0 = 3, 3, 2
#: The first octet of a frame's source, and the bit that no sender has there: a bridge drops it.
_SOURCE_AT, _GROUP = 6, 1
#: Why a switch has dropped a packet for a tunnel of its own; no kernel counts all of these.
REFUSED_IN_TUNNEL = "tunnel packet that its end refuses"
#: Why a bridge drops what came out of a tunnel, for a MAC address behind that same tunnel.
BACK_INTO_TUNNEL = "frame of a tunnel for where it came from"
#: ``net.ipv4.ip_local_port_range`` of a new namespace, which UDP source ports are drawn from.
_LOWEST_PORT, _HIGHEST_PORT = 32_768, 60_999


class TunnelTable(NamedTuple):
    """The table of a tunnel port, which BGP EVPN fills; far ends are addresses of switches.

    ``everybody``: the ends that get what goes to all.  ``behind``: MAC -> the ends that it is
    behind, one of which gets a frame.
    """

    everybody: Sequence[bytes] = ()
    behind: Mapping[bytes, Sequence[bytes]] = {}


class ModelTunnel:
    """The tunnel port of the bridge ``bridge`` of ``vni``, whose packets come from ``local``."""

    def __init__(self, bridge: str, vni: int, local: bytes) -> None:
        self.bridge, self.vni, self.local = bridge, vni, local
        self.table = TunnelTable()

    def far_end(self, ends: Sequence[bytes], hash_: int) -> bytes:
        """Return the one of ``ends``, a group of next hops, whose share has ``hash_`` (32 bits)."""
        shortened, count = hash_ >> 1, len(ends)
        for place, end in enumerate(ends, start=1):
            if shortened < ((place << 31) + count // 2) // count:
                return end
        return ends[-1]

    def packet(self, frame: bytes, far: bytes, source_port: int) -> bytes:
        """Return ``frame`` as an IPv4 packet to the end ``far`` of the tunnel.

        Its DSCP is that of the packet inside, its ECN what RFC 6040 (4.1, normal mode) and Linux
        make of it: ECT(0) for CE.
        """
        traffic = _traffic(frame)
        if traffic & _ECN == _CE:
            traffic += _ECT_0 - _CE
        total = _ADDED + len(frame)
        words = ((_IPV4_WITHOUT_OPTIONS << 8 | traffic) + total + (TUNNEL_TTL << 8 | _UDP)) + sum(
            struct.unpack("!4H", self.local + far)
        )
        words = (words & 0xFFFF) + (words >> 16)
        words = (words & 0xFFFF) + (words >> 16)
        headers = _HEADERS.pack(
            *(_IPV4_WITHOUT_OPTIONS, traffic, total, 0, 0, TUNNEL_TTL, _UDP),
            *(~words & 0xFFFF, self.local, far),
            *(source_port, VXLAN_UDP_PORT, total - _IPV4_OCTETS, 0),
            *(_FLAGS, self.vni << 8),
        )
        return headers + frame


def _traffic(frame: bytes) -> int:
    """DSCP and ECN of the packet in ``frame``; 0 of any other frame."""
    kind = frame[12:14]
    if kind == _IPV4:
        return frame[15]
    return (frame[14] & 0xF) << 4 | frame[15] >> 4 if kind == b"\x86\xdd" else 0


def hash_inside(frame: bytes) -> int:
    """Return the hash that a tunnel port gives a frame without one; 0: it gives none."""
    if frame[12:15] != b"\x08\x00\x45" or len(frame) < 38:
        return 0
    return tunnel_hash(frame[26:30], frame[30:34], frame[34:38])


def source_port(hash_: int) -> int:
    """Return the UDP source port of a packet whose frame has ``hash_`` (``udp_flow_src_port``)."""
    folded: i64 = hash_ ^ hash_ << 16 & 0xFFFF_FFFF
    return _LOWEST_PORT + (folded * (_HIGHEST_PORT - _LOWEST_PORT) >> 32)


def _checked(outer: bytes, start: int, octets: int) -> bool:
    """Return whether the UDP datagram at ``start`` has no checksum, or the right one (RFC 768)."""
    if outer[start + 6 : start + 8] == bytes(2):
        return True
    datagram = outer[start : start + octets] + bytes(octets % 2)
    total: int = sum(struct.unpack("!4H", outer[start - 8 : start])) + _UDP + octets
    total += sum(struct.unpack(f"!{len(datagram) // 2}H", datagram))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total == 0xFFFF


class Inside(NamedTuple):
    """The content of a tunnel packet: ``frame`` for the network ``vni``."""

    vni: int
    frame: bytes


def opened(outer: bytes) -> Inside | None:
    """Take the frame out of ``outer``, an IPv4 packet for an address of the switch.

    A mark set on the way comes in (RFC 6040, 4.2).  None of a packet that the kernel refuses, and
    of one whose frame is cut so short that it is no transport's.
    """
    packet = parse(outer)
    start = ETHERNET + packet.header
    if outer[23] != _UDP or packet.payload < _UDP_OCTETS * 2 + ETHERNET:
        return None
    port, octets, _, flags, vni = struct.unpack_from("!2xHHHII", outer, start)
    if port != VXLAN_UDP_PORT or not _UDP_OCTETS * 2 + ETHERNET <= octets <= packet.payload:
        return None
    if flags != _FLAGS or vni & 0xFF or not _checked(outer, start, octets):
        return None
    frame = outer[start + 2 * _UDP_OCTETS : start + octets]
    if frame[_SOURCE_AT] & _GROUP or not is_transport(frame, NATIVE_PROTOCOL):
        return None
    mark = packet.traffic & _ECN
    inside = parse(frame)
    if not inside.version:
        return Inside(vni >> 8, frame)
    ecn = inside.traffic & _ECN
    if mark == _CE and ecn == 0:
        return None
    if mark == _CE and ecn != _CE:
        frame = marked(frame, inside)
    return Inside(vni >> 8, frame)
