"""Consistency of a topology: names, addresses, cables, servers, and of the networks of a cluster.

Checks of the second layer: bridges, VLANs, bonds and pairs of switches must agree.

VRFs of tenants in switches: which are of one tenant, and what they may not have in common.

Switches that have a VRF of one name have the routes of one tenant, and its L3 VNI joins them.  Two
tenants may have the same subnets, since nothing leads from one to the other.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Network

from topologies.elements import (
    BACKEND,
    BY_FILTER,
    END_ROLES,
    ISOLATIONS,
    MAX_MTU,
    MAX_VLAN,
    MESH,
    MIN_MTU,
    NETWORKS,
    ROUTINGS,
    SCALE_UP_SHAPES,
    SHORTEST,
    VLAN_USES,
    Bridge,
    CableEnd,
    FabricProfile,
    Link,
    Node,
    Port,
    ScaleUp,
    TopologyError,
    Vrf,
)
from topologies.ethernet import HEADER_OCTETS
from topologies.stretch import segments_of, validate_segments, validate_stretch
from topologies.wiring import Wiring, once_per_topology


def validate_layer2(topology: Wiring) -> None:
    """Raise :class:`TopologyError`, which names the element, unless all parts agree."""
    if topology.profile.vlans != "off":
        for switch in topology.switches:
            _validate_vlans(switch)
    bonded = False
    for node in topology.nodes:
        if any(port.bond for port in node.ports):
            bonded = True
            _validate_bonds(node)
    for link in topology.links:
        if link.standby:
            _validate_standby(topology, link.a, link.b)
    validate_segments(topology)
    if bonded and not segments_of(topology) and topology.profile.control_plane != "static":
        raise TopologyError(
            f"GPUs have bonds (homing=bond) and control_plane is {topology.profile.control_plane}; "
            "two switches that look like one need control_plane=static: take that, or homing=paths"
        )


def _validate_vlans(node: Node) -> None:
    seen: dict[int, str] = {}
    for bridge in node.bridges:
        where = f"{node.name}:{bridge.name}"
        if bridge.vlan is None:
            raise TopologyError(f"{where} has no VLAN id: give it one, or take vlans=off")
        if not 1 <= bridge.vlan <= MAX_VLAN:
            raise TopologyError(f"{where}: VLAN id {bridge.vlan} is not in 1..{MAX_VLAN}")
        if bridge.vlan in seen:
            raise TopologyError(f"{where} has the VLAN id {bridge.vlan} of {seen[bridge.vlan]}")
        seen[bridge.vlan] = where
    if len({bridge.mac for bridge in node.bridges}) > 1:
        raise TopologyError(
            f"the bridges of {node.name} have several MAC addresses: as VLANs of one bridge they "
            "have one"
        )


def _validate_bonds(node: Node) -> None:
    names = {port.name for port in node.ports}
    for bond, members in node.bonds.items():
        where = f"{node.name}:{bond}"
        if bond in names:
            raise TopologyError(f"{where} exists twice, as a bond and as a port")
        if node.is_switch:
            if len(members) > 1 or members[0].bridge is None:
                raise TopologyError(f"{where}: an access bond has one port, in a bridge")
            continue
        if any(port.address is None for port in members):
            raise TopologyError(f"{where}: a port of a bond has the bond's address")
        if len({(port.mac, port.address) for port in members}) > 1:
            raise TopologyError(f"{where}: its ports have the bond's one MAC and one address")


def _validate_standby(topology: Wiring, a: CableEnd, b: CableEnd) -> None:
    bridges = [topology.bridge_of(end) for end in (a, b)]
    looks = [bridge and (bridge.gateway, bridge.mac) for bridge in bridges]
    if None in looks or looks[0] != looks[1]:
        raise TopologyError(
            f"link {a} - {b} is a standby: it joins two bridges with one gateway and one MAC"
        )


@once_per_topology
def members_of(topology: Wiring) -> Mapping[str, tuple[str, ...]]:
    """Return by the name of each VRF the switches that have it."""
    found: dict[str, tuple[str, ...]] = {}
    for switch in topology.switches:
        for vrf in switch.vrfs:
            found[vrf.name] = (*found.get(vrf.name, ()), switch.name)
    return found


def vrf_named(switch: Node, name: str) -> Vrf:
    """Return the VRF ``name`` of ``switch``; TopologyError if it has none."""
    for vrf in switch.vrfs:
        if vrf.name == name:
            return vrf
    raise TopologyError(f"{switch.name} has no VRF {name!r}: give it one, or leave its bridge out")


def vrfs_of_ends(topology: Wiring) -> Mapping[CableEnd, str]:
    """Return the VRF of each port of an end node whose subnet is a tenant's."""
    found: dict[CableEnd, str] = {}
    if not any(bridge.vrf for switch in topology.switches for bridge in switch.bridges):
        return found
    for link in topology.links:
        for ours, theirs in (link.ends, link.ends[::-1]):
            switch = topology.by_name.get(theirs.node)
            ports = {port.name: port for port in switch.ports} if switch is not None else {}
            if switch is None or theirs.port not in ports:
                continue  # reported by the rules of links
            bridge = switch.bridge_of(ports[theirs.port])
            if bridge is not None and bridge.vrf is not None:
                found[ours] = bridge.vrf
    return found


