"""What carries UET: Ethernet, VLAN tags, IPv4 or IPv6, and the UDP or entropy header."""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass, field

from uet.wire import headers
from uet.wire.codes import NATIVE_PROTOCOL, UDP_PORT

_VLAN_TYPES = frozenset({0x8100, 0x88A8, 0x9100})
_IPV4, _IPV6 = 0x0800, 0x86DD
_UDP = 17
#: IPv6 extension headers that may stand in front of UET: hop-by-hop, routing, destination
#: (RFC 8200).
_EXTENSIONS = frozenset({0, 43, 60})
_FRAGMENT = 44
_MORE_FRAGMENTS = 1


@dataclass(slots=True)
class Envelope:
    """Where the UET part of a frame lies, and what the headers in front of it say.

    Offsets are in octets from the start of the frame.  ``uet`` is ``None`` for a frame that
    carries no UET; then ``errors`` tells why.
    """

    version: int = 0
    dscp: int = 0
    ecn: int = 0
    source: str = ""
    destination: str = ""
    protocol: int = 0
    ip: int = 0
    udp: int | None = None
    uet: int | None = None
    #: end of the IP packet as far as it is in the frame, and as the IP length has it
    end: int = 0
    claimed_end: int = 0
    entropy: int = 0
    entropy_rsvd: int = 0
    dport: int = 0
    udp_length: int = 0
    udp_checksum: int = 0
    #: the frame was cut when it was captured: what is missing is no fault of the packet
    cut: bool = False
    errors: list[str] = field(default_factory=list)

    @property
    def encapsulation(self) -> str:
        return f"ipv{self.version}/{'native' if self.udp is None else 'udp'}"

    @property
    def shortened(self) -> bool:
        """The UDP length counts octets that the IP length does not: the mark of trimming."""
        return self.udp is not None and self.udp + self.udp_length > self.claimed_end


def open_frame(
    frame: bytes | memoryview,
    *,
    udp_port: int = UDP_PORT,
    native_protocol: int = NATIVE_PROTOCOL,
    wire_length: int | None = None,
) -> Envelope:
    """Find the UET part of an Ethernet frame.  Never raises on a frame's content.

    ``wire_length`` is the frame's length in octets before a capture cut it.
    """
    env = Envelope(cut=wire_length is not None and wire_length > len(frame))
    try:
        _open_link(env, frame, max(len(frame), wire_length or 0), udp_port, native_protocol)
    except (ValueError, struct.error, IndexError):
        if not env.cut:
            env.errors.append("the frame ends within its Ethernet, IP, UDP or entropy header")
        else:
            env.errors.append("the capture cut the frame before the UET headers")
    return env


def _open_link(
    env: Envelope, frame: bytes | memoryview, wire: int, udp_port: int, native: int
) -> None:
    _, _, ethertype = headers.ETHERNET.decode(frame)
    at = headers.ETHERNET.size
    while ethertype in _VLAN_TYPES:
        _, ethertype = headers.VLAN.unpack_from(frame, at)
        at += headers.VLAN.size
    env.ip = at
    if ethertype == _IPV4:
        behind_ip = _open_ipv4(env, frame, wire)
    elif ethertype == _IPV6:
        behind_ip = _open_ipv6(env, frame, wire)
    else:
        env.errors.append(f"no UET: Ethernet type 0x{ethertype:04x} is not IP")
        return
    if behind_ip is None:
        return
    if env.protocol == _UDP:
        _open_udp(env, frame, behind_ip, udp_port)
    elif env.protocol == native:
        env.entropy, env.entropy_rsvd = headers.ENTROPY.decode(frame[: env.end], behind_ip)
        env.uet = behind_ip + headers.ENTROPY.size
    else:
        env.errors.append(f"no UET: IP protocol {env.protocol} is neither UDP nor {native}")


def _open_ipv4(env: Envelope, frame: bytes | memoryview, wire: int) -> int | None:
    version, ihl, tos, total, _, flags, fragment, _, protocol, _, source, destination = (
        headers.IPV4.decode(frame, env.ip)
    )
    env.version, env.dscp, env.ecn, env.protocol = 4, tos >> 2, tos & 3, protocol
    env.source, env.destination = (
        str(ipaddress.IPv4Address(source)),
        str(ipaddress.IPv4Address(destination)),
    )
    if version != 4 or ihl < 5:
        env.errors.append(f"no UET: IP version {version} with header length {ihl} is not IPv4")
        return None
    if fragment:
        env.errors.append("no UET: an IPv4 fragment other than the first")
        return None
    if flags & _MORE_FRAGMENTS:
        env.errors.append("the IPv4 packet is a fragment, but UET is never fragmented")
    _bound(env, frame, wire, total, ihl * 4, "IPv4 total length")
    return env.ip + ihl * 4


def _open_ipv6(env: Envelope, frame: bytes | memoryview, wire: int) -> int | None:
    version, traffic_class, _, length, protocol, _, source, destination = headers.IPV6.decode(
        frame, env.ip
    )
    env.version, env.dscp, env.ecn = 6, traffic_class >> 2, traffic_class & 3
    env.source, env.destination = (
        str(ipaddress.IPv6Address(source)),
        str(ipaddress.IPv6Address(destination)),
    )
    if version != 6:
        env.errors.append(f"no UET: IP version {version} is not IPv6")
        return None
    size = headers.IPV6.size
    _bound(env, frame, wire, size + length, size, "IPv6 payload length plus header")
    at = env.ip + size
    while protocol in _EXTENSIONS:
        protocol, at = frame[at], at + 8 * (frame[at + 1] + 1)
    env.protocol = protocol
    if protocol == _FRAGMENT:
        env.errors.append("no UET: an IPv6 fragment, and UET is never fragmented")
        return None
    return at


def _bound(
    env: Envelope, frame: bytes | memoryview, wire: int, length: int, header: int, what: str
) -> None:
    env.claimed_end = env.ip + length
    if length < header:
        env.errors.append(f"{what} is {length}, less than the {header} octets of the IP header")
        env.claimed_end = wire
    elif env.claimed_end > wire:
        env.errors.append(f"{what} is {length}, but the frame has {wire - env.ip} octets of IP")
    env.end = min(env.claimed_end, len(frame))


def _open_udp(env: Envelope, frame: bytes | memoryview, at: int, udp_port: int) -> None:
    entropy, env.dport, env.udp_length, env.udp_checksum = headers.UDP_HEADER.decode(
        frame[: env.end], at
    )
    env.entropy = entropy
    if env.dport != udp_port:
        env.errors.append(f"no UET: UDP destination port {env.dport} is not {udp_port}")
        return
    env.udp = at
    env.uet = at + headers.UDP_HEADER.size
    if env.udp_length < headers.UDP_HEADER.size:
        env.errors.append(f"UDP length is {env.udp_length}, less than the UDP header")
    elif at + env.udp_length < env.claimed_end:
        env.errors.append(
            f"UDP length is {env.udp_length}, but IP carries {env.claimed_end - at} octets"
        )
