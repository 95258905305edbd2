"""Delays and sending times of the paths to a GPU, by the IPv4 address of each peer."""

from __future__ import annotations

from topologies.addressing import gpu_address, gpu_node
from topologies.model import SHORTEST, VXLAN_OVERHEAD, Link, Topology
from topologies.routing.fabric_paths import paths_from
from topologies.routing.forwarding import forwarding_of
from topologies.stretch import stretch_of


def path_delays(topology: Topology, gpu: str, port: str | None = None) -> dict[str, int]:
    """Sum of link delays (ns) between ``gpu`` and each peer, keyed by the peer's IPv4 address.

    Where the routing in force takes ways of several lengths (``valiant``) it is the mean of those
    from the peer to ``gpu``. Each next hop is as likely; so it is where several switches on the way
    to a stretched rail are equally near.  Peers that the fabric does not join to ``gpu`` (rails
    without a spine) are left out.  With ``port`` the paths are those through it.
    """
    if stretch_of(topology) is not None:
        return {peer: round(delay) for peer, (delay, _) in _means_of_tunnels(topology, gpu).items()}
    if topology.profile.routing != SHORTEST:
        return {peer: round(delay) for peer, (delay, _) in _means(topology, gpu).items()}
    paths = _paths(topology, gpu, port)
    return {peer: sum(link.delay_ns for link in path) for peer, path in paths.items()}


def octet_times(topology: Topology, gpu: str, port: str | None = None) -> dict[str, float]:
    """Return how long (ns) one octet takes to be sent by every port on the way, added up, by peer.

    That many times the length of a frame is what store-and-forward adds to its path's delay.
    Of ways of several lengths it is the mean, as in :func:`path_delays`.
    """
    if stretch_of(topology) is not None:
        return {peer: octet for peer, (_, octet) in _means_of_tunnels(topology, gpu).items()}
    if topology.profile.routing != SHORTEST:
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
    found: dict[str, tuple[float, float]] = {}
    for peer in topology.gpus:
        if peer.name == gpu:
            continue
        means = forwarding_of(topology).means(peer.name, gpu)
        if means is not None:
            found[str(gpu_address(peer).ip)] = means
    return found


def _means_of_tunnels(topology: Topology, gpu: str) -> dict[str, tuple[float, float]]:
    """Return the means as :func:`_means`, over the paths that lead to stretched rails."""
    gpu_node(topology, gpu)
    stretch = stretch_of(topology)
    assert stretch is not None
    found: dict[str, tuple[float, float]] = {}
    for peer in topology.gpus:
        ways = stretch.ways(peer.name, gpu) if peer.name != gpu else ()
        if ways:
            delay = sum(link.delay_ns for way in ways for link in way) / len(ways)
            octet = sum(8e9 / link.rate_bps for way in ways for link in way) / len(ways)
            found[str(gpu_address(peer).ip)] = delay, octet
    return found


def _paths(topology: Topology, gpu: str, port: str | None) -> dict[str, tuple[Link, ...]]:
    """A shortest path from ``gpu`` to each peer that it reaches, by the peer's IPv4 address."""
    gpu_node(topology, gpu)
    paths = paths_from(topology, gpu, port)
    return {
        str(gpu_address(peer, port).ip): paths[peer.name]
        for peer in topology.gpus
        if peer.name != gpu and peer.name in paths
    }
