"""The numbers of interfaces: unique in the lab, so that one eBPF map can be keyed by them."""

from __future__ import annotations

from collections.abc import Mapping

from topologies.model import NETWORKS, CableEnd, Node, Topology

VLAN_BRIDGE = "br0"  # of a switch whose rails are VLANs
FIRST_INDEX = 2  # the loopback has 1 in every namespace
#: What the numbers of two networks of a cluster differ by at least: machines have ports in several.
INDICES_OF_A_NETWORK = 1 << 20


def interface_indices(topology: Topology) -> Mapping[CableEnd, int]:
    """Return the interface index of every port, bridge, bond and tunnel port, unique in the lab.

    Bridges and bonds are named as ``CableEnd(node, bridge)``; each stretched bridge has one tunnel
    port.  They depend on the topology
    alone: whoever has it can compute them.  Those of other networks of the cluster differ.
    """
    ends: list[CableEnd] = [end for link in topology.links for end in link.ends]
    bridges = [(node.name, bridge) for node in topology.nodes for bridge in node.bridges]
    ends += [CableEnd(node, bridge.name) for node, bridge in bridges]
    ends += [CableEnd(node, tunnel_port(b.vni)) for node, b in bridges if b.vni is not None]
    ends += [CableEnd(node.name, bond) for node in topology.nodes for bond in node.bonds]
    ends += filter(None, (vlan_bridge_of(topology, node) for node in topology.nodes))
    first = FIRST_INDEX + NETWORKS.index(topology.network) * INDICES_OF_A_NETWORK
    return {end: index for index, end in enumerate(ends, start=first)}


def tunnel_port(vni: int) -> str:
    """The interface by which a bridge reaches those of its VNI in other switches."""
    return f"vxlan{vni}"


def vlan_bridge_of(topology: Topology, node: Node) -> CableEnd | None:
    """Return the one bridge of a switch whose rails may be VLANs.

    With ``vlans=auto`` it has its number where it is not made, too: numbers depend on the topology
    alone.
    """
    if topology.profile.vlans == "off" or not node.is_switch or not node.bridges:
        return None
    return CableEnd(node.name, VLAN_BRIDGE)