def subnets_in(switch: Node, vrf: str) -> Iterator[IPv4Network]:
    for bridge in switch.bridges:
        if bridge.vrf == vrf and bridge.gateway is not None:
            yield bridge.gateway.network


def validate_vnis(topology: Wiring) -> None:
    """Raise TopologyError for a VNI that stands for two networks, bridged (L2) or routed (L3)."""
    taken: dict[int, tuple[object, str]] = {}

    def claim(vni: int, network: object, stated: str) -> None:
        first, other = taken.setdefault(vni, (network, stated))
        if first != network:
            raise TopologyError(
                f"VNI {vni} is used twice, for {other} and for {stated}: give one of them another"
            )

    for node in topology.nodes:
        for bridge in node.bridges:
            if bridge.vni is not None:
                where = f"the subnet of {node.name}:{bridge.name}"
                claim(bridge.vni, (bridge.gateway, bridge.vrf), where)
        for vrf in node.vrfs:
            claim(vrf.vni, vrf.name, f"the routes of {vrf.name} (L3 VNI)")


def validate_vrfs(topology: Wiring) -> None:
    """Raise TopologyError unless VRFs, their bridges and the profile agree."""
    isolation = topology.profile.isolation
    if isolation not in ISOLATIONS:
        raise TopologyError(f"isolation is {isolation!r}; it is one of {', '.join(ISOLATIONS)}")
    vnis: dict[str, int] = {}
    for switch in topology.nodes:
        names = [vrf.name for vrf in switch.vrfs]
        if len(set(names)) < len(names):
            raise TopologyError(f"{switch.name} has two VRFs of one name: rename one of them")
        for bridge in switch.bridges:
            if bridge.vrf is not None:
                vrf_named(switch, bridge.vrf)
        for vrf in switch.vrfs:
            if vnis.setdefault(vrf.name, vrf.vni) != vrf.vni:
                raise TopologyError(
                    f"the VRF {vrf.name} has the L3 VNI {vrf.vni} at {switch.name} and "
                    f"{vnis[vrf.name]} elsewhere: one VNI joins all of its switches"
                )
        if names and switch.loopback is None:
            raise TopologyError(
                f"{switch.name} has VRFs and no loopback, between which tunnels are: give it one"
            )
    if vnis and isolation == BY_FILTER:
        raise TopologyError(
            f"isolation is {isolation} and switches have VRFs: take isolation=auto, or leave the "
            "VRFs out"
        )


NODE_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
PORT_NAME = re.compile(r"[a-z][a-z0-9-]{0,14}")  # the kernel's IFNAMSIZ less the terminating zero
MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
_Ports = Mapping[str, Mapping[str, Port]]  # by the names of their nodes and their own


def validate(topology: Wiring) -> None:
    """Raise :class:`TopologyError`, which names the element, unless all parts agree."""
    validate_vnis(topology)
    nodes = _validate_nodes(topology)
    subnets = _validate_subnets(topology)
    _validate_gateways(topology)
    _validate_profile(topology.profile)
    ports = {name: {port.name: port for port in node.ports} for name, node in nodes.items()}
    _validate_links(topology, nodes, ports)
    _require_apart([*subnets.items(), *_routed(topology, ports)])
    _validate_servers(topology, nodes)
    validate_layer2(topology)
    validate_stretch(topology)
    validate_vrfs(topology)


