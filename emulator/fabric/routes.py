"""Static routes of a fabric: every shortest path, computed from the topology alone.

:func:`static_routes` and :func:`static_neighbours` are pure.  What they return is put into the
kernel by the nodes (:mod:`emulator.fabric.nodes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from topologies.model import Bridge, End, Node, Port, Topology, TopologyError

_EVERYTHING = IPv4Network("0.0.0.0/0")


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

    A GPU has its default route, over each port that has a gateway.  A switch has a route to every
    endpoint subnet (or its summary), every loopback and every fabric address that it does not own
    and can reach, over all shortest paths (fewest hops), each parallel link being a path.
    Raises TopologyError for a cable between switches whose ports have no addresses.
    """
    routes: dict[str, list[Route]] = {node.name: [] for node in topology.nodes}
    for gpu in topology.gpus:
        hops = tuple(_exits(topology, gpu))
        if hops:
            default = Route(destination=_EVERYTHING, hops=hops, source=gpu.loopback)
            routes[gpu.name].append(default)
    toward = _neighbours(topology)
    for owner, destinations in _destinations(topology).items():
        for name, hops in _shortest_hops(topology, toward, owner).items():
            node = topology.node(name)
            for destination in destinations:
                routes[name].append(
                    Route(destination=destination, hops=hops, source=_source_address(node))
                )
    for switch in topology.switches:
        routes[switch.name].sort(key=lambda route: route.destination)
    return {name: tuple(found) for name, found in routes.items()}


def static_neighbours(topology: Topology) -> Mapping[str, tuple[Neighbour, ...]]:
    """Everything each node would otherwise ask for by ARP: peers of its subnets and its gateway."""
    neighbours: dict[str, list[Neighbour]] = {node.name: [] for node in topology.nodes}
    for switch in topology.switches:
        for bridge in switch.bridges:
            if bridge.gateway is None:
                continue
            members = list(_members(topology, switch, bridge))
            for end, port in members:
                neighbours[switch.name].append(
                    Neighbour(interface=bridge.name, address=_address(port), mac=port.mac)
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


def _exits(topology: Topology, gpu: Node) -> Iterator[Hop]:
    """The gateway behind each port of ``gpu`` that has one."""
    if gpu.gateway is None:
        return
    for port in gpu.ports:
        bridge = topology.gateway_of(End(gpu.name, port.name))
        if bridge is not None and bridge.gateway is not None:
            yield Hop(port.name, bridge.gateway.ip)


def _destinations(topology: Topology) -> dict[str, list[IPv4Network]]:
    """Owner -> the networks that others reach through it: a switch's, a GPU's fabric address."""
    owned: dict[str, list[IPv4Network]] = {}
    for switch in topology.switches:
        networks = [bridge.gateway.network for bridge in switch.bridges if bridge.gateway]
        for _, ours, theirs in topology.neighbours(switch.name):
            address = switch.port(ours.port).address
            if address is not None and not topology.node(theirs.node).is_switch:
                networks.append(address.network)
        networks = [*switch.summaries, *_outside(networks, switch.summaries)]
        if switch.loopback is not None:
            networks.append(IPv4Network(switch.loopback))
        if networks:
            owned[switch.name] = networks
    for gpu in topology.gpus:
        if gpu.loopback is not None:
            owned[gpu.name] = [IPv4Network(gpu.loopback)]
    return owned


def _outside(
    networks: Iterable[IPv4Network], summaries: Sequence[IPv4Network]
) -> Iterator[IPv4Network]:
    for network in networks:
        if not any(network.subnet_of(summary) for summary in summaries):
            yield network


def _neighbours(topology: Topology) -> Mapping[str, Sequence[tuple[str, Hop]]]:
    """Switch -> (neighbour, hop towards it): other switches, and GPUs with a fabric address."""
    table: dict[str, list[tuple[str, Hop]]] = {node.name: [] for node in topology.nodes}
    for link in topology.links:
        if not all(topology.node(end.node).is_switch for end in link.ends):
            continue
        for ours, theirs in (link.ends, link.ends[::-1]):
            via = _port(topology, theirs).address
            if via is None:
                raise TopologyError(
                    f"link {link.a} - {link.b}: {theirs} has no address, so that no route can go "
                    "over it; join switches by ports with addresses"
                )
            table[ours.node].append((theirs.node, Hop(ours.port, via.ip)))
    homed = [gpu for gpu in topology.gpus if gpu.loopback is not None]
    for gpu in homed:
        for port in gpu.ports:
            for where, item in topology.beyond(End(gpu.name, port.name)):
                if isinstance(item, Bridge):
                    table[where.node].append((gpu.name, Hop(item.name, _address(port))))
                    table[gpu.name].append((where.node, Hop(port.name, IPv4Address(0))))
    return table


def _shortest_hops(
    topology: Topology, toward: Mapping[str, Sequence[tuple[str, Hop]]], owner: str
) -> dict[str, tuple[Hop, ...]]:
    """For every switch that reaches ``owner``, the first hops of all its shortest paths."""
    distance = {owner: 0}
    front = [owner]
    while front:
        reached = []
        for name in front:
            for other, _ in toward[name]:
                if other not in distance and topology.node(other).is_switch:
                    distance[other] = distance[name] + 1
                    reached.append(other)
        front = reached
    return {
        name: tuple(hop for other, hop in toward[name] if distance.get(other) == far - 1)
        for name, far in distance.items()
        if name != owner
    }


def _members(topology: Topology, switch: Node, bridge: Bridge) -> Iterator[tuple[End, Port]]:
    """Every port with an address that is reached through a member of ``bridge``."""
    for port in switch.ports:
        if port.bridge == bridge.name:
            for end, far in topology.beyond(End(switch.name, port.name)):
                if isinstance(far, Port) and far.address is not None:
                    yield end, far


def _port(topology: Topology, end: End) -> Port:
    return topology.node(end.node).port(end.port)


def _address(port: Port) -> IPv4Address:
    assert port.address is not None
    return port.address.ip


def _source_address(node: Node) -> IPv4Address | None:
    if node.loopback is not None:
        return node.loopback
    gateways = [bridge.gateway.ip for bridge in node.bridges if bridge.gateway is not None]
    return gateways[0] if gateways else None
