"""Lengths of paths, and the shortest paths of a graph of cables.

The lengths of many ways are compared by sums that grow cable by cable. So the ways themselves, of
which a fabric has one for every two nodes, need not be written down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import lcm
from typing import NamedTuple

from topologies.elements import Link
from topologies.wiring import Wiring, once_per_topology


class Span(NamedTuple):
    """The length of a path.

    ``hops`` are its cables, and ``delay_ns`` is the sum of their delays and of the latency of each
    switch that it comes to. ``ticks`` is the time that one octet takes to be sent by a port of each
    cable, in units of :attr:`Ticks.ns`; ``tunnel_ticks`` is the part of the cables that packets
    pass in a tunnel.
    """

    hops: int
    delay_ns: int
    ticks: int
    tunnel_ticks: int = 0

    def serialisation_ns(self, octets: int, ticks: Ticks, *, tunnel_octets: int = 0) -> Fraction:
        """Return the delay that store-and-forward of ``octets`` adds at all ports.

        In tunnels there are ``tunnel_octets`` more of them.
        """
        return (octets * self.ticks + tunnel_octets * self.tunnel_ticks) * ticks.ns


NOWHERE = Span(0, 0, 0)


class Ticks:
    """The largest unit of which the time of an octet is a whole number at every rate.

    So sums of such times are exact, and are made of integers.
    """

    def __init__(self, links: Iterable[Link]) -> None:
        rates = {link.rate_bps for link in links}
        least = lcm(*rates)
        #: one tick, in ns
        self.ns = Fraction(8 * 10**9, least)
        self._at_rate = {rate: least // rate for rate in rates}

    def of(self, link: Link) -> int:
        """Ticks that ``link`` takes for an octet."""
        return self._at_rate[link.rate_bps]

    def span(self, path: Iterable[Link]) -> Span:
        """Return how long the cables of ``path`` are, without any switch."""
        hops = delay = ticks = 0
        for link in path:
            hops += 1
            delay += link.delay_ns
            ticks += self._at_rate[link.rate_bps]
        return Span(hops, delay, ticks)


@once_per_topology
def ticks_of(topology: Wiring) -> Ticks:
    """The unit of the times that octets take at the ports of ``topology``."""
    return Ticks(topology.links)


def span_from(topology: Wiring, source: str, path: Iterable[Link]) -> Span:
    """Return how long ``path`` is, which begins at ``source``."""
    cables = list(path)
    span = ticks_of(topology).span(cables)
    if not topology.switch_latency_ns:
        return span
    here, latency = source, 0
    for link in cables:
        here = link.b.node if link.a.node == here else link.a.node
        latency += topology.latency_ns(here)
    return span._replace(delay_ns=span.delay_ns + latency)


def tree(topology: Wiring, source: str, port: str | None = None) -> Mapping[str, tuple[str, Link]]:
    """Return the previous node and cable on a shortest path, for each node in reach of ``source``.

    That is a path of the fewest hops, and of those one of the least delay.  Nodes come in the order
    of their distance, each after the one before it.  GPUs do not forward; standby links carry
    nothing.  With ``port`` all paths leave ``source`` through that one.
    """
    # networkx 3.6 (Dijkstra) takes 5.6 to 12.5 times as long, 1.3 to 2 times on a graph kept ready.
    nodes, latency = topology.by_name, topology.switch_latency_ns
    delays = {source: 0}
    found: dict[str, tuple[str, Link]] = {}
    front = [source]
    while front:
        near: dict[str, tuple[int, str, Link]] = {}  # of equal delays the first comes first
        for name in front:
            if name != source and not nodes[name].forwards:
                continue
            far = delays[name]
            for link, ours, theirs in topology.neighbours(name):
                other = theirs.node
                if other in delays or link.standby:
                    continue
                if name == source and port is not None and ours.port != port:
                    continue
                delay = far + link.delay_ns
                if latency and nodes[other].is_switch:
                    delay += latency
                if other in near:
                    if delay >= near[other][0]:
                        continue
                    del near[other]
                near[other] = delay, name, link
        front = sorted(near, key=lambda name: near[name][0])
        for name in front:
            delays[name], before, link = near[name]
            found[name] = before, link
    return found


def shortest_paths(
    topology: Wiring, source: str, port: str | None = None
) -> Mapping[str, tuple[Link, ...]]:
    """The paths of :func:`tree`, ``source`` with an empty one among them."""
    found: dict[str, tuple[Link, ...]] = {source: ()}
    for name, (before, link) in tree(topology, source, port).items():
        found[name] = (*found[before], link)
    return found


def shortest_spans(topology: Wiring, source: str) -> Mapping[str, Span]:
    """Return how long the paths of :func:`shortest_paths` are."""
    ticks = ticks_of(topology)
    found = {source: NOWHERE}
    known: dict[Span, Span] = {}  # most are equal, and kept once
    for name, (before, link) in tree(topology, source).items():
        hops, delay, octet, _ = found[before]
        far = delay + link.delay_ns + topology.latency_ns(name)
        span = Span(hops + 1, far, octet + ticks.of(link))
        found[name] = known.setdefault(span, span)
    return found
