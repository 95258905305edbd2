"""Static routes of a fabric, computed from the topology alone.

Next hops are a matter of :mod:`topologies.routing`; here they become the kernel's routes and rules.
All functions are pure.  What they return is put into the kernel by the nodes
(:mod:`emulator.dataplane.kernel.fabric.nodes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network

from topologies.designs.planes import plane_networks
from topologies.model import Bridge, CableEnd, Node, Port, Topology, TopologyError
from topologies.routing.forwarding import RouteTable, forwarding_of
from topologies.stretch import Stretch, stretch_of

_Member = tuple[CableEnd, Port, IPv4Address]
_EVERYTHING = IPv4Network("0.0.0.0/0")


@dataclass(frozen=True, slots=True, order=True)
class Hop:
    """Leave through ``port`` towards the neighbour's address ``via``.

    ``on_link``: the port, a bridge's member, has no address from which the kernel could learn who
    is there.
    """

    port: str
    via: IPv4Address
    on_link: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """``destination`` over all of ``hops``, equally.  ``source`` is for packets made here.

    Only packets that a :class:`Rule` selects are looked up in a ``table`` other than ``MAIN``.
    """

    destination: IPv4Network
    hops: tuple[Hop, ...]
    source: IPv4Address | None = None
    table: RouteTable = RouteTable.MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Packets that come in by ``interface`` are looked up in ``table`` first, then in ``MAIN``.

    With ``source`` only those that come from there.
    """

    interface: str
    table: RouteTable
    source: IPv4Network | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A neighbour: ``address`` is at ``mac`` on ``interface`` (a port or a bridge)."""

    interface: str
    address: IPv4Address
    mac: str


def static_routes(topology: Topology) -> Mapping[str, tuple[Route, ...]]:
    """Routes of every node, by node name.

    A GPU has its default route, or those to what it reaches, over each port that has a gateway.
    Where it has an endpoint in each plane, each plane has a route of its own, by its port.

    A switch has a route to every endpoint subnet (or its summary), loopback and fabric address that
    it does not own and can reach. The
    route goes over all paths of the routing in force, by default those of the fewest hops. Each
    parallel link is a path.  Of the switches that have a stretched subnet it takes the nearest.
    Raises TopologyError for a cable between switches whose ports have no addresses.
    """
    routes: dict[str, list[Route]] = {node.name: [] for node in topology.nodes}
    for gpu in topology.gpus:
        hops = tuple(dict.fromkeys(_exits(topology, gpu)))
        if hops:
            routes[gpu.name] += [
                Route(destination=network, hops=hops, source=gpu.loopback)
                for network in gpu.reach or (_EVERYTHING,)
            ]
        for fep, hop in zip(gpu.feps, hops, strict=False):
            routes[gpu.name] += [
                Route(destination=network, hops=(hop,))
                for network in plane_networks(topology, gpu, fep.name)
            ]
    via = _next_addresses(topology)
    hops_of: dict[int, tuple[Hop, ...]] = {}  # by the identity of steps, which forwarding keeps
    shared = _stretched_networks(topology)
    for owner, owned in destinations(topology).items():
        networks = [network for network in owned if network not in shared]
        for table, towards in forwarding_of(topology).tables(owner).items():
            for name, steps in towards.items():
                source = _source_address(topology.node(name))
                if id(steps) not in hops_of:
                    hops_of[id(steps)] = tuple([via[step.number] for step in steps])
                hops = hops_of[id(steps)]
                routes[name].extend(
                    Route(destination=destination, hops=hops, source=source, table=table)
                    for destination in networks
                )
    if (stretch := stretch_of(topology)) is not None:
        for network, vni in shared.items():
            for name, nearest in _towards_nearest(topology, stretch, vni, via).items():
                source = _source_address(topology.node(name))
                routes[name].append(Route(destination=network, hops=nearest, source=source))
    if topology.standby_ends:
        _merge(topology, routes)
    for switch in topology.switches:
        routes[switch.name].sort(key=lambda route: (route.table, route.destination))
    return {name: tuple(found) for name, found in routes.items()}


def static_rules(topology: Topology) -> Mapping[str, tuple[Rule, ...]]:
    """Return which tables switches look packets up in, by node name."""
    rules: dict[str, list[Rule]] = {node.name: [] for node in topology.nodes}
    for end, table in forwarding_of(topology).lookups.items():
        sources = forwarding_of(topology).sources(end.node) if table is RouteTable.GROUP else [None]
        rules[end.node].extend(
            Rule(interface=end.port, table=table, source=source) for source in sources
        )
    return {name: tuple(found) for name, found in rules.items()}


def static_neighbours(topology: Topology) -> Mapping[str, tuple[Neighbour, ...]]:
    """Return what each node would otherwise resolve by ARP: peers of its subnets and its gateway.

    A switch learns by its control plane of members of a stretched subnet that others have plugged
    in.
    """
    stretched = _stretched_members(topology)
    neighbours: dict[str, list[Neighbour]] = {node.name: [] for node in topology.nodes}
    for switch in topology.switches:
        for bridge in switch.bridges:
            if bridge.gateway is None:
                continue
            members = list(_members(topology, switch, bridge))
            for end, port, address in members:
                neighbours[switch.name].append(
                    Neighbour(interface=bridge.name, address=address, mac=port.mac)
                )
                rows, interface = neighbours[end.node], port.interface
                gateway = bridge.gateway.ip
                rows.append(Neighbour(interface=interface, address=gateway, mac=bridge.mac))
                peers = members if bridge.vni is None else stretched[bridge.vni]
                rows.extend(
                    Neighbour(interface=interface, address=address, mac=peer.mac)
                    for other, peer, address in peers
                    if other.node != end.node
                )
    for link in topology.links:
        for ours, theirs in (link.ends, link.ends[::-1]):
            near, far = _port(topology, ours), _port(topology, theirs)
            if near.address is not None and far.address is not None:
                neighbours[ours.node].append(
                    Neighbour(interface=ours.port, address=far.address.ip, mac=far.mac)
                )
    for gpu in topology.gpus:
        for port in gpu.ports if gpu.loopback is not None else ():
            member = topology.far_end(CableEnd(gpu.name, port.name))
            address = topology.addresses[CableEnd(gpu.name, port.name)].ip
            neighbours[member.node].append(
                Neighbour(interface=member.port, address=address, mac=port.mac)
            )
        if gpu.bonds:  # recorded at both switches
            neighbours[gpu.name] = list(dict.fromkeys(neighbours[gpu.name]))
    return {name: tuple(rows) for name, rows in neighbours.items()}


def _exits(topology: Topology, gpu: Node) -> Iterator[Hop]:
    """The gateway behind each port of ``gpu`` that has one."""
    if gpu.gateway is None:
        return
    for port in gpu.ports:
        bridge = topology.gateway_of(CableEnd(gpu.name, port.name))
        if bridge is not None and bridge.gateway is not None:
            yield Hop(port.interface, bridge.gateway.ip)


def destinations(topology: Topology) -> dict[str, list[IPv4Network]]:
    """Owner -> the networks that others reach through it: a switch's, a GPU's fabric address.

    Those of a tenant with a VRF are its border leaf's, if there is one.
    """
    owned: dict[str, list[IPv4Network]] = {}
    for switch in topology.switches:
        networks = [b.gateway.network for b in switch.bridges if b.gateway and b.vrf is None]
        networks += [each for vrf in switch.vrfs if vrf.handoff for each in vrf.handoff.networks]
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


def attached(node: Node, routes: Iterable[Route]) -> Iterator[Route]:
    """Yield the routes that end behind the switch's own bridges, which nobody advertises to it."""
    own = behind_bridges(node)
    for route in routes:
        if own.issuperset(hop.port for hop in route.hops):
            yield route


