"""VRFs of tenants in switches: which are of one tenant, and what they may not have in common.

Switches that have a VRF of one name have the routes of one tenant, and its L3 VNI joins them.  Two
tenants may have the same subnets, since nothing leads from one to the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from ipaddress import IPv4Network

from topologies.elements import (
    BY_FILTER,
    ISOLATIONS,
    CableEnd,
    Node,
    TopologyError,
    Vrf,
)
from topologies.wiring import Wiring, once_per_topology


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
    found = {}
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
    """Yield the subnets of a tenant that ``switch`` has."""
    for bridge in switch.bridges:
        if bridge.vrf == vrf and bridge.gateway is not None:
            yield bridge.gateway.network


def without_vrfs(topology: Wiring) -> tuple[Node, ...]:
    """Return the nodes of ``topology`` with all subnets in the one table of their switch."""
    return tuple(
        replace(
            node,
            vrfs=(),
            bridges=tuple(replace(bridge, vrf=None) for bridge in node.bridges),
        )
        for node in topology.nodes
    )


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
