"""Who is kept apart in a cluster: the tenants of its frontend, and users behind the border router.

Tenants (``isolation=``): with ``vrf`` their routes are VRF devices of the kernel; with ``netns``
each VRF is a network namespace, for kernels without such devices; with ``filter`` all share the
routes of a switch, which would lead from one to another, and nftables drops and counts what comes
in from a tenant and is for another tenant's subnet.

Users reach model servers by HTTP, and may ping.  Answers to what began inside pass.  All else that
they send is dropped and counted by the border router, with nftables too.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from ipaddress import IPv4Network
from typing import NamedTuple

from emulator.dataplane.doctor import capabilities
from emulator.dataplane.lab import Lab
from emulator.errors import UserError
from topologies import model
from topologies.cluster import BORDER, MODEL_PORT, USERS_BRIDGE, tenant_of_bridge

NFT_S = 20.0


def nft(lab: Lab, node: str, *arguments: str, text: str = "") -> str:
    """Run ``nft`` in ``node`` with ``text`` as its input; return what it prints.

    Raises UserError with its reason if it refuses.
    """
    with lab.popen(
        node,
        ["nft", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        out, err = process.communicate(text, timeout=NFT_S)
    if process.returncode:
        stated = err.strip().splitlines() or ["no reason"]
        raise UserError(f"the filter of {node} cannot be set or read: {stated[0]}")
    return str(out)


STATED: Mapping[str, str] = {
    model.OF_DEVICES: "a VRF device for each in every leaf",
    model.OF_NAMESPACES: "a VRF for each in every leaf, which is a network namespace",
    model.BY_FILTER: "nftables filters on the leaves",
}


def resolved(
    topology: model.Topology, *, has: Callable[[str], bool] = capabilities.has
) -> model.Topology:
    """Return ``topology`` with the isolation that this machine gives its tenants.

    Raises UserError for VRF devices that the user requests and the kernel has not.
    """
    isolation = topology.profile.isolation
    if isolation == model.AUTO_ISOLATION:
        isolation = model.OF_DEVICES if has("vrf") else model.OF_NAMESPACES
    elif isolation == model.OF_DEVICES and not has("vrf"):
        raise UserError(
            f"isolation is {model.OF_DEVICES} and this kernel has no VRF devices: take isolation="
            f"{model.OF_NAMESPACES}, which makes each VRF a network namespace"
        )
    profile = dataclasses.replace(topology.profile, isolation=isolation)
    return dataclasses.replace(topology, profile=profile)


def tenants_of(topology: model.Topology) -> tuple[str, ...]:
    bridges = (bridge for switch in topology.switches for bridge in switch.bridges)
    found = (tenant_of_bridge(bridge.name) for bridge in bridges)
    return tuple(sorted({name for name in found if name is not None}))


def stated(topology: model.Topology) -> str:
    """Return a sentence on the tenants of ``topology`` and what keeps them apart."""
    return f"{len(tenants_of(topology))} tenants: {STATED[topology.profile.isolation]}"


TENANTS_TABLE = "tenants"
CROSSED = "crossed"


def tenant_subnets(topology: model.Topology) -> Mapping[str, frozenset[IPv4Network]]:
    found: dict[str, frozenset[IPv4Network]] = {}
    for node in topology.switches:
        for bridge in node.bridges:
            tenant = tenant_of_bridge(bridge.name)
            if tenant is not None and bridge.gateway is not None:
                found[tenant] = found.get(tenant, frozenset()) | {bridge.gateway.network}
    return found


def build_tenants(lab: Lab) -> None:
    """Put the filter into every leaf of ``lab`` that has tenants without VRFs."""
    subnets = tenant_subnets(lab.topology)
    for leaf in _leaves(lab.topology):
        nft(lab, leaf.name, "-f", "-", text=_rules(leaf, subnets))


def crossed(lab: Lab) -> int:
    """Return how many packets from one tenant to another the leaves have dropped."""
    total = 0
    for leaf in _leaves(lab.topology):
        answer = json.loads(
            nft(lab, leaf.name, "-j", "list", "counter", "inet", TENANTS_TABLE, CROSSED)
        )
        total += sum(row["counter"]["packets"] for row in answer["nftables"] if "counter" in row)
    return total


def _leaves(topology: model.Topology) -> Iterator[model.Node]:
    for node in topology.switches:
        if not node.vrfs and any(tenant_of_bridge(bridge.name) for bridge in node.bridges):
            yield node


def _rules(leaf: model.Node, subnets: Mapping[str, frozenset[IPv4Network]]) -> str:
    lines = []
    for bridge in leaf.bridges:
        own = tenant_of_bridge(bridge.name)
        others = sorted(
            subnet for tenant, theirs in subnets.items() if tenant != own for subnet in theirs
        )
        if own is not None and others:
            named = ", ".join(map(str, others))
            drop = f'counter name "{CROSSED}" drop'
            lines.append(f'    iifname "{bridge.name}" ip daddr {{ {named} }} {drop}')
    rules = "\n".join(lines)
    return (
        f"table inet {TENANTS_TABLE} {{\n  counter {CROSSED} {{ }}\n  chain forward {{\n"
        f"    type filter hook forward priority filter; policy accept;\n{rules}\n  }}\n}}\n"
    )


BORDER_TABLE = "border"
REFUSED = "refused"
BORDER_RULES = f"""
table inet {BORDER_TABLE} {{
  counter {REFUSED} {{ }}
  chain forward {{
    type filter hook forward priority filter; policy accept;
    iifname != "{USERS_BRIDGE}" accept
    ct state established,related accept
    tcp dport {MODEL_PORT} ct state new accept
    icmp type echo-request accept
    counter name "{REFUSED}" drop
  }}
}}
"""


class RefusedByBorder(NamedTuple):
    packets: int
    octets: int


def has_border(lab: Lab) -> bool:
    return BORDER in lab.topology.by_name


def build_border(lab: Lab) -> None:
    """Put the rules into the border router of ``lab``.  Raises UserError if nft refuses them."""
    nft(lab, BORDER, "-f", "-", text=BORDER_RULES)


def refused_by_border(lab: Lab) -> RefusedByBorder:
    """Return what the border router of ``lab`` has refused since it was built."""
    answer = json.loads(nft(lab, BORDER, "-j", "list", "counter", "inet", BORDER_TABLE, REFUSED))
    (counter,) = (row["counter"] for row in answer["nftables"] if "counter" in row)
    return RefusedByBorder(counter["packets"], counter["bytes"])