def _validate_nodes(topology: Wiring) -> dict[str, Node]:  # noqa: C901  a rule after the other
    nodes: dict[str, Node] = {}
    known: set[str] = set()  # names of interfaces that are well formed
    macs: dict[str, str] = {}
    addresses: dict[str | None, dict[int, str]] = {}  # by VRF: an int is hashed soonest
    stretched: dict[int, Bridge] = {}
    twins, tenants = topology.twins, vrfs_of_ends(topology)

    def claim_address(where: str, address: int, vrf: str | None = None) -> None:
        where = twins.get(where, where)
        first = addresses.setdefault(vrf, {}).setdefault(address, where)
        if first != where:
            raise TopologyError(f"{where} has the address of {first}")

    def claim_mac(where: str, mac: str) -> None:
        if macs.setdefault(mac, where) != where:
            raise TopologyError(f"{where} has the MAC address of {macs[mac]}")

    for node in topology.nodes:
        if not NODE_NAME.fullmatch(node.name):
            raise TopologyError(
                f"node name {node.name!r} must be lower-case letters, digits and '-', at most 31"
            )
        if node.name in nodes:
            raise TopologyError(f"two nodes are named {node.name}")
        nodes[node.name] = node
        bridges = {bridge.name for bridge in node.bridges}
        seen: set[str] = set()
        one_mac = bool(node.feps)
        interfaces: tuple[Bridge | Port, ...] = (*node.bridges, *node.ports)
        for item in interfaces:
            where = f"{node.name}:{item.name}"
            if item.name not in known:
                if not PORT_NAME.fullmatch(item.name):
                    raise TopologyError(
                        f"{where}: an interface name has at most 15 of a-z, 0-9, '-'"
                    )
                known.add(item.name)
            if item.name in seen:
                raise TopologyError(f"{where} exists twice")
            seen.add(item.name)
            if not MAC.fullmatch(item.mac):
                raise TopologyError(f"{where}: {item.mac!r} is not a MAC address")
        for bridge in node.bridges:
            where = twins.get(f"{node.name}:{bridge.name}", f"{node.name}:{bridge.name}")
            if not _is_stretched(bridge, stretched):
                one_bridge = f"the bridges of {where.partition(':')[0]}"
                claim_mac(where if topology.profile.vlans == "off" else one_bridge, bridge.mac)
        for bridge in node.bridges:
            if bridge.gateway is None or _is_stretched(bridge, stretched):
                continue
            if bridge.vni is not None:
                stretched[bridge.vni] = bridge
            claim_address(f"{node.name}:{bridge.name}", int(bridge.gateway), bridge.vrf)
        for port in node.ports:
            where = f"{node.name}:{port.interface}"
            claim_mac(node.name if one_mac else where, port.mac)
            if port.address is not None:
                tenant = tenants.get(CableEnd(node.name, port.name)) if tenants else None
                claim_address(where, int(port.address), tenant)
            if (port.address is None) == (port.bridge is None):
                raise TopologyError(
                    f"{node.name}:{port.name} must have either an address or a bridge"
                )
            if port.bridge is not None and port.bridge not in bridges:
                raise TopologyError(
                    f"{node.name}:{port.name}: {node.name} has no bridge {port.bridge!r}"
                )
        if node.loopback is not None:
            claim_address(f"the loopback of {node.name}", int(node.loopback))
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
        claims = list(_bridged(topology, vrf))
        _require_apart(claims)
        if vrf is None:
            subnets.update(claims)
    _require_apart([*subnets.items(), *_handed_over(topology)])
    ordered = sorted(subnets)
    for node in topology.nodes:
        _validate_summaries(node, subnets, ordered)
    return subnets


def _require_apart(claims: Iterable[tuple[IPv4Network, str | Link]]) -> None:
    """Raise TopologyError unless the networks of different owners are apart."""
    # Networks overlap only where one contains the other.  In the order of their addresses the
    # first thing that a network contains follows it at once.
    ordered = sorted(
        (int(network.network_address), network.prefixlen, number, owner)
        for number, (network, owner) in enumerate(claims)
    )
    for (start, prefix, _, owner), (following, length, _, other) in itertools.pairwise(ordered):
        if (start ^ following) >> (32 - prefix) or owner == other:
            continue
        pair = (owner, other) if length > prefix else (other, owner)
        first, second = (f"link {x.a} - {x.b}" if isinstance(x, Link) else x for x in pair)
        raise TopologyError(f"the subnet of {first} overlaps that of {second}")


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


def _routed(topology: Wiring, ports: _Ports) -> Iterator[tuple[IPv4Network, str | Link]]:
    """The subnets of cables without a bridge, and loopbacks."""
    for link in topology.links:
        a = ports[link.a.node][link.a.port].address
        if a is not None and ports[link.b.node][link.b.port].address is not None:
            yield a.network, link
    for node in topology.nodes:
        if node.loopback is not None:
            yield IPv4Network(node.loopback), f"the loopback of {node.name}"


def _validate_summaries(
    node: Node, subnets: Mapping[IPv4Network, str], ordered: Sequence[IPv4Network]
) -> None:
    own = {bridge.gateway.network for bridge in node.bridges if bridge.gateway}
    for summary in node.summaries:
        # Subnets are apart: what overlaps begins in the summary, or is the one before.
        first = bisect_left(ordered, summary)
        for network in ordered[max(0, first - 1) :]:
            if network.network_address > summary.broadcast_address:
                break
            if summary.overlaps(network) and not (network in own and network.subnet_of(summary)):
                raise TopologyError(
                    f"the summary {summary} of {node.name} overlaps {network} of "
                    f"{subnets[network]}, which is not its own: take a longer prefix"
                )


