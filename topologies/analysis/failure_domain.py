"""Failure domains: the GPUs and the capacity lost with each kind of switch, NIC and link.

One of each kind is taken away, the first, and the fabric without it compared with the whole.  What
a GPU can send is bounded three times, the last two by a maximum flow:

- by its own ports.  One that reaches no GPU behind another NIC is **cut off**;
- by its share of what gets out of its bottom switch (or of two that its group of GPUs shares), to
  all other GPUs.  Where nothing does any more, the group is **apart**;
- by its share of what gets out of its pod.

A GPU's loss is how much lower the lowest bound is.  That is at full load, when all GPUs of the
group send out at once; a fabric with less to carry feels less.  GPUs that are cut off are no loss
to the others.  Scale-up networks are not counted, and routes are taken to have found every way
that is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from topologies.analysis.capacity import HEIGHT, Residual, saturate
from topologies.analysis.twins import twins_of
from topologies.model import Link, Node, Role, Topology

#: Kinds of GPUs that are twins, by number.
Group = frozenset[int]
_Bounds = dict[int, int | Fraction]  # bit/s of each GPU, by kind


@dataclass(frozen=True, kw_only=True)
class FailureDomain:
    """The loss when one element of ``kind`` fails, such as ``example``.

    ``cut_off`` GPUs reach nothing any more, ``apart`` none outside of their switches or pod.
    ``slower`` are the others, counted by the share of their bandwidth that they lose, above 0.
    """

    kind: str
    example: str
    cut_off: int
    apart: int
    slower: Mapping[Fraction, int]

    def reported(self) -> str:
        """``32 cut off; 224 lose 25 %``, or ``nothing``."""
        parts = [f"{self.cut_off} cut off"] if self.cut_off else []
        if self.apart:
            parts.append(f"{self.apart} apart from the rest")
        for share, count in sorted(self.slower.items(), reverse=True):
            parts.append(f"{count} lose{'s' if count == 1 else ''} {100 * float(share):.3g} %")
        return "; ".join(parts) or "nothing"

    def as_data(self) -> dict[str, object]:
        """Return the failure domain as JSON types."""
        return {
            "kind": self.kind,
            "example": self.example,
            "cut_off_gpus": self.cut_off,
            "apart_gpus": self.apart,
            "slower": [
                {"gpus": count, "lost_share": round(float(share), 6)}
                for share, count in sorted(self.slower.items(), reverse=True)
            ],
        }


def failure_domains(topology: Topology) -> list[FailureDomain]:
    """Return the failure domain of every kind of element, from the servers upwards."""
    links, nodes = _first_links(topology), _first_nodes(topology)
    ends = (end.node for link in links.values() for end in link.ends)
    kinds = _Kinds(topology, frozenset((*ends, *nodes.values())))
    fabric, levels = _Fabric(kinds), kinds.levels()
    connected = fabric.connected()
    whole = connected, *fabric.bounds(levels, connected)
    found = []
    for kind, link in links.items():
        found.append(_domain(whole, _Fabric(kinds, link=link), levels, kind, _shown(link)))
    for kind, name in nodes.items():
        found.append(_domain(whole, _Fabric(kinds, node=name), levels, kind, name))
    return found


def _domain(
    whole: tuple[Group, _Bounds, Group],
    left: _Fabric,
    levels: Sequence[Sequence[Group]],
    kind: str,
    example: str,
) -> FailureDomain:
    reached = left.connected()
    connected, before, apart_before = whole
    after, apart = left.bounds(levels, reached)
    apart -= apart_before
    losses: Counter[Fraction] = Counter()
    for gpu in reached - apart:
        if after[gpu] < before[gpu]:
            losses[1 - Fraction(after[gpu], before[gpu])] += left.sizes[gpu]
    return FailureDomain(
        kind=kind,
        example=example,
        cut_off=left.count(connected - reached),
        apart=left.count(apart),
        slower=dict(losses),
    )


class _Kinds:
    """The nodes of a fabric by kinds of twins, those ``alone`` each a kind of its own."""

    def __init__(self, topology: Topology, alone: frozenset[str]) -> None:
        self.topology = topology
        self.number: dict[str, int] = {}
        self.nodes: list[Node] = []  # the first of each kind
        self.sizes: list[int] = []
        cables = []
        for twins in twins_of(topology):
            apart = [node for node in twins.nodes if node.name in alone]
            together = [node for node in twins.nodes if node.name not in alone]
            for nodes in filter(None, (*([node] for node in apart), together)):
                self.number |= dict.fromkeys((node.name for node in nodes), len(self.nodes))
                self.nodes.append(nodes[0])
                self.sizes.append(len(nodes))
                cables.append(twins)
        #: bit/s between a node of each kind and one of each other that forwards
        self.rates: list[dict[int, int]] = []
        for twins in cables:
            row: Counter[int] = Counter()
            for name, rate in zip(twins.far, twins.rates, strict=True):
                row[self.number[name]] += rate
            self.rates.append(
                {
                    far: total // self.sizes[far]
                    for far, total in row.items()
                    if self.nodes[far].forwards
                }
            )

    def levels(self) -> list[list[Group]]:
        """Return the GPUs with the same bottom switches, then those of the same pod."""
        by_switches: dict[frozenset[str], set[int]] = {}
        by_pod: dict[int | None, set[int]] = {}
        for number in dict.fromkeys(self.number[gpu.name] for gpu in self.topology.gpus):
            gpu = self.nodes[number]
            switches = frozenset(_bottom(self.topology, gpu.name))
            by_switches.setdefault(switches, set()).add(number)
            by_pod.setdefault(gpu.pod, set()).add(number)
        return [[frozenset(group) for group in level.values()] for level in (by_switches, by_pod)]


class _Fabric:
    """A fabric, or what is left of one without ``node`` or ``link``, its parallel links as one."""

    def __init__(self, kinds: _Kinds, *, node: str | None = None, link: Link | None = None) -> None:
        self.nodes, self.sizes = kinds.nodes, kinds.sizes
        gone = None if node is None else kinds.number[node]
        rows = [
            {far: rate for far, rate in row.items() if gone not in (far, number)}
            for number, row in enumerate(kinds.rates)
        ]
        if link is not None and not link.standby:
            a, b = (kinds.number[end.node] for end in link.ends)
            for near, far in ((a, b), (b, a)):
                if far in rows[near]:
                    rows[near][far] -= link.rate_bps
                    if not rows[near][far]:
                        del rows[near][far]
        gpus = {kinds.number[gpu.name] for gpu in kinds.topology.gpus}
        self.inner = {n: row for n, row in enumerate(rows) if self.nodes[n].forwards}
        self.ports = {gpu: rows[gpu] for gpu in gpus}
        self.colours = self._refined()

    def count(self, gpus: Iterable[int]) -> int:
        """Return how many GPUs are of the kinds ``gpus``."""
        return sum(self.sizes[gpu] for gpu in gpus)

    def connected(self) -> Group:
        """Return the GPUs that reach one behind another NIC, by forwarding nodes."""
        # networkx 3.6 (connected_components) takes 1.2 to 4.7 times as long on eight designs.
        behind: dict[int, set[int]] = {name: set() for name in self.inner}
        for gpu, ports in self.ports.items():
            for name in ports:
                behind[name].add(gpu)
        found: set[int] = set()
        seen: set[int] = set()
        for start in self.inner:
            if start in seen:
                continue
            front, part = [start], {start}
            while front:
                for far in self.inner[front.pop()]:
                    if far not in part:
                        part.add(far)
                        front.append(far)
            seen |= part
            gpus = set().union(*(behind[name] for name in part))
            if self._nics(gpus) > 1:
                found |= gpus
        return frozenset(found)

    def _nics(self, gpus: Iterable[int]) -> int:
        """Return how many NICs the ``gpus`` have: shared ones, or each its own."""
        shared, own = set(), 0
        for gpu in gpus:
            nics = [name for name in self.ports[gpu] if self.nodes[name].role is Role.NIC]
            shared |= set(nics[:1])
            own += 0 if nics else self.sizes[gpu]
        return len(shared) + own

    def bounds(self, levels: Sequence[Sequence[Group]], among: Group) -> tuple[_Bounds, Group]:
        """Return what each GPU of ``among`` can send (bit/s) to the others, and which are apart."""
        sizes = self.sizes
        bound: _Bounds = {
            gpu: sum(sizes[far] * rate for far, rate in self.ports[gpu].items()) for gpu in among
        }
        apart: set[int] = set()
        for groups in levels:
            narrowed = dict(bound)
            total = sum(sizes[gpu] * rate for gpu, rate in bound.items())
            known: dict[object, int] = {}  # groups that look alike get out alike
            for group in groups:
                inside = group & among
                if not inside or len(inside) == len(among):
                    continue
                alike = self._look(inside)
                if alike not in known:
                    known[alike] = self._flow(inside, among - group)
                flow, offered = known[alike], sum(sizes[gpu] * bound[gpu] for gpu in inside)
                if not flow:
                    apart |= inside
                elif flow < (most := min(offered, total - offered)):
                    lowered = Fraction(flow, most)
                    for gpu in inside:
                        narrowed[gpu] = bound[gpu] * lowered
            bound = narrowed
        return bound, frozenset(apart)

    def _flow(self, inside: Group, outside: Group) -> int:
        sizes = self.sizes
        residual: Residual = {
            name: {far: sizes[name] * sizes[far] * rate for far, rate in row.items()}
            for name, row in self.inner.items()
        }
        source, sink = object(), object()
        residual[source], residual[sink] = {}, {}
        for end, gpus in ((source, inside), (sink, outside)):
            for gpu in gpus:
                for name, rate in self.ports[gpu].items():
                    for x, y in ((end, name), (name, end)):
                        row = residual[x]
                        row[y] = row.get(y, 0) + sizes[gpu] * sizes[name] * rate
        return saturate(residual, source, sink)

    def _refined(self) -> dict[object, int]:
        """Return a number for each forwarding node, equal for those alike in all counts of cables.

        This is the coarsest stable partition.
        """
        # networkx 3.6 (Weisfeiler-Lehman hashes) takes 2.5 to 13 times as long on eight designs.
        attached: dict[int, Counter[int]] = {name: Counter() for name in self.inner}
        for gpu, ports in self.ports.items():
            for name, rate in ports.items():
                attached[name][rate] += self.sizes[gpu]
        looks: dict[object, object] = {
            name: (self.nodes[name].role, tuple(sorted(attached[name].items())))
            for name in self.inner
        }
        colours = _numbered(looks)
        while True:
            looks = {
                name: (colours[name], self._around(row, colours))
                for name, row in self.inner.items()
            }
            finer = _numbered(looks)
            if max(finer.values(), default=0) == max(colours.values(), default=0):
                return colours
            colours = finer

    def _around(self, row: Mapping[int, int], colours: Mapping[object, int]) -> object:
        """Return how many nodes of each colour have which rate in ``row``."""
        seen: Counter[tuple[int, int]] = Counter()
        for far, rate in row.items():
            seen[colours[far], rate] += self.sizes[far]
        return frozenset(seen.items())

    def _look(self, group: Group) -> object:
        seen: Counter[object] = Counter()
        for gpu in group:
            seen[self._around(self.ports[gpu], self.colours)] += self.sizes[gpu]
        return frozenset(seen.items())


def _numbered(looks: Mapping[object, object]) -> dict[object, int]:
    numbers: dict[object, int] = {}
    return {name: numbers.setdefault(look, len(numbers)) for name, look in looks.items()}


def _bottom(topology: Topology, name: str) -> Iterator[str]:
    """The switches behind the ports of a GPU, beyond its NIC if that is shared."""
    for _, _, far in topology.neighbours(name):
        node = topology.node(far.node)
        if node.is_switch:
            yield node.name
        elif node.forwards:
            around = (theirs.node for _, _, theirs in topology.neighbours(node.name))
            yield from (name for name in around if topology.node(name).is_switch)


def _first_links(topology: Topology) -> dict[str, Link]:
    """Return the first link between each two roles, lowest first.

    Those that join two pods are apart, as only the groups of a dragonfly are joined.
    """
    places: dict[tuple[Role, int | None], int] = {}
    place = {
        node.name: places.setdefault((node.role, node.pod), len(places)) for node in topology.nodes
    }
    first: dict[tuple[int, int], Link] = {}
    for link in topology.links:
        first.setdefault((place[link.a.node], place[link.b.node]), link)
    found: dict[tuple[tuple[Role, ...], bool], Link] = {}
    for link in first.values():
        ends = [topology.node(end.node) for end in link.ends]
        pods = {node.pod for node in ends} - {None}
        found.setdefault((_by_height(node.role for node in ends), len(pods) > 1), link)
    ordered = sorted(found, key=lambda kind: ([HEIGHT[role] for role in kind[0]], kind[1]))
    return {
        f"link {' - '.join(roles)}{', between groups' if joins else ''}": found[roles, joins]
        for roles, joins in ordered
    }


def _first_nodes(topology: Topology) -> dict[str, str]:
    """The first node of each role through which others' frames pass, lowest first."""
    found: dict[Role, str] = {}
    for node in topology.nodes:
        if node.forwards:
            found.setdefault(node.role, node.name)
    names = {Role.NIC: "shared NIC", Role.ROUTER: "router"}
    return {names.get(role, f"{role} switch"): found[role] for role in _by_height(found)}


def _by_height(roles: Iterable[Role]) -> tuple[Role, ...]:
    return tuple(sorted(roles, key=HEIGHT.__getitem__))


def _shown(link: Link) -> str:
    return f"{link.a} - {link.b}"
