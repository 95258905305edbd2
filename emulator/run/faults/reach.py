"""Reachability between GPUs over a fabric with dead cables.

With static routes, of whatever routing, a switch leaves out hops whose cables are dead at its own
ports. It learns nothing of those farther away. A way exists if some packet that is sprayed over all
hops arrives. So two GPUs can have lost each other while both reach all others. Where routing has
one path for each pair, as in dimension order, every dead cable cuts off those that need it. Of two
switches that look like one, either delivers over their standby link to a GPU whose port at it is
dead.  With a routing daemon any way that the cables leave will be found, but for those that its
protocol forbids.  The scale-up network of a server is not looked
at. A dead GPU reaches nobody, and nobody reaches it, whatever its cables have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Protocol

from emulator.dataplane.control_plane.control_plane_choice import EBGP, IBGP, PER_TIER, ControlPlane
from emulator.dataplane.control_plane.control_plane_choice import of as control_plane_of
from emulator.dataplane.control_plane.speakers import as_numbers, reflectors_of
from emulator.dataplane.kernel.fabric import bonds
from emulator.run.faults.condition import Condition
from topologies.model import SHORTEST, CableEnd, Link, Topology
from topologies.routing.forwarding import LookupPlace, RouteTable, Step, forwarding_of


class Ways(Protocol):
    """The next hops of packets while some cables are dead."""

    def leading(self, gpu: str, ends: frozenset[str]) -> Set[str]:
        """The switches from whose own hosts packets to ``gpu`` arrive, at least some of them.

        ``ends`` are the switches that it is still plugged into.
        """


def ways_of(topology: Topology, dead: Collection[Link], black: Collection[Link]) -> Ways:
    """Return the next hops after the control plane of ``topology`` has learned of the faults.

    ``dead`` cables have no carrier, ``black`` ones have, and nothing comes over them.
    """
    plane = control_plane_of(topology)
    if plane is None:
        return _Static(topology, dead, black)
    impassable = {*dead, *black}
    if plane.systems == PER_TIER:
        return _Tiers(topology, impassable, plane)
    return _Joined(topology, impassable, reflected=plane.name == IBGP)


class _Static:
    """Routes that were put into the kernel once.

    A switch leaves out next hops at its own dead ports (``linkdown``). If a table has no other for
    the destination, it goes on to its main table. It does not detect dead cables farther on. One of
    a pair that looks like one switch delivers frames for its own dead port over the standby link.
    """

    def __init__(self, topology: Topology, dead: Collection[Link], black: Collection[Link]) -> None:
        self._topology, self._forwarding = topology, forwarding_of(topology)
        self._without_carrier, self._impassable = frozenset(dead), frozenset((*dead, *black))
        steps = [step for row in self._forwarding.graph.steps.values() for step in row]
        self._dead = {step.number for step in steps if step.link in dead}
        self._black = {step.number for step in steps if step.link in black}
        hosts = self._forwarding.graph.hosts
        self._entries = {name: self._forwarding.entries(name) for name in hosts}
        self._to = cache(self._leading)

    def leading(self, gpu: str, ends: frozenset[str]) -> Set[str]:
        if self._topology.node(gpu).loopback is not None:
            return self._to(gpu, ends)
        owners = self._subnets_at(gpu)
        delivering = owners & (ends | self._over_standby(gpu, ends))
        found: set[str] = set()
        for switch in delivering:
            found |= self._to(switch, delivering)
        return found - (owners - delivering)  # these send into their own part of the subnet

    def _over_standby(self, gpu: str, ends: Set[str]) -> set[str]:
        """The switches whose port to ``gpu`` has no carrier, and whose twin is one of ``ends``."""
        found = set()
        for link, _, lost in self._topology.neighbours(gpu):
            bridge = self._topology.bridge_of(lost)
            for standby, ours, twin in self._topology.neighbours(lost.node):
                if (
                    standby.standby
                    and standby not in self._impassable
                    and link in self._without_carrier
                    and self._topology.bridge_of(ours) == bridge
                    and twin.node in ends
                ):
                    found.add(lost.node)
        return found

    def _subnets_at(self, gpu: str) -> frozenset[str]:
        """The switches that have the subnets of ``gpu``."""
        ports = self._topology.node(gpu).ports
        ends = (end for port in ports for end, _ in self._topology.beyond(CableEnd(gpu, port.name)))
        return frozenset(end.node for end in ends)

    def _leading(self, owner: str, ends: frozenset[str]) -> Set[str]:
        """The switches from whose hosts packets get to ``owner``, a switch or a GPU by ``ends``."""
        before: dict[LookupPlace, list[LookupPlace]] = defaultdict(list)
        front = [place for places in self._entries.values() for place in places]
        seen = set(front)
        for place in front:  # which grows
            if place.node == owner:
                continue
            for step in self._living(owner, place):
                if step.node == owner and owner not in ends and place.node not in ends:
                    continue
                there = self._forwarding.arrival(place, step)
                before[there].append(place)
                if there not in seen:
                    seen.add(there)
                    front.append(there)
        back = [place for place in seen if place.node == owner]
        good = set(back)
        for place in back:  # which grows
            for earlier in before[place]:
                if earlier not in good:
                    good.add(earlier)
                    back.append(earlier)
        return {name for name, places in self._entries.items() if not good.isdisjoint(places)}

    def _living(self, owner: str, place: LookupPlace) -> Iterator[Step]:
        """The next hops that the kernel has left, without those that only swallow."""
        tables = self._forwarding.tables(owner)
        for table in dict.fromkeys((place.table, RouteTable.MAIN)):
            steps = tables[table].get(place.node, ()) if table in tables else ()
            with_carrier = [step for step in steps if step.number not in self._dead]
            if with_carrier:
                yield from (step for step in with_carrier if step.number not in self._black)
                return


class _Joined:
    """A routing protocol that finds whatever the cables leave.

    So does EVPN.  Two switches of a stretched rail have a tunnel if they reach each other at all.
    Those in between, with tunnels of their own or without, pass its routes on with the next hop
    that they have. Packets for another rail go to the nearest switch of the same part that has the
    rail, and from there by a tunnel.

    With ``reflected`` routes come from a route reflector (RFC 4456). A part of the fabric that has
    lost all of its reflectors keeps only routes to what is plugged into each switch.
    """

    def __init__(
        self, topology: Topology, impassable: Collection[Link], *, reflected: bool
    ) -> None:
        reflecting = reflectors_of(topology) if reflected else ()
        self._part: dict[str, frozenset[str]] = {}  # the switches that a switch has routes to
        for part in _parts(topology, impassable):
            reported = not reflected or not part.isdisjoint(reflecting)
            for name in part:
                self._part[name] = part if reported else frozenset({name})

    def leading(self, gpu: str, ends: frozenset[str]) -> Set[str]:
        return frozenset[str]().union(*(self._part[switch] for switch in ends))


class _Tiers:
    """BGP in which the spines of a pod share an AS, and super-spines too.

    A switch refuses what has passed its own AS already (RFC 4271 9.1.2), so that no path goes down
    and up again.
    """

    def __init__(
        self, topology: Topology, impassable: Collection[Link], plane: ControlPlane
    ) -> None:
        self._systems = as_numbers(topology, plane)
        self._peers: Mapping[str, list[str]] = {
            name: [
                theirs.node
                for link, _, theirs in topology.neighbours(name)
                if theirs.node in self._systems and link not in impassable
            ]
            for name in self._systems
        }
        self._to = cache(self._leading)

    def leading(self, gpu: str, ends: frozenset[str]) -> Set[str]:
        return frozenset[str]().union(*(self._to(switch) for switch in ends))

    def _leading(self, owner: str) -> Set[str]:
        front = [(owner, frozenset({self._systems[owner]}))]
        seen = set(front)
        for name, passed in front:  # which grows
            for peer in self._peers[name]:
                system = self._systems[peer]
                there = peer, passed | {system}
                if system not in passed and there not in seen:
                    seen.add(there)
                    front.append(there)
        return {name for name, _ in seen}


def plugged_into(topology: Topology, gpu: str, dead: Collection[Link]) -> set[str]:
    """The switches and GPUs that ``gpu`` is plugged into by living cables, or its shared NIC."""
    found: set[str] = set()
    edge = [gpu]
    while edge:
        for link, _, theirs in topology.neighbours(edge.pop()):
            if link in dead or theirs.node in found or theirs.node == gpu:
                continue
            found.add(theirs.node)
            node = topology.node(theirs.node)
            if node.forwards and not node.is_switch:
                edge.append(theirs.node)
    return found


def _parts(topology: Topology, impassable: Collection[Link]) -> Iterator[frozenset[str]]:
    """The switches that hang together by living cables."""
    left = {switch.name for switch in topology.switches}
    while left:
        edge = [left.pop()]
        part = set(edge)
        while edge:
            for link, _, theirs in topology.neighbours(edge.pop()):
                if theirs.node in left and link not in impassable:
                    left.discard(theirs.node)
                    part.add(theirs.node)
                    edge.append(theirs.node)
        yield frozenset(part)


Pair = tuple[str, str]


@dataclass(frozen=True)
class Cut:
    """The pairs of GPUs that faults separate, in the order of the topology.

    ``gpus`` are those that have lost most of the GPUs that the fabric joined them with.  Of two
    that only had each other it is the one that has lost its own cables, or both.  ``pairs`` are the
    others: two GPUs that have lost each other, and not most of the rest.
    """

    gpus: tuple[str, ...] = ()
    pairs: tuple[Pair, ...] = ()


NOTHING = Cut()


class Reach:
    """Reachability over ``topology`` by the condition of its cables."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._sound = reached(topology, ())
        self._left: dict[Condition, Mapping[str, Set[str]]] = {}

    def cut(self, condition: Condition) -> Cut:
        """Return what ``condition`` cuts off."""
        if not condition.separates:
            return NOTHING
        before, now = self._sound, self.left(condition)
        gone = condition.dead_gpus.union(
            _cut_off(self.topology, before, now, condition.impassable, condition.dead_gpus)
        )
        names = [gpu.name for gpu in self.topology.gpus]
        staying = [name for name in names if name not in gone and before[name] != now[name]]
        return Cut(
            gpus=tuple(name for name in names if name in gone),
            pairs=tuple(
                (one, other)
                for one, other in combinations(staying, 2)
                if other in before[one] and other not in now[one]
            ),
        )

    def left(self, condition: Condition) -> Mapping[str, Set[str]]:
        """Return the GPUs that each GPU reaches and that reach it in ``condition``."""
        if condition not in self._left:
            dead, silent = condition.dead, condition.dead_gpus
            found = reached(self.topology, dead, condition.impassable - dead)
            if silent:
                found = {
                    name: frozenset() if name in silent else others - silent
                    for name, others in found.items()
                }
            self._left[condition] = found
        return self._left[condition]

    def causes(self, one: str, other: str, condition: Condition) -> list[frozenset[Link]]:
        """Return the cables that keep two GPUs apart in ``condition``, the latest first.

        They are those of each element that is down, and each black hole, but for what the rest
        makes do without.
        """
        found = []
        for element in reversed(condition.down):
            without = condition.raised(element)
            if other in self.left(without)[one]:
                found.append(frozenset(element.links))
            else:
                condition = without
        for link in reversed([*condition.faults]):
            without = condition.healed((link,))
            if other in self.left(without)[one]:
                found.append(frozenset({link}))
            else:
                condition = without
        return found[::-1]

    def rerouted(self) -> Reach | None:
        """Return reachability with rerouting; None where two switches look like one.

        The cables between switches are the same and find another way if there is one.  Two switches
        that look like one take static routes.
        """
        if bonds.any_in(self.topology):
            return None
        profile = replace(self.topology.profile, control_plane=EBGP, routing=SHORTEST)
        return Reach(replace(self.topology, profile=profile))


