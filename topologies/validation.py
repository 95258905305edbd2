"""Consistency of a topology: names, addresses, cables, servers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Address, IPv4Network

from topologies import layer2
from topologies.elements import (
    END_ROLES,
    MAX_MTU,
    MIN_MTU,
    ROUTINGS,
    SCALE_UP_SHAPES,
    SHORTEST,
    VLAN_USES,
    Bridge,
    CableEnd,
    FabricProfile,
    Node,
    Port,
    ScaleUp,
    TopologyError,
)
from topologies.ethernet import HEADER_OCTETS
from topologies.stretch import validate_stretch
from topologies.tenant_vrfs import validate_vnis, validate_vrfs, vrfs_of_ends
from topologies.wiring import Wiring

NODE_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
PORT_NAME = re.compile(r"[a-z][a-z0-9-]{0,14}")  # the kernel's IFNAMSIZ less the terminating zero
MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


def validate(topology: Wiring) -> None:
    """Raise :class:`TopologyError`, which names the element, unless all parts agree."""
    validate_vnis(topology)
    nodes = _validate_nodes(topology)
    subnets = _validate_subnets(topology)
    _validate_gateways(topology)
    _validate_profile(topology.profile)
    _validate_links(topology, nodes)
    _validate_routed(topology, subnets)
    _validate_servers(topology, nodes)
    layer2.validate(topology)
    validate_stretch(topology)
    validate_vrfs(topology)


def _validate_nodes(topology: Wiring) -> dict[str, Node]:
    nodes: dict[str, Node] = {}
    macs: dict[str, str] = {}
    addresses: dict[tuple[str | None, IPv4Address], str] = {}
    stretched: dict[int, Bridge] = {}
    twins, tenants = topology.twins, vrfs_of_ends(topology)

    def claim_address(where: str, address: IPv4Address, vrf: str | None = None) -> None:
        where = twins.get(where, where)
        if addresses.get((vrf, address), where) != where:
            raise TopologyError(f"{where} has the address of {addresses[vrf, address]}")
        addresses[vrf, address] = where

    def claim_mac(where: str, item: Bridge | Port, node: Node) -> None:
        if isinstance(item, Port):
            where = node.name if node.feps else f"{node.name}:{item.interface}"
        elif topology.profile.vlans != "off":
            where = f"the bridges of {twins.get(where, where).partition(':')[0]}"
        else:
            where = twins.get(where, where)
        if macs.setdefault(item.mac, where) != where:
            raise TopologyError(f"{where} has the MAC address of {macs[item.mac]}")

    for node in topology.nodes:
        if not NODE_NAME.fullmatch(node.name):
            raise TopologyError(
                f"node name {node.name!r} must be lower-case letters, digits and '-', at most 31"
            )
        if node.name in nodes:
            raise TopologyError(f"two nodes are named {node.name}")
        nodes[node.name] = node
        bridges = {bridge.name: bridge for bridge in node.bridges}
        seen: set[str] = set()
        interfaces: tuple[Bridge | Port, ...] = (*node.bridges, *node.ports)
        for item in interfaces:
            where = f"{node.name}:{item.name}"
            if not PORT_NAME.fullmatch(item.name):
                raise TopologyError(f"{where}: an interface name has at most 15 of a-z, 0-9, '-'")
            if item.name in seen:
                raise TopologyError(f"{where} exists twice")
            seen.add(item.name)
            if not MAC.fullmatch(item.mac):
                raise TopologyError(f"{where}: {item.mac!r} is not a MAC address")
            if not _is_stretched(item, stretched):
                claim_mac(where, item, node)
        for bridge in node.bridges:
            where = f"{node.name}:{bridge.name}"
            if bridge.gateway is None or _is_stretched(bridge, stretched):
                continue
            if bridge.vni is not None:
                stretched[bridge.vni] = bridge
            claim_address(where, bridge.gateway.ip, bridge.vrf)
        for port in node.ports:
            where = f"{node.name}:{port.name}"
            if port.address is not None:
                tenant = tenants.get(CableEnd(node.name, port.name))
                claim_address(f"{node.name}:{port.interface}", port.address.ip, tenant)
            if (port.address is None) == (port.bridge is None):
                raise TopologyError(f"{where} must have either an address or a bridge")
            if port.bridge is not None and port.bridge not in bridges:
                raise TopologyError(f"{where}: {node.name} has no bridge {port.bridge!r}")
        if node.loopback is not None:
            claim_address(f"the loopback of {node.name}", node.loopback)
    return nodes


def _validate_gateways(topology: Wiring) -> None:
    gateways = {
        str(bridge.gateway.ip)
        for node in topology.nodes
        for bridge in node.bridges
        if bridge.gateway is not None
    }
    for node in topology.nodes:
        if node.gateway is not None and node.gateway not in gateways:
            raise TopologyError(f"{node.name}: no bridge has its gateway address {node.gateway}")


def _is_stretched(item: Bridge | Port, stretched: Mapping[int, Bridge]) -> bool:
    """Return whether ``item`` is another bridge of a stretched network, and like it."""
    if isinstance(item, Port) or item.vni is None:
        return False
    first = stretched.get(item.vni)
    return first is not None and (first.mac, first.gateway) == (item.mac, item.gateway)


def _validate_profile(profile: FabricProfile) -> None:
    if profile.vlans not in VLAN_USES:
        raise TopologyError(f"vlans is {profile.vlans!r}; it is one of {', '.join(VLAN_USES)}")
    if profile.routing not in ROUTINGS:
        raise TopologyError(f"routing is {profile.routing!r}; it is one of {', '.join(ROUTINGS)}")
    if profile.routing != SHORTEST and profile.control_plane != "static":
        raise TopologyError(
            f"routing is {profile.routing} and control_plane {profile.control_plane}; routing "
            f"protocols find shortest paths: take control_plane=static or routing={SHORTEST}"
        )


def _validate_subnets(topology: Wiring) -> dict[IPv4Network, str]:
    """Return the subnets of bridges that no tenant has, with the bridges' names.

    None of them overlaps another, nor does one of a tenant's overlap another of that tenant.
    """
    subnets: dict[IPv4Network, str] = {}
    for vrf in dict.fromkeys(bridge.vrf for node in topology.nodes for bridge in node.bridges):
        _claim_subnets(subnets if vrf is None else {}, _bridged(topology, vrf))
    _claim_subnets(dict(subnets), _handed_over(topology))
    for node in topology.nodes:
        _validate_summaries(node, subnets)
    return subnets


def _validate_routed(topology: Wiring, subnets: dict[IPv4Network, str]) -> None:
    """Cables between routed ports have subnets apart from ``subnets`` and each other."""
    _claim_subnets(subnets, _routed(topology))


def _claim_subnets(
    subnets: dict[IPv4Network, str], claims: Iterable[tuple[IPv4Network, str]]
) -> None:
    for network, where in claims:
        if subnets.setdefault(network, where) != where:
            raise TopologyError(f"the subnet of {where} overlaps that of {subnets[network]}")
    # Networks overlap only where one contains the other.  In the order of their addresses the
    # first thing that a network contains follows it at once.
    ordered = sorted(subnets, key=lambda each: (int(each.network_address), each.prefixlen))
    for network, following in itertools.pairwise(ordered):
        if following.network_address in network:
            raise TopologyError(
                f"the subnet of {subnets[network]} overlaps that of {subnets[following]}"
            )


def _handed_over(topology: Wiring) -> Iterator[tuple[IPv4Network, str]]:
    """The networks of tenants that border leaves advertise to all."""
    for node in topology.nodes:
        for vrf in node.vrfs:
            for network in vrf.handoff.networks if vrf.handoff is not None else ():
                yield network, f"the tenant {vrf.name}"


def _bridged(topology: Wiring, vrf: str | None) -> Iterator[tuple[IPv4Network, str]]:
    """The subnets of bridges of ``vrf``; of bridges that are one network, by the first's name."""
    stretched: dict[int, Bridge] = {}
    first: dict[int, str] = {}
    for node in topology.nodes:
        for bridge in node.bridges:
            if bridge.gateway is None or bridge.vrf != vrf:
                continue
            where = f"{node.name}:{bridge.name}"
            if bridge.vni is not None:
                if _is_stretched(bridge, stretched):
                    where = first[bridge.vni]
                else:
                    stretched[bridge.vni], first[bridge.vni] = bridge, where
            yield bridge.gateway.network, topology.twins.get(where, where)


