"""Paths between the nodes of a fabric under the routing in force, and how long they are."""

from __future__ import annotations

from collections.abc import Mapping

from topologies.model import SHORTEST, Link, Topology, TopologyError
from topologies.routing.forwarding import forwarding_of
from topologies.spans import Span, shortest_paths, shortest_spans
from topologies.stretch import stretch_of
from topologies.wiring import once_per_topology


def paths_from(
    topology: Topology, source: str, port: str | None = None
) -> Mapping[str, tuple[Link, ...]]:
    """Find one shortest path (fewest hops, then least delay) from ``source`` to every node.

    The path is the shortest of those that the routing in force takes, which all have one length
    except under ``valiant``.  With ``port`` all leave ``source`` through that one, which makes a
    difference only on fabrics of shortest paths: no GPU has several ports on others.
    """
    if topology.profile.routing != SHORTEST:
        return forwarding_of(topology).paths(source)
    if (stretch := stretch_of(topology)) is not None:
        return stretch.paths(source)
    return shortest_paths(topology, source, port)


def longest_paths_from(topology: Topology, source: str) -> Mapping[str, tuple[Link, ...]]:
    """Find the longest path that the routing in force takes from ``source`` to every node."""
    if topology.profile.routing != SHORTEST:
        return forwarding_of(topology).paths(source, longest=True)
    if (stretch := stretch_of(topology)) is not None:
        return stretch.paths(source, longest=True)
    return shortest_paths(topology, source)


def spans_from(topology: Topology, source: str, *, longest: bool = False) -> Mapping[str, Span]:
    """Measure the paths of :func:`paths_from`, or of :func:`longest_paths_from`."""
    if topology.profile.routing != SHORTEST:
        return forwarding_of(topology).spans(source, longest=longest)
    if (stretch := stretch_of(topology)) is not None:
        return stretch.spans(source, longest=longest)
    known = _spans_by_source(topology)
    if source not in known:
        known[source] = shortest_spans(topology, source)
    return known[source]


@once_per_topology
def _spans_by_source(topology: Topology) -> dict[str, Mapping[str, Span]]:
    """Hold the spans that :func:`spans_from` has computed for ``topology``, by source."""
    return {}


def path_delay_ns(topology: Topology, source: str, destination: str) -> int:
    """Sum of cable delays, without switches, on a shortest path of the routing in force: ns."""
    path = paths_from(topology, source).get(destination)
    if path is None:
        raise TopologyError(f"{destination} cannot be reached from {source}")
    return sum(link.delay_ns for link in path)
