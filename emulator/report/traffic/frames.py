"""The frames of captured links, each counted once, with the 5-tuples that switches hash.

A link here has one direction.  Its frames are those that its sender's port was captured to send;
where only the other end was captured, those that came in there.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import NamedTuple

import numpy as np

from emulator.errors import UserError
from emulator.report.follow.capture import CaptureStream
from emulator.report.traffic.measures import Counts, Numbers
from emulator.report.traffic.services import transport_service
from emulator.rocev2.wire import codes as rocev2_codes
from topologies.ethernet import FRAMING_OCTETS
from topologies.model import END_ROLES, CableEnd, Topology
from uet.wire import codes as uet_codes
from uet.wire.envelope import VXLAN_PORT

ICMP, TCP, UDP = 1, 6, 17
_VXLAN = VXLAN_PORT.to_bytes(2)
#: UDP ports whose packets have entropy in place of a source port (UES 3.5, IBA A17, RFC 7348).
ENTROPY_PORTS: Mapping[int, str] = {
    uet_codes.UDP_PORT: "UET",
    rocev2_codes.UDP_PORT: "RoCEv2",
    VXLAN_PORT: "VXLAN",
}
_NAMES = {ICMP: "ICMP", TCP: "TCP", UDP: "UDP", 58: "ICMPv6"}
_IPV4, _IPV6 = 0x0800, 0x86DD
_CUT = {_IPV4: "IPv4, cut", _IPV6: "IPv6, cut"}
_ETHERTYPES = {0x0806: "ARP", 0x8808: "MAC control", 0x88CC: "LLDP", **_CUT}
#: Of a frame with plain IPv4: the VNI, behind 8 octets of UDP and 4 of VXLAN.
_VNI = slice(46, 49)
_PLAIN = b"\x08\x00\x45"
BGP_PORT = 179  # RFC 4271
_BGP = BGP_PORT.to_bytes(2)
_MARKER, _HEADER, _UPDATE, _EXTENDED = bytes([255] * 16), 19, 2, 0x10
#: MP_REACH_NLRI and MP_UNREACH_NLRI (RFC 4760); AFI and SAFI of EVPN (RFC 7432).
_MULTIPROTOCOL, _EVPN = (14, 15), bytes([0, 25, 70])


class FiveTuple(NamedTuple):
    """What a switch hashes.  ``protocol`` is IP's, or 65536 and more the Ethertype of no IP."""

    source: str
    destination: str
    protocol: int
    sport: int = 0
    dport: int = 0

    @property
    def name(self) -> str:
        """The protocol's name: UET, RoCEv2, VXLAN, TCP, UDP, ARP or such."""
        if self.protocol == UDP and self.dport in ENTROPY_PORTS:
            return ENTROPY_PORTS[self.dport]
        if self.protocol >> 16:
            ethertype = self.protocol & 0xFFFF
            return _ETHERTYPES.get(ethertype, f"Ethertype {ethertype:#06x}")
        return _NAMES.get(self.protocol, f"IP protocol {self.protocol}")

    @property
    def cut(self) -> bool:
        """Whether too few octets were captured for the 5-tuple of an IP packet."""
        return bool(self.protocol >> 16) and self.protocol & 0xFFFF in _CUT

    @property
    def flow(self) -> FiveTuple:
        """The flow: without a source port that is entropy, as one flow has many of them."""
        entropy = self.protocol == UDP and self.dport in ENTROPY_PORTS
        return self._replace(sport=0) if entropy else self


