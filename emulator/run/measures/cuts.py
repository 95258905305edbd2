"""The bound of the fabric's cuts: the least time that the fabric between the NICs needs.

Take any set of nodes, such as a rail switch with its GPUs.  Whatever a schedule sends from inside
to outside has to cross the links that leave the set, at their rates and no faster.  Message m, sent
at ``head(m)`` or later, reaches the first of these links ``before(m)`` after that at the earliest.
From the last of them ``after(m)`` pass until it is received, and ``tail(m)`` until the program
ends.  So all octets of all messages cross between ``min head + before`` and ``end - min(after +
tail)``, and the links' capacity over that time is at least their sum::

    octets  <=  integral of capacity(t) dt  from  min(head + before)  to  end - min(after + tail)

which bounds ``end`` from below, whatever the paths, the order and the load balancing.  Nothing that
costs time is assumed away from the true fabric: queues, headers of acknowledgements, retransmitted
and trimmed packets would only add octets, and ``before`` and ``after`` are least delays over any
path.  The same holds from outside to inside.  Packets that can cross only in a tunnel (VXLAN) count
with what that puts around them.

Faults that are part of a trial change the capacity as they come and go: a black hole takes a link
away, a reduced rate keeps a share of it.  Loss and corruption are left out, their effect being one
of chance.

The sets looked at are, for each tier of switches, the groups that are joined below it and at it.
(Such are a NIC that is shared and its GPUs; a switch and what hangs under it; a pod), and each GPU
whose own cable has a fault.  Where switches of one tier are joined: each with what hangs under it,
each group of a dragonfly, and half of a torus along each of its dimensions.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from emulator.dataplane.switch.port_faults import Faults
from topologies.analysis.capacity import HEIGHT
from topologies.model import VXLAN_OVERHEAD, CableEnd, Role, Topology
from topologies.stretch import stretch_of


@dataclass(frozen=True)
class Change:
    """A change of rate: from ``at_ns`` on port ``end`` sends at ``share`` of its link's rate."""

    at_ns: int
    end: CableEnd
    share: float


def share_left(faults: Faults) -> float:
    """Return how much of a link's rate is left under ``faults`` (0..1)."""
    return 0.0 if faults.swallows else faults.rate


@dataclass(frozen=True)
class Crossing:
    """All messages from one GPU to another.

    ``octets`` on the wire outside of tunnels, in ``packets``; ``head_ns`` is the earliest start of
    any, ``tail_ns`` the least time from the reception of any to the end of the program.
    """

    source: str
    destination: str
    octets: int
    head_ns: float
    tail_ns: float
    packets: int = 0


def cut_bound_ns(
    topology: Topology, messages: Sequence[Crossing], changes: Sequence[Change] = ()
) -> float:
    """The bound described above over all cuts, in ns; infinite if a cut stays without capacity."""
    faulted = {end.node for change in changes for end in topology.link_at(change.end).ends}
    delays = _Delays(topology)
    sent, received = defaultdict(list), defaultdict(list)
    for message in messages:
        sent[message.source].append(message)
        received[message.destination].append(message)
    bound = 0.0
    for inside in _groups(topology, faulted):
        leaving = [
            (ours, theirs)
            for name in inside
            for _, ours, theirs in topology.neighbours(name)
            if theirs.node not in inside
        ]
        entering = [(theirs, ours) for ours, theirs in leaving]
        away = [m for name in inside for m in sent.get(name, ()) if m.destination not in inside]
        into = [m for name in inside for m in received.get(name, ()) if m.source not in inside]
        for ways, crossing in ((leaving, away), (entering, into)):
            if crossing:
                capacity = _capacity(topology, [near for near, _ in ways], changes)
                octets = sum(
                    one.octets + _tunnel_octets(topology, one, inside, rerouted=bool(changes))
                    for one in crossing
                )
                bound = max(bound, _bound(crossing, octets, capacity, delays.of(ways, topology)))
    return bound


def _tunnel_octets(
    topology: Topology, message: Crossing, inside: frozenset[str], *, rerouted: bool
) -> int:
    """Return the octets that tunnels add to ``message`` on the border of ``inside``.

    0 if it may pass that without a tunnel.

    Where routes can change (``rerouted``) it may get onto the rail of its destination at another
    switch. The switch that it enters by is excepted.
    """
    stretch = stretch_of(topology)
    if stretch is None:
        return 0
    passages = stretch.passages(message.source, message.destination)
    tunnelled = all(
        (message.source in inside)
        == (passage.enters in inside)
        == (passage.joins in inside)
        != (passage.leaves in inside)
        == (message.destination in inside)
        and not (rerouted and passage.joins != passage.enters)
        for passage in passages
    )
    return message.packets * VXLAN_OVERHEAD if passages and tunnelled else 0


