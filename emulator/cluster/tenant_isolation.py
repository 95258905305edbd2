"""Isolation of the tenants of a frontend by nftables on its leaves (``isolation=filter``).

All tenants share the routes of a leaf then, which would lead from one to another.  What comes in
from a tenant and is for another tenant's subnet is dropped and counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Network

from emulator.cluster.node_filter import nft
from emulator.dataplane.lab import Lab
from topologies.cluster import tenant_of_bridge
from topologies.model import Node, Topology

TABLE = "tenants"
COUNTER = "crossed"


def tenant_subnets(topology: Topology) -> Mapping[str, frozenset[IPv4Network]]:
    """Return the subnets of each tenant."""
    found: dict[str, frozenset[IPv4Network]] = {}
    for node in topology.switches:
        for bridge in node.bridges:
            tenant = tenant_of_bridge(bridge.name)
            if tenant is not None and bridge.gateway is not None:
                found[tenant] = found.get(tenant, frozenset()) | {bridge.gateway.network}
    return found


def build(lab: Lab) -> None:
    """Put the filter into every leaf of ``lab`` that has tenants without VRFs."""
    subnets = tenant_subnets(lab.topology)
    for leaf in _leaves(lab.topology):
        nft(lab, leaf.name, "-f", "-", text=_rules(leaf, subnets))


def crossed(lab: Lab) -> int:
    """Return how many packets from one tenant to another the leaves have dropped."""
    total = 0
    for leaf in _leaves(lab.topology):
        answer = json.loads(nft(lab, leaf.name, "-j", "list", "counter", "inet", TABLE, COUNTER))
        total += sum(row["counter"]["packets"] for row in answer["nftables"] if "counter" in row)
    return total


def _leaves(topology: Topology) -> Iterator[Node]:
    for node in topology.switches:
        if not node.vrfs and any(tenant_of_bridge(bridge.name) for bridge in node.bridges):
            yield node


def _rules(leaf: Node, subnets: Mapping[str, frozenset[IPv4Network]]) -> str:
    lines = []
    for bridge in leaf.bridges:
        own = tenant_of_bridge(bridge.name)
        others = sorted(
            subnet for tenant, theirs in subnets.items() if tenant != own for subnet in theirs
        )
        if own is not None and others:
            named = ", ".join(map(str, others))
            drop = f'counter name "{COUNTER}" drop'
            lines.append(f'    iifname "{bridge.name}" ip daddr {{ {named} }} {drop}')
    rules = "\n".join(lines)
    return (
        f"table inet {TABLE} {{\n  counter {COUNTER} {{ }}\n  chain forward {{\n"
        f"    type filter hook forward priority filter; policy accept;\n{rules}\n  }}\n}}\n"
    )
