"""Comparison of the members that switches have behind tunnels of stretched rails with the topology.

BGP EVPN advertises them (RFC 8365). Type 3 routes name who has a VNI, where frames for everybody
go. Type 2 routes name which MAC and IPv4 address is behind whom.  zebra writes that into the tables
of the kernel: of the bridge, of its tunnel port, and of neighbours.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address
from itertools import product
from socket import AF_BRIDGE, AF_INET, AF_UNSPEC

from emulator.dataplane.control_plane.advertised_members import AdvertisedMembers
from emulator.dataplane.kernel.kernel_objects import (
    NDA_DST,
    NDA_LLADDR,
    NDA_NH_ID,
    NDMSG,
    NEXTHOP_GROUP,
    NHA_FDB,
    NHA_GATEWAY,
    NHA_GROUP,
    NHA_ID,
    NHMSG,
    NTF_MASTER,
    NTF_SELF,
    NUD_PERMANENT,
    RTM_GETNEXTHOP,
)
from emulator.dataplane.kernel.netlink import RTM_GETNEIGH, RouteSocket, attributes
from topologies.interface_indices import tunnel_port
from topologies.model import Bridge, CableEnd, Port, Topology
from topologies.stretch import segments_of, stretch_of

EVERYBODY = "00:00:00:00:00:00"  # in the table of a tunnel port: where broadcast goes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberEntry:
    """A line of a kernel table: on ``interface``, ``mac`` is a member of the bridge.

    With ``address`` it is that of a neighbour or of the far end of a tunnel.
    """

    interface: int
    mac: str
    address: IPv4Address | None = None


class Members:
    """The members of stretched rails that every switch of ``topology`` has to learn.

    It must have no other entries for tunnels.  The topology may be what faults have left of
    ``built``, for which ``indices`` are.  A GPU stays a member behind a port without carrier, as
    its entry there is static; but an Ethernet segment leaves a switch with its port.
    """

    def __init__(
        self,
        topology: Topology,
        indices: Mapping[CableEnd, int],
        built: Topology | None = None,
    ) -> None:
        self._topology, self._built = topology, built or topology
        self._loopbacks = topology.loopbacks
        self._indices = indices
        self.requested: dict[str, Mapping[MemberEntry, str]] = {}
        self._tunnels: dict[str, Mapping[int, int]] = {}  # switch -> index -> VNI
        self._allowed: dict[str, frozenset[MemberEntry]] = {}
        if stretch_of(topology) is None:
            return
        self._advertised = AdvertisedMembers(topology, self._built)
        for switch in topology.switches:
            requested: dict[MemberEntry, str] = {}
            tunnels: dict[int, int] = {}
            for bridge in switch.bridges:
                if bridge.vni is not None:
                    requested.update(self._of(switch.name, bridge, bridge.vni))
                    tunnels[indices[CableEnd(switch.name, tunnel_port(bridge.vni))]] = bridge.vni
            requested.update(self._partners(switch.name))
            if requested:
                self.requested[switch.name], self._tunnels[switch.name] = requested, tunnels
                self._allowed[switch.name] = frozenset(self._shared(switch.name))

    def differences(self, switch: str, *kernels: RouteSocket) -> Iterator[str]:
        """Yield a sentence for each member that ``switch`` lacks or has behind a wrong tunnel.

        ``kernels`` are the switch's own and those of namespaces that are its VRFs.
        """
        requested = self.requested.get(switch)
        if requested:
            shared = bool(segments_of(self._topology))
            known = {each for kernel in kernels for each in read_entries(kernel, shared=shared)}
            yield from (stated for entry, stated in requested.items() if entry not in known)
            for entry in sorted(known - requested.keys() - self._allowed[switch], key=str):
                if entry.interface in self._tunnels[switch]:
                    yield self._wrong(switch, entry)

    def _wrong(self, switch: str, entry: MemberEntry) -> str:
        """The sentence for an ``entry`` of a tunnel port that should not be there."""
        vni = self._tunnels[switch][entry.interface]
        if entry.address is None:
            far = "a tunnel"
        else:
            far = self._owners.get(entry.address) or f"{entry.address}, which is no switch"
        if entry.mac == EVERYBODY:
            return f"{switch} takes VNI {vni} to be at {far}, too"
        who = self._gpus.get(entry.mac, entry.mac)
        return f"{switch} takes {who} to be behind {far} (VNI {vni})"

    @cached_property
    def _owners(self) -> Mapping[IPv4Address, str]:
        """The switches by the ends of their tunnels."""
        return {each.loopback: each.name for each in self._topology.switches if each.loopback}

    @cached_property
    def _gpus(self) -> Mapping[str, str]:
        return {port.mac: gpu.name for gpu in self._topology.gpus for port in gpu.ports}

    def _of(self, switch: str, bridge: Bridge, vni: int) -> Iterator[tuple[MemberEntry, str]]:
        """Yield the entries that ``switch`` must have, with a sentence for the absence of each."""
        inside = self._indices[CableEnd(switch, bridge.name)]
        tunnel = self._indices[CableEnd(switch, tunnel_port(vni))]
        yield from self._plugged_in(switch, bridge)
        for owner in self._advertised.others(switch, vni):
            end = self._loopbacks[owner]
            lacks = f"{switch} does not know that VNI {vni} is at {owner}"
            yield MemberEntry(interface=tunnel, mac=EVERYBODY, address=end), lacks
        for gpu, owners in self._advertised.elsewhere(switch, vni):
            for owner, port in product(owners, self._built.node(gpu).ports):
                address = self._built.addresses[CableEnd(gpu, port.name)].ip
                lacks = f"{switch} does not know that {gpu} is behind {owner} (VNI {vni})"
                end = self._loopbacks[owner]
                yield MemberEntry(interface=tunnel, mac=port.mac), lacks
                yield MemberEntry(interface=tunnel, mac=port.mac, address=end), lacks
                yield MemberEntry(interface=inside, mac=port.mac, address=address), lacks

    def _plugged_in(self, switch: str, bridge: Bridge) -> Iterator[tuple[MemberEntry, str]]:
        """Yield the members of its own that ``switch`` must have, whatever others advertise."""
        inside = self._indices[CableEnd(switch, bridge.name)]
        left = {port.name for port in self._topology.node(switch).ports}
        for port in self._built.node(switch).ports:
            if port.bridge != bridge.name or (port.bond is not None and port.name not in left):
                continue
            member = self._indices[CableEnd(switch, port.interface)]
            for end, item in self._built.beyond(CableEnd(switch, port.name)):
                if isinstance(item, Port) and item.address is not None:
                    lacks = f"{switch} does not know that {end.node} is behind its {port.interface}"
                    yield MemberEntry(interface=member, mac=item.mac), lacks
                    yield (
                        MemberEntry(interface=inside, mac=item.mac, address=item.address.ip),
                        lacks,
                    )

    def _partners(self, switch: str) -> Iterator[tuple[MemberEntry, str]]:
        """Yield who else is on the Ethernet segments of ``switch``."""
        for segment in segments_of(self._topology):
            others = [end.node for end in segment.ports if end.node != switch]
            others = [other for other in others if self._advertised.reaches(switch, other)]
            if all(end.node != switch for end in segment.ports):
                continue
            for other in others:
                lacks = f"{switch} does not know that {segment.gpu.node} is behind {other}, too"
                yield (
                    MemberEntry(interface=0, mac=EVERYBODY, address=self._loopbacks[other]),
                    lacks,
                )

    def _shared(self, switch: str) -> Iterator[MemberEntry]:
        """Yield entries that ``switch`` may keep from a time when its own port to a GPU was dead.

        They name the tunnel by which it sent on.  Now its bridge has the GPU behind the port, and
        sends nothing there.
        """
        for gpu, (owners, vni) in self._advertised.homes.items():
            for owner in owners if switch in owners else ():
                for port in self._built.node(gpu).ports if owner != switch else ():
                    tunnel = self._indices[CableEnd(switch, tunnel_port(vni))]
                    yield MemberEntry(
                        interface=tunnel, mac=port.mac, address=self._loopbacks[owner]
                    )


def read_entries(kernel: RouteSocket, *, shared: bool = False) -> Iterator[MemberEntry]:
    """The tables of all bridges, tunnel ports and neighbours in the namespace of ``kernel``.

    The addresses that ports of bridges have themselves are left out.
    With ``shared``, also those of next hops that several entries share, which are on no interface
    (0): the far ends of tunnels to the switches of a segment, by one of which a frame goes.
    """
    groups = _far_ends(kernel) if shared else {}
    for addresses in groups.values():
        for address in addresses:
            yield MemberEntry(interface=0, mac=EVERYBODY, address=address)
    for family in (AF_BRIDGE, AF_INET):
        request = NDMSG.pack(family, 0, 0, 0, 0, 0, 0)
        for payload in kernel.dump(RTM_GETNEIGH, request):
            _, _, _, index, state, flags, _ = NDMSG.unpack_from(payload)
            values = dict(attributes(payload, NDMSG.size))
            own = family == AF_BRIDGE and state & NUD_PERMANENT and not flags & NTF_SELF
            if own or NDA_LLADDR not in values:
                continue
            mac = bytes(values[NDA_LLADDR]).hex(":")
            of_bridge = family == AF_BRIDGE and flags & NTF_MASTER and not flags & NTF_SELF
            if of_bridge or not values.keys() & {NDA_DST, NDA_NH_ID}:
                yield MemberEntry(interface=index, mac=mac)
            elif NDA_DST in values:
                yield MemberEntry(
                    interface=index, mac=mac, address=IPv4Address(bytes(values[NDA_DST]))
                )
            else:
                for address in groups.get(_number(values[NDA_NH_ID]), ()):
                    yield MemberEntry(interface=index, mac=mac, address=address)


def _far_ends(kernel: RouteSocket) -> dict[int, list[IPv4Address]]:
    """The addresses of every next hop, or group of them, that is for a table of a tunnel port."""
    single: dict[int, list[IPv4Address]] = {}
    groups: dict[int, list[int]] = {}
    for payload in kernel.dump(RTM_GETNEXTHOP, NHMSG.pack(AF_UNSPEC, 0, 0, 0, 0)):
        values = dict(attributes(payload, NHMSG.size))
        if NHA_FDB not in values:
            continue
        number = _number(values[NHA_ID])
        if NHA_GROUP in values:
            members = bytes(values[NHA_GROUP])
            groups[number] = [member for (member,) in NEXTHOP_GROUP.iter_unpack(members)]
        elif NHA_GATEWAY in values:
            single[number] = [IPv4Address(bytes(values[NHA_GATEWAY]))]
    return single | {
        number: [address for member in members for address in single.get(member, ())]
        for number, members in groups.items()
    }


def _number(value: memoryview) -> int:
    (number,) = struct.unpack("=I", value)
    return int(number)
