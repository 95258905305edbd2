"""A topology as Mermaid, and as plain data for JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

from topologies.analysis import capacity
from topologies.analysis.failure_domain import failure_domains
from topologies.designs.planes import fep_number
from topologies.exports.export_registry import EXPORTS, Export
from topologies.model import BACKEND, Link, Node, Role, Topology
from topologies.units import format_rate

SCHEMA = "uetemu.topology/1"


def as_data(topology: Topology) -> dict[str, object]:
    """Everything about ``topology`` as JSON types, units in the key names as in the model."""
    return {
        "schema": SCHEMA,
        "name": topology.name,
        "parameters": dict(topology.parameters),
        "profile": {
            "control_plane": topology.profile.control_plane,
            "data_plane": topology.profile.data_plane,
            "load_balancing": topology.profile.load_balancing,
            "routing": topology.profile.routing,
            "vlans": topology.profile.vlans,
        },
        "servers": [
            {
                "name": server.name,
                "gpus": list(server.gpus),
                "scale_up": {
                    "rate_bps": server.scale_up.rate_bps,
                    "latency_ns": server.scale_up.latency_ns,
                    "shape": server.scale_up.shape,
                    "hosts": server.scale_up.hosts,
                    "links": server.scale_up.links,
                    "sums": server.scale_up.sums,
                },
                "domain": server.domain,
            }
            for server in topology.servers
        ],
        "nodes": [_node_data(topology, node) for node in topology.nodes],
        "links": [
            {
                "a": {"node": link.a.node, "port": link.a.port},
                "b": {"node": link.b.node, "port": link.b.port},
                "rate_bps": link.rate_bps,
                "delay_ns": link.delay_ns,
                "mtu": link.mtu,
                "buffer_bytes": link.buffer_bytes,
                "standby": link.standby,
            }
            for link in topology.links
        ],
        "capacity": {
            "oversubscription": {
                role.value: capacity.format_ratio(ratio)
                for role, ratio in capacity.oversubscription(topology).items()
            },
            "bisection_bps": capacity.bisection_bandwidth(topology),
            "switch_ports": capacity.switch_ports(topology),
            "switch_ports_per_gpu": capacity.switch_ports(topology) / len(topology.gpus),
        },
        "failure_domains": [domain.as_data() for domain in failure_domains(topology)],
    }


def _node_data(topology: Topology, node: Node) -> dict[str, object]:
    return {
        "name": node.name,
        "role": node.role.value,
        "server": node.server,
        "local_rank": node.local_rank,
        "pod": node.pod,
        "position": list(node.position),
        "plane": node.plane,
        "rail": node.rail,
        "gateway": node.gateway,
        "loopback": str(node.loopback) if node.loopback else None,
        "hash_seed": node.hash_seed if node.is_switch else None,
        "bridges": [
            {
                "name": b.name,
                "rail": b.rail,
                "mac": b.mac,
                "gateway": str(b.gateway) if b.gateway else None,
                "vlan": b.vlan,
                "vni": b.vni,
            }
            for b in node.bridges
        ],
        "summaries": [str(summary) for summary in node.summaries],
        "ports": [
            {
                "name": p.name,
                "mac": p.mac,
                "address": str(p.address) if p.address else None,
                "fep": fep_number(topology, node, p.name) if node.feps else None,
                "bridge": p.bridge,
                "bond": p.bond,
            }
            for p in node.ports
        ],
    }


def inventory(topology: Topology) -> str:
    """``24 GPUs, 1 switch, 24 links``; machines where the network is one of machines."""
    end = "GPU" if topology.network == BACKEND else "machine"
    return ", ".join(
        f"{len(things)} {one if len(things) == 1 else several}"
        for one, several, things in (
            (end, f"{end}s", topology.gpus),
            ("switch", "switches", topology.switches),
            ("link", "links", topology.links),
        )
    )


def bundles(topology: Topology) -> Iterator[tuple[Node, Node, list[Link]]]:
    """Yield links between the same two nodes together: (lower node, upper node, links).

    Standby links are apart from others.
    """
    found: dict[tuple[str, str, bool], list[Link]] = {}
    for link in topology.links:
        a, b = topology.node(link.a.node), topology.node(link.b.node)
        lower, upper = (b, a) if capacity.HEIGHT[a.role] > capacity.HEIGHT[b.role] else (a, b)
        found.setdefault((lower.name, upper.name, link.standby), []).append(link)
    for (low, high, _), links in found.items():
        yield topology.node(low), topology.node(high), links


def bundle_rate(links: list[Link]) -> str:
    """``400 Gbps``, ``3 x 400 Gbps``, or a sum when parallel links differ in rate."""
    counts: dict[int, int] = {}
    for link in links:
        counts[link.rate_bps] = counts.get(link.rate_bps, 0) + 1
    return " + ".join(
        format_rate(rate) if count == 1 else f"{count} x {format_rate(rate)}"
        for rate, count in counts.items()
    )


def to_mermaid(topology: Topology) -> str:
    """Mermaid flowchart source: spines on top, a subgraph per server, standby links dotted."""
    lines = ["flowchart TB"]
    nics: dict[str | None, list[str]] = {}
    for node in topology.nodes:
        if node.role is Role.NIC:
            nics.setdefault(node.server, []).append(node.name)
    last = {server.domain: server for server in topology.servers}
    for row in reversed(_rows(topology)[1:]):
        for name in row:
            switch = topology.node(name)
            detail = "".join(f"<br/>{b.gateway}" for b in switch.bridges if b.gateway)
            lines.append(f'  {_identifier(name)}["{name}{detail}"]')
    for server in topology.servers:
        several = server.scale_up.hosts > 1
        if several and server.domain == server.name:
            title = f"scale-up {server.scale_up.shape}"
            lines.append(f'  subgraph {_identifier(f"scale_up_{server.name}")}["{title}"]')
        lines.append(f'  subgraph {_identifier(server.name)}["{server.name}"]')
        for gpu in server.gpus:
            lines.append(f'    {_identifier(gpu)}["{gpu}<br/>{_address(topology.node(gpu))}"]')
        lines += [f'    {_identifier(nic)}["{nic}"]' for nic in nics.get(server.name, ())]
        lines.append("  end")
        if several and server is last[server.domain]:
            lines.append("  end")
    for lower, upper, links in bundles(topology):
        line = "-.-" if links[0].standby else "---"
        arrow = f'{line}|"{bundle_rate(links)}"|'
        lines.append(f"  {_identifier(upper.name)} {arrow} {_identifier(lower.name)}")
    return "\n".join([*lines, ""])


def _rows(topology: Topology) -> list[list[str]]:
    """Names in drawing order, lowest row first: servers, then each tier of switches."""
    rows = [[server.name for server in topology.servers]]
    for tier in capacity.TIERS:
        row = [switch.name for switch in topology.switches if switch.role is tier]
        if row:
            rows.append(row)
    return rows


def _address(gpu: Node) -> str:
    return ", ".join(dict.fromkeys(str(port.address.ip) for port in gpu.ports if port.address))


def _identifier(name: str) -> str:
    # Mermaid reads some bare words ("end") as keywords and "-" as the start of an arrow.
    return f"n_{name.replace('-', '_')}"


def to_json(topology: Topology) -> str:
    """Return ``topology`` as JSON: nodes, links and what they have."""
    return json.dumps(as_data(topology), indent=2) + "\n"


EXPORTS.register(Export("mermaid", "drawing for Markdown", (".mmd",), to_mermaid))
EXPORTS.register(Export("json", "every node and link", (".json",), to_json))
