"""The tables of all switches of a fabric, and the lengths of the ways that packets take by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from ipaddress import IPv4Network, collapse_addresses
from itertools import islice
from typing import NamedTuple

from topologies.model import SHORTEST, CableEnd, Link, Node, Role, Topology, TopologyError
from topologies.routing import rules
from topologies.routing.steps import Graph, Hops, RouteTable, Step
from topologies.spans import NOWHERE, Span, span_from, ticks_of
from topologies.wiring import once_per_topology

VALIANT = "valiant"
_MAIN_RULES = {
    SHORTEST: rules.shortest,
    "dimension-order": rules.dimension_order,
    "minimal": rules.minimal,
    VALIANT: rules.minimal,
    "up-down": rules.up_down,
}


class LookupPlace(NamedTuple):
    """A packet in a switch, with the table that it is looked up in."""

    node: str
    table: RouteTable


class Lengths(NamedTuple):
    """The lengths of the paths to one owner, by the place from where.

    The shortest has the fewest hops, then the least delay; the longest is given where it is
    another.

    Places stand behind all places on the ways from there.  What has no way is left out.
    """

    least: dict[LookupPlace, Span]
    most: dict[LookupPlace, Span]

    def of(self, place: LookupPlace, *, longest: bool) -> Span | None:
        if longest and place in self.most:
            return self.most[place]
        return self.least.get(place)


class Forwarding:
    """The forwarding of packets by every switch of ``topology``.

    Raises TopologyError where the routing in force cannot be had in this topology.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.routing = topology.profile.routing
        self.graph = Graph(topology)
        self._hops: dict[str, Mapping[RouteTable, Hops]] = {}
        self._lengths: dict[str, Lengths] = {}
        self._means: dict[str, dict[LookupPlace, tuple[float, float]]] = {}
        self._sources: dict[int | None, tuple[IPv4Network, ...]] = {}
        bare = next((switch.name for switch in topology.switches if not switch.position), None)
        if self.routing == "dimension-order" and bare is not None:
            raise TopologyError(
                f"routing is dimension-order and {bare} has no position: that is for a torus"
            )

    def tables(self, owner: str) -> Mapping[RouteTable, Hops]:
        """Return the next steps of every switch towards ``owner``, by table.

        ``owner`` is a switch or a GPU with a fabric address.  A switch that a table leaves out
        follows ``MAIN``.
        """
        if owner not in self._hops:
            found = {RouteTable.MAIN: _MAIN_RULES[self.routing](self.graph, owner)}
            if self.routing == VALIANT:
                found |= rules.valiant(self.graph, owner)
            self._hops[owner] = found
        return self._hops[owner]

    @cached_property
    def lookups(self) -> Mapping[CableEnd, RouteTable]:
        """Interfaces by which packets come that are looked up in another table than ``MAIN`` first.

        For ``GROUP`` these are only packets from hosts of the group, by :meth:`sources`.
        """
        if self.routing != VALIANT:
            return {}
        graph = self.graph
        hosts = {
            CableEnd(name, interface): RouteTable.HOSTS
            for name, interfaces in graph.hosts.items()
            for interface in interfaces
        }
        group = {
            CableEnd(name, step.port): RouteTable.GROUP
            for name in graph.switches
            if graph.across[name]
            for step in graph.local[name]
        }
        return hosts | group

    def next_steps(self, owner: str, place: LookupPlace) -> tuple[Step, ...]:
        """Return where a packet to ``owner`` goes from ``place``; empty if there is no way."""
        tables = self.tables(owner)
        node, table = place
        if table is not RouteTable.MAIN:
            found = tables[table].get(node)
            if found is not None:
                return found
        return tables[RouteTable.MAIN].get(node, ())

    def sources(self, switch: str) -> tuple[IPv4Network, ...]:
        """Networks that hold the subnets of the group of ``switch``, and of no other."""
        pod = self.graph.pods[switch]
        if pod not in self._sources:
            self._sources[pod] = self._networks(pod)
        return self._sources[pod]

    def _networks(self, pod: int | None) -> tuple[IPv4Network, ...]:
        inside: list[IPv4Network] = []
        outside: list[IPv4Network] = []
        for other in self.topology.switches:
            found = [bridge.gateway.network for bridge in other.bridges if bridge.gateway]
            (inside if other.pod == pod else outside).extend(found)
        if not inside:
            return ()
        whole = inside[0]
        while not all(network.subnet_of(whole) for network in inside):
            whole = whole.supernet()
        if any(network.overlaps(whole) for network in outside):
            return tuple(collapse_addresses(inside))
        return (whole,)

    def arrival(self, place: LookupPlace, step: Step) -> LookupPlace:
        """Return where a packet is after it took ``step`` from ``place``."""
        from_own_hosts, otherwise = self._arrivals[step.number]
        return from_own_hosts if place.table is RouteTable.HOSTS else otherwise

    @cached_property
    def _arrivals(self) -> Mapping[int, tuple[LookupPlace, LookupPlace]]:
        """Return where a step leads packets that the sender's own hosts made, and all others."""
        places = {  # one object for each, which compare faster
            (node, table): LookupPlace(node, table)
            for node in self.graph.steps
            for table in RouteTable
        }
        found: dict[int, tuple[LookupPlace, LookupPlace]] = {}
        for steps in self.graph.steps.values():
            for step in steps:
                table = self.lookups.get(CableEnd(step.node, step.arrives), RouteTable.MAIN)
                found[step.number] = places[step.node, table], places[step.node, RouteTable.MAIN]
        return found

    def entries(self, switch: str) -> frozenset[LookupPlace]:
        """Return where packets of the hosts of ``switch`` begin; empty if it has none."""
        interfaces = self.graph.hosts.get(switch, ())
        return frozenset(
            LookupPlace(switch, self.lookups.get(CableEnd(switch, name), RouteTable.MAIN))
            for name in interfaces
        )

    # ------------------------------------------------------------------ lengths

    def paths(self, source: str, *, longest: bool = False) -> Mapping[str, tuple[Link, ...]]:
        """Return a shortest path from ``source`` to every node in reach, or a longest one.

        The shortest has the fewest hops, then the least delay.
        """
        start, first = self._attachment(self.topology.node(source))
        begin = self._begin(start, source != start)
        found: dict[str, tuple[Link, ...]] = {}
        ways: dict[str, tuple[Link, ...] | None] = {}
        for node in self.topology.nodes:
            owner, last = self._attachment(node)
            if owner not in ways:
                ways[owner] = self._way(begin, owner, longest)
            way = ways[owner]
            if way is not None and node.name != source:
                found[node.name] = (*first, *way, *last)
        return found | {source: ()}

    def spans(self, source: str, *, longest: bool = False) -> Mapping[str, Span]:
        """Return how long the ways of :meth:`paths` are."""
        start, first = self._attachment(self.topology.node(source))
        begin = self._begin(start, source != start)
        near = span_from(self.topology, source, first)
        found: dict[str, Span] = {}
        for owner, plugged in self._plugged.items():
            way = self.lengths(owner, begin).of(begin, longest=longest)
            if way is None:
                continue
            hops, delay, ticks = near[0] + way[0], near[1] + way[1], near[2] + way[2]
            for name, last in plugged:
                found[name] = Span(hops + last[0], delay + last[1], ticks + last[2])
        return found | {source: NOWHERE}

    def _way(self, place: LookupPlace, owner: str, longest: bool) -> tuple[Link, ...] | None:
        lengths = self.lengths(owner, place)
        if place not in lengths.least:
            return None

        def length(step: Step) -> tuple[int, int]:
            rest = lengths.of(self.arrival(place, step), longest=longest)
            assert rest is not None
            return rest.hops, rest.delay_ns + step.link.delay_ns + self.topology.switch_latency_ns

        links: list[Link] = []
        while place.node != owner:
            step = (max if longest else min)(self.next_steps(owner, place), key=length)
            links.append(step.link)
            place = self.arrival(place, step)
        return tuple(links)

    def means(self, source: str, destination: str) -> tuple[float, float] | None:
        """Return the mean delay and the mean time of an octet at all ports (ns) between two GPUs.

        Each of several next hops is as likely.
        """
        start, first = self._attachment(self.topology.node(source))
        owner, last = self._attachment(self.topology.node(destination))
        begin = self._begin(start, source != start)
        if begin not in self.lengths(owner, begin).least:
            return None
        delay, octet = self._mean(owner)[begin]
        cables = (*first, *last)
        return (
            delay + sum(link.delay_ns for link in cables),
            octet + sum(8e9 / link.rate_bps for link in cables),
        )

    def _mean(self, owner: str) -> Mapping[LookupPlace, tuple[float, float]]:
        """Return the mean delay (ns) and ns per octet over all paths, by place."""
        places = self._lengths[owner].least
        known = self._means.setdefault(owner, {})
        for place in islice(places, len(known), None):  # those that are new; the near ones first
            steps = self.next_steps(owner, place) if place.node != owner else ()
            delay = octet = 0.0
            for step in steps:
                further, per_octet = known[self.arrival(place, step)]
                delay += step.link.delay_ns + further
                octet += 8e9 / step.link.rate_bps + per_octet
            known[place] = (delay / len(steps), octet / len(steps)) if steps else (0.0, 0.0)
        return known

    def _begin(self, start: str, host: bool) -> LookupPlace:
        """Return where packets begin of the hosts of ``start``, or of itself."""
        entries = self.entries(start) if host else frozenset()
        return min(entries, default=LookupPlace(start, RouteTable.MAIN))

    def _attachment(self, node: Node) -> tuple[str, tuple[Link, ...]]:
        """The switch that ``node`` is, or is plugged into, and the cable to it."""
        if node.is_switch:
            return node.name, ()
        cables = list(self.topology.neighbours(node.name))
        if node.role is not Role.GPU or len(cables) != 1 or not self._is_switch(cables[0][2]):
            raise TopologyError(
                f"routing is {self.routing} and {node.name} is not a GPU with one port that is "
                f"plugged into a switch: take routing={SHORTEST}"
            )
        link, _, far = cables[0]
        return far.node, (link,)

    @cached_property
    def _plugged(self) -> Mapping[str, Sequence[tuple[str, Span]]]:
        """Return the nodes plugged into each switch and their distance, itself included."""
        found: dict[str, list[tuple[str, Span]]] = {}
        for node in self.topology.nodes:
            switch, cables = self._attachment(node)
            found.setdefault(switch, []).append((node.name, ticks_of(self.topology).span(cables)))
        return found

    def _is_switch(self, end: CableEnd) -> bool:
        return self.topology.node(end.node).is_switch

    def lengths(self, owner: str, start: LookupPlace) -> Lengths:
        """Return how far ``start`` and all places on ways from there are from ``owner``.

        Raises TopologyError if packets would go round in a circle.
        """
        known = self._lengths.get(owner)
        if known is None:
            known = self._lengths[owner] = self._main_lengths(owner)
        if start not in known.least:
            self._measure(owner, start, known)
        return known

    def _main_lengths(self, owner: str) -> Lengths:
        """Return the lengths of places behind their next hops, where there is one table."""
        known = Lengths({LookupPlace(owner, table): NOWHERE for table in RouteTable}, {})
        if self.lookups:
            return known
        (least, most), places, longer = known, self._main_places, self._longer
        for name, steps in self.tables(owner)[RouteTable.MAIN].items():
            if len(steps) == 1:
                (step,) = steps
                there = places[step.node]
                if there in least and there not in most:
                    least[places[name]] = longer(least[there], step.number)
                    continue
            ways = [(step, places[step.node]) for step in steps]
            if ways and all(there in least for _, there in ways):
                self._settle(places[name], ways, known)
        return known

    @cached_property
    def _main_places(self) -> Mapping[str, LookupPlace]:
        return {name: LookupPlace(name, RouteTable.MAIN) for name in self.graph.steps}

    def _measure(self, owner: str, start: LookupPlace, known: Lengths) -> None:
        """Put into ``known`` the places on all ways from ``start``, the near ones first."""
        # networkx 3.6 (topological_sort) takes 1.4 to 2 times as long for the tables of Valiant.
        path: list[LookupPlace] = [start]
        open_: set[LookupPlace] = set()
        while path:
            place = path[-1]
            steps = self.next_steps(owner, place)
            if place in known.least or not steps:
                path.pop()
                continue
            ways = [(step, self.arrival(place, step)) for step in steps]
            missing = [
                there
                for _, there in ways
                if there not in known.least and self.next_steps(owner, there)
            ]
            if not missing:
                self._settle(place, ways, known)
                continue
            if place in open_:
                raise TopologyError(
                    f"packets to {owner} would go round in a circle at {missing[0].node}"
                )
            open_.add(place)
            path.extend(missing)

    def _settle(
        self, place: LookupPlace, ways: Sequence[tuple[Step, LookupPlace]], known: Lengths
    ) -> None:
        """Put ``place`` into ``known``, from where each of ``ways`` leads to a place that is."""
        least = most = None
        for step, there in ways:
            near = far = self._longer(known.least[there], step.number)
            if there in known.most:
                far = self._longer(known.most[there], step.number)
            if least is None or near[:2] < least[:2]:
                least = near
            if most is None or far[:2] > most[:2]:
                most = far
        assert least is not None
        assert most is not None
        known.least[place] = least
        if most is not least:
            known.most[place] = most

    @cached_property
    def _longer(self) -> Callable[[Span, int], Span]:
        """A span and the cable of a step, by the step's number.

        There are few spans in a fabric, and each is one object.
        """
        ticks, latency = ticks_of(self.topology), self.topology.switch_latency_ns
        cables = {
            step.number: (step.link.delay_ns + latency, ticks.of(step.link))
            for steps in self.graph.steps.values()
            for step in steps
        }
        known: dict[Span, Span] = {}

        @cache
        def longer(span: Span, number: int) -> Span:
            delay, tick = cables[number]
            found = Span(span.hops + 1, span.delay_ns + delay, span.ticks + tick)
            return known.setdefault(found, found)

        return longer


@once_per_topology
def forwarding_of(topology: Topology) -> Forwarding:
    """The next hops of all switches of ``topology`` under the routing in force.

    Raises TopologyError where the routing in force cannot be had in this topology.
    """
    return Forwarding(topology)
