"""Carriers of UET: Ethernet, VLAN tags, IPv4 or IPv6, tunnels, UDP or the entropy header.

VXLAN (RFC 7348) and IP in IP (RFC 2003, RFC 2473, RFC 4213) are looked through: the innermost IP
header is the one that carries UET.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass, field

from uet.wire import headers
from uet.wire.codes import IPV6_EXTENSIONS, NATIVE_PROTOCOL, UDP_PORT, VLAN_TYPES

_IPV4, _IPV6 = 0x0800, 0x86DD
_UDP = 17
#: IP protocols that are IP again -> its Ethernet type.
_IP_IN_IP = {4: _IPV4, 41: _IPV6}
#: UDP destination port and header octets of VXLAN, whose first octet has the flag of a valid VNI.
VXLAN_PORT = 4789
_VXLAN_SIZE = 8
_VXLAN_VNI_VALID = 0x08
#: Tunnels inside one another that are looked through.
_MOST_TUNNELS = 8
_FRAGMENT = 44
_MORE_FRAGMENTS = 1


@dataclass(slots=True)
class Envelope:
    """The place of the UET part in a frame, and the fields of the headers in front of it.

    Offsets are in octets from the start of the frame.  ``uet`` is ``None`` for a frame that carries
    no UET; then ``errors`` has the reasons.
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
    #: tunnels around the packet, outermost first: "vxlan 10101", "ipv4"
    tunnels: list[str] = field(default_factory=list)
    #: VXLAN network identifier of the innermost such tunnel
    vni: int | None = None
    #: code points of the tunnels' IP headers: a switch marks a trimmed packet there
    outer_dscps: list[int] = field(default_factory=list)
    #: a tunnel's UDP length counts octets that its IP length does not
    outer_shortened: bool = False
    errors: list[str] = field(default_factory=list)

    @property
    def encapsulation(self) -> str:
        inner = f"ipv{self.version}/{'native' if self.udp is None else 'udp'}"
        return " in ".join([inner, *reversed(self.tunnels)])

    @property
    def shortened(self) -> bool:
        """The UDP length counts octets that the IP length does not: the mark of trimming."""
        if self.outer_shortened:
            return True
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
        wire = max(len(frame), wire_length or 0)
        _open_link(env, frame, 0, wire, udp_port, native_protocol)
    except (ValueError, struct.error, IndexError):
        if not env.cut:
            env.errors.append("the frame ends within its Ethernet, IP, UDP or entropy header")
        else:
            env.errors.append("the capture cut the frame before the UET headers")
    return env


def _open_link(
    env: Envelope, frame: bytes | memoryview, at: int, wire: int, udp_port: int, native: int
) -> None:
    """Open the Ethernet frame at ``at``, the captured one or one in a tunnel, up to ``wire``."""
    _, _, ethertype = headers.ETHERNET.decode(frame, at)
    at += headers.ETHERNET.size
    while ethertype in VLAN_TYPES:
        _, ethertype = headers.VLAN.unpack_from(frame, at)
        at += headers.VLAN.size
    _open_ip(env, frame, at, ethertype, wire, udp_port, native)


def _open_ip(
    env: Envelope,
    frame: bytes | memoryview,
    at: int,
    ethertype: int,
    wire: int,
    udp_port: int,
    native: int,
) -> None:
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
    inner = _IP_IN_IP.get(env.protocol)
    if inner is not None and _enter_tunnel(env, f"ipv{env.version}"):
        _open_ip(env, frame, behind_ip, inner, env.claimed_end, udp_port, native)
    elif env.protocol == _UDP and _is_vxlan(env, frame, behind_ip, udp_port):
        _open_vxlan(env, frame, behind_ip, udp_port, native)
    elif env.protocol == _UDP:
        _open_udp(env, frame, behind_ip, udp_port)
    elif env.protocol == native:
        env.entropy, env.entropy_rsvd = headers.ENTROPY.decode(frame[: env.end], behind_ip)
        env.uet = behind_ip + headers.ENTROPY.size
    else:
        env.errors.append(f"no UET: IP protocol {env.protocol} is neither UDP nor {native}")


def _enter_tunnel(env: Envelope, name: str) -> bool:
    """Note a tunnel whose IP header was opened; false if there are too many around it."""
    if len(env.tunnels) == _MOST_TUNNELS:
        return False
    env.tunnels.append(name)
    env.outer_dscps.append(env.dscp)
    return True


def _is_vxlan(env: Envelope, frame: bytes | memoryview, at: int, udp_port: int) -> bool:
    """Return whether the UDP header at ``at`` leads to VXLAN, which ``udp_port`` does not."""
    start = at + headers.UDP_HEADER.size
    if env.end < start + _VXLAN_SIZE or udp_port == VXLAN_PORT:
        return False
    dport = int.from_bytes(frame[at + 2 : at + 4], "big")
    return dport == VXLAN_PORT and bool(frame[start] & _VXLAN_VNI_VALID)


def _open_vxlan(
    env: Envelope, frame: bytes | memoryview, at: int, udp_port: int, native: int
) -> None:
    start = at + headers.UDP_HEADER.size
    vni = int.from_bytes(frame[start + 4 : start + 7], "big")
    if not _enter_tunnel(env, f"vxlan {vni}"):
        env.errors.append(f"no UET: more than {_MOST_TUNNELS} tunnels in one another")
        return
    env.vni = vni
    length = int.from_bytes(frame[at + 4 : at + 6], "big")
    env.outer_shortened = env.outer_shortened or at + length > env.claimed_end
    _open_link(env, frame, start + _VXLAN_SIZE, env.claimed_end, udp_port, native)


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
    octets: int = ihl * 4
    _bound(env, frame, wire, total, octets, "IPv4 total length")
    return env.ip + octets


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
    while protocol in IPV6_EXTENSIONS:
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
    elif env.claimed_end > wire and env.tunnels:
        env.claimed_end = wire  # of a tunnel's packet that was trimmed only the outer length is
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
