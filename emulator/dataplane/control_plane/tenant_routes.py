"""Comparison of the routes of tenants' VRFs with those of the topology, switch by switch.

BGP EVPN advertises two kinds of them by the L3 VNI: subnets and what all share (type 5, RFC 9136),
and single machines (type 2 with two labels, RFC 9135).  Both lead to the loopback of a switch, over
the bridge of the L3 VNI, where zebra enters that switch's router MAC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network

from emulator.dataplane.control_plane.convergence import Difference
from emulator.dataplane.control_plane.kernel_routes import Hops, NextHop, Routes, read_routes
from emulator.dataplane.control_plane.members import MemberEntry, read_entries
from emulator.dataplane.control_plane.speakers import parts
from emulator.dataplane.kernel import kernel_objects
from emulator.dataplane.kernel.kernel_objects import RT_TABLE_MAIN, VRF_TABLES
from emulator.dataplane.kernel.netlink import RouteSocket
from topologies.interface_indices import handoff_ends, routing_bridge, tunnel_port, vrf_space
from topologies.model import OF_NAMESPACES, SWITCH_ROLES, CableEnd, Node, Topology, Vrf
from topologies.stretch import stretch_of
from topologies.validation import members_of, subnets_in, vrf_named


@dataclass(frozen=True, slots=True, kw_only=True)
class VrfPlace:
    """Where the routes of a VRF are: the ``node`` whose socket reads them, and their ``table``."""

    node: str
    table: int


def places_of(topology: Topology, switch: Node) -> Mapping[str, VrfPlace]:
    """Return by name where the VRFs of ``switch`` have their routes."""
    apart = topology.profile.isolation == OF_NAMESPACES
    return {
        vrf.name: VrfPlace(
            node=vrf_space(switch.name, vrf.name) if apart else switch.name,
            table=RT_TABLE_MAIN if apart else VRF_TABLES + number,
        )
        for number, vrf in enumerate(switch.vrfs)
    }


class TenantRoutes:
    """The routes that the VRFs of every switch of ``topology`` have when all have converged.

    ``topology`` may be what faults have left.  ``indices`` are the kernel's numbers of interfaces,
    ``kernels`` opens a netlink socket in a node's namespace, or a VRF's.
    """

    def __init__(
        self,
        topology: Topology,
        indices: Mapping[CableEnd, int],
        kernels: Callable[[str], RouteSocket],
    ) -> None:
        self._topology, self._indices, self._kernels = topology, indices, kernels
        self._loopbacks = topology.loopbacks
        self._part = parts(topology, SWITCH_ROLES)
        self._ports = {
            space: {index: end.port for end, index in indices.items() if end.node == space}
            for space in {vrf_space(s.name, vrf.name) for s in topology.switches for vrf in s.vrfs}
        }

    def routes(self, switch: Node, vrf: Vrf) -> Routes:
        """Return what the kernel has in ``vrf`` of ``switch`` now."""
        place = places_of(self._topology, switch)[vrf.name]
        ports = self._ports[vrf_space(switch.name, vrf.name)]
        return read_routes(self._kernels(place.node), ports, table=place.table)

    def differences(self) -> Iterator[str]:
        """Yield a sentence for each route of a VRF that is not as it is to be."""
        for switch in self._topology.switches:
            for vrf in switch.vrfs:
                requested, found = self.requested(switch, vrf), self.routes(switch, vrf)
                for destination in sorted(requested.keys() | found.keys()):
                    wanted, there = requested.get(destination, ()), found.get(destination, ())
                    if wanted != there:
                        stated = Difference(
                            switch=f"{vrf.name} of {switch.name}",
                            destination=destination,
                            requested=wanted,
                            found=there,
                        )
                        yield str(stated)
                for name in self._unknown(switch, vrf, requested):
                    yield f"{vrf.name} of {switch.name} does not know the router MAC of {name}"

    def lost_routers(self) -> Iterator[str]:
        """Yield a sentence for each router MAC that is missing where the kernel has routes to it.

        That is lost traffic whatever faults there are, unless routes are just changing.
        """
        for switch, vrf, name in self._lost():
            yield f"{vrf.name} of {switch.name} has routes to {name} and lacks its router MAC"

    def put_back_routers(self) -> Iterator[str]:
        """Enter each router MAC that is missing where the kernel has routes to it; yield whose.

        Raises KernelRefusal if the kernel does not take one.
        """
        for switch, vrf, name in list(self._lost()):
            space = vrf_space(switch.name, vrf.name)
            kernel_objects.router_mac(
                self._kernels(places_of(self._topology, switch)[vrf.name].node),
                self._indices[CableEnd(space, routing_bridge(vrf.name))],
                self._indices[CableEnd(space, tunnel_port(vrf.vni))],
                self._loopbacks[name],
                vrf_named(self._topology.node(name), vrf.name).mac,
                subject=f"{vrf.name} of {switch.name}, router MAC of {name}",
            )
            yield name

    def _lost(self) -> Iterator[tuple[Node, Vrf, str]]:
        """Yield each switch whose router MAC a VRF of a switch lacks and has routes to."""
        for switch in self._topology.switches:
            for vrf in switch.vrfs:
                for name in self._unknown(switch, vrf, self.routes(switch, vrf)):
                    yield switch, vrf, name

    def _unknown(self, switch: Node, vrf: Vrf, routes: Routes) -> Iterator[str]:
        """Yield the switches that ``routes`` lead to and whose router MAC ``vrf`` lacks."""
        space = vrf_space(switch.name, vrf.name)
        bridge = self._indices[CableEnd(space, routing_bridge(vrf.name))]
        tunnel = self._indices[CableEnd(space, tunnel_port(vrf.vni))]
        used = {hop.address for hops in routes.values() for hop in hops}
        known = set(read_entries(self._kernels(places_of(self._topology, switch)[vrf.name].node)))
        for name in members_of(self._topology)[vrf.name]:
            end = self._loopbacks[name]
            mac = vrf_named(self._topology.node(name), vrf.name).mac
            places = {MemberEntry(interface=at, mac=mac, address=end) for at in (bridge, tunnel)}
            if str(end) in used and not places <= known:
                yield name

    def requested(self, switch: Node, vrf: Vrf) -> Mapping[IPv4Network, Hops]:
        owners: dict[IPv4Network, list[str]] = {}
        for network, owner in self._advertised(switch, vrf):
            owners.setdefault(network, []).append(owner)
        own = set(subnets_in(switch, vrf.name))
        bridge = routing_bridge(vrf.name)
        found = {
            network: tuple(sorted(NextHop(bridge, str(self._loopbacks[owner])) for owner in names))
            for network, names in owners.items()
            if network not in own
        }
        if vrf.handoff is not None:
            _, port = handoff_ends(vrf.name)
            hop = NextHop(port, str(vrf.handoff.outside.ip))
            found |= dict.fromkeys(vrf.handoff.shared, (hop,))
        return found

    def _advertised(self, switch: Node, vrf: Vrf) -> Iterator[tuple[IPv4Network, str]]:
        """Yield what other switches have of the tenant, and which."""
        stretch = stretch_of(self._topology)
        for name in members_of(self._topology)[vrf.name]:
            other = self._topology.node(name)
            if name == switch.name or self._part[name] != self._part[switch.name]:
                continue
            yield from ((network, name) for network in subnets_in(other, vrf.name))
            handoff = vrf_named(other, vrf.name).handoff
            yield from ((network, name) for network in (handoff.shared if handoff else ()))
            vnis = {bridge.vni for bridge in other.bridges if bridge.vrf == vrf.name}
            for machine, (switches, vni) in (stretch.homes if stretch else {}).items():
                if name in switches and vni in vnis:
                    for port in self._topology.node(machine).ports:
                        if port.address is not None:
                            yield IPv4Network(port.address.ip), name
