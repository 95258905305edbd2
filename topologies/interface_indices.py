"""The numbers of interfaces: unique in the lab, so that one eBPF map can be keyed by them."""

from __future__ import annotations

from collections.abc import Mapping

from emulator.fabric import vlans
from topologies.model import End, Topology

FIRST_INDEX = 2  # the loopback has 1 in every namespace


def interface_indices(topology: Topology) -> Mapping[End, int]:
    """Interface index of every port, bridge and bond (as ``End(node, bridge)``), unique in the lab,
    and of the tunnel port of every stretched bridge.

    They depend on the topology alone: whoever has it can compute them.
    """
    ends: list[End] = [end for link in topology.links for end in link.ends]
    bridges = [(node.name, bridge) for node in topology.nodes for bridge in node.bridges]
    ends += [End(node, bridge.name) for node, bridge in bridges]
    ends += [End(node, tunnel_port(b.vni)) for node, b in bridges if b.vni is not None]
    ends += [End(node.name, bond) for node in topology.nodes for bond in node.bonds]
    ends += filter(None, (vlans.bridge_of(topology, node) for node in topology.nodes))
    return {end: index for index, end in enumerate(ends, start=FIRST_INDEX)}


def tunnel_port(vni: int) -> str:
    """The interface by which a bridge reaches those of its VNI in other switches."""
    return f"vxlan{vni}"
