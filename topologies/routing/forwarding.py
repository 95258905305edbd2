"""The tables of all switches of a fabric, and the lengths of the ways that packets take by them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from ipaddress import IPv4Network, collapse_addresses
from typing import NamedTuple

from topologies.model import SHORTEST, End, Link, Node, Role, Topology, TopologyError
from topologies.routing import rules
from topologies.routing.steps import Graph, Hops, Step, Table

FAR = 1 << 60
VALIANT = "valiant"
_MAIN_RULES = {
    SHORTEST: rules.shortest,
    "dimension-order": rules.dimension_order,
    "minimal": rules.minimal,
    VALIANT: rules.minimal,
    "up-down": rules.up_down,
}


class Place(NamedTuple):
    """A packet in a switch, with the table that it is looked up in."""

    node: str
    table: Table


class Reach(NamedTuple):
    """How far it is from a place to where packets go: (hops, delay in ns) of the shortest and of
    the longest way, each with the step that it begins with, and means over all ways, each of
    several next hops being as likely: delay in ns, ns per octet."""

    least: tuple[int, int]
    first: Step | None
    most: tuple[int, int]
    first_of_most: Step | None
    delay_ns: float
    ns_per_octet: float


HERE = Reach((0, 0), None, (0, 0), None, 0.0, 0.0)


class Forwarding:
    """What every switch of ``topology`` does with a packet to anyone.

    Raises TopologyError where the routing in force cannot be had in this topology.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.routing = topology.profile.routing
        self.graph = Graph(topology)
        self._hops: dict[str, Mapping[Table, Hops]] = {}
        self._reach: dict[str, dict[Place, Reach]] = {}
        self._sources: dict[int | None, tuple[IPv4Network, ...]] = {}
        bare = next((switch.name for switch in topology.switches if not switch.position), None)
        if self.routing == "dimension-order" and bare is not None:
            raise TopologyError(
                f"routing is dimension-order and {bare} has no position: that is for a torus"
            )

    def tables(self, owner: str) -> Mapping[Table, Hops]:
        """By table, the next steps of every switch towards ``owner``, a switch or a GPU with a
        fabric address.  A switch that a table leaves out does as ``MAIN`` says."""
        if owner not in self._hops:
            found = {Table.MAIN: _MAIN_RULES[self.routing](self.graph, owner)}
            if self.routing == VALIANT:
                found |= rules.valiant(self.graph, owner)
            self._hops[owner] = found
        return self._hops[owner]

    @cached_property
    def lookups(self) -> Mapping[End, Table]:
        """Interfaces by which packets come that are looked up in another table than ``MAIN`` first.

        For ``GROUP`` these are only packets from hosts of the group, by :meth:`sources`.
        """
        if self.routing != VALIANT:
            return {}
        graph = self.graph
        hosts = {
            End(name, interface): Table.HOSTS
            for name, interfaces in graph.hosts.items()
            for interface in interfaces
        }
        group = {
            End(name, step.port): Table.GROUP
            for name in graph.switches
            if graph.across[name]
            for step in graph.local[name]
        }
        return hosts | group

    def next_steps(self, owner: str, place: Place) -> tuple[Step, ...]:
        """Where a packet to ``owner`` goes from ``place``; empty if there is no way."""
        tables = self.tables(owner)
        node, table = place
        if table is not Table.MAIN:
            found = tables[table].get(node)
            if found is not None:
                return found
        return tables[Table.MAIN].get(node, ())

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

    def arrival(self, place: Place, step: Step) -> Place:
        """Where a packet is after it took ``step`` from ``place``."""
        from_own_hosts, otherwise = self._arrivals[step.number]
        return from_own_hosts if place.table is Table.HOSTS else otherwise

    @cached_property
    def _arrivals(self) -> Mapping[int, tuple[Place, Place]]:
        """Where a step leads packets that the sender's own hosts made, and all others."""
        places = {  # one object for each, which compare faster
            (node, table): Place(node, table) for node in self.graph.steps for table in Table
        }
        found: dict[int, tuple[Place, Place]] = {}
        for steps in self.graph.steps.values():
            for step in steps:
                table = self.lookups.get(End(step.node, step.arrives), Table.MAIN)
                found[step.number] = places[step.node, table], places[step.node, Table.MAIN]
        return found

    def entries(self, switch: str) -> frozenset[Place]:
        """Where packets of the hosts of ``switch`` begin; empty if it has none."""
        interfaces = self.graph.hosts.get(switch, ())
        return frozenset(
            Place(switch, self.lookups.get(End(switch, name), Table.MAIN)) for name in interfaces
        )

    # ------------------------------------------------------------------ lengths

    def paths(self, source: str, *, longest: bool = False) -> Mapping[str, tuple[Link, ...]]:
        """A shortest way (fewest hops, then least delay) from ``source`` to every node that it
        reaches, or a longest one."""
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

    def _way(self, place: Place, owner: str, longest: bool) -> tuple[Link, ...] | None:
        reach = self.reach(owner, place)
        if place not in reach:
            return None
        links: list[Link] = []
        while (at := reach[place]) is not HERE:
            step = at.first_of_most if longest else at.first
            assert step is not None
            links.append(step.link)
            place = self.arrival(place, step)
        return tuple(links)

    def means(self, source: str, destination: str) -> tuple[float, float] | None:
        """Mean delay (ns) and mean time of an octet at all ports (ns) between two GPUs."""
        start, first = self._attachment(self.topology.node(source))
        owner, last = self._attachment(self.topology.node(destination))
        begin = self._begin(start, source != start)
        reach = self.reach(owner, begin).get(begin)
        if reach is None:
            return None
        cables = (*first, *last)
        return (
            reach.delay_ns + sum(link.delay_ns for link in cables),
            reach.ns_per_octet + sum(8e9 / link.rate_bps for link in cables),
        )

    def _begin(self, start: str, host: bool) -> Place:
        """Where packets begin of the hosts of ``start``, or of itself."""
        entries = self.entries(start) if host else frozenset()
        return min(entries, default=Place(start, Table.MAIN))

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

    def _is_switch(self, end: End) -> bool:
        return self.topology.node(end.node).is_switch

    def reach(self, owner: str, start: Place) -> Mapping[Place, Reach]:
        """How far ``start`` and all places on ways from there are from ``owner``; those from which
        no packets get there are left out.

        Raises TopologyError if packets would go round in a circle.
        """
        if owner not in self._reach:
            self._reach[owner] = {Place(owner, table): HERE for table in Table}
        known = self._reach[owner]
        if start not in known:
            self._measure(owner, start, known)
        return known

    def _measure(self, owner: str, start: Place, known: dict[Place, Reach]) -> None:
        """Put into ``known`` the places on all ways from ``start``, the far ones first."""
        path: list[Place] = [start]
        open_: set[Place] = set()
        while path:
            place = path[-1]
            if place in known:
                open_.discard(path.pop())
                continue
            steps = self.next_steps(owner, place)
            if not steps:
                open_.discard(path.pop())
                continue
            missing = [
                there
                for there in (self.arrival(place, step) for step in steps)
                if there not in known and self.next_steps(owner, there)
            ]
            if place in open_ and missing:
                raise TopologyError(
                    f"packets to {owner} would go round in a circle at {missing[0].node}"
                )
            open_.add(place)
            if missing:
                path.extend(missing)
                continue
            known[place] = self._over(place, steps, known)

    def _over(self, place: Place, steps: tuple[Step, ...], known: Mapping[Place, Reach]) -> Reach:
        least, most = (FAR, FAR), (0, 0)
        first = first_of_most = steps[0]
        delay = octet = 0.0
        for step in steps:
            reach = known[self.arrival(place, step)]
            cable = step.link.delay_ns
            near = reach.least[0] + 1, reach.least[1] + cable
            far = reach.most[0] + 1, reach.most[1] + cable
            if near < least:
                least, first = near, step
            if far > most:
                most, first_of_most = far, step
            delay += cable + reach.delay_ns
            octet += 8e9 / step.link.rate_bps + reach.ns_per_octet
        ways = len(steps)
        return Reach(least, first, most, first_of_most, delay / ways, octet / ways)
