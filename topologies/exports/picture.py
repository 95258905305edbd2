"""A drawing of a fabric before anybody draws it: boxes in rows, and lines between them.

Rows are tiers (:data:`topologies.analysis.capacity.TIERS`), servers lowest.  A box is a server, a
switch, or as many of them as are alike; a row that would be too long to read is put together, as
little as makes it fit.  Rates stand in the cell where a line starts, at its lower end: labels on so
many lines would hide them.

In a direct network (a torus, the groups of a dragonfly) cables join switches of one tier. There
servers stand in the boxes of their switches.

Parts of a fabric that are drawn as one, as their cables are alike.

A part is a server with what is in it, or a switch.  Parts are alike if they are of one kind, and
have equally many cables of each rate to each group of alike parts: the coarsest partition for which
that holds (1-dimensional Weisfeiler-Lehman refinement).  So "64 servers, each with 8 x 400 Gbps" is
true of every one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from statistics import fmean
from typing import TypeVar

from topologies.analysis.capacity import HEIGHT, format_ratio, oversubscription
from topologies.analysis.twins import Twins, twins_of
from topologies.designs.planes import fep_number
from topologies.exports.heat import Heat, number
from topologies.exports.mermaid import bundle_rate
from topologies.model import BACKEND, SWITCH, CableEnd, Link, Node, Role, Topology


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


@dataclass(frozen=True)
class Seat:
    """Where cables are plugged into a kind of parts: ``node``, where it is of one part."""

    kind: int
    local_rank: int | None
    node: str | None


class Parts:
    """The parts of ``topology``, and which of them are alike.

    A kind is parts with the same cables to the same nodes (:mod:`topologies.analysis.twins`), or
    one part: of a row that is short enough to be drawn in full, or if not ``merged``.
    """

    def __init__(self, topology: Topology, *, merged: bool = True) -> None:
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
        self.kind_of: dict[str, int] = {}  # by the part's name
        self.kinds: list[list[DrawnPart]] = []
        self._find_kinds(merged=merged)

    def _add(self, part: DrawnPart) -> None:
        self.all.append(part)
        self.part_of |= {node.name: part for node in part.nodes}

    def _find_kinds(self, *, merged: bool) -> None:
        numbers: dict[Hashable, int] = {}
        for part in self.all:
            key: Hashable = part.name
            if merged and len(self.rows[part.row]) > MOST_DIRECT_BOXES:
                joined = len(part.nodes) > 1 and any(
                    self.part_of[far] is part
                    for node in part.nodes
                    for far in self._twins[node.name].far
                )
                if not joined:
                    twins = [id(self._twins[node.name]) for node in part.nodes]
                    ranks = [node.local_rank for node in part.nodes]
                    key = part.row, part.kind, part.rail, part.pod, *twins, *ranks
            number = numbers.setdefault(key, len(numbers))
            if number == len(self.kinds):
                self.kinds.append([])
            self.kinds[number].append(part)
            self.kind_of[part.name] = number

    @cached_property
    def _twins(self) -> Mapping[str, Twins]:
        return {node.name: twins for twins in twins_of(self.topology) for node in twins.nodes}

    @cached_property
    def strands(self) -> Mapping[tuple[Seat, Seat, int, bool], Sequence[int]]:
        """Every cable between two parts, by its number among links; those inside are not drawn.

        Cables of a strand have the same kinds of ends, rate (bit/s), and whether they stand by.
        """
        seats: dict[tuple[int, int | None, str | None], int] = {}
        seat_of: dict[str, int] = {}
        for name, part in self.part_of.items():
            kind = self.kind_of[part.name]
            alone = name if len(self.kinds[kind]) == 1 else None
            seat = kind, self.topology.node(name).local_rank, alone
            seat_of[name] = seats.setdefault(seat, len(seats))
        found: dict[tuple[int, int, int, bool], list[int]] = {}
        for place, link in enumerate(self.topology.links):
            key = seat_of[link.a.node], seat_of[link.b.node], link.rate_bps, link.standby
            found.setdefault(key, []).append(place)
        listed = [Seat(*seat) for seat in seats]
        return {
            (listed[a], listed[b], rate, standby): numbers
            for (a, b, rate, standby), numbers in found.items()
            if listed[a].kind != listed[b].kind
        }

    @cached_property
    def direct(self) -> bool:
        """Return whether cables join switches of one tier."""
        for a, b, _, standby in self.strands:
            lower, upper = self.kinds[a.kind][0], self.kinds[b.kind][0]
            if lower.row == upper.row and not lower.is_server and not standby:
                return True
        return False

    @cached_property
    def rows(self) -> Mapping[int, Sequence[DrawnPart]]:
        found: dict[int, list[DrawnPart]] = {}
        for part in self.all:
            found.setdefault(part.row, []).append(part)
        return found

    def cells(self, part: DrawnPart) -> int:
        """Return how many places of ``part`` lead to others: what it takes to draw it."""
        return self._cells[self.kind_of[part.name]]

    @cached_property
    def _cells(self) -> Sequence[int]:
        return [
            len(
                {
                    (node.name, there.name)
                    for node in first.nodes
                    for far in self._far(node)
                    if (there := self.part_of[far]) is not first
                }
            )
            for first, *_ in self.kinds
        ]

    def _far(self, node: Node) -> Iterator[str]:
        twins = self._twins[node.name]
        yield from twins.far
        yield from (far for far, _ in twins.standby)

    @cached_property
    def _around(self) -> Sequence[Mapping[tuple[int | None, int, int], int]]:
        """The cables of a part of each kind, by local rank, kind at the far end and rate."""
        around: list[Counter[tuple[int | None, int, int]]] = [Counter() for _ in self.kinds]
        for (a, b, rate, _), numbers in self.strands.items():
            for here, there in ((a, b), (b, a)):
                each = len(numbers) // len(self.kinds[here.kind])
                around[here.kind][here.local_rank, there.kind, rate] += each
        return around

    def alike(self, detail: Detail, apart: Collection[int] = ()) -> Mapping[int, int]:
        """The number of the group that the parts of each kind belong to.

        In the rows ``apart`` every part is a group of its own.
        """

        def seen(part: DrawnPart) -> Hashable:
            rail, pod = part.rail if detail.rail else None, part.pod if detail.pod else None
            return part.row, part.kind, rail, pod, part.name if part.row in apart else None

        groups = _numbered({number: seen(first) for number, (first, *_) in enumerate(self.kinds)})
        if not detail.exact:
            return groups
        while True:
            looks: dict[int, Hashable] = {}
            for kind, cables in enumerate(self._around):
                around: Counter[Hashable] = Counter()
                for (rank, there, rate), count in cables.items():
                    around[rank if detail.rail else None, groups[there], rate] += count
                looks[kind] = groups[kind], frozenset(around.items())
            finer = _numbered(looks)
            if len(set(finer.values())) == len(set(groups.values())):
                return groups
            groups = finer


def _numbered(keys: Mapping[int, Hashable]) -> dict[int, int]:
    numbers: dict[Hashable, int] = {}
    return {name: numbers.setdefault(key, len(numbers)) for name, key in keys.items()}


#: One colour per rail (per pod in a direct network), repeated: apart in brightness, and for every
#: kind of colour vision.
COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#e69f00",
    "#5d3a9b",
    "#7a7a7a",
)
PLAIN = "#333333"
#: What fits a row at reading size: cells of servers, boxes of switches.
LONGEST_ROW = (32, 12)
MOST_LINES = 100
#: The same for a direct network, which has no rows.
MOST_DIRECT_BOXES = 64
MOST_DIRECT_LINES = 300


@dataclass
class Cell:
    """A part of a box from which a line leads up."""

    key: str
    text: tuple[str, ...]


@dataclass
class Box:
    key: str
    title: tuple[str, ...]
    row: int
    pod: int | None
    colour: str
    members: tuple[str, ...]  # names of all nodes
    count: int  # parts that it stands for
    cells: list[Cell] = field(default_factory=list)


@dataclass(frozen=True)
class PictureLine:
    """``lower`` and ``upper`` are keys of boxes; ``cell`` is where in ``lower`` it starts.

    A line within one row has no cell, and carries its rate itself.
    """

    lower: str
    upper: str
    cell: str | None
    text: str
    links: tuple[Link, ...]
    colour: str
    width: float

    @property
    def standby(self) -> bool:
        return _standby(self.links)


@dataclass(frozen=True)
class PictureRow:
    height: int
    title: tuple[str, ...]
    boxes: tuple[Box, ...]


@dataclass(frozen=True)
class Picture:
    title: tuple[str, ...]
    rows: tuple[PictureRow, ...]  # lowest first
    lines: tuple[PictureLine, ...]
    heat: Heat | None
    direct: bool  # cables join boxes of one row

    @property
    def boxes(self) -> list[Box]:
        return [box for row in self.rows for box in row.boxes]

    @property
    def collapsed(self) -> bool:
        return any(box.count > 1 for box in self.boxes)


def picture(topology: Topology, *, full: bool = False, heat: Heat | None = None) -> Picture:
    """The drawing of ``topology``; with ``full`` every part is drawn, however many there are.

    ``heat`` colours lines by what their ports saw, instead of by rail.
    """
    parts = Parts(topology, merged=not full)
    if full:
        return _Drawing(parts, [[part] for part in parts.all], heat).picture()
    for detail in DIRECT_DETAILS if parts.direct else DETAILS:
        for apart in _short_rows(parts, detail):
            groups = _grouped(parts, detail, apart)
            drawing = _Drawing(parts, groups, heat, exact=detail.exact)
            if _fits(parts, groups, len(drawing.bundles)):
                return drawing.picture()
    return drawing.picture()


def span(items: Sequence[str]) -> str:
    """``first .. last``, the one there is, or ``-``."""
    if not items:
        return "-"
    return items[0] if len(items) == 1 else f"{items[0]} .. {items[-1]}"


def _short_rows(parts: Parts, detail: Detail) -> Iterator[Collection[int]]:
    """The rows that are short enough to be drawn in full, then all but the longest, ... none.

    A row in which ``detail`` takes together what differs in rail or pod is not among them: others
    do so, too.
    """
    length = {
        row: _length(parts, [[part] for part in own])
        for row, own in parts.rows.items()
        if detail.keeps_apart(own)
    }
    short = sorted((n, row) for row, n in length.items() if n <= _longest(parts, row))
    for count in range(len(short), -1, -1):
        yield {row for _, row in short[:count]}


def _grouped(parts: Parts, detail: Detail, apart: Collection[int]) -> list[list[DrawnPart]]:
    """The parts of each box, in the order of rows."""
    alike = parts.alike(detail, apart)
    boxes: dict[tuple[int, int], list[DrawnPart]] = {}
    for part in parts.all:
        boxes.setdefault((part.row, alike[parts.kind_of[part.name]]), []).append(part)
    return [boxes[place] for place in sorted(boxes, key=lambda place: place[0])]


def _fits(parts: Parts, groups: Sequence[Sequence[DrawnPart]], lines: int) -> bool:
    rows: dict[int, list[Sequence[DrawnPart]]] = {}
    for group in groups:
        rows.setdefault(group[0].row, []).append(group)
    if parts.direct:  # whose servers are no boxes
        rows.pop(0, None)
    most = MOST_DIRECT_LINES if parts.direct else MOST_LINES
    return lines <= most and all(
        _length(parts, own) <= _longest(parts, row) for row, own in rows.items()
    )


def _length(parts: Parts, groups: Iterable[Sequence[DrawnPart]]) -> int:
    """Cells of servers, or switches."""
    return sum(parts.cells(group[0]) if group[0].is_server else 1 for group in groups)


def _longest(parts: Parts, row: int) -> int:
    return MOST_DIRECT_BOXES if parts.direct else LONGEST_ROW[row > 0]


_Key = TypeVar("_Key")


class _Drawing:
    """The boxes of ``groups`` with the lines between them."""

    def __init__(
        self,
        parts: Parts,
        groups: list[list[DrawnPart]],
        heat: Heat | None,
        *,
        exact: bool = True,
    ) -> None:
        self.topology = parts.topology
        self.exact = exact
        self.direct = parts.direct
        self.heat = heat
        self.groups = {group[0].name: group for group in groups}
        self._parts = parts
        box_of = {
            parts.kind_of[part.name]: key for key, group in self.groups.items() for part in group
        }
        #: strands by (lower box, upper box, what they start from, as far as boxes distinguish it)
        self.bundles: dict[tuple[str, str, str], list[Sequence[int]]] = {}
        #: those of servers, by the box of their switch, where that shows them
        self.folded: dict[str, list[Sequence[int]]] = {}
        for (a, b, _, _), numbers in parts.strands.items():
            seat, low, high = a, box_of[a.kind], box_of[b.kind]
            if self._row(low) > self._row(high):
                seat, low, high = b, high, low
            if parts.direct and self.groups[low][0].is_server:
                self.folded.setdefault(high, []).append(numbers)
                continue
            within = self._row(low) == self._row(high)
            if within and low > high:
                low, high = high, low
            place = "" if within else self._place(low, seat)
            self.bundles.setdefault((low, high, place), []).append(numbers)

    @cached_property
    def pod_of(self) -> Mapping[str, int | None]:
        """Return the pod of each node's part."""
        return {node: part.pod for node, part in self._parts.part_of.items()}

    @cached_property
    def box_of(self) -> Mapping[str, str]:
        """Return the box of each node."""
        return {
            node.name: key
            for key, group in self.groups.items()
            for part in group
            for node in part.nodes
        }

    def _place(self, box: str, seat: Seat) -> str:
        group = self.groups[box]
        if not group[0].is_server:
            return ""
        return str(seat.local_rank if seat.node is None or len(group) > 1 else seat.node)

    def _links(self, bundles: Mapping[_Key, list[Sequence[int]]]) -> dict[_Key, list[Link]]:
        """Return the cables of ``bundles``, both in the order of the topology's links."""
        numbers = {key: sorted(chain.from_iterable(found)) for key, found in bundles.items()}
        links = self.topology.links
        ordered = sorted(numbers, key=lambda key: numbers[key][0])
        return {key: [links[number] for number in numbers[key]] for key in ordered}

    def picture(self) -> Picture:
        boxes = {
            key: self._box(key, group)
            for key, group in self.groups.items()
            if not (self.direct and group[0].is_server)
        }
        for key, links in self._links(self.folded).items():
            boxes[key].title = (*boxes[key].title, *self._attached(key, links))
        lines = []
        bundles = self._links(self.bundles)
        once = self._rate_within_rows(bundles)
        for (low, high, place), links in bundles.items():
            if low == high:
                among = f"{_rate(links)} among them"
                boxes[low].title = (*boxes[low].title, among, *self._seen(links, high))
                continue
            rate, seen = _rate(links), self._seen(links, high)
            cell = None
            if boxes[low].row != boxes[high].row:
                cell = f"{place or low}.{high}"
                boxes[low].cells.append(Cell(cell, (*self._start(low, links), rate, *seen)))
            elif once is not None:
                rate = ""
            colour, width = self._style(links)
            text = "\n".join(filter(None, (rate, *seen)))
            lines.append(PictureLine(low, high, cell, text, tuple(links), colour, width))
        title = self._title()
        if once is not None:
            title = (*title, f"switch - switch: {once} per line")
        return Picture(title, self._rows(boxes, lines), tuple(lines), self.heat, self.direct)

    def _rate_within_rows(self, bundles: Mapping[tuple[str, str, str], list[Link]]) -> str | None:
        """The rate of all lines that stay in their row, if there are any and it is one.

        It is written once then, instead of at every line.
        """
        rates = {
            _rate(links)
            for (low, high, _), links in bundles.items()
            if low != high and self._row(low) == self._row(high)
        }
        return rates.pop() if len(rates) == 1 else None

    def _box(self, key: str, group: list[DrawnPart]) -> Box:
        first = group[0]
        nodes = tuple(node for part in group for node in part.nodes)
        title = [span([part.name for part in group])]
        if len(group) > 1:
            title.append(f"{len(group)} {_plural(first)}{', alike' if self.exact else ''}")
        if len(pods := {part.pod for part in group}) > 1:
            title.append(f"in {len(pods)} pods")
        if not first.is_server:
            title += _addresses(nodes)
        if first.is_server and len(first.kind) > 1:
            title.append(", ".join(f"{count} {role.upper()}s" for role, count in first.kind))
        rails = {node.rail for node in nodes}
        return Box(
            key=key,
            title=tuple(title),
            row=first.row,
            pod=next(iter(pods)) if len(pods) == 1 else None,
            colour=PLAIN if first.is_server else _colour(pods if self.direct else rails),
            members=tuple(node.name for node in nodes),
            count=len(group),
        )

    def _start(self, box: str, links: list[Link]) -> list[str]:
        """Return the cell's text besides the rate: GPU and address; nothing for a switch."""
        group = self.groups[box]
        if not group[0].is_server:
            return []
        nodes = {node.name: node for part in group for node in part.nodes}
        nics = {name for name, node in nodes.items() if node.transparent}
        ends = [end for link in links for end in link.ends if end.node in nodes]
        gpus = [gpu for end in ends for gpu in self._gpus_at(end)] if nics else ends
        shared = list(dict.fromkeys(end.node for end in ends if end.node in nics))
        names = list(dict.fromkeys(end.node for end in gpus))
        told = _first_and_last(gpus, self._fep), _first_and_last(gpus, self._address)
        reported = [span(items) for items in (names, *told, shared) if items]
        inside = [
            link
            for nic in shared
            for link, _, far in self.topology.neighbours(nic)
            if self.box_of[far.node] == box
        ]
        return [*reported, f"PCIe {bundle_rate(inside)}"] if inside else reported

    def _address(self, end: CableEnd) -> str | None:
        address = self.topology.node(end.node).port(end.port).address
        return None if address is None else str(address.ip)

    def _fep(self, end: CableEnd) -> str | None:
        """``FEP 111``, where the port ``end`` of a GPU has one of its own."""
        gpu = self.topology.node(end.node)
        return f"FEP {fep_number(self.topology, gpu, end.port)}" if gpu.feps else None

    def _is_nic(self, node: str) -> bool:
        return self.topology.node(node).transparent

    def _gpus_at(self, end: CableEnd) -> list[CableEnd]:
        """``end`` itself, or what shares it."""
        if not self._is_nic(end.node):
            return [end]
        box = self.box_of[end.node]
        around = self.topology.neighbours(end.node)
        return [far for _, _, far in around if self.box_of[far.node] == box]

    def _attached(self, box: str, links: list[Link]) -> list[str]:
        """Return the text of a switch's box on the servers that are plugged into it."""
        ends = [end.node for link in links for end in link.ends if self.box_of[end.node] != box]
        names = list(dict.fromkeys(ends))
        return [span(names), bundle_rate(links), *self._seen(links, box)]

    def _seen(self, links: list[Link], upper: str) -> list[str]:
        """Return what left towards the box ``upper`` and from it, over the busiest of ``links``.

        Within a row neither direction is up, and only the busier is shown.
        """
        heat = self.heat
        if heat is None:
            return []
        up: list[float] = []
        down: list[float] = []
        rows = set()
        for link in links:
            for end in link.ends:
                box = self.box_of[end.node]
                rows.add(self._row(box))
                if (value := heat.values.get(str(end))) is not None:
                    (down if box == upper else up).append(value)
        if len(rows) == 1:
            return [heat.shown(max(up + down))] if up + down else []
        signs = (("↑", up), ("↓", down))
        return [f"{sign} {_reported(heat, values)}" for sign, values in signs if values]

    def _row(self, box: str) -> int:
        return self.groups[box][0].row

    def _style(self, links: list[Link]) -> tuple[str, float]:
        if self.heat is not None:
            seen = [self.heat.values.get(str(end), 0.0) for link in links for end in link.ends]
            return self.heat.colour(max(seen)), self.heat.width(max(seen))
        names = {end.node for link in links for end in link.ends}
        nodes = [self.topology.node(name) for name in names]
        if self.direct:
            colour = _colour({self.pod_of[node.name] for node in nodes})
        else:
            colour = _colour({node.rail for node in nodes if node.rail is not None})
        return colour, 1 + min(3.0, 0.5 * (len(links) - 1))

    def _rows(self, boxes: dict[str, Box], lines: Sequence[PictureLine]) -> tuple[PictureRow, ...]:
        ratios = oversubscription(self.topology)
        ordered = _side_by_side(boxes, lines)
        rows = []
        for height in sorted({box.row for box in boxes.values()}):
            own = tuple(box for box in ordered if box.row == height)
            count = sum(box.count for box in own)
            first = self.groups[own[0].key][0]
            title = [f"{count} {_plural(first)}" if count > 1 else f"1 {_singular(first)}"]
            if (ratio := ratios.get(first.nodes[0].role)) is not None:
                title.append(f"{format_ratio(ratio)} down : up")
            rows.append(PictureRow(height, tuple(title), own))
        return tuple(rows)

    def _title(self) -> tuple[str, ...]:
        end = "GPU" if self.topology.network == BACKEND else "machine"
        parts = self.topology.gpus, self.topology.servers, self.topology.links
        gpus, servers, cables = (
            f"{len(things)} {name}{'' if len(things) == 1 else 's'}"
            for name, things in zip((end, "server", "link"), parts, strict=True)
        )
        title = [f"{self.topology.name}: {gpus} in {servers}, {cables}"]
        for network in dict.fromkeys(server.scale_up for server in self.topology.servers):
            if (network.shape, network.hosts) != (SWITCH, 1):
                whose = "each server" if network.hosts == 1 else f"{network.hosts} servers each"
                title.append(f"scale-up: a {network.shape} for {whose}")
        if self.heat is not None:
            title.append(self.heat.title)
        return tuple(title)


