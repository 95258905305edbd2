"""A topology as Graphviz dot, as Mermaid, and as plain data for JSON."""

from __future__ import annotations

from collections.abc import Iterator

from topologies.capacity import HEIGHT, TIERS, bisection_bandwidth, format_ratio, oversubscription
from topologies.model import Link, Node, Role, Topology
from topologies.units import format_rate

SCHEMA = "uetemu.topology/1"
#: One colour per rail, repeated: dark enough for text, apart in brightness and hue.
RAIL_COLOURS = (
    "#1f77b4",
    "#d62728",
    "#2ca02c",
    "#9467bd",
    "#8c564b",
    "#e377c2",
    "#7f7f7f",
    "#17becf",
)


def as_data(topology: Topology) -> dict[str, object]:
    """Everything about ``topology`` as JSON types, units in the key names as in the model."""
    return {
        "schema": SCHEMA,
        "name": topology.name,
        "parameters": dict(topology.parameters),
        "profile": {
            "control_plane": topology.profile.control_plane,
            "load_balancing": topology.profile.load_balancing,
            "routing": topology.profile.routing,
        },
        "servers": [
            {
                "name": server.name,
                "gpus": list(server.gpus),
                "scale_up": {
                    "rate_bps": server.scale_up.rate_bps,
                    "latency_ns": server.scale_up.latency_ns,
                },
            }
            for server in topology.servers
        ],
        "nodes": [_node_data(node) for node in topology.nodes],
        "links": [
            {
                "a": {"node": link.a.node, "port": link.a.port},
                "b": {"node": link.b.node, "port": link.b.port},
                "rate_bps": link.rate_bps,
                "delay_ns": link.delay_ns,
                "mtu": link.mtu,
                "buffer_bytes": link.buffer_bytes,
            }
            for link in topology.links
        ],
        "capacity": {
            "oversubscription": {
                role.value: format_ratio(ratio)
                for role, ratio in oversubscription(topology).items()
            },
            "bisection_bps": bisection_bandwidth(topology),
        },
    }


def _node_data(node: Node) -> dict[str, object]:
    return {
        "name": node.name,
        "role": node.role.value,
        "server": node.server,
        "local_rank": node.local_rank,
        "pod": node.pod,
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
            }
            for b in node.bridges
        ],
        "summaries": [str(summary) for summary in node.summaries],
        "ports": [
            {
                "name": p.name,
                "mac": p.mac,
                "address": str(p.address) if p.address else None,
                "bridge": p.bridge,
            }
            for p in node.ports
        ],
    }


def bundles(topology: Topology) -> Iterator[tuple[Node, Node, list[Link]]]:
    """Links between the same two nodes taken together, as (lower node, upper node, links)."""
    found: dict[tuple[str, str], list[Link]] = {}
    for link in topology.links:
        a, b = topology.node(link.a.node), topology.node(link.b.node)
        lower, upper = (b, a) if HEIGHT[a.role] > HEIGHT[b.role] else (a, b)
        found.setdefault((lower.name, upper.name), []).append(link)
    for (low, high), links in found.items():
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


