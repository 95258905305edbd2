"""The nodes, cables and servers of a fabric, and what can be read off them.

:class:`Wiring` is what the rules of :mod:`topologies.validation` read, so it stands below them and
uses none. Users of a fabric make a :class:`topologies.model.Topology`, which is a wiring that has
passed the rules.

Lengths of paths, and the shortest paths of a graph of cables.

The lengths of many ways are compared by sums that grow cable by cable. So the ways themselves, of
which a fabric has one for every two nodes, need not be written down.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, wraps
from ipaddress import IPv4Address, IPv4Interface
from math import lcm
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from topologies.elements import (
    BACKEND,
    Bridge,
    CableEnd,
    FabricProfile,
    Link,
    Node,
    Port,
    Server,
    TopologyError,
)


@dataclass(frozen=True, kw_only=True)
class Wiring(ABC):
    """The fields of a fabric, and look-ups in them.

    ``parameters`` are what the designer of the fabric chose, for the run's record.
    ``network`` is which one of the cluster's it is.
    ``switch_latency_ns`` is the time that a packet takes through the pipeline of each switch.  The
    class is abstract: only :class:`topologies.model.Topology` has objects.
    """

    name: str
    parameters: Mapping[str, object]
    servers: tuple[Server, ...]
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    profile: FabricProfile = field(default_factory=FabricProfile)
    network: str = BACKEND
    switch_latency_ns: int = 0

    @abstractmethod
    def __post_init__(self) -> None:
        """Check the fields: raise TopologyError where they contradict each other."""

    @cached_property
    def results(self) -> dict[str, Any]:
        """Return what functions under :func:`once_per_topology` have computed, by function."""
        return {}

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        """Return all nodes by their names."""
        return MappingProxyType({node.name: node for node in self.nodes})

    def node(self, name: str) -> Node:
        """Return the node ``name``; TopologyError if there is none."""
        try:
            return self.by_name[name]
        except KeyError:
            nodes = ", ".join(self.by_name)
            raise TopologyError(
                f"topology {self.name} has no node {name!r}; its nodes are {nodes}"
            ) from None

    @cached_property
    def gpus(self) -> tuple[Node, ...]:
        """GPUs in rank order: servers in order, local ranks within each server.

        In a network of machines they are the machines.
        """
        return tuple(self.by_name[gpu] for server in self.servers for gpu in server.gpus)

    @cached_property
    def switches(self) -> tuple[Node, ...]:
        """Return all switches, in the order of the nodes."""
        return tuple(node for node in self.nodes if node.is_switch)

    @cached_property
    def loopbacks(self) -> Mapping[str, IPv4Address]:
        """Return the loopback of each node that has one."""
        return {node.name: node.loopback for node in self.nodes if node.loopback is not None}

    @cached_property
    def addresses(self) -> Mapping[CableEnd, IPv4Interface]:
        """Return the address of each port that has one."""
        return {
            CableEnd(node.name, port.name): port.address
            for node in self.nodes
            for port in node.ports
            if port.address is not None
        }

    @cached_property
    def scale_up_domains(self) -> Mapping[str, str]:
        """The scale-up domain of each GPU, in rank order."""
        return {gpu: one.domain or one.name for one in self.servers for gpu in one.gpus}

    def latency_ns(self, node: str) -> int:
        """The time that a packet takes through ``node``, beside its queues: that of a switch."""
        return self.switch_latency_ns if self.by_name[node].is_switch else 0

    def server_of(self, gpu: str) -> Server:
        """Return the server that ``gpu`` stands in; TopologyError if it is no GPU."""
        for server in self.servers:
            if gpu in server.gpus:
                return server
        raise TopologyError(f"{gpu} is not a GPU of topology {self.name}")

    @cached_property
    def _neighbours(self) -> Mapping[str, tuple[tuple[Link, CableEnd, CableEnd], ...]]:
        table: dict[str, list[tuple[Link, CableEnd, CableEnd]]] = {
            node.name: [] for node in self.nodes
        }
        for link in self.links:
            table[link.a.node].append((link, link.a, link.b))
            table[link.b.node].append((link, link.b, link.a))
        return {name: tuple(rows) for name, rows in table.items()}

    def neighbours(self, node: str) -> Iterator[tuple[Link, CableEnd, CableEnd]]:
        """Every cable of ``node`` as (link, our end, their end)."""
        return iter(self._neighbours[node])

    def link_at(self, end: CableEnd) -> Link:
        """Return the cable that is plugged into ``end``; TopologyError if none is."""
        for link, ours, _ in self._neighbours[end.node]:
            if ours == end:
                return link
        raise TopologyError(f"no cable is plugged into {end}")

    @cached_property
    def _far_ends(self) -> Mapping[CableEnd, CableEnd]:
        pairs = [link.ends for link in self.links]
        return dict(pairs) | {b: a for a, b in pairs}

    @cached_property
    def standby_ends(self) -> frozenset[CableEnd]:
        """The ends of standby links."""
        return frozenset(end for link in self.links if link.standby for end in link.ends)

    @cached_property
    def twins(self) -> Mapping[str, str]:
        """``node:bridge`` -> that of the pair of bridges that look like one which stands first."""
        found: dict[str, str] = {}
        for link in self.links:
            if link.standby:
                bridges = ((end.node, self.bridge_of(end)) for end in link.ends)
                names = [f"{node}:{bridge.name}" for node, bridge in bridges if bridge]
                for name in names:
                    found[name] = names[0]
        return found

    def bridge_of(self, end: CableEnd) -> Bridge | None:
        """The bridge that the port ``end`` is a member of."""
        node = self.node(end.node)
        return node.bridge_of(node.port(end.port))

    def far_end(self, end: CableEnd) -> CableEnd:
        """The other end of the cable that is plugged into ``end``."""
        return self._far_ends[end]

    def beyond(self, end: CableEnd) -> Iterator[tuple[CableEnd, Port | Bridge]]:
        """Everything that has an address on the wire that ``end`` is plugged into, itself excluded.

        A port with an address is where its cable ends.  Behind a bridge there are the bridge, if
        it is a gateway, and what its other members are plugged into.  Standby links lead nowhere.
        """
        if end in self.standby_ends:
            return
        far = self._far_ends[end]
        node = self.by_name[far.node]
        port = node.port(far.port)
        if port.bridge is None:
            yield far, port
            return
        for bridge in node.bridges:
            if bridge.name == port.bridge and bridge.gateway is not None:
                yield CableEnd(node.name, bridge.name), bridge
        for other in node.ports:
            if other.bridge == port.bridge and other is not port:
                yield from self.beyond(CableEnd(node.name, other.name))

    def gateway_of(self, end: CableEnd) -> Bridge | None:
        """The bridge that is the gateway of the GPU port ``end``, if there is one."""
        found = (item for _, item in self.beyond(end) if isinstance(item, Bridge))
        return next(found, None)


Fabric = TypeVar("Fabric", bound=Wiring)
Result = TypeVar("Result")


def once_per_topology(compute: Callable[[Fabric], Result]) -> Callable[[Fabric], Result]:
    """Keep what ``compute`` returns for a topology in that topology, as long as that lives.

    A topology never changes, and ``dataclasses.replace`` makes another one without results.  What
    ``compute`` raises is not kept.
    """
    key = f"{compute.__module__}.{compute.__qualname__}"

    @wraps(compute)
    def look_up(topology: Fabric) -> Result:
        results = topology.results
        if key not in results:
            results[key] = compute(topology)
        found: Result = results[key]
        return found

    return look_up


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
