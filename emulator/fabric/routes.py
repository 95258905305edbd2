"""Static routes of a fabric: every shortest path, computed from the topology alone.

:func:`static_routes` and :func:`static_neighbours` are pure.  What they return is put into the
kernel by the nodes (:mod:`emulator.fabric.nodes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from topologies.model import Bridge, End, Node, Port, Topology, TopologyError


@dataclass(frozen=True, slots=True, order=True)
class Hop:
    """Leave through ``port`` towards the neighbour's address ``via``."""

    port: str
    via: IPv4Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """``destination`` over all of ``hops``, equally.  ``source`` is for packets made here."""

    destination: IPv4Network
    hops: tuple[Hop, ...]
    source: IPv4Address | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """On interface ``interface`` (a port or a bridge) ``address`` is at ``mac``."""

    interface: str
    address: IPv4Address
    mac: str


def static_routes(topology: Topology) -> Mapping[str, tuple[Route, ...]]:
    """Routes of every node, by node name.

    A GPU has its default route.  A switch has a route to every endpoint subnet and every loopback
    it does not own, over all shortest paths (fewest hops), each parallel link being a path.
    Raises TopologyError for a subnet that a switch cannot reach.
    """
    routes: dict[str, list[Route]] = {node.name: [] for node in topology.nodes}
    for node in topology.nodes:
        if not node.is_switch and node.gateway is not None:
            gateway = IPv4Address(node.gateway)
            port = _port_towards(node, gateway)
            default = Route(destination=IPv4Network("0.0.0.0/0"), hops=(Hop(port.name, gateway),))
            routes[node.name].append(default)
    toward = _switch_neighbours(topology)
    owned = _destinations(topology)
    for owner, destinations in owned.items():
        for name, hops in _shortest_hops(toward, owner).items():
            node = topology.node(name)
            for destination in destinations:
                routes[name].append(
                    Route(destination=destination, hops=hops, source=_source_address(node))
                )
    for switch in topology.switches:
        routes[switch.name].sort(key=lambda route: route.destination)
        _check_reach(switch, routes[switch.name], owned)
    return {name: tuple(found) for name, found in routes.items()}


def static_neighbours(topology: Topology) -> Mapping[str, tuple[Neighbour, ...]]:
    """Everything each node would otherwise ask for by ARP: peers of its subnets and its gateway."""
    neighbours: dict[str, list[Neighbour]] = {node.name: [] for node in topology.nodes}
    for switch in topology.switches:
        for bridge in switch.bridges:
            members = list(_members(topology, switch, bridge))
            for end, port in members:
                address = _address(port)
                neighbours[switch.name].append(
                    Neighbour(interface=bridge.name, address=address, mac=port.mac)
                )
                rows = neighbours[end.node]
                gateway = bridge.gateway.ip
                rows.append(Neighbour(interface=end.port, address=gateway, mac=bridge.mac))
                rows.extend(
                    Neighbour(interface=end.port, address=_address(peer), mac=peer.mac)
                    for other, peer in members
                    if other != end
                )
    for link in topology.links:
        for ours, theirs in (link.ends, link.ends[::-1]):
            near, far = _port(topology, ours), _port(topology, theirs)
            if near.address is not None and far.address is not None:
                neighbours[ours.node].append(
                    Neighbour(interface=ours.port, address=far.address.ip, mac=far.mac)
                )
    return {name: tuple(rows) for name, rows in neighbours.items()}


def _destinations(topology: Topology) -> dict[str, list[IPv4Network]]:
    """Owner switch -> the networks that others reach through it."""
    owned: dict[str, list[IPv4Network]] = {}
    for switch in topology.switches:
        networks = [bridge.gateway.network for bridge in switch.bridges]
        for _, ours, theirs in topology.neighbours(switch.name):
            address = switch.port(ours.port).address
            if address is not None and not topology.node(theirs.node).is_switch:
                networks.append(address.network)
        if switch.loopback is not None:
            networks.append(IPv4Network(switch.loopback))
        if networks:
            owned[switch.name] = networks
    return owned


def _switch_neighbours(topology: Topology) -> Mapping[str, tuple[tuple[str, Hop], ...]]:
    """Switch -> (neighbour switch, hop towards it) for each routed cable between switches."""
    table: dict[str, list[tuple[str, Hop]]] = {switch.name: [] for switch in topology.switches}
    for link in topology.links:
        for ours, theirs in (link.ends, link.ends[::-1]):
            via = _port(topology, theirs).address
            if ours.node in table and theirs.node in table and via is not None:
                table[ours.node].append((theirs.node, Hop(ours.port, via.ip)))
    return {name: tuple(rows) for name, rows in table.items()}


def _shortest_hops(
    toward: Mapping[str, tuple[tuple[str, Hop], ...]], owner: str
) -> dict[str, tuple[Hop, ...]]:
    """For every other switch, the first hops of all its shortest paths to ``owner``."""
    distance = {owner: 0}
    front = [owner]
    while front:
        reached = []
        for name in front:
            for other, _ in toward[name]:
                if other not in distance:
                    distance[other] = distance[name] + 1
                    reached.append(other)
        front = reached
    return {
        name: tuple(hop for other, hop in toward[name] if distance[other] == far - 1)
        for name, far in distance.items()
        if name != owner
    }


def _check_reach(
    switch: Node, routes: list[Route], destinations: Mapping[str, list[IPv4Network]]
) -> None:
    reached = {route.destination for route in routes}
    for owner, networks in destinations.items():
        for network in networks:
            if owner != switch.name and network not in reached:
                raise TopologyError(
                    f"{switch.name} has no path to {network} of {owner}: join them with links "
                    "whose ports have addresses"
                )


def _members(topology: Topology, switch: Node, bridge: Bridge) -> Iterator[tuple[End, Port]]:
    """Far end and far port of each cable plugged into ``bridge``."""
    for _, ours, theirs in topology.neighbours(switch.name):
        if switch.port(ours.port).bridge == bridge.name:
            far = _port(topology, theirs)
            if far.address is not None:
                yield theirs, far


def _port_towards(node: Node, address: IPv4Address) -> Port:
    for port in node.ports:
        if port.address is not None and address in port.address.network:
            return port
    raise TopologyError(f"{node.name}: its gateway {address} is in no subnet of its ports")


def _port(topology: Topology, end: End) -> Port:
    return topology.node(end.node).port(end.port)


def _address(port: Port) -> IPv4Address:
    assert port.address is not None
    return port.address.ip


def _source_address(node: Node) -> IPv4Address | None:
    if node.loopback is not None:
        return node.loopback
    return node.bridges[0].gateway.ip if node.bridges else None