def five_tuple(frame: bytes) -> FiveTuple:
    """Return the outer 5-tuple of a frame, as far as it was captured; MACs where there is no IP."""
    at = 12
    while int.from_bytes(frame[at : at + 2]) in uet_codes.VLAN_TYPES and len(frame) > at + 4:
        at += 4
    ethertype, at = int.from_bytes(frame[at : at + 2]), at + 2
    no_ip = FiveTuple(frame[6:12].hex(":"), frame[:6].hex(":"), 1 << 16 | ethertype)
    if ethertype == _IPV4 and len(frame) >= at + 20:
        protocol, addresses, ports = frame[at + 9], at + 12, at + 4 * (frame[at] & 15)
        size, fragment = 4, int.from_bytes(frame[at + 6 : at + 8]) & 0x1FFF
    elif ethertype == _IPV6 and len(frame) >= at + 40:
        protocol, addresses, ports, size, fragment = frame[at + 6], at + 8, at + 40, 16, 0
    else:
        return no_ip
    source, destination = (
        str(ip_address(frame[addresses + size * end : addresses + size * (end + 1)]))
        for end in (0, 1)
    )
    if protocol not in (TCP, UDP) or fragment:
        return FiveTuple(source, destination, protocol)
    if len(frame) < ports + 4:
        return no_ip
    sport, dport = (int.from_bytes(frame[ports + 2 * end : ports + 2 * end + 2]) for end in (0, 1))
    return FiveTuple(source, destination, protocol, sport, dport)


def carries_evpn(frame: bytes) -> bool:
    """Return whether a frame of plain IPv4 has a BGP UPDATE of EVPN routes in what was captured.

    A segment that begins within a message is not looked into.
    """
    octets = frame[34 + 4 * (frame[46] >> 4) :] if len(frame) > 46 else b""
    while octets.startswith(_MARKER):
        body = octets[_HEADER : int.from_bytes(octets[16:18])]
        if octets[18:19] == bytes([_UPDATE]):
            at = 4 + int.from_bytes(body[:2])  # behind the withdrawn routes and two lengths
            while at + 2 < len(body):
                value = at + (4 if body[at] & _EXTENDED else 3)
                if body[at + 1] in _MULTIPROTOCOL and body[value : value + 3] == _EVPN:
                    return True
                at = value + int.from_bytes(body[at + 2 : value])
        octets = octets[max(_HEADER, int.from_bytes(octets[16:18])) :]
    return False


@dataclass(frozen=True, kw_only=True)
class LinkFrames:
    """The frames of a link: when each began (us of fabric time), octets, 5-tuple and service.

    ``octets`` count from the Ethernet header on, without FCS, as tshark's ``frame.len``.
    ``tuples`` and ``services`` are numbers of what :class:`CapturedTraffic` has.  ``injects`` and
    ``delivers``: an end node sends, or receives.  ``ttl`` is 0 of what is not IPv4, and ``packets``
    too, which else has the same number for a packet on all of its links.
    """

    sender: CableEnd
    tier: str
    injects: bool
    delivers: bool
    rate_bps: int
    begin_us: Numbers
    octets: Counts
    tuples: Counts
    services: Counts
    ttl: Counts
    packets: Counts

    @property
    def busy_us(self) -> Numbers:
        """How long each frame takes the link, with preamble, FCS and gap."""
        return (self.octets + FRAMING_OCTETS) * 8e6 / self.rate_bps


@dataclass(frozen=True, kw_only=True)
class CapturedTraffic:
    """Links that were captured in ``times`` (begin and end, us).

    5-tuples and services are numbered.  ``vnis`` are the VXLANs that were seen, ``evpn`` the BGP
    packets with EVPN routes.  ``begin_ns`` is the file's time that others count from.  ``cut`` is
    why there is no more, of a damaged file.
    """

    links: Sequence[LinkFrames]
    tuples: Sequence[FiveTuple]
    services: Sequence[str]
    times: tuple[Numbers, Numbers]
    vnis: frozenset[int] = frozenset()
    evpn: int = 0
    begin_ns: int = 0
    cut: str = ""

    @property
    def span(self) -> tuple[float, float]:
        """From the begin of the first of ``times`` to the end of the last."""
        begin, end = self.times
        return (float(begin[0]), float(end[-1])) if len(begin) else (0.0, 0.0)

    @property
    def length_us(self) -> float:
        """How long the times are together."""
        return float((self.times[1] - self.times[0]).sum())

    def passed(self, at_us: Numbers) -> Numbers:
        """Return how much of the times has passed."""
        lengths = self.times[1] - self.times[0]
        before = np.cumsum(lengths) - lengths
        edges = np.column_stack(self.times).ravel()
        return np.interp(at_us, edges, np.column_stack([before, before + lengths]).ravel())


