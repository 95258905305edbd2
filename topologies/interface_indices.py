"""The numbers of interfaces: unique in the lab, so that one eBPF map can be keyed by them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from topologies.model import NETWORKS, Bridge, CableEnd, Node, Topology, Vrf

VLAN_BRIDGE = "br0"  # of a switch whose rails are VLANs
FIRST_INDEX = 2  # the loopback has 1 in every namespace
#: What the numbers of two networks of a cluster differ by at least: machines have ports in several.
INDICES_OF_A_NETWORK = 1 << 20


def interface_indices(topology: Topology) -> Mapping[CableEnd, int]:
    """Return the interface index of every port, bridge, bond and tunnel port, unique in the lab.

    Bridges and bonds are named as ``CableEnd(node, bridge)``; each stretched bridge has one tunnel
    port.  What a VRF has beside its bridges is named by :func:`vrf_ends`.  They depend on the
    topology alone: whoever has it can compute them.  Those of other networks of the cluster differ.
    """
    ends: list[CableEnd] = [end for link in topology.links for end in link.ends]
    bridges = [(node.name, bridge) for node in topology.nodes for bridge in node.bridges]
    ends += [CableEnd(node, bridge.name) for node, bridge in bridges]
    ends += [CableEnd(node, tunnel_port(b.vni)) for node, b in bridges if b.vni is not None]
    ends += [CableEnd(node.name, bond) for node in topology.nodes for bond in node.bonds]
    ends += filter(None, (vlan_bridge_of(topology, node) for node in topology.nodes))
    ends += (end for node in topology.nodes for vrf in node.vrfs for end in vrf_ends(node, vrf))
    first = FIRST_INDEX + NETWORKS.index(topology.network) * INDICES_OF_A_NETWORK
    return {end: index for index, end in enumerate(ends, start=first)}


def tunnel_port(vni: int) -> str:
    """The interface by which a bridge reaches those of its VNI in other switches."""
    return f"vxlan{vni}"


def vrf_space(node: str, vrf: str) -> str:
    """Return what stands for a node in the names of what its VRF has to itself.

    It is the name of the namespace that the VRF may be.
    """
    return f"{node}.{vrf}"


def routing_bridge(vrf: str) -> str:
    """Return the bridge of a VRF's L3 VNI, which has the router MAC."""
    return f"{vrf}-l3"


def handoff_ends(vrf: str) -> tuple[str, str]:
    """Return the ends of the link between a VRF and its switch's own routes: (own, the VRF's)."""
    return f"out-{vrf}", f"in-{vrf}"


def trunk_port(vni: int) -> str:
    """Return both ends of the link from the ports of a subnet to its VRF in another namespace."""
    return f"trunk{vni}"


def trunk_ends(node: Node, bridge: Bridge, vrf: Vrf, vni: int) -> tuple[CableEnd, CableEnd]:
    """Return the ends of that link, which have one name: (the switch's, the VRF's)."""
    port, space = trunk_port(vni), vrf_space(node.name, vrf.name)
    return CableEnd(f"{space}.{bridge.name}", port), CableEnd(space, port)


def vrf_ends(node: Node, vrf: Vrf) -> Iterator[CableEnd]:
    """Yield the interfaces that ``vrf`` may have beside the bridges of its subnets."""
    space = vrf_space(node.name, vrf.name)
    names = (vrf.name, routing_bridge(vrf.name), tunnel_port(vrf.vni), *handoff_ends(vrf.name))
    yield from (CableEnd(space, name) for name in names)
    for bridge in node.bridges:
        if bridge.vrf == vrf.name and bridge.vni is not None:
            yield from trunk_ends(node, bridge, vrf, bridge.vni)


def vlan_bridge_of(topology: Topology, node: Node) -> CableEnd | None:
    """Return the one bridge of a switch whose rails may be VLANs.

    With ``vlans=auto`` it has its number where it is not made, too: numbers depend on the topology
    alone.
    """
    if topology.profile.vlans == "off" or not node.is_switch or not node.bridges:
        return None
    return CableEnd(node.name, VLAN_BRIDGE)