def to_dot(topology: Topology) -> str:
    """Graphviz source: one row per tier, a server's GPUs side by side, one colour per rail.

    Rates stand in the cell where a line starts: labels on so many lines would hide them.
    """
    between_rows = max(1.4, 0.075 * len(topology.gpus))  # inches: a wide row needs height too
    lines = [
        f"graph {_quoted(topology.name)} {{",
        f"  graph [rankdir=BT, splines=line, nodesep=0.4, ranksep={between_rows:g}];",
        "  node [shape=plain, fontname=Helvetica, fontsize=11];",
    ]
    upward: dict[str, list[tuple[str, str]]] = {node.name: [] for node in topology.nodes}
    edges = []
    for lower, upper, links in bundles(topology):
        upward[lower.name].append((upper.name, bundle_rate(links)))
        box = topology.server_of(lower.name).name if lower.role is Role.GPU else lower.name
        cell = f"{lower.name}.{upper.name}"
        width = 1 + min(3.0, 0.5 * (len(links) - 1))
        style = f'color="{_colour(lower)}", penwidth={width:g}'
        edges.append(f"  {_quoted(box)}:{_quoted(cell)}:n -- {_quoted(upper.name)}:s [{style}];")
    for server in topology.servers:
        cells = [
            (f"{gpu}.{up}", [gpu, _address(topology.node(gpu)), rate])
            for gpu in server.gpus
            for up, rate in upward[gpu]
        ]
        lines.append(_box(server.name, cells, [server.name], "#333333"))
    for switch in topology.switches:
        detail = [str(bridge.gateway) for bridge in switch.bridges if bridge.gateway]
        if not detail and switch.loopback:
            detail = [str(switch.loopback)]
        cells = [(f"{switch.name}.{up}", [rate]) for up, rate in upward[switch.name]]
        lines.append(_box(switch.name, cells, [switch.name, *detail], _colour(switch)))
    for row in _rows(topology):
        lines.append(f"  {{ rank=same; {'; '.join(map(_quoted, row))}; }}")
        if len(row) > 1:  # keeps the row in its order; the edges' crossings do not decide it
            lines.append(f"  {' -- '.join(map(_quoted, row))} [style=invis];")
    return "\n".join([*lines, *edges, "}", ""])


def _box(name: str, cells: list[tuple[str, list[str]]], title: list[str], colour: str) -> str:
    # An HTML-like label: dot loses edges between neighbours whose shape is "record".
    top = "".join(f'<TD PORT="{port}">{"<BR/>".join(text)}</TD>' for port, text in cells)
    top = f"<TR>{top}</TR>" if top else ""
    text = "<BR/>".join(title)
    style = f'BORDER="2" COLOR="{colour}" CELLBORDER="1" CELLSPACING="0" CELLPADDING="5"'
    table = f'{top}<TR><TD COLSPAN="{max(1, len(cells))}">{text}</TD></TR>'
    return f"  {_quoted(name)} [label=<<TABLE {style}>{table}</TABLE>>];"


def to_mermaid(topology: Topology) -> str:
    """Mermaid flowchart source, spines on top, one subgraph per server."""
    lines = ["flowchart TB"]
    for row in reversed(_rows(topology)[1:]):
        for name in row:
            switch = topology.node(name)
            detail = "".join(f"<br/>{b.gateway}" for b in switch.bridges if b.gateway)
            lines.append(f'  {_identifier(name)}["{name}{detail}"]')
    for server in topology.servers:
        lines.append(f'  subgraph {_identifier(server.name)}["{server.name}"]')
        for gpu in server.gpus:
            lines.append(f'    {_identifier(gpu)}["{gpu}<br/>{_address(topology.node(gpu))}"]')
        lines.append("  end")
    for lower, upper, links in bundles(topology):
        arrow = f'---|"{bundle_rate(links)}"|'
        lines.append(f"  {_identifier(upper.name)} {arrow} {_identifier(lower.name)}")
    return "\n".join([*lines, ""])


def _rows(topology: Topology) -> list[list[str]]:
    """Names in drawing order, lowest row first: servers, then each tier of switches."""
    rows = [[server.name for server in topology.servers]]
    for tier in TIERS:
        row = [switch.name for switch in topology.switches if switch.role is tier]
        if row:
            rows.append(row)
    return rows


def _address(gpu: Node) -> str:
    return ", ".join(str(port.address.ip) for port in gpu.ports if port.address)


def _colour(node: Node) -> str:
    return "#333333" if node.rail is None else RAIL_COLOURS[node.rail % len(RAIL_COLOURS)]


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _identifier(name: str) -> str:
    # Mermaid reads some bare words ("end") as keywords and "-" as the start of an arrow.
    return f"n_{name.replace('-', '_')}"