def _validate_links(  # noqa: C901  a rule after the other
    topology: Wiring, nodes: Mapping[str, Node], ports: _Ports
) -> None:
    free = {name: dict(own) for name, own in ports.items()}
    bridged = {
        name: {
            bridge.name: bridge.gateway.network if bridge.gateway else None
            for bridge in node.bridges
        }
        for name, node in nodes.items()
    }

    def subnet(end: CableEnd) -> IPv4Network | None:
        port = ports[end.node][end.port]
        if port.address is not None:
            return port.address.network
        return bridged[end.node][str(port.bridge)]

    def problem(link: Link) -> str | None:
        if link.a.node == link.b.node:
            return f"both ends are plugged into {link.a.node}"
        a, b = subnet(link.a), subnet(link.b)
        if a is not b and a != b and not any(nodes[end.node].transparent for end in link.ends):
            return f"its ends are in different subnets, {a} and {b}"
        if link.rate_bps <= 0:
            return "the rate must be above 0 bit/s"
        if link.delay_ns < 0:
            return "the delay cannot be negative"
        if not MIN_MTU <= link.mtu <= MAX_MTU:
            return f"the MTU must lie in {MIN_MTU}..{MAX_MTU} octets"
        if link.buffer_bytes < link.mtu + HEADER_OCTETS:
            return "a buffer must hold at least one frame of the MTU"
        return None

    for link in topology.links:
        for end in link.ends:
            if end.node not in nodes:
                raise TopologyError(f"link {link.a} - {link.b}: there is no node {end.node!r}")
            if free[end.node].pop(end.port, None) is None:
                nodes[end.node].port(end.port)  # which raises if there is none
                raise TopologyError(f"two cables are plugged into {end}")
        if (wrong := problem(link)) is not None:
            raise TopologyError(f"link {link.a} - {link.b}: {wrong}")
    for name, own in free.items():
        for port in own:
            raise TopologyError(f"{name}:{port} has no cable")


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
        links, others = server.scale_up.links, len(server.gpus) * server.scale_up.hosts - 1
        if server.scale_up.shape == MESH and 0 < links < others:
            raise TopologyError(
                f"server {server.name}: its GPUs have {links} scale-up links, and a mesh needs "
                f"one to each of {others} others; take fewer GPUs, or scale_up=switch"
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


def validate_networks(backend: Wiring, networks: Sequence[Wiring]) -> None:
    """Raise TopologyError unless ``networks`` can be those of the servers of ``backend``.

    They have names of their own, and their subnets do not overlap.  Only machines are nodes of
    several networks, by ports of other names.
    """
    if backend.network not in NETWORKS:
        raise TopologyError(
            f"there is no network {backend.network!r}; it is one of {', '.join(NETWORKS)}"
        )
    if networks and backend.network != BACKEND:
        raise TopologyError(
            f"network {backend.network} has networks of its own: only the {BACKEND} has others"
        )
    named: dict[str, Wiring] = {}
    for network in (backend, *networks):
        if named.setdefault(network.network, network) is not network:
            raise TopologyError(f"two networks of the cluster are named {network.network}")
    _validate_networks_nodes((backend, *networks))
    _validate_networks_subnets((backend, *networks))


def _validate_networks_nodes(networks: Sequence[Wiring]) -> None:
    owners: dict[str, tuple[Wiring, set[str]]] = {}
    for network in networks:
        for node in network.nodes:
            ports = {port.name for port in node.ports}
            if node.name not in owners:
                owners[node.name] = network, ports
                continue
            first, taken = owners[node.name]
            both = f"{node.name} is in the networks {first.network} and {network.network}"
            alike = {first.node(node.name).role, node.role}
            if not alike <= END_ROLES or len(alike) > 1:
                raise TopologyError(f"{both}: only machines are in several, rename one of the two")
            if taken & ports:
                raise TopologyError(
                    f"{both} by ports of one name, {min(taken & ports)}: rename one of them"
                )
            taken |= ports


def _validate_networks_subnets(networks: Sequence[Wiring]) -> None:
    claimed: dict[IPv4Network, str] = {}
    for network in networks if len(networks) > 1 else ():
        own = dict.fromkeys(_subnets(network))
        for subnet in own:
            for other, owner in claimed.items():
                if subnet.overlaps(other):
                    raise TopologyError(
                        f"the subnet {subnet} of network {network.network} overlaps {other} of "
                        f"network {owner}: give one of them another"
                    )
        claimed |= dict.fromkeys(own, network.network)


def _subnets(network: Wiring) -> Iterator[IPv4Network]:
    """Yield the subnets of bridges and of end nodes' cables."""
    for node in network.nodes:
        for bridge in node.bridges:
            if bridge.gateway is not None:
                yield bridge.gateway.network
