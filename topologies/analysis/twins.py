"""Nodes with the same cables, of which a large fabric has many, as one.

Twins are plugged into the same nodes at the same rates, as the spines of a Clos fabric are.  So
each of them has the same cables to each twin of another kind, and sums, maximum flows and drawings
need one node of each kind and their number.
"""

from __future__ import annotations

from dataclasses import dataclass

from topologies.model import Node, Topology
from topologies.wiring import Wiring, once_per_topology


@dataclass(frozen=True, kw_only=True)
class Twins:
    """``nodes`` of one role, rail and pod, each with a cable to all of ``far``.

    The n-th has the n-th of ``rates`` (bit/s).  ``standby`` are the far ends and rates of standby
    links, which are no cables.
    """

    nodes: tuple[Node, ...]
    far: tuple[str, ...]
    rates: tuple[int, ...]
    standby: tuple[tuple[str, int], ...]


@once_per_topology
def twins_of(topology: Topology) -> tuple[Twins, ...]:
    """Return all nodes of ``topology`` with their twins, in the order of the first of each kind."""
    far: dict[str, list[str]] = {node.name: [] for node in topology.nodes}
    rates: dict[str, list[int]] = {node.name: [] for node in topology.nodes}
    standby: dict[str, list[tuple[str, int]]] = {}
    for link in topology.links:
        a, b, rate = link.a.node, link.b.node, link.rate_bps
        if link.standby:
            standby.setdefault(a, []).append((b, rate))
            standby.setdefault(b, []).append((a, rate))
            continue
        far[a].append(b)
        far[b].append(a)
        rates[a].append(rate)
        rates[b].append(rate)
    found: dict[tuple[object, ...], list[Node]] = {}
    kinds = []
    for node in topology.nodes:
        name = node.name
        cables = tuple(far.pop(name)), tuple(rates.pop(name)), tuple(standby.get(name, ()))
        alike = found.setdefault((node.role, node.rail, node.pod, *cables), [])
        if not alike:
            kinds.append((alike, cables))
        alike.append(node)
    return tuple(
        Twins(nodes=tuple(nodes), far=far_ends, rates=at, standby=others)
        for nodes, (far_ends, at, others) in kinds
    )


@dataclass(frozen=True, kw_only=True)
class Excerpt(Wiring):
    """Some nodes of a fabric and the links between them, which need not pass the rules of one."""

    def __post_init__(self) -> None:
        """Check nothing: the fabric has passed the rules."""


def first_twins(topology: Topology) -> Excerpt:
    """Return ``topology`` with two nodes of each kind, for walks along shortest paths.

    Here twins have links of the same delays, too.  Paths from one GPU to all nodes that stay are
    those of :func:`topologies.wiring.tree`, to the cable: each link of a node that is left out
    comes after that of the first of its kind, which has offered the same by then, and the first of
    equals counts.  The first GPU of a kind is that in rank order.
    """
    links: dict[str, list[tuple[str, int, int, bool]]] = {name: [] for name in topology.by_name}
    places: dict[str, list[int]] = {name: [] for name in topology.by_name}
    for place, link in enumerate(topology.links):
        a, b = link.a.node, link.b.node
        for near, far in ((a, b), (b, a)):
            links[near].append((far, link.rate_bps, link.delay_ns, link.standby))
            places[near].append(place)
    kinds: dict[object, list[str]] = {}
    stay = set()
    for name in dict.fromkeys((*(gpu.name for gpu in topology.gpus), *topology.by_name)):
        kind = kinds.setdefault((topology.node(name).role, *links.pop(name)), [])
        if len(kind) < 2 or any(map(int.__lt__, places[name], places[kind[0]])):
            kind.append(name)
            stay.add(name)
    return Excerpt(
        name=topology.name,
        parameters=topology.parameters,
        servers=topology.servers,
        nodes=tuple(node for node in topology.nodes if node.name in stay),
        links=tuple(one for one in topology.links if {one.a.node, one.b.node} <= stay),
        switch_latency_ns=topology.switch_latency_ns,
    )
