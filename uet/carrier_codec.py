"""Carriers of UET on the fast path: Ethernet, IPv4 or IPv6, and UDP or the entropy header.

:class:`PeerEnvelope` makes the frames to one peer, :class:`Decapsulator` finds the UET part of a
frame that arrived (UES 3.5.10).  Which of the encapsulations an endpoint speaks, and whether its
packets end with a CRC, is configuration and not signalled on the wire: :class:`Encapsulation`.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from librt.strings import BytesWriter

from uet.encapsulation_choice import FRAGMENT as _FRAGMENT
from uet.encapsulation_choice import Encapsulation, EncapsulationError, fabric_address, mac_octets
from uet.transport import Frame
from uet.wire import headers
from uet.wire.codec import compile_stack
from uet.wire.codes import CRC_SIZE, IPV6_EXTENSIONS, VLAN_TYPES, PacketType
from uet.wire.crc import COVERAGE_START, crc32c, extend, packet_crc

#: Source address (packed); offsets of the first UET octet and behind the last one, any CRC
#: verified and left out; entropy; IP traffic class octet; offset of the source IP address.
Opened = tuple[bytes, int, int, int, int, int]

_IPV4: Final = 0x0800
_IPV6: Final = 0x86DD
_ETHERTYPES: Final = {4: _IPV4, 6: _IPV6}
_ROUTING: Final = 43
_EXTENSION_UNIT: Final = 8
_SEGMENTS_LEFT_AT: Final = 3

# The shortest native packet, four octets of UET behind the entropy header, is just as long as
# the headers of the UDP encapsulation: these two serve both.
_FRAME4: Final = compile_stack(headers.ETHERNET, headers.IPV4, headers.UDP_HEADER)
_FRAME6: Final = compile_stack(headers.ETHERNET, headers.IPV6, headers.UDP_HEADER)
_LEAST: Final = 4  # octets of UET: those of the shortest header
_IP_AT: Final = headers.ETHERNET.size
_IPV4_SIZE: Final = headers.IPV4.size
_IPV6_SIZE: Final = headers.IPV6.size
_CARRIER4_AT: Final = _IP_AT + _IPV4_SIZE
_CARRIER6_AT: Final = _IP_AT + _IPV6_SIZE
_SOURCE4_AT: Final = _IP_AT + COVERAGE_START[4]
_SOURCE6_AT: Final = _IP_AT + COVERAGE_START[6]
_UDP_SIZE: Final = headers.UDP_HEADER.size
_UDP_LENGTH_AT: Final = headers.UDP_HEADER.field("len").offset // 8
_ZERO: Final[bytes] = b"\0\0"  # the UDP checksum, last in its header
_ENTROPY_SIZE: Final = 2
_TYPE_SHIFT: Final = 3
_TSS: Final = int(PacketType.TSS)

_IPV4_PLAIN: Final = headers.IPV4.word(version=4, ihl=5, tos=0) >> headers.IPV4.shift("ihl")
_MORE_FRAGMENTS: Final = 1
_DONT_FRAGMENT: Final = 2
_FRAGMENTED: Final = headers.IPV4.mask("frag") | _MORE_FRAGMENTS << headers.IPV4.shift("flags")
_PROTOCOL: Final = headers.IPV4.mask("proto")
_ORDINARY: Final = _FRAGMENTED | _PROTOCOL
_VERSION_SHIFT: Final = headers.IPV6.shift("version")
_CLASS_SHIFT: Final = headers.IPV6.shift("tc")
_NEXT_SHIFT: Final = headers.IPV6.shift("nh")

_TOS_AT: Final = _IP_AT + headers.IPV4.field("tos").offset // 8
_TOTAL_LENGTH_AT: Final = _IP_AT + headers.IPV4.field("len").offset // 8
_CHECKSUM_AT: Final = _IP_AT + headers.IPV4.field("chksum").offset // 8
_PAYLOAD_LENGTH_AT: Final = _IP_AT + headers.IPV6.field("plen").offset // 8

#: Of an IP header that was found in order: source address, end of the packet, traffic class octet,
#: and what stands behind the entropy value: port and length.
_Known = tuple[bytes, int, int, bytes]
#: IP headers that an opener remembers.  Those of a transfer are alike but for a handful of lengths;
#: a hostile sender may make up as many as it likes.
_KNOWN_HEADERS: Final = 4_096
_ETHERTYPE_AT: Final = 12
#: EtherType and IPv4 header, entropy value, port and length.
_unpack_headers4: Final = Struct(f">{_CARRIER4_AT - _ETHERTYPE_AT}sH4s").unpack_from

#: Prefixes that an envelope keeps.  A transfer uses a handful of lengths; making one again costs
#: little, and there may be an envelope for each of a thousand peers.
_KEPT_PREFIXES: Final = 64

_TRUNCATED: Final = "rx_drop_truncated"
_NOT_UET: Final = "rx_drop_not_uet"
_OTHER_ADDRESS: Final = "rx_drop_other_address"
_IS_FRAGMENT: Final = "rx_drop_fragment"
_BAD_IP_LENGTH: Final = "rx_drop_bad_ip_length"
_BAD_UDP_LENGTH: Final = "rx_drop_bad_udp_length"
_BAD_CRC: Final = "rx_drop_bad_crc"


def ipv4_checksum(header: bytes | bytearray) -> int:
    """The checksum of an IPv4 header whose checksum field is zero (RFC 791).

    The ones' complement sum of 16-bit words is the number they form modulo 2^16 - 1 (RFC 1071).
    """
    return -int.from_bytes(header, "big") % 0xFFFF


class PeerEnvelope:
    """Frames to one peer, whose packets go to ``peer_mac``: its own or its gateway's.

    All that changes between frames of one class and length is the entropy value, so the rest is
    built once.  IPv4 packets carry DF and id 0, IPv6 ones flow label 0; the UDP checksum is sent
    as zero.  ``EncapsulationError`` for a peer that cannot be reached like this.
    """

    __slots__ = (
        "_crc",
        "_native",
        "_prefixes",
        "_source_at",
        "_template",
        "_version",
        "trailer",
        "transport_overhead",
    )

    def __init__(self, encapsulation: Encapsulation, peer_address: str, peer_mac: str) -> None:
        self._version = version = encapsulation.version
        peer, mac = reachable(encapsulation, peer_address, peer_mac)
        self._native = encapsulation.native
        self._crc = encapsulation.crc
        self._template = _template(encapsulation, peer, mac)
        self._source_at = _IP_AT + COVERAGE_START[version]
        self._prefixes: dict[int, tuple[bytes, bytes]] = {}
        #: octets of the CRC behind each frame that is not sealed
        self.trailer = CRC_SIZE if encapsulation.crc else 0
        #: octets between the IP header and UET
        self.transport_overhead = encapsulation.overhead

    def wrap(
        self, traffic_class: int, entropy: int, uet: bytes, payload: memoryview | bytes = b""
    ) -> Frame:
        """A frame of the UET headers ``uet`` and ``payload``, with the CRC where configured.

        Without a CRC the payload is not copied.  ``EncapsulationError`` if the packet were longer
        than IP allows.
        """
        if self._crc:
            return self._wrap_with_crc(traffic_class, entropy, uet, payload)
        try:
            before, behind = self._prefixes[len(uet) + len(payload) << 8 | traffic_class]
        except KeyError:
            before, behind = self._prefix(traffic_class, len(uet) + len(payload))
        header = BytesWriter()
        header.write(before)
        header.append(entropy >> 8)
        header.append(entropy & 0xFF)
        header.write(behind)
        header.write(uet)
        return header.getvalue(), payload

    def _wrap_with_crc(
        self, traffic_class: int, entropy: int, uet: bytes, payload: memoryview | bytes
    ) -> Frame:
        before, behind = self._prefix(traffic_class, len(uet) + len(payload) + CRC_SIZE)
        header = before + entropy.to_bytes(2, "big") + behind + uet
        body = bytes(payload)
        # The UDP checksum in the coverage is zero, which is also what we send.
        crc = extend(crc32c(header[self._source_at :]), body)
        return header, body + crc.to_bytes(CRC_SIZE, "big")

    def wrap_sealed(
        self, traffic_class: int, entropy: int, sealed_octets: int, seal: Callable[[bytes], bytes]
    ) -> Frame:
        """A frame secured by TSS, which has no CRC.

        ``seal`` is given the octets from the source IP address through the UDP or entropy header,
        as they will be sent, and returns ``sealed_octets`` octets: TSS header, ciphertext and tag.
        """
        before, behind = self._prefix(traffic_class, sealed_octets)
        header = before + entropy.to_bytes(2, "big") + behind
        sealed = seal(header[self._source_at :])
        if len(sealed) != sealed_octets:
            raise EncapsulationError(
                f"{len(sealed)} octets were sealed, but the lengths are those of {sealed_octets}"
            )
        return header, sealed

    def _prefix(self, traffic_class: int, uet_octets: int) -> tuple[bytes, bytes]:
        """Return what stands before and after the entropy value, in front of ``uet_octets``."""
        key = uet_octets << 8 | traffic_class
        pair = self._prefixes.get(key)
        if pair is not None:
            return pair
        if len(self._prefixes) >= _KEPT_PREFIXES:
            self._prefixes.clear()
        octets = self.prologue(traffic_class, uet_octets)
        entropy_at = len(octets) - self.transport_overhead
        pair = (octets[:entropy_at], octets[entropy_at + _ENTROPY_SIZE :])
        self._prefixes[key] = pair
        return pair

    def prologue(self, traffic_class: int, uet_octets: int) -> bytes:
        """All headers in front of ``uet_octets``, with entropy 0."""
        octets = bytearray(self._template)
        carried = self.transport_overhead + uet_octets
        try:
            if self._version == 4:
                octets[_TOS_AT] = traffic_class
                _put(octets, _TOTAL_LENGTH_AT, _IPV4_SIZE + carried)
                _put(octets, _CHECKSUM_AT, ipv4_checksum(octets[_IP_AT:_CARRIER4_AT]))
            else:
                word = headers.IPV6.word(tc=traffic_class)
                octets[_IP_AT:_PAYLOAD_LENGTH_AT] = word.to_bytes(4, "big")
                _put(octets, _PAYLOAD_LENGTH_AT, carried)
        except OverflowError:
            raise EncapsulationError(
                f"{uet_octets} octets of UET do not fit into one IP packet; take less payload"
            ) from None
        if not self._native:
            _put(octets, len(octets) - _UDP_SIZE + _UDP_LENGTH_AT, carried)
        return bytes(octets)


def reachable(
    encapsulation: Encapsulation, peer_address: str, peer_mac: str
) -> tuple[bytes, bytes]:
    """The packed address and MAC of a peer; ``EncapsulationError`` for one out of reach."""
    return packed_in_reach(encapsulation, peer_address), mac_octets("peer_mac", peer_mac)


def packed_in_reach(encapsulation: Encapsulation, peer_address: str) -> bytes:
    """Return the packed address of a peer; ``EncapsulationError`` for one out of reach."""
    peer = fabric_address("peer_address", peer_address)
    version = encapsulation.version
    if peer.version != version:
        raise EncapsulationError(
            f"peer_address: {peer_address!r} is not an IPv{version} address, but this"
            f" endpoint's, {encapsulation.address}, is"
        )
    return peer.packed


def _template(encapsulation: Encapsulation, peer: bytes, peer_mac: bytes) -> bytes:
    """The headers in front of UET as far as they are alike for all packets to one peer."""
    ethertype = _ETHERTYPES[encapsulation.version]
    source, protocol, ttl = encapsulation.packed, encapsulation.carrier_protocol, encapsulation.ttl
    octets = headers.ETHERNET.encode(
        dst=peer_mac, src=mac_octets("mac", encapsulation.mac), type=ethertype
    )
    if encapsulation.version == 4:
        # UET packets are never fragmented (UES 3.5.10).
        octets += headers.IPV4.encode(
            id=0, flags=_DONT_FRAGMENT, ttl=ttl, proto=protocol, src=source, dst=peer
        )
    else:
        octets += headers.IPV6.encode(nh=protocol, hlim=ttl, src=source, dst=peer)
    if encapsulation.native:
        return octets + headers.ENTROPY.encode()
    return octets + headers.UDP_HEADER.encode(sport=0, dport=encapsulation.udp_port)


def _put(octets: bytearray, at: int, value: int) -> None:
    octets[at : at + 2] = value.to_bytes(2, "big")


class Decapsulator:
    """Finds the UET part of the frames that arrive at one endpoint.

    ``open`` takes a whole Ethernet frame and returns :data:`Opened`, with at least four octets of
    UET in it. Else it returns the name of the counter under which the frame is dropped; it never
    raises on a frame's content.  ``trimmed`` are the code points (DSCP) that switches give to
    packets they have trimmed: these have lost their CRC, and keep the UDP length they had (UES
    4.1). A packet that begins with a TSS header has no CRC either: it is the caller's to
    authenticate, or to drop where nothing is secured.

    Ordinary frames are taken at one go.  All others, among them those with VLAN tags, IPv4
    options or IPv6 extension headers, go through :meth:`open_any`.
    """

    def __init__(self, encapsulation: Encapsulation, trimmed: frozenset[int] = frozenset()) -> None:
        self._address = encapsulation.packed
        self._version = encapsulation.version
        self._native = encapsulation.native
        self._protocol = encapsulation.carrier_protocol
        self._port = encapsulation.udp_port
        self._crc = encapsulation.crc
        self._trimmed = trimmed
        carrier_at = _CARRIER4_AT if self._version == 4 else _CARRIER6_AT
        self._uet_at = carrier_at + encapsulation.overhead  # in an ordinary frame
        self._least = self._uet_at + _LEAST
        self._known4: dict[bytes, _Known] = {}
        self.open: Callable[[memoryview], Opened | str] = (
            self._ordinary4 if self._version == 4 else self._ordinary6
        )

    def sealed_prefix(self, frame: memoryview, source_at: int, uet_at: int) -> bytes:
        """Return what ``wrap_sealed`` gave to ``seal`` for this frame.

        Any UDP checksum counts as zero.
        """
        octets = bytes(frame[source_at:uet_at])
        return octets if self._native else octets[: -len(_ZERO)] + _ZERO

    # -- ordinary frames -----------------------------------------------------------------------

    def _ordinary4(self, frame: memoryview) -> Opened | str:
        octets = len(frame)
        if octets < self._least:
            return self.open_any(frame)
        header, entropy, behind = _unpack_headers4(frame, _ETHERTYPE_AT)
        known = self._known4.get(header)
        if known is not None:
            source, end, octet, expected = known
            if end <= octets and behind == expected:
                opened = source, self._uet_at, end, entropy, octet, _SOURCE4_AT
                return self._without_crc(frame, _CARRIER4_AT, opened) if self._crc else opened
        return self._unknown4(frame)

    def _unknown4(self, frame: memoryview) -> Opened | str:
        """A frame long enough whose IP header has not been seen before, ordinary or not."""
        (
            _, _, ethertype, word, ip_octets, _, fragment, _, source, address,
            entropy, port, udp_octets, _,
        ) = _FRAME4.unpack_from(frame)  # fmt: skip
        end = _IP_AT + ip_octets
        if (
            word >> 8 == _IPV4_PLAIN
            and address == self._address
            and fragment & _ORDINARY == self._protocol
            and ethertype == _IPV4
            and (self._native or (port == self._port and udp_octets == end - _CARRIER4_AT))
            and self._least <= end <= len(frame)
        ):
            if not self._native:
                if len(self._known4) >= _KNOWN_HEADERS:
                    self._known4.clear()
                header, _, behind = _unpack_headers4(frame, _ETHERTYPE_AT)
                self._known4[header] = source, end, word & 0xFF, behind
            opened = source, self._uet_at, end, entropy, word & 0xFF, _SOURCE4_AT
            return self._without_crc(frame, _CARRIER4_AT, opened) if self._crc else opened
        return self.open_any(frame)

    def _ordinary6(self, frame: memoryview) -> Opened | str:
        if len(frame) >= self._least:
            (
                _, _, ethertype, word, carried, follows, source, address,
                entropy, port, udp_octets, _,
            ) = _FRAME6.unpack_from(frame)  # fmt: skip
            end = _CARRIER6_AT + carried
            if (
                word >> _VERSION_SHIFT == 6
                and address == self._address
                and follows >> _NEXT_SHIFT == self._protocol
                and ethertype == _IPV6
                and (self._native or (port == self._port and udp_octets == carried))
                and self._least <= end <= len(frame)
            ):
                octet = word >> _CLASS_SHIFT & 0xFF
                opened = source, self._uet_at, end, entropy, octet, _SOURCE6_AT
                return self._without_crc(frame, _CARRIER6_AT, opened) if self._crc else opened
        return self.open_any(frame)

    def _without_crc(self, frame: memoryview, carrier_at: int, opened: Opened) -> Opened | str:
        """``opened`` with the CRC verified and left out, where the packet has one."""
        source, uet_at, end, entropy, octet, source_at = opened
        if octet >> 2 in self._trimmed or frame[uet_at] >> _TYPE_SHIFT == _TSS:
            return opened
        end -= CRC_SIZE
        if end < uet_at + _LEAST:
            return _BAD_CRC
        if self._native or frame[uet_at - len(_ZERO) : uet_at] == _ZERO:
            crc = crc32c(frame[source_at:end])
        else:
            ip_at = source_at - COVERAGE_START[self._version]
            crc = packet_crc(frame[ip_at:end], udp_offset=carrier_at - ip_at)
        if frame[end : end + CRC_SIZE] != crc.to_bytes(CRC_SIZE, "big"):
            return _BAD_CRC
        return source, uet_at, end, entropy, octet, source_at

    # -- all others ----------------------------------------------------------------------------

    def open_any(self, frame: memoryview) -> Opened | str:
        """Decapsulate any frame as ``open`` does: one header after the other."""
        if len(frame) < _IP_AT:
            return _TRUNCATED
        _, _, ethertype = headers.ETHERNET.unpack_from(frame)
        ip_at = _IP_AT
        while ethertype in VLAN_TYPES:
            if len(frame) < ip_at + headers.VLAN.size:
                return _TRUNCATED
            _, ethertype = headers.VLAN.unpack_from(frame, ip_at)
            ip_at += headers.VLAN.size
        if ethertype != _ETHERTYPES[self._version]:
            return _NOT_UET
        if self._version == 4:
            return self._open_ipv4(frame, ip_at)
        return self._open_ipv6(frame, ip_at)

    def _open_ipv4(self, frame: memoryview, ip_at: int) -> Opened | str:
        if len(frame) < ip_at + _IPV4_SIZE:
            return _TRUNCATED
        word, octets, _, fragment, _, source, address = headers.IPV4.unpack_from(frame, ip_at)
        ihl = word >> 8 & 0xF
        if word >> 12 != 4 or ihl < 5 or fragment & _PROTOCOL != self._protocol:
            return _NOT_UET
        if address != self._address:
            return _OTHER_ADDRESS
        if fragment & _FRAGMENTED:
            return _IS_FRAGMENT
        return self._open_carrier(frame, ip_at, ip_at + 4 * ihl, octets, source, word & 0xFF)

    def _open_ipv6(self, frame: memoryview, ip_at: int) -> Opened | str:
        if len(frame) < ip_at + _IPV6_SIZE:
            return _TRUNCATED
        word, octets, follows, source, address = headers.IPV6.unpack_from(frame, ip_at)
        if word >> _VERSION_SHIFT != 6:
            return _NOT_UET
        at, follows = ip_at + _IPV6_SIZE, follows >> _NEXT_SHIFT
        elsewhere = address != self._address
        while follows in IPV6_EXTENSIONS:
            if len(frame) < at + _EXTENSION_UNIT:
                return _TRUNCATED
            if follows == _ROUTING and frame[at + _SEGMENTS_LEFT_AT]:
                elsewhere = True  # this address is a waypoint only
            follows, at = frame[at], at + _EXTENSION_UNIT * (frame[at + 1] + 1)
        fragmented = follows == _FRAGMENT
        if fragmented:
            if len(frame) < at + _EXTENSION_UNIT:
                return _TRUNCATED
            follows = frame[at]
        if follows != self._protocol:
            return _NOT_UET
        if elsewhere:
            return _OTHER_ADDRESS
        if fragmented:
            return _IS_FRAGMENT
        octet = word >> _CLASS_SHIFT & 0xFF
        return self._open_carrier(frame, ip_at, at, _IPV6_SIZE + octets, source, octet)

    def _open_carrier(
        self, frame: memoryview, ip_at: int, at: int, ip_octets: int, source: bytes, octet: int
    ) -> Opened | str:
        """The UDP or entropy header at ``at``, in an IP packet of ``ip_octets``."""
        carrier = headers.ENTROPY if self._native else headers.UDP_HEADER
        uet_at, end = at + carrier.size, ip_at + ip_octets
        if len(frame) < uet_at + _LEAST:
            return _TRUNCATED
        entropy, port, *rest = carrier.unpack_from(frame, at)
        if not self._native and port != self._port:
            return _NOT_UET
        if not uet_at + _LEAST <= end <= len(frame):
            return _BAD_IP_LENGTH
        if not self._native and rest[0] != end - at:
            cut_off = rest[0] > end - at
            if not cut_off or octet >> 2 not in self._trimmed:
                return _BAD_UDP_LENGTH
        opened = source, uet_at, end, entropy, octet, ip_at + COVERAGE_START[self._version]
        return self._without_crc(frame, at, opened) if self._crc else opened