def _side_by_side(boxes: Mapping[str, Box], lines: Sequence[PictureLine]) -> list[Box]:
    """Return ``boxes`` with each next to the one that it has a standby link to.

    A line between them would run through whatever stood in between.
    """
    twins = {line.lower: line.upper for line in lines if line.standby}
    order = [key for first in boxes for key in (first, twins.get(first, first))]
    return [boxes[key] for key in dict.fromkeys(order)]


def _first_and_last(ends: Sequence[CableEnd], shown: Callable[[CableEnd], str | None]) -> list[str]:
    """Return what is shown of the first and the last of ``ends`` of which there is something."""
    places = range(len(ends))
    first = next((place for place in places if shown(ends[place])), None)
    if first is None:
        return []
    last = next(place for place in reversed(places) if shown(ends[place]))
    return [str(shown(ends[place])) for place in dict.fromkeys((first, last))]


def _reported(heat: Heat, values: Sequence[float]) -> str:
    most = heat.shown(max(values))
    if len(values) == 1 or not max(values):
        return most
    return f"{most}, mean {number(fmean(values))}"


def _rate(links: list[Link]) -> str:
    return f"{'standby ' if _standby(links) else ''}{bundle_rate(links)}"


def _standby(links: Sequence[Link]) -> bool:
    return all(link.standby for link in links)


def _colour(numbers: Iterable[int | None]) -> str:
    """The colour of what all have in common, a rail or a pod; plain if it is nothing."""
    (number,) = found if len(found := set(numbers)) == 1 else (None,)
    return PLAIN if number is None else COLOURS[number % len(COLOURS)]


def _addresses(nodes: Sequence[Node]) -> list[str]:
    gateways = [str(bridge.gateway) for node in nodes for bridge in node.bridges if bridge.gateway]
    if gateways:
        return [span(gateways)]
    loopbacks = [str(node.loopback) for node in nodes if node.loopback]
    return [span(loopbacks)] if loopbacks else []


def _singular(part: DrawnPart) -> str:
    role = part.nodes[0].role
    return "server" if part.is_server else role if role is Role.ROUTER else f"{role} switch"


def _plural(part: DrawnPart) -> str:
    name = _singular(part)
    return f"{name}es" if name.endswith("ch") else f"{name}s"