def _routed(topology: Wiring) -> Iterator[tuple[IPv4Network, str]]:
    """The subnets of cables without a bridge, and loopbacks."""
    for link in topology.links:
        a, b = (topology.node(end.node).port(end.port).address for end in link.ends)
        if a is not None and b is not None:
            yield a.network, f"link {link.a} - {link.b}"
    for node in topology.nodes:
        if node.loopback is not None:
            yield IPv4Network(node.loopback), f"the loopback of {node.name}"


def _validate_summaries(node: Node, subnets: Mapping[IPv4Network, str]) -> None:
    own = {bridge.gateway.network for bridge in node.bridges if bridge.gateway}
    for summary in node.summaries:
        for network, where in subnets.items():
            if summary.overlaps(network) and not (network in own and network.subnet_of(summary)):
                raise TopologyError(
                    f"the summary {summary} of {node.name} overlaps {network} of {where}, which "
                    "is not its own: take a longer prefix"
                )


def _validate_links(topology: Wiring, nodes: Mapping[str, Node]) -> None:
    plugged: set[CableEnd] = set()
    for link in topology.links:
        cable = f"link {link.a} - {link.b}"
        for end in link.ends:
            if end.node not in nodes:
                raise TopologyError(f"{cable}: there is no node {end.node!r}")
            nodes[end.node].port(end.port)
            if end in plugged:
                raise TopologyError(f"two cables are plugged into {end}")
            plugged.add(end)
        if link.a.node == link.b.node:
            raise TopologyError(f"{cable}: both ends are plugged into {link.a.node}")
        a, b = (_subnet(nodes[end.node], end.port) for end in link.ends)
        if a != b and not any(nodes[end.node].transparent for end in link.ends):
            raise TopologyError(f"{cable}: its ends are in different subnets, {a} and {b}")
        if link.rate_bps <= 0:
            raise TopologyError(f"{cable}: the rate must be above 0 bit/s")
        if link.delay_ns < 0:
            raise TopologyError(f"{cable}: the delay cannot be negative")
        if not MIN_MTU <= link.mtu <= MAX_MTU:
            raise TopologyError(f"{cable}: the MTU must lie in {MIN_MTU}..{MAX_MTU} octets")
        if link.buffer_bytes < link.mtu + HEADER_OCTETS:
            raise TopologyError(f"{cable}: a buffer must hold at least one frame of the MTU")
    for node in nodes.values():
        for port in node.ports:
            if CableEnd(node.name, port.name) not in plugged:
                raise TopologyError(f"{node.name}:{port.name} has no cable")


