"""The tables of all switches of a fabric, and the lengths of the ways that packets take by them.

The graph that routes are computed in: switches, and the cables between them as steps.

One function for each way of routing: the next steps of all switches towards one owner.

An owner is a switch (with its subnets and its loopback) or a GPU with a fabric address.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from ipaddress import IPv4Network, collapse_addresses
from itertools import islice
from typing import NamedTuple

from topologies.model import SHORTEST, Bridge, CableEnd, Link, Node, Role, Topology, TopologyError
from topologies.wiring import NOWHERE, Span, once_per_topology, span_from, ticks_of


class Step(NamedTuple):
    """Leave through interface ``port``, arrive at the interface ``arrives`` of ``node``.

    ``number`` counts the steps of a graph, ``bit`` is one of an integer for each step of its node.
    """

    number: int
    bit: int
    port: str
    node: str
    arrives: str
    link: Link


class RouteTable(enum.IntEnum):
    """The tables of a switch for lookups; one without an entry leaves the packet to ``MAIN``."""

    MAIN = 0
    #: what the switch's own hosts send
    HOSTS = 1
    #: what hosts of the switch's own group send, when it comes over a link of the group
    GROUP = 2

    __hash__ = int.__hash__  # that of an enumeration is slow, and these are hashed a lot


#: The next steps of every switch towards one destination, all taken equally.
Hops = Mapping[str, tuple[Step, ...]]


class Graph:
    """The routed part of ``topology``."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.steps: Mapping[str, tuple[Step, ...]] = _steps(topology)
        self.switches = {switch.name: switch for switch in topology.switches}
        #: once known, the routing of a torus for (switch, dimension, place along it)
        self.turns: dict[tuple[str, int, int], tuple[tuple[int, int], tuple[Step, ...]]] = {}
        self._kept: dict[tuple[int, ...], tuple[Step, ...]] = {}

    def kept(self, steps: Sequence[Step]) -> tuple[Step, ...]:
        """Return the tuple of ``steps``, which is one object however often they are taken."""
        numbers = tuple([step.number for step in steps])
        found = self._kept.get(numbers)
        if found is None:
            found = self._kept[numbers] = tuple(steps)
        return found

    @cached_property
    def peers(self) -> Mapping[str, tuple[str, ...]]:
        """The switches at the other ends of a node's steps, each once."""
        return {
            name: tuple(dict.fromkeys(s.node for s in steps if s.node in self.switches))
            for name, steps in self.steps.items()
        }

    @cached_property
    def order(self) -> Mapping[str, int]:
        """Return the rank of each switch: its place in a breadth-first walk from the first."""
        # networkx 3.6 (bfs_edges) takes 10 to 32 times as long on eight designs, graph included.
        place: dict[str, int] = {}
        for root in self.switches:
            queue = [] if root in place else [root]
            for name in queue:
                if name in place:
                    continue
                place[name] = len(place)
                queue.extend(self.peers[name])
        return place

    @cached_property
    def uphill(self) -> Mapping[str, tuple[Step, ...]]:
        """The steps of each switch to those before it in :attr:`order`; switches in that order."""
        order = self.order
        return {
            name: tuple(s for s in self.steps[name] if order.get(s.node, rank) < rank)
            for name, rank in order.items()
        }

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The switches along each dimension of a torus."""
        places = [switch.position for switch in self.switches.values()]
        return tuple(1 + max(along) for along in zip(*places, strict=True))

    @cached_property
    def hosts(self) -> Mapping[str, tuple[str, ...]]:
        """Switch -> its interfaces by which packets of its own hosts come in."""
        found: dict[str, tuple[str, ...]] = {}
        for name, switch in self.switches.items():
            members = {port.bridge for port in switch.ports}
            bridges = [b.name for b in switch.bridges if b.gateway and b.name in members]
            direct = [
                ours.port
                for _, ours, theirs in self.topology.neighbours(name)
                if theirs.node not in self.switches and switch.port(ours.port).bridge is None
            ]
            if bridges or direct:
                found[name] = (*bridges, *direct)
        return found

    @cached_property
    def pods(self) -> Mapping[str, int | None]:
        return {name: switch.pod for name, switch in self.switches.items()}

    @cached_property
    def local(self) -> Mapping[str, tuple[Step, ...]]:
        return self._sided(inside=True)

    @cached_property
    def across(self) -> Mapping[str, tuple[Step, ...]]:
        return self._sided(inside=False)

    def _sided(self, *, inside: bool) -> Mapping[str, tuple[Step, ...]]:
        pods = self.pods
        return {
            name: tuple(
                step
                for step in self.steps[name]
                if step.node in pods and (pods[step.node] == pods[name]) is inside
            )
            for name in self.switches
        }


def _steps(topology: Topology) -> Mapping[str, tuple[Step, ...]]:
    """Return the steps between switches, and to GPUs with a fabric address over several ports.

    To such a GPU a step leaves through the member of the bridge that its cable is plugged into: a
    bridge stays up when that cable dies, and what leads over it would not be withdrawn.
    """
    table: dict[str, list[Step]] = {node.name: [] for node in topology.nodes}
    numbers = itertools.count()

    def add(ours: CableEnd, theirs: CableEnd, link: Link) -> None:
        row = table[ours.node]
        step = Step(next(numbers), 1 << len(row), ours.port, theirs.node, theirs.port, link)
        row.append(step)

    for link in topology.links:
        if not link.standby and all(topology.node(end.node).is_switch for end in link.ends):
            for ours, theirs in (link.ends, link.ends[::-1]):
                add(ours, theirs, link)
    homed = [gpu for gpu in topology.gpus if gpu.loopback is not None]
    for gpu in homed:
        for port in gpu.ports:
            end = CableEnd(gpu.name, port.name)
            link = topology.link_at(end)
            for gateway, item in topology.beyond(end):
                if isinstance(item, Bridge):
                    member = topology.far_end(end)
                    where = member if member.node == gateway.node else gateway
                    add(where, end, link)
                    add(end, where, link)
    return {name: tuple(steps) for name, steps in table.items()}


FAR = 1 << 60


def shortest(graph: Graph, owner: str) -> Hops:
    """Return the steps on all paths of the fewest hops; each parallel cable is a path."""
    # networkx 3.6 on a graph kept ready takes 0.8 to 1.3 times as long, and 0.14 s for its import.
    peers = graph.peers
    distance = {owner: 0}
    queue = [owner]
    for name in queue:  # which grows
        further = distance[name] + 1
        for other in peers[name]:
            if other not in distance:
                distance[other] = further
                queue.append(other)
    del queue[0]
    return _nearer(graph, queue, distance)


def _nearer(graph: Graph, names: Iterable[str], distance: Mapping[str, int]) -> Hops:
    """Return the steps of each of ``names`` to nodes that are nearer by one.

    Most owners are reached by the same ones, which are kept once.
    """
    hops: dict[str, tuple[Step, ...]] = {}
    for name in names:
        near = distance[name] - 1
        steps = [s for s in graph.steps[name] if distance.get(s.node) == near]
        hops[name] = graph.kept(steps)
    return hops


def dimension_order(graph: Graph, owner: str) -> Hops:
    """Return steps along the first dimension that differs, the shorter way round."""
    goal = graph.switches[owner].position
    known = graph.turns
    ranked: dict[tuple[int, int], dict[str, tuple[Step, ...]]] = defaultdict(dict)
    for name, switch in graph.switches.items():
        here = switch.position
        if here == goal:
            continue
        turn = 0
        while here[turn] == goal[turn]:
            turn += 1
        key = name, turn, goal[turn]
        found = known.get(key)
        if found is None:
            found = known[key] = _turn(graph, name, turn, goal[turn])
        rank, steps = found
        ranked[rank][name] = steps
    hops: dict[str, tuple[Step, ...]] = {}
    for rank in sorted(ranked):  # whoever is one step nearer comes before
        hops |= ranked[rank]
    return hops


def _turn(
    graph: Graph, name: str, turn: int, goal: int
) -> tuple[tuple[int, int], tuple[Step, ...]]:
    """Return the steps along dimension ``turn`` nearer to ``goal``, and the rank of ``name``.

    The rank is that among those that go there: the last dimension is that of the nearest.
    """
    here, size = graph.switches[name].position, graph.sizes[turn]
    far = _around(here[turn], goal, size)
    steps = tuple(
        step
        for step in graph.steps[name]
        if (there := graph.switches[step.node].position)[:turn] == here[:turn]
        and there[turn + 1 :] == here[turn + 1 :]
        and _around(there[turn], goal, size) < far
    )
    return (-turn, far), steps


def _around(a: int, b: int, size: int) -> int:
    return min((a - b) % size, (b - a) % size)


def minimal(graph: Graph, owner: str) -> Hops:
    """Return steps over local links with at most one global link between, in the fewest hops.

    Raises TopologyError for a group that has no link to the owner's.
    """
    pods, local, across = graph.pods, graph.local, graph.across
    home = pods[owner]
    # networkx 3.6 takes 1.7 to 2.3 times as long for the distances alone: each owner has a graph.
    distance = {owner: 0}
    heap: list[tuple[int, str]] = [(0, owner)]
    done: set[str] = set()
    while heap:  # towards the sources: first within the owner's group, then out of it
        far, name = heapq.heappop(heap)
        if name in done:
            continue
        done.add(name)
        for step in (*local[name], *across[name]) if pods[name] == home else local[name]:
            if far + 1 < distance.get(step.node, FAR):
                distance[step.node] = far + 1
                heapq.heappush(heap, (far + 1, step.node))
    lost = next((name for name in graph.switches if name not in distance), None)
    if lost is not None:
        raise TopologyError(
            f"{lost} has no way to {owner} with one global link: join every two groups, or take "
            "routing=shortest"
        )
    return {
        name: tuple(
            step
            for step in graph.steps[name]
            if distance.get(step.node) == far - 1 and pods[step.node] in (pods[name], home)
        )
        for name, far in distance.items()
        if name != owner
    }


def valiant(graph: Graph, owner: str) -> Mapping[RouteTable, Hops]:
    """Return what the tables ``HOSTS`` and ``GROUP`` add to :func:`minimal`.

    Packets of a switch's hosts to another group leave by any global link of the switch. Or they go
    to any switch of the group that has one; that takes any of its global links.  From there on they
    are routed minimally, so that the group in between is any other, and at most one.
    """
    local, across, home = graph.local, graph.across, graph.pods[owner]
    hosts: dict[str, tuple[Step, ...]] = {}
    group: dict[str, tuple[Step, ...]] = {}
    for name in graph.switches:
        if graph.pods[name] == home:
            continue
        own = across[name]
        if name in graph.hosts:
            hosts[name] = (*own, *(step for step in local[name] if across[step.node]))
        if own:
            group[name] = own
    return {RouteTable.HOSTS: hosts, RouteTable.GROUP: group}


def up_down(graph: Graph, owner: str) -> Hops:
    """Return the steps of up*/down* without memory: the shortest way of down steps only, else up.

    Up is towards the root of a breadth-first tree.  A packet that has gone down is where a way down
    exists, so it never goes up again. So links wait for each other in one order only.
    """
    order, peers = graph.order, graph.peers
    # networkx 3.6 takes 1.9 to 3.3 times as long on a directed graph kept ready.
    below = {owner: 0}
    queue = [owner]
    for name in queue:  # upwards from the owner: who reaches it by going down
        rank, further = order.get(name, FAR), below[name] + 1
        for other in peers[name]:
            if other not in below and order[other] < rank:
                below[other] = further
                queue.append(other)
    hops: dict[str, tuple[Step, ...]] = {}
    for name, far in below.items():
        if name != owner:
            rank, near = order[name], far - 1
            ways = [step for step in graph.steps[name] if below.get(step.node) == near]
            hops[name] = tuple([step for step in ways if order.get(step.node, FAR) > rank])
    distance = dict(below)
    for name, uphill in graph.uphill.items():  # from the root on: who is above is known before
        if name not in below:
            near = min([distance[step.node] for step in uphill], default=FAR)
            distance[name] = near + 1
            if near < FAR:
                hops[name] = tuple([step for step in uphill if distance[step.node] == near])
    return hops


VALIANT = "valiant"
_MAIN_RULES = {
    SHORTEST: shortest,
    "dimension-order": dimension_order,
    "minimal": minimal,
    VALIANT: minimal,
    "up-down": up_down,
}


class LookupPlace(NamedTuple):
    """A packet in a switch, with the table that it is looked up in."""

    node: str
    table: RouteTable


#: Longer than every way.
_NEVER = Span(sys.maxsize, 0, 0)


class Lengths(NamedTuple):
    """The lengths of the paths to one owner, by the place from where.

    The shortest has the fewest hops, then the least delay; the longest is given where it is
    another.

    Places stand behind all places on the ways from there.  What has no way is left out.
    """

    least: dict[LookupPlace, Span]
    most: dict[LookupPlace, Span]

    def of(self, place: LookupPlace, *, longest: bool) -> Span:
        return (self.most if longest and place in self.most else self.least)[place]


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
                found |= valiant(self.graph, owner)
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
            lengths = self.lengths(owner, begin)
            if begin not in lengths.least:
                continue
            way = lengths.of(begin, longest=longest)
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
        least, most = _NEVER, NOWHERE
        for step, there in ways:
            near = far = self._longer(known.least[there], step.number)
            if there in known.most:
                far = self._longer(known.most[there], step.number)
            if near[:2] < least[:2]:
                least = near
            if far[:2] > most[:2]:
                most = far
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