def captured(
    stream: CaptureStream,
    topology: Topology,
    span_ns: tuple[int, int] | None = None,
    dilation: float = 1.0,
) -> CapturedTraffic:
    """Read the frames between two times of the file, or all.

    Times count from the begin of that span, or about from the first frame.
    """
    columns: dict[tuple[CableEnd, bool], tuple[array[int], ...]] = {}
    numbers: dict[bytes, int] = {}
    known: dict[FiveTuple, int] = {}
    tuples: list[FiveTuple] = []
    services: dict[str, int] = {}
    vnis: set[int] = set()
    cut, least, evpn = "", None, 0
    begin_ns, end_ns = span_ns or (0, 1 << 64)
    try:
        for frame in stream.frames():
            if not begin_ns <= frame.at_ns <= end_ns:
                continue
            octets = frame.octets
            plain = octets[12:15] == _PLAIN and len(octets) >= 38 and not octets[21]
            key = octets[23:24] + octets[26:38] if plain and not octets[20] & 0x1F else octets
            number = numbers.get(key)
            if number is None:
                one = five_tuple(octets)
                number = known.setdefault(one, len(tuples))
                if number == len(tuples):
                    tuples.append(one)
                if key is not octets:
                    numbers[key] = number
            if plain and octets[36:38] == _VXLAN and octets[23] == UDP:
                vnis.add(int.from_bytes(octets[_VNI]))
            elif plain and frame.leaves and _BGP in (octets[34:36], octets[36:38]):
                evpn += octets[23] == TCP and carries_evpn(octets)
            place = (frame.end, frame.leaves)
            if (column := columns.get(place)) is None:
                column = columns[place] = tuple(map(array, "qqqBBq"))
            column[0].append(frame.at_ns)
            column[1].append(frame.length)
            column[2].append(number)
            column[3].append(octets[22] if plain else 0)
            service = transport_service(octets, frame.length)
            column[4].append(services.setdefault(service, len(services)))
            # identification, addresses, and 20 octets behind them: no router changes them
            column[5].append(hash(octets[18:20] + octets[26:54]) if plain else 0)
            least = frame.at_ns if least is None else min(least, frame.at_ns)
    except UserError as error:
        cut = str(error)
    if span_ns is None:
        begin_ns = end_ns = least or 0
    cabled = {one for link in topology.links for one in link.ends}
    links = [
        _link(end, leaves, column, topology, lambda at_ns: (at_ns - begin_ns) / 1000 / dilation)
        for (end, leaves), column in columns.items()
        if end in cabled and (leaves or (topology.far_end(end), True) not in columns)
    ]
    span = 0.0, (end_ns - begin_ns) / 1000 / dilation
    if span_ns is None and links:
        span = (
            min(float(one.begin_us[0]) for one in links),
            max(float(one.begin_us[-1] + one.busy_us[-1]) for one in links),
        )
    return CapturedTraffic(
        links=links,
        tuples=tuples,
        services=tuple(services),
        times=(np.array(span[:1]), np.array(span[1:])),
        vnis=frozenset(vnis),
        evpn=evpn,
        begin_ns=begin_ns,
        cut=cut or stream.cut,
    )


def _link(
    end: CableEnd,
    leaves: bool,
    column: Sequence[array[int]],
    topology: Topology,
    us_of: Callable[[Counts], Numbers],
) -> LinkFrames:
    link, far = topology.link_at(end), topology.far_end(end)
    sender, receiver = (end, far) if leaves else (far, end)
    roles = [topology.node(one.node).role for one in (sender, receiver)]
    length = np.array(column[1], np.int64)
    begin_us = us_of(np.array(column[0], np.int64))
    if not leaves:  # it has the time of its last octet
        begin_us = begin_us - length * 8e6 / link.rate_bps
    order = np.argsort(begin_us, kind="stable")
    return LinkFrames(
        sender=sender,
        tier=f"{roles[0]} to {roles[1]}",
        injects=roles[0] in END_ROLES,
        delivers=roles[1] in END_ROLES,
        rate_bps=link.rate_bps,
        begin_us=begin_us[order],
        octets=length[order],
        tuples=np.array(column[2], np.int64)[order],
        services=np.array(column[4], np.int64)[order],
        ttl=np.array(column[3], np.int64)[order],
        packets=np.array(column[5], np.int64)[order],
    )