def _subnet(node: Node, port_name: str) -> IPv4Network | None:
    port = node.port(port_name)
    if port.address is not None:
        return port.address.network
    bridge = next(b for b in node.bridges if b.name == port.bridge)
    return bridge.gateway.network if bridge.gateway else None


def _validate_servers(topology: Wiring, nodes: Mapping[str, Node]) -> None:
    placed: set[str] = set()
    domains: dict[str, ScaleUp] = {}
    names: set[str] = set()
    for server in topology.servers:
        for gpu in server.gpus:
            if gpu not in nodes or nodes[gpu].role not in END_ROLES:
                raise TopologyError(f"server {server.name}: {gpu!r} is not a GPU node")
            if gpu in placed:
                raise TopologyError(f"{gpu} stands in two servers")
            placed.add(gpu)
        if server.name in names:
            raise TopologyError(f"two servers are named {server.name}")
        names.add(server.name)
        if server.scale_up.rate_bps <= 0:
            raise TopologyError(f"server {server.name}: the scale-up rate must be above 0 bit/s")
        if server.scale_up.shape not in SCALE_UP_SHAPES:
            raise TopologyError(
                f"server {server.name}: the scale-up network is a {server.scale_up.shape!r}; it is "
                f"one of {', '.join(SCALE_UP_SHAPES)}"
            )
        alike = domains.setdefault(server.domain or server.name, server.scale_up)
        if alike != server.scale_up:
            raise TopologyError(
                f"server {server.name}: its scale-up network is another than that of the servers "
                f"of its domain {server.domain}"
            )
        if server.scale_up.latency_ns < 0:
            raise TopologyError(f"server {server.name}: the scale-up latency cannot be negative")
    if not placed:
        raise TopologyError(f"topology {topology.name} has no GPUs: give it a server with one")
    for node in nodes.values():
        if node.role in END_ROLES and node.name not in placed:
            raise TopologyError(f"{node.name} stands in no server")
