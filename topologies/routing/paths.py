"""Paths of a fabric: how GPUs reach each other, and how long that takes.

Paths between the nodes of a fabric under the routing in force, and how long they are.

Delays and sending times of the paths to a GPU, by the IPv4 address of each peer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from topologies import wiring
from topologies.addressing import gpu_address, gpu_node
from topologies.model import SHORTEST, VXLAN_OVERHEAD, Link, Topology
from topologies.routing.forwarding import forwarding_of
from topologies.stretch import stretch_of


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
    return wiring.shortest_paths(topology, source, port)


def longest_paths_from(topology: Topology, source: str) -> Mapping[str, tuple[Link, ...]]:
    """Find the longest path that the routing in force takes from ``source`` to every node."""
    if topology.profile.routing != SHORTEST:
        return forwarding_of(topology).paths(source, longest=True)
    if (stretch := stretch_of(topology)) is not None:
        return stretch.paths(source, longest=True)
    return wiring.shortest_paths(topology, source)


def spans_from(
    topology: Topology, source: str, *, longest: bool = False
) -> Mapping[str, wiring.Span]:
    """Measure the paths of :func:`paths_from`, or of :func:`longest_paths_from`."""
    if topology.profile.routing != SHORTEST:
        return forwarding_of(topology).spans(source, longest=longest)
    if (stretch := stretch_of(topology)) is not None:
        return stretch.spans(source, longest=longest)
    known = _spans_by_source(topology)
    if source not in known:
        behind = None if topology.node(source).forwards else _only_cable(topology, source)
        if behind is None:
            known[source] = wiring.shortest_spans(topology, source)
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


class _Behind(Mapping[str, wiring.Span]):
    """The spans from ``source``, whose ``link`` to the switch ``near`` is its only cable.

    They are those from that switch, which all GPUs at it have in common, and the cable.
    """

    def __init__(self, topology: Topology, source: str, link: Link, near: str) -> None:
        self._source, self._beyond = source, spans_from(topology, near)
        delay = link.delay_ns + topology.latency_ns(near)
        self._first = wiring.Span(1, delay, wiring.ticks_of(topology).of(link))

    def __getitem__(self, name: str) -> wiring.Span:
        if name == self._source:
            return wiring.NOWHERE
        hops, delay, ticks, tunnel = self._beyond[name]
        first = self._first
        return wiring.Span(hops + 1, delay + first.delay_ns, ticks + first.ticks, tunnel)

    def __contains__(self, name: object) -> bool:
        return name in self._beyond

    def __iter__(self) -> Iterator[str]:
        yield self._source
        yield from (name for name in self._beyond if name != self._source)

    def __len__(self) -> int:
        return len(self._beyond)


@wiring.once_per_topology
def _spans_by_source(topology: Topology) -> dict[str, Mapping[str, wiring.Span]]:
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
        spans = {reached.get(peer.name, wiring.NOWHERE) for peer in topology.gpus}
        known[key] = max(span.delay_ns for span in spans), max(span.hops for span in spans)
    return known[key]


@wiring.once_per_topology
def _longest_by_cables(topology: Topology) -> dict[object, tuple[int, int]]:
    """Hold what :func:`longest_to_gpus` has found for ``topology``, by GPU or its cables."""
    return {}


def path_delays(topology: Topology, gpu: str, port: str | None = None) -> dict[str, int]:
    """Sum of link delays (ns) between ``gpu`` and each peer, keyed by the peer's IPv4 address.

    Where the routing in force takes ways of several lengths (``valiant``) it is the mean of those
    from the peer to ``gpu``. Each next hop is as likely; so it is where several switches on the way
    to a stretched rail are equally near.  Peers that the fabric does not join to ``gpu`` (rails
    without a spine) are left out.  With ``port`` the paths are those through it.
    """
    if topology.profile.routing != SHORTEST or stretch_of(topology) is not None:
        return {peer: round(delay) for peer, (delay, _) in _means(topology, gpu).items()}
    paths = _paths(topology, gpu, port)
    return {peer: sum(link.delay_ns for link in path) for peer, path in paths.items()}


def octet_times(topology: Topology, gpu: str, port: str | None = None) -> dict[str, float]:
    """Return how long (ns) one octet takes to be sent by every port on the way, added up, by peer.

    That many times the length of a frame is what store-and-forward adds to its path's delay.
    Of ways of several lengths it is the mean, as in :func:`path_delays`.
    """
    if topology.profile.routing != SHORTEST or stretch_of(topology) is not None:
        return {peer: per_octet for peer, (_, per_octet) in _means(topology, gpu).items()}
    paths = _paths(topology, gpu, port)
    return {peer: sum(8e9 / link.rate_bps for link in path) for peer, path in paths.items()}


def tunnel_times(topology: Topology, gpu: str) -> dict[str, float]:
    """Return the time that tunnels add to a packet from each peer, over all ports (ns).

    Of several ways it is the mean, as in :func:`path_delays`; empty where there are no tunnels.
    """
    stretch = stretch_of(topology)
    if stretch is None:
        return {}
    found: dict[str, float] = {}
    for peer in topology.gpus:
        ways = stretch.ways(peer.name, gpu) if peer.name != gpu else ()
        if ways:
            tunnels = [stretch.tunnel(peer.name, gpu, way) for way in ways]
            octet = sum(8e9 / link.rate_bps for links in tunnels for link in links) / len(ways)
            found[str(gpu_address(peer).ip)] = VXLAN_OVERHEAD * octet
    return found


def _means(topology: Topology, gpu: str) -> dict[str, tuple[float, float]]:
    """Mean delay and time of an octet from each peer to ``gpu``, by the peer's IPv4 address."""
    gpu_node(topology, gpu)
    stretch = stretch_of(topology)
    found: dict[str, tuple[float, float]] = {}
    for peer in topology.gpus:
        if peer.name == gpu:
            continue
        if stretch is None:
            means = forwarding_of(topology).means(peer.name, gpu)
        else:
            means = _mean_of_tunnels(stretch.ways(peer.name, gpu))
        if means is not None:
            found[str(gpu_address(peer).ip)] = means
    return found


def _mean_of_tunnels(ways: Sequence[Sequence[Link]]) -> tuple[float, float] | None:
    """Return the means over the paths that lead to a stretched rail, if there are any."""
    if not ways:
        return None
    delay = sum(link.delay_ns for way in ways for link in way) / len(ways)
    return delay, sum(8e9 / link.rate_bps for way in ways for link in way) / len(ways)


def _paths(topology: Topology, gpu: str, port: str | None) -> dict[str, tuple[Link, ...]]:
    """A shortest path from ``gpu`` to each peer that it reaches, by the peer's IPv4 address."""
    gpu_node(topology, gpu)
    paths = paths_from(topology, gpu, port)
    return {
        str(gpu_address(peer, port).ip): paths[peer.name]
        for peer in topology.gpus
        if peer.name != gpu and peer.name in paths
    }
