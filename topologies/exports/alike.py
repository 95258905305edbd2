"""Parts of a fabric that are drawn as one, as their cables are alike.

A part is a server with what is in it, or a switch.  Parts are alike if they are of one kind, and
have equally many cables of each rate to each group of alike parts: the coarsest partition for which
that holds (1-dimensional Weisfeiler-Lehman refinement).  So "64 servers, each with 8 x 400 Gbps" is
true of every one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from topologies.analysis.capacity import HEIGHT
from topologies.model import CableEnd, Link, Node, Topology


@dataclass(frozen=True)
class DrawnPart:
    """One box of a drawing in which nothing is merged."""

    name: str
    nodes: tuple[Node, ...]
    is_server: bool

    @property
    def row(self) -> int:
        """0 is the lowest row, that of the servers."""
        return 0 if self.is_server else 1 + HEIGHT[self.nodes[0].role]

    @property
    def pod(self) -> int | None:
        return self.nodes[0].pod

    @property
    def rail(self) -> int | None:
        return None if self.is_server else self.nodes[0].rail

    @property
    def kind(self) -> tuple[tuple[str, int], ...]:
        return tuple(sorted(Counter(node.role.value for node in self.nodes).items()))


@dataclass(frozen=True)
class Detail:
    """The properties besides kinds of parts that keep parts apart.

    ``exact`` requires the same cables, too; else parts of one kind (rail, pod) are taken together
    however they are wired.
    """

    rail: bool
    pod: bool
    exact: bool = True

    def keeps_apart(self, parts: Sequence[DrawnPart]) -> bool:
        """Return whether ``parts`` stay apart for being in different rails or pods."""
        return (self.rail or len({part.rail for part in parts}) < 2) and (
            self.pod or len({part.pod for part in parts}) < 2
        )


#: The most detail first.  A direct network has no rails, and a group of it is seen as a whole.
DETAILS = (
    Detail(rail=True, pod=True),
    Detail(rail=True, pod=False),
    Detail(rail=False, pod=True),
    Detail(rail=False, pod=False),
    Detail(rail=True, pod=True, exact=False),
    Detail(rail=False, pod=True, exact=False),
    Detail(rail=False, pod=False, exact=False),
)
DIRECT_DETAILS = (
    Detail(rail=False, pod=True, exact=False),
    Detail(rail=False, pod=False, exact=False),
)


class Parts:
    """The parts of ``topology``, and which of them are alike."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.part_of: dict[str, DrawnPart] = {}
        self.all: list[DrawnPart] = []
        inside: dict[str, list[Node]] = {server.name: [] for server in topology.servers}
        at = {gpu: server.name for server in topology.servers for gpu in server.gpus}
        for node in topology.nodes:
            server = at.get(node.name, node.server)
            if server is not None:
                inside.setdefault(server, []).append(node)
        for name, nodes in inside.items():
            if nodes:
                self._add(DrawnPart(name, tuple(nodes), is_server=True))
        for node in topology.nodes:
            if node.name not in self.part_of:
                self._add(DrawnPart(node.name, (node,), is_server=not node.is_switch))

    def _add(self, part: DrawnPart) -> None:
        self.all.append(part)
        self.part_of |= {node.name: part for node in part.nodes}

    @cached_property
    def links(self) -> Sequence[tuple[Link, DrawnPart, DrawnPart]]:
        """Every cable between two parts; those inside a server are not drawn."""
        ends = (
            (link, self.part_of[link.a.node], self.part_of[link.b.node])
            for link in self.topology.links
        )
        return [(link, a, b) for link, a, b in ends if a is not b]

    @cached_property
    def direct(self) -> bool:
        """Return whether cables join switches of one tier."""
        return any(
            a.row == b.row for link, a, b in self.links if not a.is_server and not link.standby
        )

    @cached_property
    def rows(self) -> Mapping[int, Sequence[DrawnPart]]:
        found: dict[int, list[DrawnPart]] = {}
        for part in self.all:
            found.setdefault(part.row, []).append(part)
        return found

    @cached_property
    def cells(self) -> Mapping[str, int]:
        """Return how many places of each part, by name, lead to others.

        What it takes to draw it.
        """
        places = {(here.name, end.node, there.name) for here, end, there in self._directions()}
        return Counter(name for name, _, _ in places)

    def _directions(self) -> Iterator[tuple[DrawnPart, CableEnd, DrawnPart]]:
        for link, a, b in self.links:
            yield a, link.a, b
            yield b, link.b, a

    def alike(self, detail: Detail, apart: Collection[int] = ()) -> Mapping[str, int]:
        """The number of the group that each part, by name, belongs to.

        In the rows ``apart`` every part is a group of its own.
        """

        def seen(part: DrawnPart) -> Hashable:
            rail, pod = part.rail if detail.rail else None, part.pod if detail.pod else None
            return part.row, part.kind, rail, pod, part.name if part.row in apart else None

        groups = _numbered({part.name: seen(part) for part in self.all})
        if not detail.exact:
            return groups
        while True:
            around: dict[str, Counter[Hashable]] = {part.name: Counter() for part in self.all}
            for here, end, there in self._directions():
                place = self.topology.node(end.node).local_rank if detail.rail else None
                rate = self.topology.link_at(end).rate_bps
                around[here.name][place, groups[there.name], rate] += 1
            finer = _numbered(
                {name: (groups[name], frozenset(around[name].items())) for name in groups}
            )
            if len(set(finer.values())) == len(set(groups.values())):
                return groups
            groups = finer


def _numbered(keys: Mapping[str, Hashable]) -> dict[str, int]:
    numbers: dict[Hashable, int] = {}
    return {name: numbers.setdefault(key, len(numbers)) for name, key in keys.items()}
