"""Paths between the nodes of a fabric under the routing in force, and how long they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from topologies.model import SHORTEST, Link, Topology, TopologyError
from topologies.routing.forwarding import forwarding_of
from topologies.spans import NOWHERE, Span, shortest_paths, shortest_spans, ticks_of
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
        behind = None if topology.node(source).forwards else _only_cable(topology, source)
        if behind is None:
            known[source] = shortest_spans(topology, source)
        else:
            known[source] = _Behind(topology, source, *behind)
    return known[source]


def _only_cable(topology: Topology, source: str) -> tuple[Link, str] | None:
    """Return the cable of ``source``, if it has one alone, and the switch at its far end."""
    cables = list(topology.neighbours(source))
    if len(cables) != 1:
        return None
    ((link, _, theirs),) = cables
    if link.standby or not topology.node(theirs.node).forwards:
        return None
    return link, theirs.node


class _Behind(Mapping[str, Span]):
    """The spans from ``source``, whose ``link`` to the switch ``near`` is its only cable.

    They are those from that switch, which all GPUs at it have in common, and the cable.
    """

    def __init__(self, topology: Topology, source: str, link: Link, near: str) -> None:
        self._source, self._beyond = source, spans_from(topology, near)
        delay = link.delay_ns + topology.latency_ns(near)
        self._first = Span(1, delay, ticks_of(topology).of(link))

    def __getitem__(self, name: str) -> Span:
        if name == self._source:
            return NOWHERE
        hops, delay, ticks, tunnel = self._beyond[name]
        first = self._first
        return Span(hops + 1, delay + first.delay_ns, ticks + first.ticks, tunnel)

    def __contains__(self, name: object) -> bool:
        return name in self._beyond

    def __iter__(self) -> Iterator[str]:
        yield self._source
        yield from (name for name in self._beyond if name != self._source)

    def __len__(self) -> int:
        return len(self._beyond)


@once_per_topology
def _spans_by_source(topology: Topology) -> dict[str, Mapping[str, Span]]:
    """Hold the spans that :func:`spans_from` has computed for ``topology``, by source."""
    return {}


def longest_to_gpus(topology: Topology, gpu: str) -> tuple[int, int]:
    """Return the most delay (ns) and the most hops of longest paths from ``gpu`` to others.

    GPUs with the same cables to the same switches have the same, on fabrics of shortest paths.
    """
    alone = topology.profile.routing != SHORTEST or stretch_of(topology) is not None
    cables = frozenset(
        (theirs.node, link.rate_bps, link.delay_ns, link.standby)
        for link, _, theirs in topology.neighbours(gpu)
    )
    known = _longest_by_cables(topology)
    key = gpu if alone else cables
    if key not in known:
        reached = spans_from(topology, gpu, longest=True)
        spans = {reached.get(peer.name, NOWHERE) for peer in topology.gpus}
        known[key] = max(span.delay_ns for span in spans), max(span.hops for span in spans)
    return known[key]


@once_per_topology
def _longest_by_cables(topology: Topology) -> dict[object, tuple[int, int]]:
    """Hold what :func:`longest_to_gpus` has found for ``topology``, by GPU or its cables."""
    return {}


def path_delay_ns(topology: Topology, source: str, destination: str) -> int:
    """Sum of cable delays, without switches, on a shortest path of the routing in force: ns."""
    path = paths_from(topology, source).get(destination)
    if path is None:
        raise TopologyError(f"{destination} cannot be reached from {source}")
    return sum(link.delay_ns for link in path)
