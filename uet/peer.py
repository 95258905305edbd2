"""A peer as seen from this endpoint: how frames to it begin, and what is shared toward it."""

from __future__ import annotations

from ipaddress import IPv4Address

from uet.config import FepConfig
from uet.congestion.base import CongestionControl
from uet.transport import Frame
from uet.wire import headers
from uet.wire.codes import CRC_SIZE, ECN_ECT0, ECN_NOT_ECT
from uet.wire.crc import crc32c, extend

_IP_SIZE = headers.IPV4.size
_UDP_SIZE = headers.UDP_HEADER.size
_ENTROPY_SIZE = 2
_ETHERTYPE_IPV4 = 0x0800
_PROTOCOL_UDP = 17
_DONT_FRAGMENT = 2
_SOURCE_ADDRESS_AT = headers.ETHERNET.size + headers.IPV4.field("src").offset // 8


def ipv4_checksum(header: bytes) -> int:
    """Ones' complement of the ones' complement sum of 16-bit words (RFC 791)."""
    total = sum(int.from_bytes(header[i : i + 2], "big") for i in range(0, len(header), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class Envelope:
    """Frames to one peer: Ethernet, IPv4 and UDP around UET packets (UES 3.5.10).

    All that changes between frames of one length and class is the entropy value, so the rest is
    built once per (class, length).  The UDP checksum is sent as zero.
    """

    __slots__ = ("_crc", "_ethernet", "_ip", "_prefixes", "_udp_port", "trailer")

    def __init__(self, config: FepConfig, peer: str) -> None:
        self._ethernet = headers.ETHERNET.encode(
            dst=_mac(config.neighbours[peer]), src=_mac(config.mac), type=_ETHERTYPE_IPV4
        )
        self._ip = {
            "flags": _DONT_FRAGMENT,  # UET packets are never fragmented (UES 3.5.10)
            "ttl": config.ttl,
            "proto": _PROTOCOL_UDP,
            "src": IPv4Address(config.address).packed,
            "dst": IPv4Address(peer).packed,
        }
        self._udp_port = config.udp_port
        self._crc = config.crc
        self.trailer = CRC_SIZE if config.crc else 0
        self._prefixes: dict[int, tuple[bytes, bytes]] = {}

    def _prefix(self, traffic_class: int, uet_octets: int) -> tuple[bytes, bytes]:
        """What stands before and after the entropy value."""
        udp_octets = _UDP_SIZE + uet_octets
        fields = {**self._ip, "tos": traffic_class, "len": _IP_SIZE + udp_octets, "id": 0}
        checksum = ipv4_checksum(headers.IPV4.encode(**fields, chksum=0))
        ip = headers.IPV4.encode(**fields, chksum=checksum)
        udp = headers.UDP_HEADER.encode(sport=0, dport=self._udp_port, len=udp_octets, chksum=0)
        pair = (self._ethernet + ip, udp[_ENTROPY_SIZE:])
        self._prefixes[traffic_class << 16 | uet_octets] = pair
        return pair

    def wrap(
        self, traffic_class: int, entropy: int, uet: bytes, payload: memoryview | bytes = b""
    ) -> Frame:
        """A frame of the UET headers ``uet`` and ``payload``, with the CRC where configured."""
        if self._crc:
            return self._wrap_with_crc(traffic_class, entropy, uet, payload)
        octets = len(uet) + len(payload)
        prefix = self._prefixes.get(traffic_class << 16 | octets)
        if prefix is None:
            prefix = self._prefix(traffic_class, octets)
        return prefix[0] + entropy.to_bytes(2, "big") + prefix[1] + uet, payload

    def _wrap_with_crc(
        self, traffic_class: int, entropy: int, uet: bytes, payload: memoryview | bytes
    ) -> Frame:
        octets = len(uet) + len(payload) + CRC_SIZE
        prefix = self._prefixes.get(traffic_class << 16 | octets)
        if prefix is None:
            prefix = self._prefix(traffic_class, octets)
        header = prefix[0] + entropy.to_bytes(2, "big") + prefix[1] + uet
        body = bytes(payload)
        # The UDP checksum in the coverage is zero, which is also what we send.
        crc = extend(crc32c(header[_SOURCE_ADDRESS_AT:]), body)
        return header, body + crc.to_bytes(CRC_SIZE, "big")


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def traffic_class(dscp: int, *, ecn_capable: bool) -> int:
    """The IP traffic class octet: DSCP and ECN (RFC 2474, RFC 3168)."""
    return dscp << 2 | (ECN_ECT0 if ecn_capable else ECN_NOT_ECT)


class Peer:
    """A fabric endpoint that packets go to and come from."""

    __slots__ = ("address", "congestion", "envelope", "key")

    def __init__(self, config: FepConfig, address: str, congestion: CongestionControl) -> None:
        self.address = address
        self.key = int(IPv4Address(address))
        self.envelope = Envelope(config, address)
        self.congestion = congestion