def reached(
    topology: Topology, dead: Collection[Link], black: Collection[Link] = ()
) -> Mapping[str, Set[str]]:
    """Return the GPUs that each GPU reaches and that reach it.

    ``dead`` cables have no carrier; ``black`` ones have, and swallow everything.
    """
    gpus = [gpu.name for gpu in topology.gpus]
    impassable = {*dead, *black}
    wires = {name: plugged_into(topology, name, impassable) for name in gpus}
    ways = ways_of(topology, dead, black)
    senders: dict[str, Set[str]] = {}
    for gpu in gpus:
        ends = frozenset(name for name in wires[gpu] if topology.node(name).is_switch)
        leading = ways.leading(gpu, ends)
        senders[gpu] = {
            other
            for other in gpus
            if other != gpu and (gpu in wires[other] or not leading.isdisjoint(wires[other]))
        }
    return {name: {other for other in senders[name] if name in senders[other]} for name in gpus}


def _cut_off(
    topology: Topology,
    before: Mapping[str, Set[str]],
    now: Mapping[str, Set[str]],
    dead: Collection[Link],
    silent: Set[str],
) -> list[str]:
    """Return the GPUs, apart from the dead ones ``silent``, that have lost most of the others."""
    left = [gpu.name for gpu in topology.gpus if before[gpu.name] and gpu.name not in silent]
    lost = []
    while left:
        whole = [name for name in left if name == left[0] or name in before[left[0]]]
        left = [name for name in left if name not in whole]
        centre = max(whole, key=lambda name: (len(now[name]), _plugged(topology, name, dead)))
        held = {centre, *now[centre]} if now[centre] or _plugged(topology, centre, dead) else set()
        lost += [
            name for name in whole if name not in held and 2 * len(now[name]) < len(before[name])
        ]
    return [gpu.name for gpu in topology.gpus if gpu.name in lost]


def _plugged(topology: Topology, gpu: str, dead: Collection[Link]) -> int:
    """Return how many switches ``gpu`` is still plugged into."""
    return sum(topology.node(name).is_switch for name in plugged_into(topology, gpu, dead))