def behind_bridges(node: Node) -> frozenset[str]:
    """The interfaces of ``node`` that lead into its own subnets: bridges and their members."""
    members = (port.name for port in node.ports if port.bridge is not None)
    return frozenset((*(bridge.name for bridge in node.bridges), *members))


def _merge(topology: Topology, routes: dict[str, list[Route]]) -> None:
    """Make one route of those to the two switches of a pair that have the same network.

    Both are equally far from everyone else, having the same cables; neither needs one to itself.
    """
    for node in topology.nodes:
        own = {bridge.gateway.network for bridge in node.bridges if bridge.gateway}
        own |= set(node.summaries)
        merged: dict[tuple[RouteTable, IPv4Network], Route] = {}
        for route in routes[node.name]:
            if route.destination in own:
                continue
            key = route.table, route.destination
            hops = (*merged[key].hops, *route.hops) if key in merged else route.hops
            merged[key] = replace(route, hops=tuple(dict.fromkeys(hops)))
        routes[node.name] = list(merged.values())


def _outside(
    networks: Iterable[IPv4Network], summaries: Sequence[IPv4Network]
) -> Iterator[IPv4Network]:
    for network in networks:
        if not any(network.subnet_of(summary) for summary in summaries):
            yield network


def _stretched_networks(topology: Topology) -> dict[IPv4Network, int]:
    """Subnets that lie on several switches, with their VNI."""
    return {
        bridge.gateway.network: bridge.vni
        for switch in topology.switches
        for bridge in switch.bridges
        if bridge.vni is not None and bridge.gateway is not None and bridge.vrf is None
    }


