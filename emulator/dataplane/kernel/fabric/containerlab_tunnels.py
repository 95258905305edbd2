"""Tunnels, VRFs and FRR of a containerlab file, each as commands of a node without a shell.

A switch of a tunnelled fabric has what one of our labs has with ``isolation=vrf``, or with
``filter``: there rules of the kernel (``prohibit``) stand in for nftables, which FRR's image lacks.
The image runs ``zebra``.  Commands start the other daemons, and ``vtysh`` gives them the
configuration of our labs line by line.
"""

from __future__ import annotations

import io
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from emulator.dataplane.control_plane.control_plane_choice import ControlPlane
from emulator.dataplane.control_plane.daemons import MANAGEMENT, PROGRAMS, ZEBRA, programs
from emulator.dataplane.control_plane.render import render
from emulator.dataplane.kernel.kernel_objects import (
    LAST_RESORT,
    RULE_PRIORITY,
    TUNNEL_TTL,
    VRF_TABLES,
    VXLAN_UDP_PORT,
)
from topologies.cluster import tenant_of_bridge
from topologies.interface_indices import handoff_ends, routing_bridge, tunnel_port
from topologies.model import VXLAN_OVERHEAD, Bridge, CableEnd, Handoff, Node, Topology, Vrf
from topologies.routing.static_routes import Neighbour

#: What frr.conf says to a file and not to a terminal, and what the container has itself.
_OF_FILES = ("!", "log ", "hostname ", "end")


def has_tunnels(node: Node) -> bool:
    """Return whether tunnels end at ``node``."""
    return bool(node.vrfs) or any(bridge.vni is not None for bridge in node.bridges)


def vrf_devices(node: Node, topology: Topology) -> Iterator[str]:
    """Yield commands for the VRFs of ``node`` and their L3 VNIs, before bridges join them."""
    for table, vrf in enumerate(node.vrfs, start=VRF_TABLES):
        mtu = inside_mtu(node, topology)
        yield f"ip link add name {vrf.name} type vrf table {table}"
        yield f"ip link set dev {vrf.name} up"
        yield f"ip route add unreachable default metric {LAST_RESORT} table {table}"
        bridge = routing_bridge(vrf.name)
        yield f"ip link add name {bridge} address {vrf.mac} type bridge"
        yield f"ip link set dev {bridge} master {vrf.name} up"
        yield from _tunnel(node, vrf.vni, bridge, mtu)


def subnet_tunnel(node: Node, bridge: Bridge, mtu: int) -> Iterator[str]:
    """Yield commands that join ``bridge``, which is there, to its VRF and to its L2 VNI."""
    if bridge.vrf is not None:
        yield f"ip link set dev {bridge.name} master {bridge.vrf}"
    if bridge.vni is not None:
        yield from _tunnel(node, bridge.vni, bridge.name, mtu)


def _tunnel(node: Node, vni: int, bridge: str, mtu: int) -> Iterator[str]:
    port = tunnel_port(vni)
    facts = f"id {vni} local {node.loopback} dstport {VXLAN_UDP_PORT} ttl {TUNNEL_TTL} tos inherit"
    yield f"ip link add name {port} mtu {mtu} type vxlan {facts} nolearning noudpcsum"
    yield f"ip link set dev {port} master {bridge} up"
    yield f"bridge link set dev {port} learning off"


def inside_mtu(node: Node, topology: Topology) -> int:
    """Return the largest packet (octets) that fits into a tunnel of ``node``."""
    links = (link for link, _, _ in topology.neighbours(node.name))
    between = (link for link in links if all(topology.node(e.node).is_switch for e in link.ends))
    return min(link.mtu for link in between) - VXLAN_OVERHEAD


def handoffs(node: Node, topology: Topology) -> Iterator[str]:
    """Yield commands for the links of a border leaf between its own routes and its tenants'."""
    for table, vrf in enumerate(node.vrfs, start=VRF_TABLES):
        if vrf.handoff is not None:
            yield from _handoff(vrf, vrf.handoff, table, inside_mtu(node, topology))


def _handoff(vrf: Vrf, handoff: Handoff, table: int, mtu: int) -> Iterator[str]:
    out, into = handoff_ends(vrf.name)
    yield f"ip link add name {out} mtu {mtu} type veth peer name {into} mtu {mtu}"
    yield f"ip link set dev {into} master {vrf.name} up"
    yield f"ip link set dev {out} up"
    yield f"ip address add {handoff.outside} dev {out}"
    yield f"ip address add {handoff.inside} dev {into}"
    for network in handoff.networks:
        yield f"ip route add {network} via {handoff.inside.ip} dev {out}"
    for network in handoff.shared:
        yield f"ip route add {network} via {handoff.outside.ip} dev {into} table {table}"


def stretched_members(
    node: Node, topology: Topology, known: tuple[Neighbour, ...]
) -> Iterator[str]:
    """Yield who is behind the ports of stretched subnets, which FRR advertises."""
    stretched = {bridge.name for bridge in node.bridges if bridge.vni is not None}
    for neighbour in known:
        if neighbour.interface in stretched:
            where = f"lladdr {neighbour.mac} dev {neighbour.interface}"
            yield f"ip neighbour replace {neighbour.address} {where} nud permanent"
    for port in node.ports:
        if port.bridge in stretched:
            for _, far in topology.beyond(CableEnd(node.name, port.name)):
                yield f"bridge fdb replace {far.mac} dev {port.name} master static"


def prohibitions(node: Node, topology: Topology) -> Iterator[str]:
    """Yield rules by which a leaf without VRFs leads from no tenant to another."""
    owned = {
        str(bridge.gateway.network): tenant
        for switch in topology.switches
        for bridge in switch.bridges
        if bridge.gateway is not None and (tenant := tenant_of_bridge(bridge.name)) is not None
    }
    for bridge in node.bridges:
        own = tenant_of_bridge(bridge.name)
        if own is None or bridge.vrf is not None:
            continue
        for subnet, tenant in owned.items():
            if tenant != own:
                where = f"iif {bridge.name} to {subnet}"
                yield f"ip rule add {where} priority {RULE_PRIORITY} prohibit"


def frr_commands(topology: Topology, plane: ControlPlane) -> Mapping[str, list[str]]:
    """Return for each switch what starts FRR's daemons and configures them for ``plane``."""
    started = [name for name in programs(plane) if name not in (ZEBRA, MANAGEMENT)]
    nowhere = Path("/dev/null")  # the line is left out
    texts = render(topology, plane, logs={node.name: nowhere for node in topology.switches})
    return {
        name: [
            *(f"{PROGRAMS / program} --daemon" for program in started),
            _configure(text),
        ]
        for name, text in texts.items()
    }


def _configure(text: str) -> str:
    lines = [
        line.strip()
        for line in io.StringIO(text)
        if line.strip() and not line.strip().startswith(_OF_FILES)
    ]
    words = " ".join(f'-c "{line}"' for line in ["configure terminal", *lines])
    assert shlex.split(words)  # no line has quotes of its own
    return f"vtysh {words}"
