"""Reachability between GPUs over a fabric with dead cables.

With static routes, of whatever routing, a switch leaves out hops whose cables are dead at its own
ports. It learns nothing of those farther away. A way exists if some packet that is sprayed over all
hops arrives. So two GPUs can have lost each other while both reach all others. Where routing has
one path for each pair, as in dimension order, every dead cable cuts off those that need it. Of two
switches that look like one, either delivers over their standby link to a GPU whose port at it is
dead.  With a routing daemon any way that the cables leave will be found, but for those that its
protocol forbids (:mod:`emulator.run.faults.ways`).  The scale-up network of a server is not looked
at. A dead GPU reaches nobody, and nobody reaches it, whatever its cables have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, replace
from itertools import combinations

from emulator.dataplane.control_plane.control_plane_choice import EBGP
from emulator.dataplane.kernel.fabric import bonds
from emulator.run.faults.condition import Condition
from emulator.run.faults.ways import plugged_into, ways_of
from topologies.model import SHORTEST, Link, Topology

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
