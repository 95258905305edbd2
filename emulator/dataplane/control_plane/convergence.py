"""Comparison of the kernel's routes with those of the topology, switch by switch, hop by hop.

What BGP between neighbours brings is computed as its speakers choose (RFC 4271, 9.1).  Every switch
advertises its best route, with its own AS in front of the path, and accepts no path that has its
own AS.  Other attributes are equal in a fabric, so the best route has the shortest AS path, then
the lowest router id of the peer, then the lowest address of the peer.  A switch forwards over all
routes whose AS path is as short.  The end does not depend on the order of arrival.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address, IPv4Network

from emulator.dataplane.control_plane.control_plane_choice import EXTERNAL, ControlPlane
from emulator.dataplane.control_plane.kernel_routes import UNNUMBERED, Hops, NextHop, Routes
from emulator.dataplane.control_plane.speakers import (
    Speaker,
    as_numbers,
    parts,
    speakers,
    subnets_apart,
)
from topologies.model import SWITCH_ROLES, Node, Topology
from topologies.routing.static_routes import (
    Hop,
    Route,
    attached,
    behind_bridges,
    destinations,
    static_routes,
)

NAMED = 3  # ports of a hop list, in a sentence

Learned = Mapping[str, Mapping[IPv4Network, tuple[Hop, ...]]]


@dataclass(frozen=True, slots=True, order=True)
class PeerRoute:
    """A route by ``peer``, in the order in which BGP prefers those of one length."""

    router_id: IPv4Address
    address: IPv4Address
    peer: str
    hop: Hop


class PathVector:
    """The choice of routes by the switches of ``topology``, whose AS numbers are ``systems``."""

    def __init__(self, topology: Topology, systems: Mapping[str, int]) -> None:
        self._systems = systems
        self._heard_by: dict[str, list[tuple[str, PeerRoute]]] = {name: [] for name in systems}
        for switch in topology.switches:
            for _, ours, theirs in topology.neighbours(switch.name):
                peer = topology.node(theirs.node)
                address = peer.port(theirs.port).address if peer.is_switch else None
                if address is None or switch.port(ours.port).address is None:
                    continue
                router_id = topology.loopbacks[peer.name]
                offer = PeerRoute(router_id, address.ip, peer.name, Hop(ours.port, address.ip))
                self._heard_by[peer.name].append((switch.name, offer))

    def hops(self, owners: Collection[str]) -> Mapping[str, tuple[Hop, ...]]:
        """Return the next hops to what ``owners`` advertise, by each other switch that learns it.

        Each round is one AS longer than the one before.
        """
        passed = {name: frozenset({self._systems[name]}) for name in owners}
        found: dict[str, tuple[Hop, ...]] = {}
        front: Collection[str] = sorted(passed)
        while front:
            offers: dict[str, list[PeerRoute]] = {}
            for peer in front:
                for name, offer in self._heard_by[peer]:
                    if name not in passed and self._systems[name] not in passed[peer]:
                        offers.setdefault(name, []).append(offer)
            for name, offered in offers.items():
                found[name] = tuple(offer.hop for offer in sorted(offered))
                passed[name] = passed[min(offered).peer] | {self._systems[name]}
            front = sorted(offers)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A difference: ``switch`` reaches ``destination`` over ``found`` instead of ``requested``."""

    switch: str
    destination: IPv4Network
    requested: Hops
    found: Hops

    def __str__(self) -> str:
        missing = Counter(self.requested) - Counter(self.found)
        extra = Counter(self.found) - Counter(self.requested)
        if not self.found:
            return f"{self.switch} has no route to {self.destination}"
        if not self.requested:
            return (
                f"{self.switch} has a route to {self.destination} that it should not have, over "
                f"{_ports(extra)}"
            )
        stated = f" lacks {_ports(missing)}" if missing else ""
        stated += (" and" if stated and extra else "") + (
            f" has also {_ports(extra)}" if extra else ""
        )
        return f"the route of {self.switch} to {self.destination}{stated}"