def _towards_nearest(
    topology: Topology, stretch: Stretch, vni: int, via: Mapping[int, Hop]
) -> dict[str, tuple[Hop, ...]]:
    """The hops of every switch that has not the subnet of ``vni``, to those nearest that have."""
    owners = stretch.owners[vni]
    tables = {owner: forwarding_of(topology).tables(owner)[RouteTable.MAIN] for owner in owners}
    found = {}
    for switch in topology.switches:
        if switch.name in owners:
            continue
        hops = {
            via[step.number]: None  # one way may lead to several of them
            for owner in stretch.nearest(switch.name, vni)
            for step in tables[owner][switch.name]
        }
        if hops:
            found[switch.name] = tuple(sorted(hops))
    return found


def _stretched_members(topology: Topology) -> Mapping[int, list[_Member]]:
    """VNI -> the ports of GPUs in its subnet, wherever they are plugged in."""
    found: dict[int, list[_Member]] = {}
    for switch in topology.switches:
        for bridge in switch.bridges:
            if bridge.vni is not None:
                found.setdefault(bridge.vni, []).extend(_members(topology, switch, bridge))
    return found


def _next_addresses(topology: Topology) -> Mapping[int, Hop]:
    """The hop that each step is, by the step's number."""
    hops: dict[int, Hop] = {}
    for name, steps in forwarding_of(topology).graph.steps.items():
        node = topology.node(name)
        if not node.is_switch:
            continue
        members = {port.name for port in node.ports if port.bridge is not None}
        for step in steps:
            address = topology.node(step.node).port(step.arrives).address
            if address is None:
                link, end = step.link, CableEnd(step.node, step.arrives)
                raise TopologyError(
                    f"link {link.a} - {link.b}: {end} has no address, so that no route can go "
                    "over it; join switches by ports with addresses"
                )
            hops[step.number] = Hop(step.port, address.ip, step.port in members)
    return hops


def _members(topology: Topology, switch: Node, bridge: Bridge) -> Iterator[_Member]:
    """Every port with an address, and that, which is reached through a member of ``bridge``."""
    for port in switch.ports:
        if port.bridge == bridge.name:
            for end, far in topology.beyond(CableEnd(switch.name, port.name)):
                if isinstance(far, Port) and far.address is not None:
                    yield end, far, far.address.ip


def _port(topology: Topology, end: CableEnd) -> Port:
    return topology.node(end.node).port(end.port)


def _source_address(node: Node) -> IPv4Address | None:
    if node.loopback is not None:
        return node.loopback
    gateways = [bridge.gateway.ip for bridge in node.bridges if bridge.gateway is not None]
    return gateways[0] if gateways else None
