"""A fabric as a topology file of containerlab: the same nodes, cables and addresses in containers.

Every node is of kind ``linux``.  Interfaces keep their names; addresses, bridges and routes are
those that a lab of ours has, set by ``exec`` lines.  containerlab runs them in a node's container
when the node's own cables are plugged in; their far ends may not be. Each is one command without a
shell; what fails is in its log and stops nothing.  ``network-mode: none`` because ports may be
called ``eth0``, which containerlab keeps for its management network otherwise; it also leaves no
path beside the fabric.

``sysctls``, most of them for all nodes of the kind, are those of ours
(:mod:`emulator.dataplane.kernel.sysctls`): the container runtime sets them before there is a cable.
So interfaces begin with these and not with the host's, which may drop what comes back another way.
IPv6 is containerlab's to set.  A command sets the seed of a switch's ECMP hash. Kernels before 6.11
do not have it, and such a container would not start; there all tiers hash alike.

Rates, delays and buffers are not emulated there: each link has them under ``vars``, for other tools
to read.  Switches have FRR's image.  Where subnets are stretched over switches, by tunnels, FRR
speaks (:mod:`emulator.dataplane.kernel.fabric.containerlab_tunnels`).  Elsewhere its daemons stand
idle: routes are static, computed as in a static lab of ours
(:mod:`topologies.routing.static_routes`). They have ECMP over all paths of the fabric's routing,
and the same rules where it needs some; a comment notes it where the fabric has another control
plane.  Rails are VLANs of one bridge with ``vlans=on``; with ``vlans=auto`` they have a bridge
each, which works with every kernel.  Bonds (``homing=bond``) are as in our labs; where GPUs have
them every neighbour is configured, since ARP would not find all.

Endpoints are quoted, as a colon within brackets is not plain text to every reader of YAML.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from emulator.dataplane.control_plane import control_plane_choice as choice
from emulator.dataplane.kernel.fabric import bonds
from emulator.dataplane.kernel.fabric.cable_carrier import STATIC
from emulator.dataplane.kernel.fabric.containerlab_tunnels import (
    frr_commands,
    handoffs,
    has_tunnels,
    inside_mtu,
    prohibitions,
    stretched_members,
    subnet_tunnel,
    vrf_devices,
)
from emulator.dataplane.kernel.kernel_objects import RULE_PRIORITY, routing_table
from emulator.dataplane.kernel.sysctls import (
    FORWARDING,
    HASH_SEED,
    MULTIPATH,
    QUIET,
    SYSCTL,
    kernel_seed,
)
from emulator.errors import UserError
from topologies.interface_indices import VLAN_BRIDGE
from topologies.model import Bridge, CableEnd, Link, Node, Port, Topology
from topologies.routing.static_routes import (
    Hop,
    Neighbour,
    Route,
    Rule,
    attached,
    static_neighbours,
    static_routes,
    static_rules,
)
from topologies.stretch import segments_of, stretch_of

KIND = "linux"
SWITCH_IMAGE = "quay.io/frrouting/frr:10.2.1"
GPU_IMAGE = "ghcr.io/srl-labs/network-multitool:latest"


#: A comment in files whose tenants have VRF devices.
NOT_PROVEN = (
    "VRF devices keep tenants apart. This form failed when it was deployed; isolation=filter works."
)


def to_containerlab(topology: Topology) -> str:
    """``topology`` as YAML for ``containerlab deploy -t FILE``.

    Raises UserError for Ethernet segments, which only a control plane advertises.
    """
    if segments_of(topology):
        raise UserError(
            "containerlab files have static routes, and homing=esi needs a control plane: take "
            "homing=bond or homing=paths, with subnets=apart"
        )
    tunnels = stretch_of(topology) is not None
    spoken = choice.of(topology)
    frr = frr_commands(topology, spoken) if tunnels and spoken is not None else {}
    routes, rules = static_routes(topology), static_rules(topology)
    neighbours = static_neighbours(topology)
    mtus = {str(end): link.mtu for link in topology.links for end in link.ends}
    bonded = bonds.any_in(topology)
    nodes = CommentedMap()
    for node in topology.nodes:
        name = node.name
        vlans = topology.profile.vlans == "on" and node.is_switch and bool(node.bridges)
        commands = CommentedSeq(_interfaces(node, topology, mtus, vlans))
        commands += _backups(node, topology, vlans)
        commands += _neighbours(node, neighbours[name], bonded)
        if tunnels and node.is_switch:
            commands += stretched_members(node, topology, neighbours[name])
            commands += prohibitions(node, topology)
            commands += map(_route, attached(node, routes[name]))
        else:
            commands += map(_route, routes[name])
        commands += map(_rule, rules[name])
        commands += frr.get(name, ())
        nodes[node.name] = entry = CommentedMap(
            kind=KIND,
            image=SWITCH_IMAGE if node.is_switch else GPU_IMAGE,
            group=node.role.value,
            **{"network-mode": "none"},
        )
        if node.is_switch:
            entry["sysctls"] = _sysctls(FORWARDING)
        elif any(len(route.hops) > 1 for route in routes[name]):
            entry["sysctls"] = _sysctls([MULTIPATH])
        entry["exec"] = commands
    content = CommentedMap(
        name=topology.name.replace("_", "-"),
        topology=CommentedMap(
            kinds=CommentedMap({KIND: CommentedMap(sysctls=_sysctls(QUIET))}),
            nodes=nodes,
            links=CommentedSeq(_link(link) for link in topology.links),
        ),
    )
    plane = topology.profile.control_plane.partition(":")[0]
    if tunnels:
        apart = f"\n{NOT_PROVEN}" if any(switch.vrfs for switch in topology.switches) else ""
        content.yaml_set_start_comment(f"The control plane is {plane}, spoken by FRR.{apart}")
    elif plane != STATIC:
        content.yaml_set_start_comment(f"The control plane is {plane}; routes here are static.")
    page = io.StringIO()
    yaml = YAML()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width = 200
    yaml.dump(content, page)
    return page.getvalue()


def _link(link: Link) -> CommentedMap:
    ends = CommentedSeq(DoubleQuotedScalarString(str(end)) for end in link.ends)
    ends.fa.set_flow_style()
    facts = CommentedMap(
        rate_bps=link.rate_bps, delay_ns=link.delay_ns, buffer_bytes=link.buffer_bytes
    )
    facts.fa.set_flow_style()
    return CommentedMap(endpoints=ends, vars=facts)


def _sysctls(requested: Iterable[tuple[str, str]]) -> CommentedMap:
    return CommentedMap(
        (f"net.{name.replace('/', '.')}", value)
        for name, value in requested
        if not name.startswith("ipv6/")
    )


def _interfaces(node: Node, topology: Topology, mtus: dict[str, int], vlans: bool) -> Iterator[str]:
    if node.is_switch:
        seed = f"{SYSCTL}/{HASH_SEED}"
        yield f'sh -c "test ! -e {seed} || echo {kernel_seed(node)} > {seed}"'
    if node.loopback is not None:
        yield f"ip address add {node.loopback}/32 dev lo"
    if vlans:
        yield from _vlan_bridge(node, mtus)
    else:
        yield from vrf_devices(node, topology)
        for bridge in node.bridges:
            yield from _bridge(node, topology, bridge, mtus)
        yield from handoffs(node, topology)
    for port in node.ports:
        if port.bond is None:
            yield from _port(port, mtus[f"{node.name}:{port.name}"], _vlan(node, port, vlans))
    for bond, members in node.bonds.items():
        yield from _bond(bond, members, min(mtus[f"{node.name}:{port.name}"] for port in members))


def _vlan(node: Node, port: Port, vlans: bool) -> int | None:
    bridge = node.bridge_of(port) if vlans else None
    return bridge.vlan if bridge is not None else None


def _bond(bond: str, members: Sequence[Port], mtu: int) -> Iterator[str]:
    """Yield commands for a bond, whose ports must be down when it takes them.

    containerlab has set them up.
    """
    kind = f"type bond mode balance-xor miimon {bonds.LOOK_MS} xmit_hash_policy layer3+4"
    yield f"ip link add name {bond} address {members[0].mac} mtu {mtu} {kind}"
    for port in members:
        yield f"ip link set dev {port.name} address {port.mac} mtu {mtu} down"
        yield f"ip link set dev {port.name} master {bond}"
    yield f"ip link set dev {bond} up"
    yield f"ip address add {members[0].address} dev {bond}"


def _backups(node: Node, topology: Topology, vlans: bool) -> Iterator[str]:
    """The standby link for GPUs whose own port is dead (see ``bonds``)."""
    standby = {
        port.bridge: port.name
        for port in node.ports
        if CableEnd(node.name, port.name) in topology.standby_ends
    }
    for name in standby.values():
        yield f"bridge link set dev {name} learning off flood off mcast_flood off bcast_flood off"
    for port in node.ports:
        if port.bridge not in standby or standby[port.bridge] == port.name:
            continue
        vlan = _vlan(node, port, vlans)
        where = f"dev {port.name} master static" + (f" vlan {vlan}" if vlan is not None else "")
        for _, far in topology.beyond(CableEnd(node.name, port.name)):
            yield f"bridge fdb replace {far.mac} {where}"  # it stays when the port is dead
        yield f"bridge link set dev {port.name} backup_port {standby[port.bridge]}"


def _neighbours(node: Node, known: Iterable[Neighbour], bonded: bool) -> Iterator[str]:
    """Yield permanent neighbours in place of those that ARP may have learned from frames.

    An answer to a bridge's member would be the bridge's; one to a pair of switches that look like
    one may come to the other.
    """
    members = {port.name for port in node.ports if port.bridge is not None}
    for each in known:
        if bonded or each.interface in members:
            where = f"lladdr {each.mac} dev {each.interface}"
            yield f"ip neighbour replace {each.address} {where} nud permanent"


def _vlan_bridge(node: Node, mtus: dict[str, int]) -> Iterator[str]:
    """One bridge, and for each rail the switch's own interface in its VLAN."""
    members = [port for port in node.ports if port.bridge is not None]
    mtu = min(mtus[f"{node.name}:{port.name}"] for port in members)
    facts = "type bridge vlan_filtering 1 vlan_default_pvid 0"
    yield f"ip link add name {VLAN_BRIDGE} address {node.bridges[0].mac} {facts}"
    yield f"ip link set dev {VLAN_BRIDGE} mtu {mtu} up"
    for bridge in node.bridges:
        yield f"bridge vlan add dev {VLAN_BRIDGE} vid {bridge.vlan} self"
        kind = f"type vlan id {bridge.vlan}"
        yield f"ip link add name {bridge.name} link {VLAN_BRIDGE} address {bridge.mac} {kind}"
        yield f"ip link set dev {bridge.name} up"
        if bridge.gateway is not None:
            yield f"ip address add {bridge.gateway} dev {bridge.name}"


