"""The graph that routes are computed in: switches, and the cables between them as steps."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from topologies.model import Bridge, CableEnd, Link, Topology


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
        """Switch -> its steps to switches of its own group."""
        return self._sided(inside=True)

    @cached_property
    def across(self) -> Mapping[str, tuple[Step, ...]]:
        """Switch -> its steps to switches of other groups."""
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
