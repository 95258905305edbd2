"""The routes that BGP between neighbours brings, computed as its speakers choose (RFC 4271, 9.1).

Every switch advertises its best route, with its own AS in front of the path, and accepts no path
that has its own AS.  Other attributes are equal in a fabric, so the best route has the shortest AS
path, then the lowest router id of the peer, then the lowest address of the peer.  A switch forwards
over all routes whose AS path is as short.  The end does not depend on the order of arrival.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address

from topologies.model import Topology
from topologies.routing.static_routes import Hop


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
