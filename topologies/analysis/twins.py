"""Nodes with the same cables, of which a large fabric has many, as one.

Twins are plugged into the same nodes at the same rates, as the spines of a Clos fabric are.  So
each of them has the same cables to each twin of another kind, and sums, maximum flows and drawings
need one node of each kind and their number.
"""

from __future__ import annotations

from dataclasses import dataclass

from topologies.model import Node, Topology
from topologies.wiring import once_per_topology


@dataclass(frozen=True, kw_only=True)
class Twins:
    """``nodes`` of one role, rail and pod, each with a cable to all of ``far``.

    The n-th has the n-th of ``rates`` (bit/s).  Standby links are no cables.
    """

    nodes: tuple[Node, ...]
    far: tuple[str, ...]
    rates: tuple[int, ...]


@once_per_topology
def twins_of(topology: Topology) -> tuple[Twins, ...]:
    """Return all nodes of ``topology`` with their twins, in the order of the first of each kind."""
    found: dict[object, list[Node]] = {}
    cables: list[tuple[tuple[str, ...], tuple[int, ...]]] = []
    for node in topology.nodes:
        around = list(topology.neighbours(node.name))
        active = [cable for cable in around if not cable[0].standby]
        far = tuple([theirs.node for _, _, theirs in active])
        rates = tuple([link.rate_bps for link, _, _ in active])
        standby = tuple(
            [(theirs.node, link.rate_bps) for link, _, theirs in around if link.standby]
        )
        key = node.role, node.rail, node.pod, far, rates, standby
        if key not in found:
            found[key] = []
            cables.append((far, rates))
        found[key].append(node)
    return tuple(
        Twins(nodes=tuple(nodes), far=far, rates=rates)
        for nodes, (far, rates) in zip(found.values(), cables, strict=True)
    )