class ConvergedState:
    """The routes that every switch of ``topology`` has when ``plane`` has converged.

    ``topology`` is what faults have left, ``built`` the fabric that the switches were configured
    for, the same by default.  BGP between neighbours brings what
    :class:`PathVector` computes. OSPF brings all
    shortest paths to the owners of what route reflectors advertise.  A subnet whose last port is
    gone has no carrier, and is advertised no more; with ``vlans`` its bridge has the ports of all
    rails.  The routes to GPUs behind a switch's own ports stay, and are advertised, whatever the
    ports.  With summaries a switch has the route to the summary and none to what is in it.  Beyond
    that no switch has any route.
    """

    def __init__(
        self,
        topology: Topology,
        plane: ControlPlane,
        built: Topology | None = None,
        *,
        vlans: bool = False,
    ) -> None:
        built = built or topology
        external = plane.name in EXTERNAL
        if not (external and plane.summaries):
            topology = subnets_apart(topology)
        static = static_routes(built)
        fixed = {s.name: list(attached(s, static[s.name])) for s in built.switches}
        networks = _advertised(topology, fixed, vlans=vlans)
        if external:
            learned = _by_neighbours(topology, networks, as_numbers(built, plane))
        else:
            learned = _by_reflectors(topology, networks, speakers(built, plane))
        self.requested: dict[str, Mapping[IPv4Network, Hops]] = {}
        for switch in topology.switches:
            own = {route.destination: route.hops for route in fixed[switch.name]}
            self.requested[switch.name] = {
                destination: tuple(sorted(_seen(switch, hop, plane) for hop in hops))
                for destination, hops in sorted({**learned[switch.name], **own}.items())
            }

    def differences(self, switch: str, routes: Routes) -> Iterator[Difference]:
        """Yield where ``routes``, the kernel's, are not what ``switch`` is to have."""
        requested = self.requested[switch]
        for destination in sorted(requested.keys() | routes.keys()):
            wanted, found = requested.get(destination, ()), routes.get(destination, ())
            if found != wanted:
                yield Difference(
                    switch=switch, destination=destination, requested=wanted, found=found
                )


def _seen(switch: Node, hop: Hop, plane: ControlPlane) -> NextHop:
    """Return ``hop`` as the kernel has it; behind its own bridges a switch always has addresses."""
    unnumbered = plane.unnumbered and hop.port not in behind_bridges(switch)
    return NextHop(hop.port, UNNUMBERED if unnumbered else str(hop.via))


def _advertised(
    topology: Topology, fixed: Mapping[str, Collection[Route]], *, vlans: bool
) -> Mapping[IPv4Network, list[str]]:
    """Return the networks that switches advertise, each with its owners.

    ``fixed`` are routes that stay, by switch.
    """
    found: dict[IPv4Network, list[str]] = {}
    owned = destinations(topology)
    for switch in topology.switches:
        gone = _without_carrier(switch, vlans=vlans)
        networks = [network for network in owned.get(switch.name, ()) if network not in gone]
        for network in (*networks, *(route.destination for route in fixed[switch.name])):
            found.setdefault(network, []).append(switch.name)
    return found


def _without_carrier(switch: Node, *, vlans: bool) -> Collection[IPv4Network]:
    """Return the subnets and summaries of ``switch`` that no port is left for.

    A tunnel is a port that no cable can take away.
    """
    alive = {port.bridge for port in switch.ports if port.bridge is not None}
    if vlans and alive:
        return ()
    networks = {bridge: bridge.gateway.network for bridge in switch.bridges if bridge.gateway}
    gone = {
        network
        for bridge, network in networks.items()
        if bridge.name not in alive and bridge.vni is None
    }
    staying = set(networks.values()) - gone
    summaries = {block for block in switch.summaries if not any(map(block.supernet_of, staying))}
    return gone | summaries


def _by_neighbours(
    topology: Topology,
    networks: Mapping[IPv4Network, Sequence[str]],
    systems: Mapping[str, int],
) -> Learned:
    """Return what BGP between neighbours brings."""
    found: dict[str, dict[IPv4Network, tuple[Hop, ...]]] = {name: {} for name in systems}
    leading = cache(PathVector(topology, systems).hops)
    for network, owners in networks.items():
        for name, hops in leading(tuple(owners)).items():
            found[name][network] = hops
    return found


def _by_reflectors(
    topology: Topology, networks: Mapping[IPv4Network, Sequence[str]], built: Mapping[str, Speaker]
) -> Learned:
    """Return what OSPF brings, and BGP where a reflector passes it on (RFC 4456).

    A session lives while OSPF has a path for it.  A reflector passes the route of any peer on to
    its clients; to the other reflectors, of one cluster, it passes none.  Of several owners the
    nearest by OSPF count, whose links cost the same.
    """
    part = parts(topology, SWITCH_ROLES)
    informed: dict[str, set[str]] = {}  # by owner
    for name in built:
        peers = [s.peer for s in built[name].sessions if part[s.peer] == part[name]]
        informed[name] = {name, *peers}
        for peer in peers:
            informed[name].update(
                s.peer for s in built[peer].sessions if s.client and part[s.peer] == part[peer]
            )
    loopbacks = {speaker.router_id for speaker in built.values()}
    nearest = cache(PathVector(topology, {name: number for number, name in enumerate(built)}).hops)
    found: dict[str, dict[IPv4Network, tuple[Hop, ...]]] = {name: {} for name in built}
    for network, owners in networks.items():
        by_ospf = network.network_address in loopbacks
        for name in built.keys() - set(owners):
            heard = tuple(owner for owner in owners if by_ospf or name in informed[owner])
            hops = nearest(heard).get(name) if heard else None
            if hops:
                found[name][network] = hops
    return found


def _ports(hops: Counter[NextHop]) -> str:
    named = [str(hop) for hop in hops]
    more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
    return ", ".join(named[:NAMED]) + more