def _bridge(node: Node, topology: Topology, bridge: Bridge, mtus: dict[str, int]) -> Iterator[str]:
    ports = [port.name for port in node.ports if port.bridge == bridge.name]
    inside = [inside_mtu(node, topology)] if has_tunnels(node) else []
    mtu = min((mtus[f"{node.name}:{port}"] for port in ports), default=min(inside, default=0))
    yield f"ip link add name {bridge.name} address {bridge.mac} type bridge"
    yield from subnet_tunnel(node, bridge, mtu)
    yield f"ip link set dev {bridge.name} mtu {mtu} up"
    if bridge.gateway is not None:
        yield f"ip address add {bridge.gateway} dev {bridge.name}"


def _port(port: Port, mtu: int, vlan: int | None) -> Iterator[str]:
    yield f"ip link set dev {port.name} address {port.mac} mtu {mtu} up"
    if vlan is not None:
        yield f"ip link set dev {port.name} master {VLAN_BRIDGE}"
        yield f"bridge vlan add dev {port.name} vid {vlan} pvid untagged"
    elif port.bridge is not None:
        yield f"ip link set dev {port.name} master {port.bridge}"
    if port.address is not None:
        yield f"ip address add {port.address} dev {port.name}"


def _route(route: Route) -> str:
    destination = "default" if route.destination.prefixlen == 0 else str(route.destination)
    source = f" src {route.source}" if route.source is not None else ""
    if route.table:
        source = f" table {routing_table(route.table)}{source}"
    if len(route.hops) == 1:
        (hop,) = route.hops
        return f"ip route add {destination}{source} via {hop.via} dev {hop.port}{_on_link(hop)}"
    hops = " ".join(f"nexthop via {hop.via} dev {hop.port}{_on_link(hop)}" for hop in route.hops)
    return f"ip route add {destination}{source} {hops}"


def _rule(rule: Rule) -> str:
    source = f"from {rule.source} " if rule.source is not None else ""
    table = routing_table(rule.table)
    return f"ip rule add {source}iif {rule.interface} lookup {table} priority {RULE_PRIORITY}"


def _on_link(hop: Hop) -> str:
    return " onlink" if hop.on_link else ""