def _groups(topology: Topology, faulted: Iterable[str]) -> list[frozenset[str]]:
    """The sets of nodes whose borders are looked at."""
    gpus = {gpu.name for gpu in topology.gpus}
    found = {frozenset({name}) for name in faulted if name in gpus}
    for height in range(HEIGHT[Role.NIC], HEIGHT[Role.SUPER_SPINE] + 1):
        below = {node.name for node in topology.nodes if HEIGHT[node.role] <= height}
        left = set(below)
        while left:
            group, edge = set(), [left.pop()]
            while edge:
                name = edge.pop()
                group.add(name)
                for _, _, theirs in topology.neighbours(name):
                    if theirs.node in left:
                        left.discard(theirs.node)
                        edge.append(theirs.node)
            found.add(frozenset(group))
    found |= set(_joined_across(topology))
    everything = len(topology.nodes)
    return sorted((group for group in found if len(group) < everything), key=sorted)


def _joined_across(topology: Topology) -> Iterator[frozenset[str]]:
    """Yield sets that tiers do not distinguish: routers, groups and halves of direct networks."""
    switches = {switch.name: switch for switch in topology.switches}
    if not any(
        all(end.node in switches for end in link.ends)
        and switches[link.a.node].role is switches[link.b.node].role
        for link in topology.links
    ):
        return
    under = {
        name: {
            theirs.node for _, _, theirs in topology.neighbours(name) if theirs.node not in switches
        }
        for name in switches
    }

    def with_gpus(names: Iterable[str]) -> frozenset[str]:
        return frozenset(name for switch in names for name in (switch, *under[switch]))

    yield from (with_gpus([name]) for name, gpus in under.items() if gpus)
    for pod in {switch.pod for switch in switches.values()} - {None}:
        yield with_gpus(name for name, switch in switches.items() if switch.pod == pod)
    places = {name: switch.position for name, switch in switches.items() if switch.position}
    for along in range(min((len(place) for place in places.values()), default=0)):
        size = 1 + max(place[along] for place in places.values())
        for first in range((size + 1) // 2 if size > 1 else 0):
            half = range(first, first + size // 2)
            yield with_gpus(name for name, place in places.items() if place[along] in half)


#: Octets per ns from a time on, ordered by time; the first from 0.
Capacity = list[tuple[float, float]]


def _capacity(topology: Topology, ends: Sequence[CableEnd], changes: Sequence[Change]) -> Capacity:
    rates = {end: topology.link_at(end).rate_bps / 8e9 for end in ends}
    now = dict(rates)
    steps = [(0.0, sum(now.values()))]
    for change in sorted(changes, key=lambda one: one.at_ns):
        if change.end in rates:
            now[change.end] = rates[change.end] * change.share
            steps.append((float(change.at_ns), sum(now.values())))
    return steps


def crossed_by(octets: float, begin: float, capacity: Capacity) -> float:
    """Return when ``octets`` have crossed from ``begin`` on, with all of ``capacity`` in use."""
    for place, (since, rate) in enumerate(capacity):
        until = capacity[place + 1][0] if place + 1 < len(capacity) else math.inf
        start = max(begin, since)
        if start >= until:
            continue
        if rate and octets <= rate * (until - start):
            return start + octets / rate
        octets -= rate * (until - start) if rate else 0.0
    return math.inf


def _bound(crossing: Sequence[Crossing], octets: int, capacity: Capacity, delays: _Border) -> float:
    begin = min(one.head_ns + delays.before(one.source) for one in crossing)
    rest = min(delays.after(one.destination) + one.tail_ns for one in crossing)
    return crossed_by(octets, begin, capacity) + rest


#: By node, those that a cable joins to it, with the delay on the way there or from there.
Edges = defaultdict[str, list[tuple[str, float]]]


class _Border:
    """Least delays to and from the links of one cut, in ns."""

    def __init__(
        self, near: _Reached, far: _Reached
    ) -> None:  # by node: to the nearest sending end, from the nearest sending end
        self._near, self._far = near, far

    def before(self, source: str) -> float:
        return self._near.get(source, 0.0)

    def after(self, destination: str) -> float:
        return self._far.get(destination, 0.0)


class _Reached(Protocol):
    """Delays (ns) by node."""

    def get(self, name: str, default: float, /) -> float: ...


class _Beside:
    """Delays ``found`` by node; those of GPUs in ``single`` are their switch's and the cable's."""

    def __init__(self, found: Mapping[str, float], single: Mapping[str, tuple[str, float]]) -> None:
        self._found, self._single = found, single

    def get(self, name: str, default: float, /) -> float:
        least = self._found.get(name, math.inf)
        if name in self._single:
            switch, further = self._single[name]
            least = min(least, self._found.get(switch, math.inf) + further)
        return default if least == math.inf else least


class _Behind:
    """Delays of a GPU ``name`` by one cable: ``own`` for itself, ``more`` than its switch's."""

    def __init__(self, name: str, own: float, beyond: _Reached, more: float) -> None:
        self._name, self._own, self._beyond, self._more = name, own, beyond, more

    def get(self, name: str, default: float, /) -> float:
        if name == self._name:
            return self._own
        found = self._beyond.get(name, math.inf)
        return default if found == math.inf else found + self._more


class _Delays:
    """Least delays over any path, of cables and of the switches they lead to.

    GPUs do not forward.
    """

    def __init__(self, topology: Topology) -> None:
        self._forth: Edges = defaultdict(list)
        self._back: Edges = defaultdict(list)
        for link in topology.links:
            for ours, theirs in (link.ends, link.ends[::-1]):
                delay = float(link.delay_ns + topology.latency_ns(theirs.node))
                self._forth[ours.node].append((theirs.node, delay))
                self._back[theirs.node].append((ours.node, delay))
        self._forwarding = {node.name for node in topology.nodes if node.forwards}
        #: by GPU with one cable, its switch and the delay between them: there and back
        self._single = [self._without_singles(edges) for edges in (self._forth, self._back)]
        self._reach = cache(self._found)

    def _without_singles(self, edges: Edges) -> dict[str, tuple[str, float]]:
        """Take the GPUs with one cable out of the ``edges`` of switches, and return them.

        A way by such a GPU leads nowhere.
        """
        found: dict[str, tuple[str, float]] = {}
        for name in self._forwarding:
            kept = []
            for other, delay in edges[name]:
                if other not in self._forwarding and len(edges[other]) == 1:
                    found[other] = name, delay
                else:
                    kept.append((other, delay))
            edges[name] = kept
        return found

    def of(self, ways: Sequence[tuple[CableEnd, CableEnd]], topology: Topology) -> _Border:
        near = self._reach(frozenset((end.node, 0.0) for end, _ in ways), back=True)
        far = self._reach(
            frozenset(
                (
                    theirs.node,
                    float(topology.link_at(ours).delay_ns + topology.latency_ns(theirs.node)),
                )
                for ours, theirs in ways
            ),
            back=False,
        )
        return _Border(near, far)

    def _found(self, starts: frozenset[tuple[str, float]], *, back: bool) -> _Reached:
        """Return the delays from ``starts``, or to them (``back``).

        Those of a GPU with one cable are those of its switch and the cable.
        """
        if len(starts) == 1:
            ((name, delay),) = starts
            edges = (self._back if back else self._forth)[name]
            if name not in self._forwarding and len(edges) == 1:
                ((switch, further),) = edges
                if switch in self._forwarding:
                    beyond = self._reach(frozenset({(switch, 0.0)}), back=back)
                    return _Behind(name, delay, beyond, delay + further)
        return self._shortest(starts, back=back)

    def _shortest(self, starts: frozenset[tuple[str, float]], *, back: bool) -> _Reached:
        edges = self._back if back else self._forth
        found: dict[str, float] = {}
        heap = [(delay, name) for name, delay in starts]
        heapq.heapify(heap)
        first = {name for name, _ in starts}
        while heap:
            delay, name = heapq.heappop(heap)
            if name in found:
                continue
            found[name] = delay
            if name in self._forwarding or name in first:
                for neighbour, further in edges[name]:
                    if neighbour not in found:
                        heapq.heappush(heap, (delay + further, neighbour))
        return _Beside(found, self._single[back])
