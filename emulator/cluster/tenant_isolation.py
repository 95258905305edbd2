"""Isolation of the tenants of a frontend, by nftables on its leaves.

A tenant has a subnet, stretched over the leaves by VXLAN.  Every leaf is the gateway of all of them
and would route between them, as this kernel has no VRFs to keep their routes apart.  So a filter
stands in: what comes in from a tenant and is for another tenant's subnet is dropped and counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Network

from emulator.cluster.node_filter import nft
from emulator.lab import Lab
from topologies.cluster.machine_networks import TENANT_PREFIX
from topologies.model import Node, Topology

TABLE = "tenants"
COUNTER = "crossed"


def tenant_subnets(topology: Topology) -> Mapping[str, IPv4Network]:
    """Return the subnet of each tenant's bridge, by the bridge's name."""
    return {
        bridge.name: bridge.gateway.network
        for node in topology.switches
        for bridge in node.bridges
        if bridge.name.startswith(TENANT_PREFIX) and bridge.gateway is not None
    }


def build(lab: Lab) -> None:
    """Put the filter into every leaf of ``lab`` that has tenants."""
    subnets = tenant_subnets(lab.topology)
    for leaf in _leaves(lab.topology):
        nft(lab, leaf.name, "-f", "-", text=_rules(subnets))


def crossed(lab: Lab) -> int:
    """Return how many packets from one tenant to another the leaves have dropped."""
    total = 0
    for leaf in _leaves(lab.topology):
        answer = json.loads(nft(lab, leaf.name, "-j", "list", "counter", "inet", TABLE, COUNTER))
        total += sum(row["counter"]["packets"] for row in answer["nftables"] if "counter" in row)
    return total


def _leaves(topology: Topology) -> Iterator[Node]:
    for node in topology.switches:
        if any(bridge.name.startswith(TENANT_PREFIX) for bridge in node.bridges):
            yield node


def _rules(subnets: Mapping[str, IPv4Network]) -> str:
    lines = []
    for name in subnets:
        others = ", ".join(str(subnet) for other, subnet in subnets.items() if other != name)
        if others:
            drop = f'counter name "{COUNTER}" drop'
            lines.append(f'    iifname "{name}" ip daddr {{ {others} }} {drop}')
    rules = "\n".join(lines)
    return (
        f"table inet {TABLE} {{\n  counter {COUNTER} {{ }}\n  chain forward {{\n"
        f"    type filter hook forward priority filter; policy accept;\n{rules}\n  }}\n}}\n"
    )
